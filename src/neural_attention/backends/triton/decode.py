"""Few queries against many keys: the keys are split between programs, and their results merged.

Query heads that share keys stand in one tile, so that keys and values are read once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .forward import attend
from .masks import key_tiles
from .network import exponential, log_sum, log_sum_rest
from .tiles import channel_side, load_vectors


@triton.jit
def split_kernel(
    call, sums_out, peak_out, total_out, splits, ROWS: tl.constexpr, KEYS: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Unnormalised output, peak and total of one part of the keys, (splits, B, H, Lq, …).

    PACKED: rows are the queries of a whole group of heads; else of one head, as matrix products
    with a head's own W2 need.
    """
    split = tl.program_id(0) % splits
    unit = tl.program_id(0) // splits
    group = call.heads // call.key_heads
    row = tl.arange(0, ROWS)[:, None]
    if PACKED:
        batch = unit // call.key_heads
        key_head = unit % call.key_heads
        exists = row < group * call.queries
        head = key_head * group + tl.where(exists, row // call.queries, 0)
        i = tl.where(exists, row % call.queries, call.queries)
    else:
        batch = unit // call.heads
        head = unit % call.heads
        key_head = head // group
        exists = row < call.queries
        i = tl.minimum(row, call.queries)
    x = ()
    if call.channels > 0:
        x = channel_side(call.a, call.a_strides, batch, head, 0, i, call.queries)
    q = i
    if call.dot_width > 0:
        q_d = tl.arange(0, call.dot_block)[None, :]
        q = load_vectors(
            call.q, call.q_strides, batch, head, 0, i, q_d, call.queries, call.dot_width
        )
    state = (
        tl.zeros((ROWS, call.value_block), tl.float32),
        tl.full((ROWS,), -float("inf"), tl.float32),
        tl.zeros((ROWS,), tl.float32),
    )
    start, _, _, stop = key_tiles(0, call.queries - 1, batch, call, KEYS)
    tiles = tl.cdiv(stop - start, KEYS)
    share = tl.cdiv(tiles, splits)
    for tile in range(split * share, tl.minimum((split + 1) * share, tiles)):
        j0 = start + tile * KEYS
        state = attend(state, x, q, i, batch, head, key_head, j0, call, True, KEYS)
    sums, peak, total = state
    rows = ((split * call.batch + batch).to(tl.int64) * call.heads + head) * call.queries + i
    d = tl.arange(0, call.value_block)[None, :]
    pointers = sums_out + rows * call.value_width + d
    tl.store(pointers, sums, mask=exists & (d < call.value_width))
    tl.store(peak_out + rows, peak[:, None], mask=exists)
    tl.store(total_out + rows, total[:, None], mask=exists)


@triton.jit
def merge_kernel(
    call, sums_in, peak_in, total_in, splits, out, lse, rest, ROWS: tl.constexpr
):  # fmt: skip
    """Output and lse from those of all parts, always in the same order."""
    count = tl.cast(call.batch, tl.int64) * call.heads * call.queries
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = row < count
    d = tl.arange(0, call.value_block)[None, :]
    peak = tl.full((ROWS,), -float("inf"), tl.float32)
    for split in range(splits):
        pointers = peak_in + split * count + row
        peak = tl.maximum(peak, tl.load(pointers, mask=exists, other=-float("inf")))
    shift = tl.where(peak == -float("inf"), 0.0, peak)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, call.value_block), tl.float32)
    for split in range(splits):
        rows = split * count + row
        scale = exponential(tl.load(peak_in + rows, mask=exists, other=-float("inf")) - shift, call)
        total += tl.load(total_in + rows, mask=exists, other=0.0) * scale
        part = tl.load(
            sums_in + rows[:, None] * call.value_width + d,
            mask=exists[:, None] & (d < call.value_width),
            other=0.0,
        )
        sums += part * scale[:, None]
    sees_nothing = total == 0
    total = tl.where(sees_nothing, 1.0, total)
    scale = tl.where(sees_nothing, 0.0, call.kept_scale / total)
    tl.store(
        out + row[:, None] * call.value_width + d,
        (sums * scale[:, None]).to(out.dtype.element_ty),
        mask=exists[:, None] & (d < call.value_width),
    )
    log = tl.where(sees_nothing, -float("inf"), log_sum(peak, total, call))
    tl.store(lse + row, log, mask=exists)
    tl.store(rest + row, log_sum_rest(peak, total, log, call), mask=exists)
