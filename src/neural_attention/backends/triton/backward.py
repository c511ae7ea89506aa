"""Backward: scores are computed again from lse; one kernel for keys, one for queries, no atomics.

Dao 2023, arXiv 2307.08691, algorithm 2, split in two so that every sum has one owner.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .gradients import (
    add_parameters,
    network_gradients,
    plus,
    store_features,
    zero_feature_sums,
    zero_parameter_sums,
)
from .masks import count_tiles, kept_pairs, key_tiles, query_tiles, tile_start, visible_pairs
from .network import exponential
from .product import product
from .tiles import channel_side, load_vectors, tile_scores, without_infinities


class Gradients(NamedTuple):
    """What comes back, and where gradients go (None where none is wanted); sums are float32."""

    out: Any  # of the output, any strides
    out_strides: Any
    lse: Any  # the values, not their gradient; (B, H, Lq)
    rest: Any  # what rounding has taken off lse
    delta: Any  # Σ grad_out · out − grad_lse, (B, H, Lq)
    a: Any  # (B, H, C, Lq)
    b: Any  # (B, Hkv, C, Lk)
    v: Any  # contiguous, like q and k
    q: Any
    k: Any
    parameters: Any  # (B, H, parts, one row of all parameters)
    parts: Any
    chunks: Any
    mask: Any  # contiguous, in the mask's own four dimensions
    mask_sizes: Any
    mask_repeats_rows: Any  # tl.constexpr: whether one row, or column, serves all
    mask_repeats_columns: Any


@triton.jit
def delta_kernel(call, grads, out, grad_lse, grad_lse_strides, QUERIES: tl.constexpr):
    """What is subtracted from every gradient of a row's weights; 0 where a row sees nothing."""
    blocks = tl.cdiv(call.queries, QUERIES)
    batch_head = tl.program_id(0) // blocks
    batch = batch_head // call.heads
    head = batch_head % call.heads
    i0 = tl.program_id(0) % blocks * QUERIES
    n = tl.arange(0, QUERIES)
    d = tl.arange(0, call.value_block)[None, :]
    grad_out = load_vectors(
        grads.out, grads.out_strides, batch, head, i0, n[:, None], d, call.queries,
        call.value_width,
    )  # fmt: skip
    exists = i0 + n < call.queries
    rows = batch_head.to(tl.int64) * call.queries + i0 + n
    values = tl.load(
        out + rows[:, None] * call.value_width + d,
        mask=exists[:, None] & (d < call.value_width),
        other=0.0,
    )
    delta = tl.sum(grad_out.to(tl.float32) * values.to(tl.float32), 1)
    pointers = grad_lse + batch.to(tl.int64) * grad_lse_strides[0]
    pointers += head.to(tl.int64) * grad_lse_strides[1]
    pointers += (i0 + n).to(tl.int64) * grad_lse_strides[2]
    delta -= tl.load(pointers, mask=exists, other=0.0).to(tl.float32)
    sees_nothing = tl.load(grads.lse + rows, mask=exists, other=0.0) == -float("inf")
    tl.store(grads.delta + rows, tl.where(sees_nothing, 0.0, delta), mask=exists)


@triton.jit
def weights_and_gradients(
    scores, grad_weights, lse, rest, delta, keep, visible, call, MASKED: tl.constexpr
):
    """The weights after dropout and the scores' gradients."""
    # 0 where a row has seen nothing keeps exp(-inf) = 0.
    shift = tl.where(lse == -float("inf"), 0.0, lse * call.unit)
    weights = exponential((scores - shift) - rest, call)
    if MASKED:
        # The lse of a row that sees NaN is NaN; what the row does not see stays clean.
        weights = tl.where(visible, weights, 0.0)
    dropped = weights
    if call.seed is not None:
        dropped = tl.where(keep, weights * call.kept_scale, 0.0)
        grad_weights = tl.where(keep, grad_weights * call.kept_scale, 0.0)
    grad_scores = weights * (grad_weights - delta)
    if MASKED:
        grad_scores = tl.where(visible, grad_scores, 0.0)
    return dropped, grad_scores


@triton.jit
def _query_rows(pointer, batch, head, i0, n, call):
    """One number for each query of a block."""
    start = (batch.to(tl.int64) * call.heads + head) * call.queries + i0
    return tl.load(pointer + start + n, mask=i0 + n < call.queries, other=0.0)


