"""The block that the models are made of, and sinusoidal positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from neural_attention.attention import NeuralAttention
from neural_attention.models.attention_config import AttentionConfig


class _SwiGLU(nn.Module):
    """Gated feed-forward layer W_down(silu(W_gate x) · W_up x) (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class TransformerBlock(GradientCheckpointingLayer):  # type: ignore[misc]
    """Attention and feed-forward with residual connections, normalised before or after."""

    def __init__(self, config: AttentionConfig, layer: int) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.is_post_norm = config.architecture == "paper"
        self.attention = NeuralAttention(
            width, config.num_attention_heads, **config.attention_of_layer(layer)
        )
        if self.is_post_norm:
            self.feed_forward: nn.Module = nn.Sequential(
                nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)
            )
            self.attention_norm: nn.Module = nn.LayerNorm(width)
            self.feed_forward_norm: nn.Module = nn.LayerNorm(width)
        else:
            self.feed_forward = _SwiGLU(width, inner)
            self.attention_norm = nn.RMSNorm(width, eps=1e-6)
            self.feed_forward_norm = nn.RMSNorm(width, eps=1e-6)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, **attention: Any) -> Tensor:
        """(B, L, width) to the same; keywords go to the attention layer."""
        if self.is_post_norm:
            x = self.attention_norm(x + self.dropout(self.attention(x, **attention)))
            return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        x = x + self.dropout(self.attention(self.attention_norm(x), **attention))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))

    def attention_weights(self, x: Tensor, **attention: Any) -> Tensor:
        """The attention map of this block for its input, (B, H, Lq, Lk)."""
        inner = x if self.is_post_norm else self.attention_norm(x)
        return self.attention.attention_weights(inner, **attention)


def sinusoidal_positions(positions: Tensor, width: int) -> Tensor:
    r"""Sines and cosines of positions, ``(..., width)`` in float32.

    .. math:: p_{2i} = \sin(t / 10000^{2i/d}), \qquad p_{2i+1} = \cos(t / 10000^{2i/d})

    Source:
        Vaswani et al. 2017, arXiv 1706.03762, section 3.5.

    >>> sinusoidal_positions(torch.tensor([0]), 4)
    tensor([[0., 1., 0., 1.]])
    """
    pairs = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float()[..., None] * torch.exp(pairs * (-math.log(10000.0) / width))
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., :width]
