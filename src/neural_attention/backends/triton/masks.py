"""Which pairs of a tile see each other, which tiles hold such pairs, and dropout.

Queries ``i`` and keys ``j`` come shaped for their side of the tile, as ``[rows, 1]`` or
``[1, columns]``, so that the same code serves tiles of queries by keys and of keys by queries.
"""

from __future__ import annotations

import triton
import triton.language as tl

_FAR = tl.constexpr(2**29)


@triton.jit
def query_offset(batch, call):
    """The position of query 0 among the keys."""
    offset = call.offset
    if call.offsets is not None:
        offset = tl.load(call.offsets + batch)
        offset = tl.minimum(tl.maximum(offset, -_FAR), _FAR).to(tl.int32)
    return offset


@triton.jit
def key_limit(batch, call):
    """The number of keys of a batch entry."""
    limit = call.keys
    if call.key_lengths is not None:
        limit = tl.minimum(tl.load(call.key_lengths + batch), limit).to(tl.int32)
    return limit


@triton.jit
def key_tiles(first_query, last_query, batch, call, SIDE: tl.constexpr):
    """Where the keys of a block of queries lie: (start, inner start, inner stop, stop).

    No query sees a key outside [start, stop), and every query sees every key of the inner tiles.
    """
    offset = query_offset(batch, call)
    start = 0
    stop = key_limit(batch, call)
    inner_start = 0
    inner_stop = stop
    if call.left is not None:
        start = tl.maximum(start, first_query + offset - call.left)
        inner_start = tl.maximum(inner_start, last_query + offset - call.left)
    if call.right is not None:
        stop = tl.minimum(stop, last_query + offset + call.right + 1)
        inner_stop = tl.minimum(inner_stop, first_query + offset + call.right + 1)
    if call.first_key is not None:
        start = tl.maximum(start, tl.load(call.first_key + first_query))
        stop = tl.minimum(stop, tl.load(call.last_key + last_query))
        inner_start = tl.maximum(inner_start, tl.load(call.first_key + last_query))
        inner_stop = tl.minimum(inner_stop, tl.load(call.last_key + first_query))
    if call.mask is not None:
        inner_stop = 0
    return _in_whole_tiles(start, inner_start, inner_stop, stop, SIDE)


@triton.jit
def query_tiles(first_key, last_key, is_whole, batch, call, SIDE: tl.constexpr):
    """The same for the queries that see a block of keys; ``is_whole``: all its keys exist."""
    offset = query_offset(batch, call)
    limit = key_limit(batch, call)
    start = 0
    stop = tl.where(first_key < limit, call.queries, 0)
    inner_start = 0
    inner_stop = tl.where(is_whole & (last_key < limit), call.queries, 0)
    if call.right is not None:
        start = tl.maximum(start, first_key - offset - call.right)
        inner_start = tl.maximum(inner_start, last_key - offset - call.right)
    if call.left is not None:
        stop = tl.minimum(stop, last_key - offset + call.left + 1)
        inner_stop = tl.minimum(inner_stop, first_key - offset + call.left + 1)
    if call.first_key is not None:
        start = tl.maximum(start, tl.load(call.first_key + first_key))
        stop = tl.minimum(stop, tl.load(call.last_key + last_key))
        inner_start = tl.maximum(inner_start, tl.load(call.first_key + last_key))
        inner_stop = tl.minimum(inner_stop, tl.load(call.last_key + first_key))
    if call.mask is not None:
        inner_stop = 0
    return _in_whole_tiles(start, inner_start, inner_stop, stop, SIDE)


@triton.jit
def _in_whole_tiles(start, inner_start, inner_stop, stop, SIDE: tl.constexpr):
    # Starts are multiples of SIDE, and so of the four keys that share a counter of dropout.
    start = start // SIDE * SIDE
    stop = tl.maximum(start, stop)
    inner_start = tl.maximum(start, tl.cdiv(inner_start, SIDE) * SIDE)
    inner_start = tl.minimum(inner_start, start + tl.cdiv(stop - start, SIDE) * SIDE)
    inner_stop = tl.maximum(inner_start, inner_stop // SIDE * SIDE)
    return start, inner_start, inner_stop, stop


@triton.jit
def count_tiles(tiles, SIDE: tl.constexpr, INNER: tl.constexpr):
    """How many tiles lie inside, or around, the inner range."""
    start, inner_start, inner_stop, stop = tiles
    if INNER:
        return (inner_stop - inner_start) // SIDE
    return (inner_start - start) // SIDE + tl.cdiv(tl.maximum(stop - inner_stop, 0), SIDE)


@triton.jit
def tile_start(tiles, n, SIDE: tl.constexpr, INNER: tl.constexpr):
    """Where the n-th tile inside, or around, the inner range starts."""
    start, inner_start, inner_stop, stop = tiles
    if INNER:
        return inner_start + n * SIDE
    before = (inner_start - start) // SIDE
    return tl.where(n < before, start + n * SIDE, inner_stop + (n - before) * SIDE)


@triton.jit
def visible_pairs(i, j, batch, head, call):
    """Which pairs exist and see each other."""
    visible = (i < call.queries) & (j < key_limit(batch, call))
    position = i + query_offset(batch, call)
    if call.left is not None:
        visible = visible & (j >= position - call.left)
    if call.right is not None:
        visible = visible & (j <= position + call.right)
    if call.first_key is not None:
        first = tl.load(call.first_key + i, mask=i < call.queries, other=0)
        last = tl.load(call.last_key + i, mask=i < call.queries, other=0)
        visible = visible & (j >= first) & (j < last)
    if call.mask is not None:
        mask = tl.load(_mask_pointers(i, j, batch, head, call), mask=visible, other=0)
        if call.mask_is_additive:
            visible = visible & (mask != -float("inf"))
        else:
            visible = visible & (mask != 0)
    return visible


@triton.jit
def mask_addend(i, j, batch, head, visible, call):
    """What an additive mask adds to the scores."""
    pointers = _mask_pointers(i, j, batch, head, call)
    return tl.load(pointers, mask=visible, other=0.0).to(tl.float32)


@triton.jit
def _mask_pointers(i, j, batch, head, call):
    strides = call.mask_strides
    pointers = call.mask + batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1]
    return pointers + i.to(tl.int64) * strides[2] + j.to(tl.int64) * strides[3]


@triton.jit
def relative_positions(i, j, anchor, batch, call):
    """j − p in float32, exact up to 2²⁴; ``anchor`` is a position near both."""
    position = i + query_offset(batch, call)
    return (j - anchor).to(tl.float32) - (position - anchor).to(tl.float32)


@triton.jit
def kept_pairs(i, first_key, batch, head, call, KEYS: tl.constexpr):
    """Which weights of queries ``i`` ([rows, 1]) and KEYS keys from ``first_key`` survive dropout.

    Words are those of ``neural_attention.philox``.
    """
    group = first_key // 4 + tl.arange(0, KEYS // 4)[None, :]
    zero = (i + group) * 0
    seed = tl.load(call.seed)
    w0, w1, w2, w3 = tl.philox(seed, zero + group, zero + i, zero + head, zero + batch)
    words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    return words.to(tl.int64) >= call.dropped_below
