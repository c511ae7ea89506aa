"""Forward: one program for each block of queries, keys in tiles, online softmax.

Dao 2023, arXiv 2307.08691, with the score network in place of (or beside) the product of queries
and keys.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .masks import count_tiles, kept_pairs, key_tiles, tile_start, visible_pairs
from .network import exponential, log_sum, log_sum_rest
from .product import product
from .tiles import (
    channel_side,
    finite,
    load_vectors,
    tile_scores,
    without_infinities,
)


@triton.jit
def attend(
    state, x, q, i, batch, head, key_head, j0, call, MASKED: tl.constexpr, KEYS: tl.constexpr
):  # fmt: skip
    """The online softmax after one more tile of keys: (sums of values, peak, total)."""
    sums, peak, total = state
    n = tl.arange(0, KEYS)
    j = j0 + n[None, :]
    d = tl.arange(0, call.value_block)[None, :]
    visible = visible_pairs(i, j, batch, head, call)
    y = ()
    if call.channels > 0:
        y = channel_side(call.b, call.b_strides, batch, key_head, j0, n[None, :], call.keys)
    k = q
    if call.dot_width > 0:
        k_d = tl.arange(0, call.dot_block)[:, None]
        k = load_vectors(
            call.k, call.k_strides, batch, key_head, j0, n[None, :], k_d, call.keys, call.dot_width
        )
    scores, _, _ = tile_scores(
        x, y, q, k, i, j, j0, batch, head, visible, call, MASKED, STRICT=False
    )
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # Subtracting 0 where a row has seen nothing keeps exp(-inf) = 0.
    shift = tl.where(new_peak == -float("inf"), 0.0, new_peak)
    weights = exponential(scores - shift[:, None], call)
    rescale = exponential(peak - shift, call)
    total = total * rescale + tl.sum(weights, 1)
    if call.seed is not None:
        keep = kept_pairs(i, j0, batch, head, call, KEYS)
        weights = tl.where(keep, weights, 0.0)
    v = load_vectors(
        call.v, call.v_strides, batch, key_head, j0, n[:, None], d, call.keys, call.value_width
    )
    sums = sums * rescale[:, None]
    if MASKED:
        clean = without_infinities(v)
        sums = product(weights.to(v.dtype), clean, sums, call)
        # A value that is not finite reaches the queries that see it, and no others.
        spoiled = (~finite(v)).to(tl.int32)
        if tl.max(tl.max(spoiled, 1), 0) > 0:
            hits = product(visible.to(v.dtype), spoiled.to(v.dtype), tl.zeros_like(sums), call)
            sums = tl.where(hits > 0, float("nan"), sums)
    else:
        sums = product(weights.to(v.dtype), v, sums, call)
    return sums, new_peak, total


@triton.jit
def forward_kernel(call, out, lse, rest, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """Output (B, H, Lq, Dv), lse and the rest of it (B, H, Lq), contiguous."""
    blocks = tl.cdiv(call.queries, QUERIES)
    # The last queries see most keys under causality: they start first.
    block = blocks - 1 - tl.program_id(0) % blocks
    batch_head = tl.program_id(0) // blocks
    batch = batch_head // call.heads
    head = batch_head % call.heads
    key_head = head // (call.heads // call.key_heads)
    i0 = block * QUERIES
    n = tl.arange(0, QUERIES)[:, None]
    i = i0 + n
    x = ()
    if call.channels > 0:
        x = channel_side(call.a, call.a_strides, batch, head, i0, n, call.queries)
    q = i
    if call.dot_width > 0:
        q_d = tl.arange(0, call.dot_block)[None, :]
        q = load_vectors(
            call.q, call.q_strides, batch, head, i0, n, q_d, call.queries, call.dot_width
        )

    state = (
        tl.zeros((QUERIES, call.value_block), tl.float32),
        tl.full((QUERIES,), -float("inf"), tl.float32),
        tl.zeros((QUERIES,), tl.float32),
    )
    last = tl.minimum(i0 + QUERIES, call.queries) - 1
    tiles = key_tiles(i0, last, batch, call, KEYS)
    for tile in range(count_tiles(tiles, KEYS, INNER=False)):
        j0 = tile_start(tiles, tile, KEYS, INNER=False)
        state = attend(state, x, q, i, batch, head, key_head, j0, call, True, KEYS)
    for tile in range(count_tiles(tiles, KEYS, INNER=True)):
        j0 = tile_start(tiles, tile, KEYS, INNER=True)
        state = attend(state, x, q, i, batch, head, key_head, j0, call, False, KEYS)

    sums, peak, total = state
    sees_nothing = total == 0
    total = tl.where(sees_nothing, 1.0, total)
    scale = tl.where(sees_nothing, 0.0, call.kept_scale / total)
    rows = batch_head.to(tl.int64) * call.queries + i
    d = tl.arange(0, call.value_block)[None, :]
    tl.store(
        out + rows * call.value_width + d,
        (sums * scale[:, None]).to(out.dtype.element_ty),
        mask=(i < call.queries) & (d < call.value_width),
    )
    log = tl.where(sees_nothing, -float("inf"), log_sum(peak, total, call))
    tl.store(lse + rows, log[:, None], mask=i < call.queries)
    low = log_sum_rest(peak, total, log, call)
    tl.store(rest + rows, low[:, None], mask=i < call.queries)
