"""Fused CPU kernels: a library of plain C++, called through ctypes.

The kernels (``csrc/``) are compiled once for each instruction set and the best one that the machine
has is chosen when the library is loaded; ``NEURAL_ATTENTION_ISA`` (``avx512``, ``avx2`` or
``portable``) forces one. They use as many threads as ``torch.get_num_threads()`` says, from the
OpenMP runtime that torch has loaded already.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .problem import Problem

# An editable installation keeps the built library apart from the sources: both are in the
# package's search path.
_PACKAGE = import_module(__package__.rpartition(".")[0])
_LIBRARIES = [Path(folder) / "_lib" / "kernels.so" for folder in _PACKAGE.__path__]

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.bool: 3}
_ACTIVATIONS = ("relu", "leaky_relu", "hardswish", "gelu", "gelu_tanh", "silu", "tanh")
_DEFAULT_LEAK = 0.01
_UNLIMITED = 2**40  # a distance that no sequence reaches
_ERRORS = {1: "out of memory for the kernels' tiles"}

# The fields of NaCall in csrc/neural_attention.h, in its order: i integer, d double, p pointer,
# t tensor (a pointer and four strides).
_FIELDS = (
    "threads:i dtype:i batch:i heads:i key_heads:i queries:i keys:i"
    " channels:i second:i dot_width:i value_width:i activation:i"
    " leak:d scale:d dropout_p:d seed:i a:t b:t v:t q:t k:t"
    " output_weight:p hidden_weight:p hidden_bias:p slopes:p alibi:p"
    " left:i right:i offset:i offsets:p key_lengths:p first_key:p last_key:p"
    " mask:t mask_dtype:i out:p lse:p rest:p"
    " grad_out:t grad_lse:t delta:p key_parts:i grad_a:p grad_q:p grad_b:p grad_v:p grad_k:p"
    " grad_parameters:p grad_mask:t grad_mask_part_stride:i"
)
# A call is packed in one go: that costs little, unlike filling a ctypes.Structure.
_CALL = struct.Struct(
    "".join({"i": "q", "d": "d", "p": "q", "t": "5q"}[f[-1]] for f in _FIELDS.split())
)
_NO_BACKWARD = (0,) * sum({"t": 5}.get(f[-1], 1) for f in _FIELDS.partition(" grad_out")[2].split())


@cache
def _open() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None with the reason why there is none."""
    path = next((path for path in _LIBRARIES if path.exists()), None)
    if path is None:
        return None, (
            "the kernels are not built: install the package again with a C++17 compiler at hand "
            "(pip install . builds them)"
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"the kernels do not load: {error}"
    library.na_select.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64]
    library.na_select.restype = ctypes.c_char_p
    library.na_call_size.restype = ctypes.c_int64
    for function in (library.na_forward, library.na_backward):
        function.argtypes = [ctypes.c_void_p]
        function.restype = ctypes.c_int64
    if library.na_call_size() != _CALL.size:
        return None, f"the kernels in {path} are of another version: install the package again"
    return library, ""


@cache
def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library with its instruction set's name, or None with the reason why there is none."""
    library, reason = _open()
    if library is None:
        return None, reason
    wanted = os.environ.get("NEURAL_ATTENTION_ISA", "")
    name, message = _select(library, wanted)
    if name is None:
        return None, f"NEURAL_ATTENTION_ISA is {wanted!r}: {message}"
    return library, name


def _select(library: ctypes.CDLL, wanted: str) -> tuple[str | None, str]:
    message = ctypes.create_string_buffer(256)
    name = library.na_select(wanted.encode(), message, len(message))
    return (None if name is None else name.decode()), message.value.decode()


def unavailable_reason() -> str | None:
    """Why the kernels cannot run here; None if they can."""
    library, reason = _load()
    return reason if library is None else None


def instruction_set() -> str:
    """The instruction set in use: ``avx512``, ``avx2`` or ``portable``."""
    return _loaded()[1]


def instruction_sets() -> dict[str, str | None]:
    """Those that the kernels are built for, best first: None, or why this machine cannot run it.

    Empty where there are no kernels.
    """
    library = _open()[0]
    if library is None:
        return {}
    built = _select(library, "?")[1].removeprefix("expected one of ").split(", ")
    found = {}
    for wanted in built:
        name, message = _select(library, wanted)
        found[wanted] = None if name else message
    if (used := _load()[1]) in found:
        _select(library, used)  # as it was
    return found


