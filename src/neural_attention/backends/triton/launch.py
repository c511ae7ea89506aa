"""Buffers, grids and launches."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..problem import Problem
from . import call as calls
from . import check, configuration, interprets
from .backward import Gradients, delta_kernel, keys_kernel, mask_kernel, queries_kernel
from .configuration import Tile
from .decode import merge_kernel, split_kernel
from .forward import forward_kernel

# Of two wide layers a program holds a matrix of gradients: at most about this many programs.
_MATRICES = 2048


# A split decoder wants this many programs for each of the GPU's multiprocessors.
_PROGRAMS_EACH = 2
_MOST_DECODED = 16  # queries
_MOST_ROWS = 64  # of a tile, all heads of a group together


def _tile(kernel: str, call: calls.Call) -> Tile:
    if interprets():
        return configuration.INTERPRETED
    width = call.value_block.value + (call.dot_block.value if call.dot_width.value else 0)
    found = configuration.tile(
        kernel,
        call.channels.value,
        call.second.value,
        call.is_wide.value,
        width,
        call.v.element_size(),
    )
    # Every stage of the pipeline would hold a tile of an explicit mask in shared memory.
    return found if call.mask is None else found._replace(stages=1)


def forward(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Output in the values' dtype; lse, and the rest of it, in float32."""
    check(problem)
    batch, heads, _, queries, keys = problem.sizes
    v = problem.v
    out = v.new_empty(batch, heads, queries, v.shape[-1])
    lse, rest = (v.new_empty(batch, heads, queries, dtype=torch.float32) for _ in range(2))
    if keys == 0 or not lse.numel():
        return out.zero_(), lse.fill_(-math.inf), rest.zero_()
    decodes = queries <= _MOST_DECODED
    call = calls.build(problem, copies_features=not decodes)
    if decodes and _decode(call, out, lse, rest):
        return out, lse, rest
    tile = _tile("forward", call)
    grid = triton.cdiv(queries, tile.rows) * batch * heads
    sides = {"QUERIES": tile.rows, "KEYS": tile.columns}
    _launch(forward_kernel, grid, tile, v, call, out, lse, rest, **sides)
    return out, lse, rest


