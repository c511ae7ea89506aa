"""Loading tiles and scoring them."""

from __future__ import annotations

import triton
import triton.language as tl

from .masks import mask_addend, relative_positions
from .network import network_scores
from .product import product


@triton.jit
def tensor_base(pointer, strides, batch, head):
    """Where a head's entries start; ``head`` may be a column of heads."""
    return pointer + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]


@triton.jit
def channel_side(pointer, strides, batch, head, start, n, limit):
    """The channels of positions ``start + n`` as a side of the score network.

    The start is added to the scalar part of the address, so that the rest is constant.
    """
    pointer = tensor_base(pointer, strides, batch, head)
    pointer += tl.cast(start, tl.int64) * strides[3]
    return pointer + n.to(tl.int64) * strides[3], strides[2], start + n < limit


@triton.jit
def load_vectors(pointer, strides, batch, head, start, n, d, limit, width: tl.constexpr):
    """Entries ``d`` of the vectors at positions ``start + n``; 0 where there is none."""
    pointer = tensor_base(pointer, strides, batch, head)
    pointer += tl.cast(start, tl.int64) * strides[2]
    pointers = pointer + n.to(tl.int64) * strides[2] + d.to(tl.int64) * strides[3]
    return tl.load(pointers, mask=(start + n < limit) & (d < width), other=0.0)


@triton.jit
def finite(tile):
    """Which entries are neither infinite nor NaN."""
    return tl.abs(tile.to(tl.float32)) < float("inf")


@triton.jit
def without_infinities(tile):
    """A tile that masked weights of 0 can be multiplied with."""
    return tl.where(finite(tile), tile, tl.zeros_like(tile))


@triton.jit
def tile_scores(
    x, y, left, right, i, j, anchor, batch, head, visible, call, MASKED: tl.constexpr,
    STRICT: tl.constexpr,
):  # fmt: skip
    """Scores · unit of a tile before masking, its ``j − p`` and the wide layer's input.

    ``x``, ``y`` are the sides of the network, ``left @ right`` the dot product. STRICT keeps what
    masked pairs hold out of the network, whose gradients multiply it.
    """
    relative = relative_positions(i, j, anchor, batch, call)
    scores = tl.zeros(visible.shape, tl.float32)
    if call.dot_width > 0:
        scores = product(left, right, scores, call) * (call.scale * call.unit)
    elif call.needs_layout:
        # A product with zeros. It makes the compiler keep scores as the matrix units want them, so
        # that weights meet the values without a detour through shared memory and registers suffice.
        zeros_left = tl.zeros((visible.shape[0], 16), call.v.dtype.element_ty)
        zeros_right = tl.zeros((16, visible.shape[1]), call.v.dtype.element_ty)
        scores = product(zeros_left, zeros_right, scores, call)
    mixed = 0
    if call.channels > 0:
        network, mixed = network_scores(x, y, relative, visible, head, call, STRICT)
        scores += network
    if call.alibi is not None:
        scores += tl.load(call.alibi + head) * call.unit * relative
    if call.mask_is_additive:
        scores += mask_addend(i, j, batch, head, visible, call) * call.unit
    if MASKED:
        scores = tl.where(visible, scores, -float("inf"))
    return scores, relative, mixed
