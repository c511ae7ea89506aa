"""Merging adjacent linear maps of a layer for inference."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .headwise import HeadwiseLinear
from .projection import HalfResidualProjection, ResidualProjection

if TYPE_CHECKING:
    from .attention import NeuralAttention


@torch.no_grad()
def fold_layer(layer: NeuralAttention) -> NeuralAttention:
    """A folded copy of a layer; see :meth:`NeuralAttention.fold`.

    Raises:
        ValueError: nothing folds.
    """
    network = layer.score_network
    if network is None:
        raise ValueError("score='dot' has no score network to fold into its projections.")
    if network.query is None or network.key is None:
        raise ValueError("this layer is folded already.")
    folded = copy.deepcopy(layer)
    has_bottleneck = network.bottleneck is not None
    if has_bottleneck:
        folded.score_network = network.fold()
    reasons = []
    if layer.score == "hybrid":
        reasons.append("the dot product of the hybrid score needs the queries and keys themselves")
    if layer.positions == "rotary":
        reasons.append("rotary positions turn queries and keys before the network")
    if not reasons:
        merged = folded.score_network
        assert merged is not None
        for side, heads in (("q", layer.num_heads), ("k", layer.num_kv_heads)):
            first = merged.query if side == "q" else merged.key
            assert first is not None
            projection = getattr(folded, f"{side}_proj")
            if isinstance(projection, HalfResidualProjection):
                reasons.append(f"the {side} projection ends in a norm")
                continue
            setattr(folded, f"{side}_proj", _append(projection, first, heads))
            setattr(merged, "query" if side == "q" else "key", None)
        if merged.query is None or merged.key is None:
            return folded
    if not has_bottleneck:
        raise ValueError(f"nothing folds: {', and '.join(reasons)}.")
    return folded


def _append(projection: nn.Module, last: HeadwiseLinear, heads: int) -> nn.Module:
    """The projection followed by a linear map for each head, as one module."""
    if isinstance(projection, ResidualProjection):
        # last(W x + f(x)): its bias is needed once.
        projection.linear = _append_to_linear(projection.linear, last, heads, with_bias=True)
        final = projection.network[-1]
        assert isinstance(final, nn.Linear)
        projection.network[-1] = _append_to_linear(final, last, heads, with_bias=False)
        return projection
    if isinstance(projection, nn.Sequential):
        final = projection[-1]
        assert isinstance(final, nn.Linear)
        projection[-1] = _append_to_linear(final, last, heads, with_bias=True)
        return projection
    assert isinstance(projection, nn.Linear)
    return _append_to_linear(projection, last, heads, with_bias=True)


def _append_to_linear(
    linear: nn.Linear, last: HeadwiseLinear, heads: int, *, with_bias: bool
) -> nn.Linear:
    outer = last.weight.double()
    head_dim = outer.shape[2]
    weight = outer @ linear.weight.double().view(heads, head_dim, -1)
    bias: Tensor = weight.new_zeros(weight.shape[:2])
    if linear.bias is not None:
        bias = bias + (outer @ linear.bias.double().view(heads, head_dim, 1))[..., 0]
    if with_bias and last.bias is not None:
        bias = bias + last.bias.double()
    out_features = weight.shape[0] * weight.shape[1]
    merged = nn.Linear(linear.in_features, out_features, device="meta", dtype=linear.weight.dtype)
    merged.weight = nn.Parameter(weight.flatten(0, 1).to(linear.weight.dtype))
    merged.bias = nn.Parameter(bias.flatten().to(linear.weight.dtype))
    return merged