def _loaded() -> tuple[ctypes.CDLL, str]:
    library, name = _load()
    if library is None:
        raise RuntimeError(f"backend 'native' is not available: {name}.")
    return library, name


def forward(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Output in the values' dtype; lse, and the rest of it, in float32."""
    library = _loaded()[0]
    alive: list[Tensor] = []
    batch, heads, _, queries, keys = problem.sizes
    values = _values(problem, alive)
    v = problem.v
    out = v.new_empty(batch, heads, queries, v.shape[-1])
    lse, rest = (v.new_empty(batch, heads, queries, dtype=torch.float32) for _ in range(2))
    if keys == 0:
        return out.zero_(), lse.fill_(-math.inf), rest.zero_()
    if lse.numel():
        pointers = out.data_ptr(), lse.data_ptr(), rest.data_ptr()
        _check(library.na_forward(_CALL.pack(*values, *pointers, *_NO_BACKWARD)))
    return out, lse, rest


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
    library = _loaded()[0]
    alive: list[Tensor] = []
    values = _values(problem, alive)
    batch, heads, key_heads, queries, keys = problem.sizes
    a, b, v, q, k = problem.a, problem.b, problem.v, problem.q, problem.k
    units = batch * key_heads
    threads = torch.get_num_threads()
    mask_grad = problem.attn_mask if needs["attn_mask"] else None
    # Parts of the keys beyond one cost a copy of the queries' gradients each.
    parts = 1 if threads == 1 or (units >= threads and mask_grad is None) else threads
    if units % threads and units < 4 * threads:
        parts = max(parts, threads)

    runs = lse.numel() > 0 and keys > 0
    # The kernels write each key's gradients once and add to the queries'.
    written = v.new_empty if runs else v.new_zeros
    width = problem.output_weight.shape[-1]
    channels, second = a.shape[-1], 0 if problem.hidden_weight is None else width
    row = width + second * channels + second + channels + 1
    units_shape = (batch, key_heads, parts, heads // key_heads, row)
    buffers = {
        "delta": v.new_empty(lse.shape, dtype=torch.float32),
        "grad_parameters": v.new_zeros(units_shape, dtype=torch.float64),
    }
    for name, tensor in (("b", b), ("v", v), ("k", k)):
        if needs[name] and tensor is not None:
            buffers[f"grad_{name}"] = written(tensor.shape, dtype=torch.float32)
    for name, tensor in (("a", a), ("q", q)):
        if needs[name] and tensor is not None:
            buffers[f"grad_{name}"] = v.new_zeros(parts, *tensor.shape, dtype=torch.float32)
    grad_mask, mask_view, part_stride = None, None, 0
    if mask_grad is not None:
        shape = (1,) * (4 - mask_grad.dim()) + tuple(mask_grad.shape)
        # Parts write to different keys, unless all keys share one number.
        copies = parts if shape[-1] == 1 else 1
        grad_mask = v.new_zeros(copies, *shape, dtype=torch.float32)
        part_stride = grad_mask.stride(0) if grad_mask.shape[0] > 1 else 0
        mask_view = grad_mask[0].expand(batch, heads, queries, keys)
    if runs:
        out, lse, rest = (tensor.contiguous() for tensor in (out, lse, rest))
        grad_out = grad_out.to(v.dtype)
        grad_lse = grad_lse.float().unsqueeze(-1)
        call = _CALL.pack(
            *values,
            out.data_ptr(),
            lse.data_ptr(),
            rest.data_ptr(),
            *_strided(grad_out),
            *_strided(grad_lse),
            buffers["delta"].data_ptr(),
            parts,
            *(
                buffers[name].data_ptr() if name in buffers else 0
                for name in ("grad_a", "grad_q", "grad_b", "grad_v", "grad_k", "grad_parameters")
            ),
            *_strided(mask_view),
            part_stride,
        )
        _check(library.na_backward(call))

    gradients = {name: buffers[f"grad_{name}"] for name in ("b", "v", "k") if needs[name]}
    for name in ("a", "q"):
        if needs[name]:
            total = buffers[f"grad_{name}"]
            gradients[name] = total[0] if parts == 1 else total.sum(0)
    gradients |= _parameter_gradients(problem, buffers["grad_parameters"], needs)
    if grad_mask is not None and mask_grad is not None:
        gradients["attn_mask"] = grad_mask.sum(0).view(mask_grad.shape)
    return gradients


def _parameter_gradients(
    problem: Problem, sums: Tensor, needs: dict[str, bool]
) -> dict[str, Tensor]:
    """The per-head sums of every unit of work, as gradients of the parameters."""
    heads, channels = problem.a.shape[1], problem.a.shape[-1]
    width = problem.output_weight.shape[-1]
    second = 0 if problem.hidden_weight is None else width
    per_head = sums.sum((0, 2)).flatten(0, 1).float()
    pieces = per_head.split([width, second * channels, second, channels, 1], dim=1)
    names = ("output_weight", "hidden_weight", "hidden_bias", "slopes", "alibi")
    gradients = {}
    for name, piece in zip(names, pieces, strict=True):
        parameter = getattr(problem, name)
        if not needs[name]:
            continue
        if name == "alibi":
            gradients[name] = piece[:, 0].clone()
            continue
        shared = parameter.shape[0] == 1 and heads > 1
        total = piece.sum(0, keepdim=True) if shared else piece
        # A copy, since an operator's outputs must not share memory.
        gradients[name] = total.reshape(parameter.shape).clone()
    return gradients


def _check(status: int) -> None:
    if status:
        raise MemoryError(f"neural_attention: {_ERRORS[status]}.")


def _strided(tensor: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0, 0, 0) if tensor is None else (tensor.data_ptr(), *tensor.stride())


def _values(problem: Problem, alive: list[Tensor]) -> list[Any]:
    """NaCall's fields up to ``mask_dtype``; ``alive`` keeps what they point to."""
    p, v = problem, problem.v
    if v.device.type != "cpu" or v.dtype not in _DTYPES:
        raise ValueError(
            f"backend 'native' computes float32, bfloat16 and float16 on the CPU; the inputs are "
            f"{v.dtype} on {v.device}: use backend='auto' or 'blocked'."
        )
    batch, heads, key_heads, queries, keys = p.sizes
    kind, _, slope = p.activation.partition(":")
    leak = (float(slope) if slope else _DEFAULT_LEAK) if kind == "leaky_relu" else 0.0

    def pointer(tensor: Tensor | None, dtype: torch.dtype, rows: int) -> int:
        if tensor is None:
            return 0
        if tensor.shape[0] != rows:
            tensor = tensor.expand(rows, *tensor.shape[1:])
        if tensor.dtype != dtype or not tensor.is_contiguous():
            tensor = tensor.to(dtype).contiguous()
        alive.append(tensor)
        return tensor.data_ptr()

    masks, mask = p.masks, p.masks.attn_mask
    left, right = masks.window
    right = _UNLIMITED if right is None else right
    first_key = last_key = None
    if masks.cu_seqlens is not None:
        bounds = masks.cu_seqlens.long()
        first_key, last_key = (
            edge.repeat_interleave(bounds.diff()) for edge in (bounds[:-1], bounds[1:])
        )
    if mask is not None:
        if mask.dtype == torch.float64:
            mask = mask.float()
        mask = mask.expand(batch, heads, queries, keys)
        alive.append(mask)
    return [
        torch.get_num_threads(),
        _DTYPES[v.dtype],
        batch,
        heads,
        key_heads,
        queries,
        keys,
        p.a.shape[-1],
        0 if p.hidden_weight is None else p.hidden_weight.shape[1],
        0 if p.q is None else p.q.shape[-1],
        v.shape[-1],
        _ACTIVATIONS.index(kind),
        leak,
        p.scale,
        p.dropout_p,
        0 if p.seed is None else int(p.seed),
        *_strided(p.a),
        *_strided(p.b),
        *_strided(v),
        *_strided(p.q),
        *_strided(p.k),
        *(
            pointer(parameter, torch.float32, heads)
            for parameter in (p.output_weight, p.hidden_weight, p.hidden_bias, p.slopes, p.alibi)
        ),
        _UNLIMITED if left is None else left,
        min(right, 0) if masks.is_causal else right,
        masks.offset,
        pointer(masks.offsets, torch.int64, batch),
        pointer(masks.key_lengths, torch.int64, batch),
        pointer(first_key, torch.int64, queries),
        pointer(last_key, torch.int64, queries),
        *_strided(mask),
        0 if mask is None else _DTYPES[mask.dtype],
    ]
