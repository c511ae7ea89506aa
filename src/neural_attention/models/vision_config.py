"""The configuration of the vision model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neural_attention import validation
from neural_attention.models.attention_config import AttentionConfig


class NeuralAttentionVisionConfig(AttentionConfig):
    r"""Configuration of :class:`NeuralAttentionForImageClassification`.

    Args:
        architecture: ``"current"``: pre-norm, RMSNorm, SwiGLU, no biases in attention, learned
            positions added to the patches of every arm, and two-dimensional positions in the
            attention layers. ``"paper"``: the vision transformer of DiGiugno & Mahmood: post-norm,
            ReLU, sinusoidal positions added once to the scaled patches, LayerNorm before the head.
        image_size: height and width of an image.
        patch_size: height and width of a patch, a divisor of ``image_size``.
        num_channels: 3 for colour, 1 for grey.
        hidden_size: width of the model.
        intermediate_size: width of the feed-forward layers.
        num_hidden_layers: number of blocks.
        num_attention_heads: heads; they divide ``hidden_size`` unless ``head_dim`` is given.
        num_key_value_heads: heads of keys and values; ``None`` for as many as query heads.
        head_dim: width of a head; ``None`` for ``hidden_size // num_attention_heads``.
        attention: keywords of :class:`neural_attention.NeuralAttention` for the layers named by
            ``attention_layers``, such as ``{"score": "neural", "positions": "slopes"}``; their grid
            is that of the patches.
        attention_layers: ``"all"``, ``"first"`` or a list of layer numbers. The other layers are
            dot products: with rotary positions in the current model, without positions of their own
            in the paper's.
        dropout: probability behind the patches and behind each sublayer; ``None`` for 0.0
            (current) and 0.1 (paper).
        **kwargs: of every configuration of transformers, ``num_labels`` among them.

    Raises:
        ValueError: an unknown architecture, a layer that is not there, patches that do not divide
            the image, heads that do not divide the width, or an attention that
            :class:`neural_attention.NeuralAttention` refuses.
        TypeError: a value of another type.

    >>> NeuralAttentionVisionConfig(image_size=32, patch_size=4, num_labels=10).grid
    (8, 8)
    """

    model_type = "neural_attention_vision"

    def __init__(
        self,
        architecture: str = "current",
        image_size: int = 32,
        patch_size: int = 4,
        num_channels: int = 3,
        hidden_size: int = 128,
        intermediate_size: int = 344,
        num_hidden_layers: int = 4,
        num_attention_heads: int = 4,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        attention: dict[str, Any] | None = None,
        attention_layers: str | Sequence[int] = "all",
        dropout: float | None = None,
        **kwargs: Any,
    ) -> None:
        for name, size in {
            "image_size": image_size,
            "patch_size": patch_size,
            "num_channels": num_channels,
        }.items():
            validation.check_size(name, size)
        if image_size % patch_size:
            raise ValueError(
                f"image_size {image_size} is not a multiple of patch_size {patch_size}: change one "
                "of them."
            )
        self.image_size, self.patch_size, self.num_channels = image_size, patch_size, num_channels
        super().__init__(
            architecture=architecture,
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            num_hidden_layers=num_hidden_layers,
            num_attention_heads=num_attention_heads,
            num_key_value_heads=num_key_value_heads,
            head_dim=head_dim,
            attention=attention,
            attention_layers=attention_layers,
            dropout=dropout,
            **kwargs,
        )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        side = self.image_size // self.patch_size
        return side, side

    def attention_of_layer(self, layer: int) -> dict[str, Any]:
        """All keywords of the :class:`neural_attention.NeuralAttention` of a layer."""
        keywords = super().attention_of_layer(layer)
        return keywords if keywords.get("positions") == "none" else {**keywords, "grid": self.grid}
