"""One attention call as the kernels receive it: pointers, strides, sizes and compile-time choices.

A :class:`Call` is one argument of a kernel: Triton takes a named tuple apart, compiles None away
and specialises on ``tl.constexpr`` members.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..problem import Problem
from . import interprets

# Distances and offsets beyond this are the same as none: sums of three fit into 32 bits.
_FAR = 2**29
_DEFAULT_LEAK = 0.01
# tl.dot wants at least this of every side.
SMALLEST_SIDE = 16

# One layer up to this width is unrolled, and its gradients lie in registers together.
UNROLLED = tl.constexpr(8)
# Two layers up to these widths are scalar arithmetic on register tiles; wider ones use tl.dot.
_NARROW_CHANNELS, _NARROW_SECOND = 4, 8


class Call(NamedTuple):
    """What every kernel gets. Strides are (batch, head, then the two last dimensions)."""

    a: Any  # (B, H, C, Lq): a row of queries for each channel
    a_strides: Any
    b: Any  # (B, Hkv, C, Lk), likewise
    b_strides: Any
    v: Any
    v_strides: Any
    q: Any
    q_strides: Any
    k: Any
    k_strides: Any
    # Per head, float32, contiguous.
    output_weight: Any
    hidden_weight: Any
    hidden_bias: Any
    slopes: Any
    alibi: Any
    mask: Any  # expanded to (B, H, Lq, Lk)
    mask_strides: Any
    offsets: Any
    key_lengths: Any
    first_key: Any  # (Lq,): bounds of the document that holds a position
    last_key: Any
    seed: Any
    batch: Any
    heads: Any
    key_heads: Any
    queries: Any
    keys: Any
    offset: Any
    left: Any  # None where open
    right: Any
    scale: Any
    leak: Any
    dropped_below: Any  # a random word below this drops its weight
    kept_scale: Any  # 1 / (1 - dropout_p)
    zero: Any  # 0.0, which the compiler does not know
    # tl.constexpr from here on.
    channels: Any
    second: Any  # width of the second hidden layer; 0: none
    is_wide: Any  # whether the second hidden layer uses tl.dot
    needs_layout: Any  # whether nothing but a product with zeros would fix the scores' layout
    channel_chunk: Any  # channels whose gradients one program computes
    second_block: Any
    parameters: Any  # numbers in one row of the parameters' gradients
    dot_width: Any
    dot_block: Any
    value_width: Any
    value_block: Any
    activation: Any
    mask_is_additive: Any
    unit: Any  # what scores are multiplied by on their way to exp2
    precision: Any  # of products of float32 numbers: ieee or tf32


def build(problem: Problem, copies_features: bool = True) -> Call:
    """The call of a problem whose tensors are not empty.

    Copied features lie as the kernels read them, rows of float32 for each channel, which costs
    little where each is read many times.
    """
    p, masks = problem, problem.masks
    batch, heads, key_heads, queries, keys = p.sizes
    channels = p.a.shape[-1]
    second = 0 if p.hidden_weight is None else p.hidden_weight.shape[1]
    wide = second > 0 and (channels > _NARROW_CHANNELS or second > _NARROW_SECOND)
    dot_width, value_width = 0 if p.q is None else p.q.shape[-1], p.v.shape[-1]
    kind, _, slope = p.activation.partition(":")
    left, right = masks.window
    if masks.is_causal:
        right = 0 if right is None else min(right, 0)

    def rows_of_channels(tensor: Tensor) -> Tensor | None:
        if not channels:
            return None
        rows = tensor.transpose(2, 3)
        return rows.float().contiguous() if copies_features else rows

    def per_head(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or not tensor.numel():
            return None
        return tensor.expand(heads, *tensor.shape[1:]).float().contiguous()

    a, b = rows_of_channels(p.a), rows_of_channels(p.b)
    mask = masks.attn_mask
    additive = mask is not None and mask.dtype != torch.bool
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = mask.view(torch.uint8)
        elif mask.dtype == torch.float64:
            mask = mask.float()
        mask = mask.expand(batch, heads, queries, keys)
    first_key, last_key = _document_bounds(masks.cu_seqlens, queries)
    chunk = SMALLEST_SIDE if wide else min(channels, UNROLLED.value)
    return Call(
        a,
        _strides(a),
        b,
        _strides(b),
        p.v,
        _strides(p.v),
        p.q,
        _strides(p.q),
        p.k,
        _strides(p.k),
        per_head(p.output_weight),
        per_head(p.hidden_weight),
        per_head(p.hidden_bias),
        per_head(p.slopes),
        per_head(p.alibi),
        mask,
        _strides(mask),
        masks.offsets,
        masks.key_lengths,
        first_key,
        last_key,
        p.seed if p.dropout_p else None,
        batch,
        heads,
        key_heads,
        queries,
        keys,
        max(-_FAR, min(masks.offset, _FAR)),
        None if left is None else min(left, _FAR),
        None if right is None else min(right, _FAR),
        float(p.scale),
        (float(slope) if slope else _DEFAULT_LEAK) if kind == "leaky_relu" else 0.0,
        int(p.dropout_p * 2**32),
        1 / (1 - p.dropout_p),
        0.0,
        tl.constexpr(channels),
        tl.constexpr(second),
        tl.constexpr(wide),
        tl.constexpr(p.q is None and not wide and p.v.dtype != torch.float32 and not interprets()),
        tl.constexpr(chunk),
        tl.constexpr(_block(second)),
        tl.constexpr(sum(parameter_widths(channels, second))),
        tl.constexpr(dot_width),
        tl.constexpr(_block(dot_width)),
        tl.constexpr(value_width),
        tl.constexpr(_block(value_width)),
        tl.constexpr(kind),
        tl.constexpr(additive),
        tl.constexpr(1.0 if p.v.dtype == torch.float32 else math.log2(math.e)),
        tl.constexpr(_precision()),
    )


def parameter_widths(channels: int, second: int) -> tuple[int, int, int, int, int]:
    """A row of gradients: output weight, hidden bias, hidden weight, slopes, alibi."""
    return second or channels, second, second * channels, channels, 1


def chunks(call: Call) -> int:
    """How many programs share the channels of one tile's gradients."""
    return triton.cdiv(call.channels.value, max(call.channel_chunk.value, 1)) or 1


def _document_bounds(cu_seqlens: Tensor | None, length: int) -> tuple[Tensor | None, Tensor | None]:
    """First and one-past-last key of each position's document, without waiting for the device."""
    if cu_seqlens is None:
        return None, None
    bounds = cu_seqlens.to(torch.int32)
    positions = torch.arange(length, device=bounds.device, dtype=torch.int32)
    # With empty documents a bound repeats: the last of the equal ones owns the position.
    after = torch.searchsorted(bounds, positions, right=True).clamp_(1, bounds.shape[0] - 1)
    return bounds[after - 1], bounds[after]


def _precision() -> str:
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _block(width: int) -> int:
    return max(triton.next_power_of_2(max(width, 1)), SMALLEST_SIDE)


def _strides(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tensor.stride()
