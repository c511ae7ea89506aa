"""What the models share: their constructors give every starting value."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel


class SelfStartingModel(PreTrainedModel):  # type: ignore[misc]
    """A transformers model that is complete when its constructor ends with :meth:`finish`."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__(config)
        self._is_built = False

    def finish(self) -> None:
        """Have transformers do the rest, which leaves the starting values as they are."""
        self.post_init()
        self._is_built = True

    def initialize_weights(self) -> None:
        """Fill what a checkpoint lacks with the starting values of a new model.

        transformers calls this for new models, which are complete when their constructor ends, and
        after loading.
        """
        if not self._is_built:
            return
        named = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        missing = {
            name: tensor
            for name, tensor in named.items()
            if not getattr(tensor, "_is_hf_initialized", False)
        }
        if not missing:
            return
        with torch.device("cpu"):
            fresh = type(self)(self.config)
        source = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
        with torch.no_grad():
            for name, tensor in missing.items():
                tensor.copy_(source[name])


def choose(value: bool | None, config: PretrainedConfig, name: str) -> Any:
    """An argument of a model's forward, or the configuration's where it is None."""
    return getattr(config, name, None) if value is None else value
