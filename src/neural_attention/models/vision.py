"""A vision transformer with any attention of this library, as a transformers model.

Importing this module registers ``model_type`` ``"neural_attention_vision"`` with ``AutoConfig`` and
``AutoModelForImageClassification``.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

try:
    from transformers import AutoConfig, AutoModelForImageClassification
    from transformers.modeling_outputs import ImageClassifierOutput
except ImportError as error:
    raise ImportError(
        'the vision model needs transformers 5: pip install "neural-attention[compare]"'
    ) from error

from neural_attention.models.block import TransformerBlock, sinusoidal_positions
from neural_attention.models.self_starting import SelfStartingModel, choose
from neural_attention.models.vision_config import NeuralAttentionVisionConfig

__all__ = ["NeuralAttentionForImageClassification", "NeuralAttentionVisionConfig"]

# Of the class token and learned positions, as in ViT.
_SMALL = 0.02


class NeuralAttentionForImageClassification(SelfStartingModel):
    """A vision transformer in which layers of your choice have a neural attention score.

    An image is cut into patches, each a token; the class is read from a class token in front of
    them. Works with ``save_pretrained`` and ``from_pretrained``,
    ``AutoModelForImageClassification`` (once this module is imported) and ``Trainer``.

    Args:
        config: a :class:`NeuralAttentionVisionConfig`.

    Source:
        ViT: Dosovitskiy et al. 2020, arXiv 2010.11929, section 3.1. DiGiugno & Mahmood 2025, arXiv
        2502.17206 (architecture ``"paper"``).

    >>> config = NeuralAttentionVisionConfig(attention={"score": "neural"}, num_labels=10)
    >>> model = NeuralAttentionForImageClassification(config)
    >>> model(pixel_values=torch.randn(2, 3, 32, 32)).logits.shape
    torch.Size([2, 10])
    """

    config_class = NeuralAttentionVisionConfig
    base_model_prefix = ""
    main_input_name = "pixel_values"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TransformerBlock"]

    def __init__(self, config: NeuralAttentionVisionConfig) -> None:
        super().__init__(config)
        width, is_paper = config.hidden_size, config.architecture == "paper"
        # As in the paper's language model.
        self.scale = math.sqrt(width) if is_paper else 1.0
        patch = config.patch_size
        self.patches = nn.Conv2d(config.num_channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        tokens = 1 + math.prod(config.grid)
        self.positions = None if is_paper else nn.Parameter(torch.empty(1, tokens, width))
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.norm = nn.LayerNorm(width) if is_paper else nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, config.num_labels)
        self.gradient_checkpointing = False
        self._start()
        self.finish()

    def _start(self) -> None:
        """Starting values of what stands around the blocks; those set their own."""
        # Patches of unit pixels become tokens of unit size.
        values = self.config.num_channels * self.config.patch_size**2
        nn.init.normal_(self.patches.weight, std=values**-0.5 / self.scale)
        assert self.patches.bias is not None
        nn.init.zeros_(self.patches.bias)
        nn.init.normal_(self.class_token, std=_SMALL)
        if self.positions is not None:
            nn.init.normal_(self.positions, std=_SMALL)
        nn.init.normal_(self.head.weight, std=self.config.hidden_size**-0.5)
        nn.init.zeros_(self.head.bias)

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> ImageClassifierOutput | tuple[Any, ...]:
        """Logits of the classes, and the loss when there are labels.

        Args:
            pixel_values: images, ``(B, num_channels, image_size, image_size)``, about −1 to 1.
            labels: classes, ``(B,)`` int64.
            output_attentions: also the attention map of each layer, ``(B, H, L, L)`` with the class
                token first, computed beside it.
            output_hidden_states: also the tokens before the first and behind each block.
            return_dict: ``False`` for a tuple.

        Raises:
            ValueError: images of another shape.
        """
        config = self.config
        expected = (config.num_channels, config.image_size, config.image_size)
        if tuple(pixel_values.shape[1:]) != expected:
            raise ValueError(
                f"pixel_values has shape {tuple(pixel_values.shape)}: expected (batch, "
                f"{', '.join(map(str, expected))})."
            )
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.to(x.dtype).expand(len(x), -1, -1), x], dim=1) * self.scale
        x = x + self._positions(x).to(x.dtype)
        x = self.dropout(x)

        want_maps = choose(output_attentions, config, "output_attentions")
        want_states = choose(output_hidden_states, config, "output_hidden_states")
        states, maps = [x], []
        for block in self.blocks:
            if want_maps:
                maps.append(cast(Any, block).attention_weights(x))
            x = block(x)
            states.append(x)
        x = self.norm(x)
        states[-1] = x
        logits = self.head(x[:, 0])
        loss = None if labels is None else nn.functional.cross_entropy(logits.float(), labels)
        output = ImageClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=tuple(states) if want_states else None,
            attentions=tuple(maps) if want_maps else None,
        )
        as_tuple = choose(return_dict, config, "return_dict") is False
        return output.to_tuple() if as_tuple else output

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """Save model and configuration, and how ``AutoImageProcessor`` makes an image their input.

        Args:
            save_directory: a folder; made if it is not there.
            **kwargs: as for every model of transformers.
        """
        super().save_pretrained(save_directory, **kwargs)
        side = self.config.image_size
        middle = [0.5] * self.config.num_channels
        processor = {
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": side, "width": side},
            "image_mean": middle,
            "image_std": middle,
        }
        Path(save_directory, "preprocessor_config.json").write_text(json.dumps(processor, indent=1))

    def _positions(self, x: Tensor) -> Tensor:
        if self.positions is not None:
            return self.positions
        return sinusoidal_positions(torch.arange(x.shape[1], device=x.device), x.shape[2])


AutoConfig.register(
    NeuralAttentionVisionConfig.model_type, NeuralAttentionVisionConfig, exist_ok=True
)
AutoModelForImageClassification.register(
    NeuralAttentionVisionConfig, NeuralAttentionForImageClassification, exist_ok=True
)