def _decode(call: calls.Call, out: Tensor, lse: Tensor, rest: Tensor) -> bool:
    """Splits the keys between programs, unless there are programs enough without."""
    batch, heads, queries, width = out.shape
    packed = not call.is_wide.value
    group = heads // call.key_heads if packed else 1
    units = batch * heads // group
    rows = max(triton.next_power_of_2(group * queries), calls.SMALLEST_SIDE)
    tile = _tile("split", call)
    splits = min(triton.cdiv(call.keys, tile.columns), _programs(out.device) // units)
    if splits < 2 or rows > _MOST_ROWS:
        return False
    sums = out.new_empty(splits, *out.shape, dtype=torch.float32)
    peak, total = (lse.new_empty(splits, *lse.shape) for _ in range(2))
    _launch(
        split_kernel, splits * units, tile, out, call, sums, peak, total, splits, ROWS=rows,
        KEYS=tile.columns, PACKED=packed,
    )  # fmt: skip
    programs = triton.cdiv(lse.numel(), calls.SMALLEST_SIDE)
    _launch(
        merge_kernel, programs, tile, out, call, sums, peak, total, splits, out, lse, rest,
        ROWS=calls.SMALLEST_SIDE,
    )  # fmt: skip
    return True


def _programs(device: torch.device) -> int:
    """How many programs keep a GPU busy."""
    if device.type == "cpu":  # interpreted: so that tests split
        return 16
    return _PROGRAMS_EACH * torch.cuda.get_device_properties(device).multi_processor_count


def backward(
    problem: Problem,
    out: Tensor,
    lse: Tensor,
    rest: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    needs: dict[str, bool],
) -> dict[str, Tensor]:
    """Gradients of the tensors that need one, in float32."""
    check(problem)
    batch, heads, key_heads, queries, keys = problem.sizes
    if not lse.numel() or not keys:
        return {
            name: torch.zeros_like(getattr(problem, name), dtype=torch.float32)
            for name, need in needs.items()
            if need
        }
    v = problem.v
    call = calls.build(problem)
    channels = call.channels.value

    def buffer(wanted: bool, *shape: int) -> Tensor | None:
        return v.new_empty(shape, dtype=torch.float32) if wanted and 0 not in shape else None

    names = ("output_weight", "hidden_bias", "hidden_weight", "slopes", "alibi")
    by_keys, by_queries = _tile("keys", call), _tile("queries", call)
    parts = triton.cdiv(keys, by_keys.rows)
    if call.is_wide.value:
        parts = min(parts, max(1, _MATRICES // (batch * key_heads)))
    parameters = None
    if any(needs[name] for name in names):
        parameters = v.new_zeros(batch, heads, parts, call.parameters.value, dtype=torch.float32)
    mask = problem.attn_mask if needs["attn_mask"] else None
    mask_sizes = None if mask is None else (1,) * (4 - mask.dim()) + tuple(mask.shape)
    grad_out = grad_out.to(v.dtype)
    grads = Gradients(
        out=grad_out,
        out_strides=grad_out.stride(),
        lse=lse.contiguous(),
        rest=rest.contiguous(),
        delta=buffer(True, *lse.shape),
        a=buffer(needs["a"], batch, heads, channels, queries),
        b=buffer(needs["b"], batch, key_heads, channels, keys),
        v=buffer(needs["v"], *v.shape),
        q=buffer(needs["q"], *(problem.q.shape if problem.q is not None else (0,))),
        k=buffer(needs["k"], *(problem.k.shape if problem.k is not None else (0,))),
        parameters=parameters,
        parts=parts,
        chunks=calls.chunks(call),
        mask=None if mask_sizes is None else buffer(True, *mask_sizes),
        mask_sizes=mask_sizes,
        mask_repeats_rows=tl.constexpr(mask_sizes is not None and mask_sizes[2] == 1),
        mask_repeats_columns=tl.constexpr(mask_sizes is not None and mask_sizes[3] == 1),
    )
    blocks = triton.cdiv(queries, by_queries.rows)
    _launch(
        delta_kernel, blocks * batch * heads, by_queries, v, call, grads, out.contiguous(),
        grad_lse, grad_lse.stride(), QUERIES=by_queries.rows,
    )  # fmt: skip
    if any(t is not None for t in (grads.b, grads.v, grads.k, parameters)):
        grid = grads.chunks * parts * batch * key_heads
        _launch(
            keys_kernel, grid, by_keys, v, call, grads, KEYS=by_keys.rows, QUERIES=by_keys.columns
        )
    sides = {"QUERIES": by_queries.rows, "KEYS": by_queries.columns}
    if grads.a is not None or grads.q is not None:
        grid = grads.chunks * blocks * batch * heads
        _launch(queries_kernel, grid, by_queries, v, call, grads, **sides)
    if grads.mask is not None and mask_sizes is not None:
        rows, columns = (
            triton.cdiv(size, side)
            for size, side in zip(mask_sizes[2:], sides.values(), strict=True)
        )
        grid = mask_sizes[0] * mask_sizes[1] * rows * columns
        _launch(mask_kernel, grid, by_queries, v, call, grads, **sides)
    return _collect(problem, grads, needs)


def _collect(problem: Problem, grads: Gradients, needs: dict[str, bool]) -> dict[str, Tensor]:
    """The buffers in the shapes of the operator's arguments."""
    found: dict[str, Tensor] = {}
    for name in ("a", "b", "v", "q", "k"):
        if needs[name]:
            total = getattr(grads, name)
            if total is None:
                total = torch.zeros_like(getattr(problem, name), dtype=torch.float32)
            elif name in ("a", "b"):
                total = total.transpose(2, 3)
            found[name] = total
    if grads.mask is not None and problem.attn_mask is not None:
        found["attn_mask"] = grads.mask.view(problem.attn_mask.shape)
    if grads.parameters is None:
        return found
    heads = problem.a.shape[1]
    second = 0 if problem.hidden_weight is None else problem.hidden_weight.shape[1]
    widths = calls.parameter_widths(problem.a.shape[-1], second)
    pieces = grads.parameters.sum((0, 2)).split(widths, dim=1)
    names = ("output_weight", "hidden_bias", "hidden_weight", "slopes", "alibi")
    for name, piece in zip(names, pieces, strict=True):
        if needs[name]:
            parameter = getattr(problem, name)
            shared = parameter.shape[0] == 1 and heads > 1
            total = piece.sum(0, keepdim=True) if shared else piece
            # A copy, since an operator's outputs must not share memory.
            found[name] = total.reshape(parameter.shape).clone()
    return found


def _launch(
    kernel: Any, programs: int, tile: Tile, on: Tensor, *arguments: Any, **constants: int
) -> None:
    """Runs a kernel on the device of a tensor, on torch's current stream there."""
    guard: AbstractContextManager[Any] = (
        torch.cuda.device(on.device) if on.is_cuda else nullcontext()
    )
    with guard:
        kernel[(programs,)](*arguments, **constants, num_warps=tile.warps, num_stages=tile.stages)
