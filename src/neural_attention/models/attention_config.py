"""What the configurations of the models share: the sizes, and which layers have which attention."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

try:
    from transformers import PretrainedConfig
except ImportError as error:
    raise ImportError(
        'the models need transformers 5: pip install "neural-attention[compare]"'
    ) from error

from neural_attention import validation
from neural_attention.attention import NeuralAttention

ARCHITECTURES = ("current", "paper")

# What a model hands to its layers itself.
_OF_THE_MODEL = {"embed_dim", "num_heads", "grid", "device", "dtype"}
_ATTENTION_KEYWORDS = [
    name for name in inspect.signature(NeuralAttention).parameters if name not in _OF_THE_MODEL
]


class AttentionConfig(PretrainedConfig):  # type: ignore[misc]
    """Sizes of a model and the attention of its layers; the models' own document them."""

    def __init__(
        self,
        *,
        architecture: str,
        hidden_size: int,
        intermediate_size: int,
        num_hidden_layers: int,
        num_attention_heads: int,
        num_key_value_heads: int | None,
        head_dim: int | None,
        attention: dict[str, Any] | None,
        attention_layers: str | Sequence[int],
        dropout: float | None,
        **kwargs: Any,
    ) -> None:
        if architecture not in ARCHITECTURES:
            raise ValueError(
                f"architecture is {architecture!r}: it must be one of {', '.join(ARCHITECTURES)}."
            )
        for name, size in {
            "hidden_size": hidden_size,
            "intermediate_size": intermediate_size,
            "num_hidden_layers": num_hidden_layers,
            "num_attention_heads": num_attention_heads,
        }.items():
            validation.check_size(name, size)
        if dropout is not None:
            validation.check_probability("dropout", dropout)
        self.architecture = architecture
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        if attention is not None and not isinstance(attention, Mapping):
            raise TypeError(
                f"attention is {attention!r}: expected a dict of keywords of NeuralAttention, such "
                'as {"score": "neural"}.'
            )
        self.attention = dict(attention) if attention is not None else {"score": "dot"}
        if not isinstance(attention_layers, (str, Sequence)):
            raise TypeError(
                f"attention_layers is {attention_layers!r}: expected 'all', 'first' or a list of "
                "layer numbers."
            )
        self.attention_layers = (
            attention_layers if isinstance(attention_layers, str) else list(attention_layers)
        )
        self.dropout = (0.1 if architecture == "paper" else 0.0) if dropout is None else dropout
        if head_dim is None and hidden_size % num_attention_heads:
            raise ValueError(
                f"hidden_size {hidden_size} is not a multiple of num_attention_heads "
                f"{num_attention_heads}: change one of them or give head_dim."
            )
        self._check_attention()
        super().__init__(**kwargs)

    @property
    def arm_layers(self) -> tuple[int, ...]:
        """Numbers of the layers with the attention of ``attention``."""
        named = {"all": range(self.num_hidden_layers), "first": range(1)}
        layers = self.attention_layers
        if isinstance(layers, str):
            if layers not in named:
                raise ValueError(
                    f"attention_layers is {layers!r}: 'all', 'first' or a list is needed."
                )
            return tuple(named[layers])
        for layer in layers:
            if isinstance(layer, bool) or not isinstance(layer, int):
                raise TypeError(f"attention_layers has {layer!r}: expected numbers of layers.")
        outside = [layer for layer in layers if not 0 <= layer < self.num_hidden_layers]
        if outside:
            raise ValueError(
                f"attention_layers names {outside} and the model has layers 0 to "
                f"{self.num_hidden_layers - 1}."
            )
        return tuple(sorted(set(layers)))

    def attention_of_layer(self, layer: int) -> dict[str, Any]:
        """All keywords of the :class:`neural_attention.NeuralAttention` of a layer."""
        no_positions = self.architecture == "paper"
        keywords = dict(self.attention if layer in self.arm_layers else {"score": "dot"})
        if no_positions:
            keywords.setdefault("positions", "none")
        return {
            "num_kv_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "bias": False,
            **keywords,
        }

    def _check_attention(self) -> None:
        """Build each kind of attention layer once, without its weights: it knows what it takes."""
        unknown = sorted(map(str, self.attention.keys() - set(_ATTENTION_KEYWORDS)))
        if unknown:
            raise ValueError(
                f"attention has {', '.join(unknown)}: expected keywords of NeuralAttention, "
                f"{', '.join(_ATTENTION_KEYWORDS)}."
            )
        arms = self.arm_layers
        others = [layer for layer in range(self.num_hidden_layers) if layer not in arms]
        with warnings.catch_warnings(), torch.device("meta"):
            # The model warns, when it is built.
            warnings.simplefilter("ignore")
            for layer in (*arms[:1], *others[:1]):
                NeuralAttention(
                    self.hidden_size, self.num_attention_heads, **self.attention_of_layer(layer)
                )