@triton.jit
def _key_tile(
    sums, x, k, v, chunk, batch, head, j0, i0, call, grads, MASKED: tl.constexpr,
    KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """A key block's sums after one more tile of queries; scores stand as keys by queries."""
    grad_v, grad_k, features, parameters = sums
    n = tl.arange(0, QUERIES)
    i = i0 + n[None, :]
    j = j0 + tl.arange(0, KEYS)[:, None]
    visible = visible_pairs(i, j, batch, head, call)
    y = ()
    if call.channels > 0:
        y = channel_side(call.a, call.a_strides, batch, head, i0, n[None, :], call.queries)
    q = v
    if call.dot_width > 0:
        d = tl.arange(0, call.dot_block)[None, :]
        q = load_vectors(
            call.q, call.q_strides, batch, head, i0, n[:, None], d, call.queries, call.dot_width
        )
    scores, relative, mixed = tile_scores(
        x, y, k, tl.trans(q), i, j, i0, batch, head, visible, call, MASKED, MASKED
    )
    lse = _query_rows(grads.lse, batch, head, i0, n, call)
    rest = _query_rows(grads.rest, batch, head, i0, n, call)
    delta = _query_rows(grads.delta, batch, head, i0, n, call)
    d = tl.arange(0, call.value_block)[None, :]
    grad_out = load_vectors(
        grads.out, grads.out_strides, batch, head, i0, n[:, None], d, call.queries,
        call.value_width,
    )  # fmt: skip
    if MASKED:
        alive = (lse != -float("inf"))[:, None]
        grad_out = tl.where(alive, grad_out, tl.zeros_like(grad_out))
    grad_weights = product(v, tl.trans(grad_out), tl.zeros(visible.shape, tl.float32), call)
    keep = visible
    if call.seed is not None:
        keep = tl.trans(kept_pairs(i0 + n[:, None], j0, batch, head, call, KEYS))
    weights, grad_scores = weights_and_gradients(
        scores,
        grad_weights,
        lse[None, :],
        rest[None, :],
        delta[None, :],
        keep,
        visible,
        call,
        MASKED,
    )
    if grads.v is not None:
        grad_v = product(weights.to(v.dtype), grad_out, grad_v, call)
    if grads.k is not None:
        if MASKED:
            q = without_infinities(q)
        grad_k = product(grad_scores.to(q.dtype), q, grad_k, call)
    if (grads.b is not None) or (grads.parameters is not None):
        more_features, more_parameters = network_gradients(
            grad_scores, x, y, relative, mixed, chunk, visible, head, call, MASKED,
            grads.parameters is not None,
        )  # fmt: skip
        features = plus(features, more_features)
        if grads.parameters is not None:
            parameters = plus(parameters, more_parameters)
    return grad_v, grad_k, features, parameters


@triton.jit
def keys_kernel(call, grads, KEYS: tl.constexpr, QUERIES: tl.constexpr):
    """Gradients of v, k, b and the parameters; a program owns every ``parts``-th block of keys."""
    chunk = tl.program_id(0) % grads.chunks
    part = tl.program_id(0) // grads.chunks % grads.parts
    batch_head = tl.program_id(0) // (grads.chunks * grads.parts)
    batch = batch_head // call.key_heads
    key_head = batch_head % call.key_heads
    group = call.heads // call.key_heads
    row: tl.constexpr = call.parameters
    for block in range(part, tl.cdiv(call.keys, KEYS), grads.parts):
        j0 = block * KEYS
        n = tl.arange(0, KEYS)
        d = tl.arange(0, call.value_block)[None, :]
        v = load_vectors(
            call.v, call.v_strides, batch, key_head, j0, n[:, None], d, call.keys,
            call.value_width,
        )  # fmt: skip
        x = ()
        if call.channels > 0:
            x = channel_side(call.b, call.b_strides, batch, key_head, j0, n[:, None], call.keys)
        k_d = tl.arange(0, call.dot_block)[None, :]
        k = v
        if call.dot_width > 0:
            k = load_vectors(
                call.k, call.k_strides, batch, key_head, j0, n[:, None], k_d, call.keys,
                call.dot_width,
            )  # fmt: skip
        grad_v = tl.zeros((KEYS, call.value_block), tl.float32)
        grad_k = tl.zeros((KEYS, call.dot_block), tl.float32)
        features = zero_feature_sums(call, KEYS)
        last = tl.minimum(j0 + KEYS, call.keys) - 1
        tiles = query_tiles(j0, last, j0 + KEYS <= call.keys, batch, call, QUERIES)
        for member in range(group):
            head = key_head * group + member
            sums = (grad_v, grad_k, features, zero_parameter_sums(call, KEYS))
            for tile in range(count_tiles(tiles, QUERIES, INNER=False)):
                i0 = tile_start(tiles, tile, QUERIES, INNER=False)
                sums = _key_tile(
                    sums, x, k, v, chunk, batch, head, j0, i0, call, grads, True, KEYS, QUERIES
                )
            for tile in range(count_tiles(tiles, QUERIES, INNER=True)):
                i0 = tile_start(tiles, tile, QUERIES, INNER=True)
                sums = _key_tile(
                    sums, x, k, v, chunk, batch, head, j0, i0, call, grads, False, KEYS, QUERIES
                )
            grad_v, grad_k, features, parameters = sums
            if grads.parameters is not None:
                owner = (batch.to(tl.int64) * call.heads + head) * grads.parts + part
                add_parameters(grads.parameters + owner * row, parameters, chunk, call)
                # A thread may read next what another one has written.
                tl.debug_barrier()
        rows = batch_head.to(tl.int64) * call.keys + j0 + n
        exists = (j0 + n < call.keys)[:, None] & (chunk == 0)
        if grads.v is not None:
            pointers = grads.v + rows[:, None] * call.value_width + d
            tl.store(pointers, grad_v, mask=exists & (d < call.value_width))
        if grads.k is not None:
            pointers = grads.k + rows[:, None] * call.dot_width + k_d
            tl.store(pointers, grad_k * call.scale, mask=exists & (k_d < call.dot_width))
        if grads.b is not None:
            pointer = grads.b + batch_head.to(tl.int64) * call.channels * call.keys
            store_features(pointer, features, chunk, j0 + n, call.keys, call.keys, call)


@triton.jit
def _score_gradients(
    x, q, grad_out, lse, rest, delta, i, batch, head, key_head, j0, call, MASKED: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """A tile of queries by keys: gradients of scores, and what the network's need."""
    n = tl.arange(0, KEYS)
    j = j0 + n[None, :]
    visible = visible_pairs(i, j, batch, head, call)
    y = ()
    if call.channels > 0:
        y = channel_side(call.b, call.b_strides, batch, key_head, j0, n[None, :], call.keys)
    k = grad_out
    if call.dot_width > 0:
        d = tl.arange(0, call.dot_block)[:, None]
        k = load_vectors(
            call.k, call.k_strides, batch, key_head, j0, n[None, :], d, call.keys, call.dot_width
        )
    scores, relative, mixed = tile_scores(
        x, y, q, k, i, j, j0, batch, head, visible, call, MASKED, MASKED
    )
    d = tl.arange(0, call.value_block)[:, None]
    v = load_vectors(
        call.v, call.v_strides, batch, key_head, j0, n[None, :], d, call.keys, call.value_width
    )
    grad_weights = product(grad_out, v, tl.zeros(visible.shape, tl.float32), call)
    keep = visible
    if call.seed is not None:
        keep = kept_pairs(i, j0, batch, head, call, KEYS)
    _, grad_scores = weights_and_gradients(
        scores,
        grad_weights,
        lse[:, None],
        rest[:, None],
        delta[:, None],
        keep,
        visible,
        call,
        MASKED,
    )
    return grad_scores, y, k, relative, mixed, visible


@triton.jit
def _query_side(batch, head, i0, call, grads, QUERIES: tl.constexpr):
    """All that a block of queries needs from memory."""
    n = tl.arange(0, QUERIES)
    x = ()
    if call.channels > 0:
        x = channel_side(call.a, call.a_strides, batch, head, i0, n[:, None], call.queries)
    d = tl.arange(0, call.value_block)[None, :]
    grad_out = load_vectors(
        grads.out, grads.out_strides, batch, head, i0, n[:, None], d, call.queries,
        call.value_width,
    )  # fmt: skip
    q = grad_out
    if call.dot_width > 0:
        d = tl.arange(0, call.dot_block)[None, :]
        q = load_vectors(
            call.q, call.q_strides, batch, head, i0, n[:, None], d, call.queries, call.dot_width
        )
    lse = _query_rows(grads.lse, batch, head, i0, n, call)
    rest = _query_rows(grads.rest, batch, head, i0, n, call)
    delta = _query_rows(grads.delta, batch, head, i0, n, call)
    return x, q, grad_out, lse, rest, delta


@triton.jit
def _query_tile(
    sums, side, chunk, i, batch, head, key_head, j0, call, grads, MASKED: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    grad_q, features = sums
    x, q, grad_out, lse, rest, delta = side
    grad_scores, y, k, relative, mixed, visible = _score_gradients(
        x, q, grad_out, lse, rest, delta, i, batch, head, key_head, j0, call, MASKED, KEYS
    )
    if grads.q is not None:
        if MASKED:
            k = without_infinities(k)
        grad_q = product(grad_scores.to(k.dtype), tl.trans(k), grad_q, call)
    if grads.a is not None:
        more, _ = network_gradients(
            grad_scores, x, y, relative, mixed, chunk, visible, head, call, MASKED, False
        )
        features = plus(features, more)
    return grad_q, features


@triton.jit
def queries_kernel(call, grads, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """Gradients of q and a."""
    chunk = tl.program_id(0) % grads.chunks
    blocks = tl.cdiv(call.queries, QUERIES)
    block = blocks - 1 - tl.program_id(0) // grads.chunks % blocks
    batch_head = tl.program_id(0) // (grads.chunks * blocks)
    batch = batch_head // call.heads
    head = batch_head % call.heads
    key_head = head // (call.heads // call.key_heads)
    i0 = block * QUERIES
    n = tl.arange(0, QUERIES)
    i = i0 + n[:, None]
    side = _query_side(batch, head, i0, call, grads, QUERIES)
    sums = (tl.zeros((QUERIES, call.dot_block), tl.float32), zero_feature_sums(call, QUERIES))
    last = tl.minimum(i0 + QUERIES, call.queries) - 1
    tiles = key_tiles(i0, last, batch, call, KEYS)
    for tile in range(count_tiles(tiles, KEYS, INNER=False)):
        j0 = tile_start(tiles, tile, KEYS, INNER=False)
        sums = _query_tile(sums, side, chunk, i, batch, head, key_head, j0, call, grads, True, KEYS)
    for tile in range(count_tiles(tiles, KEYS, INNER=True)):
        j0 = tile_start(tiles, tile, KEYS, INNER=True)
        sums = _query_tile(
            sums, side, chunk, i, batch, head, key_head, j0, call, grads, False, KEYS
        )
    grad_q, features = sums
    if grads.q is not None:
        d = tl.arange(0, call.dot_block)[None, :]
        rows = batch_head.to(tl.int64) * call.queries + i
        exists = (i < call.queries) & (d < call.dot_width) & (chunk == 0)
        tl.store(grads.q + rows * call.dot_width + d, grad_q * call.scale, mask=exists)
    if grads.a is not None:
        pointer = grads.a + batch_head.to(tl.int64) * call.channels * call.queries
        store_features(pointer, features, chunk, i0 + n, call.queries, call.queries, call)


@triton.jit
def mask_kernel(call, grads, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """The gradient of an additive mask: a program owns a tile of it and visits what broadcasts."""
    batches, heads, rows, columns = grads.mask_sizes
    row_blocks = tl.cdiv(rows, QUERIES)
    column_blocks = tl.cdiv(columns, KEYS)
    own_columns = tl.program_id(0) % column_blocks
    own_rows = tl.program_id(0) // column_blocks % row_blocks
    batch_head = tl.program_id(0) // (column_blocks * row_blocks)
    # How often each dimension is visited: once where the mask has it, else all of it.
    all_rows = 1
    all_columns = 1
    all_heads = 1
    all_batches = 1
    if grads.mask_repeats_rows:
        all_rows = tl.cdiv(call.queries, QUERIES)
    if grads.mask_repeats_columns:
        all_columns = tl.cdiv(call.keys, KEYS)
    if heads == 1:
        all_heads = call.heads
    if batches == 1:
        all_batches = call.batch
    total = tl.zeros((QUERIES, KEYS), tl.float32)
    for visit in range(all_batches * all_heads * all_rows * all_columns):
        j0 = (own_columns + visit % all_columns) * KEYS
        i0 = (own_rows + visit // all_columns % all_rows) * QUERIES
        head = batch_head % heads + visit // (all_columns * all_rows) % all_heads
        batch = batch_head // heads + visit // (all_columns * all_rows * all_heads)
        i = i0 + tl.arange(0, QUERIES)[:, None]
        x, q, grad_out, lse, rest, delta = _query_side(batch, head, i0, call, grads, QUERIES)
        key_head = head // (call.heads // call.key_heads)
        grad_scores, _, _, _, _, _ = _score_gradients(
            x, q, grad_out, lse, rest, delta, i, batch, head, key_head, j0, call, True, KEYS
        )
        total += grad_scores
    i = own_rows * QUERIES + tl.arange(0, QUERIES)[:, None]
    j = own_columns * KEYS + tl.arange(0, KEYS)[None, :]
    if grads.mask_repeats_rows:
        total = tl.sum(total, 0)[None, :]
        i = tl.zeros((1, 1), tl.int32)
    if grads.mask_repeats_columns:
        total = tl.sum(total, 1)[:, None]
        j = tl.zeros((1, 1), tl.int32)
    pointers = grads.mask + (batch_head.to(tl.int64) * rows + i) * columns + j
    tl.store(pointers, total, mask=(i < rows) & (j < columns))
