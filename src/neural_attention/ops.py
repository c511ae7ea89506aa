"""The flat ``torch.library`` operator: schema, shapes for tracing, autograd, vmap.

It returns the output, lse, and what rounding has taken off lse, which the backward needs.

Two operators, ``neural_attention::attention`` and ``neural_attention::attention_backward``, carry
every option as a flat argument, so that ``torch.compile``, ``torch.export`` and checkpointing see
one opaque node each way. Argument checks that need values happen inside.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor

from . import backends, validation
from .backends.problem import DIFFERENTIABLE, Problem
from .masks import Masks

_ARGUMENTS = (
    "Tensor a, Tensor b, Tensor v, Tensor output_weight, Tensor? hidden_weight,"
    " Tensor? hidden_bias, Tensor? q, Tensor? k, Tensor? slopes, Tensor? alibi,"
    " Tensor? attn_mask, Tensor? query_offsets, Tensor? key_lengths, Tensor? cu_seqlens,"
    " Tensor? seed, str activation, float scale, bool is_causal, SymInt query_offset,"
    " SymInt? window_left, SymInt? window_right, float dropout_p, str backend"
)
# The differentiable arguments come first in the schema, in the order of DIFFERENTIABLE.
_GRADIENTS = ", ".join(["Tensor"] * len(DIFFERENTIABLE))

torch.library.define("neural_attention::attention", f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor)")
torch.library.define(
    "neural_attention::attention_backward",
    "(Tensor out, Tensor lse, Tensor rest, Tensor grad_out, Tensor grad_lse, bool[] needs, "
    f"{_ARGUMENTS}) -> ({_GRADIENTS})",
)

_NOTHING = nullcontext()
attention = torch.ops.neural_attention.attention.default
_attention_backward = torch.ops.neural_attention.attention_backward.default


def _without_autocast(device: str) -> AbstractContextManager[None]:
    """A context in which autocast is off; nothing at all where it is off already."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return _NOTHING


def _problem(
    a: Tensor,
    b: Tensor,
    v: Tensor,
    output_weight: Tensor,
    hidden_weight: Tensor | None,
    hidden_bias: Tensor | None,
    q: Tensor | None,
    k: Tensor | None,
    slopes: Tensor | None,
    alibi: Tensor | None,
    attn_mask: Tensor | None,
    query_offsets: Tensor | None,
    key_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
    seed: Tensor | None,
    activation: str,
    scale: float,
    is_causal: bool,
    query_offset: int,
    window_left: int | None,
    window_right: int | None,
    dropout_p: float,
) -> Problem:
    query_length, key_length = a.shape[2], b.shape[2]
    # On a GPU, to read values is to wait for it, and no CUDA graph could be captured.
    if query_offsets is not None and not query_offsets.is_cuda:
        validation.check_query_offsets(query_offsets)
    if key_lengths is not None and not key_lengths.is_cuda:
        validation.check_key_lengths(key_lengths, key_length)
    if cu_seqlens is not None and not cu_seqlens.is_cuda:
        validation.check_cu_seqlens(cu_seqlens, key_length)
    masks = Masks(
        query_length=query_length,
        key_length=key_length,
        is_causal=is_causal,
        window=(window_left, window_right),
        offset=query_offset,
        offsets=query_offsets,
        key_lengths=key_lengths,
        cu_seqlens=cu_seqlens,
        attn_mask=attn_mask,
    )
    return Problem(
        a,
        b,
        v,
        output_weight,
        hidden_weight,
        hidden_bias,
        q,
        k,
        slopes,
        alibi,
        masks,
        seed,
        activation,
        scale,
        dropout_p,
    )


@torch.library.impl("neural_attention::attention", "CompositeExplicitAutograd")
def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    *call, backend = arguments
    v = arguments[2]
    # The caller has cast what autocast casts; what is computed here keeps its own precision.
    with _without_autocast(v.device.type):
        problem = _problem(*call)
        return backends.load(backend, v, problem.q).forward(problem)


@torch.library.impl("neural_attention::attention_backward", "CompositeExplicitAutograd")
def _backward(
    out: Tensor,
    lse: Tensor,
    rest: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    needs: list[bool],
    *arguments: Any,
) -> tuple[Tensor, ...]:
    *call, backend = arguments
    problem = _problem(*call)
    with _without_autocast(out.device.type):
        gradients: dict[str, Tensor] = backends.load(backend, problem.v, problem.q).backward(
            problem,
            out,
            lse,
            rest,
            grad_out,
            grad_lse,
            dict(zip(DIFFERENTIABLE, needs, strict=True)),
        )
    return tuple(
        gradients[name].to(getattr(problem, name).dtype).contiguous() if need else out.new_empty(0)
        for name, need in zip(DIFFERENTIABLE, needs, strict=True)
    )


@torch.library.register_fake("neural_attention::attention")
def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    a, _, v = arguments[:3]
    lse_dtype = torch.float64 if v.dtype == torch.float64 else torch.float32
    lse, rest = (v.new_empty(a.shape[:3], dtype=lse_dtype) for _ in range(2))
    return v.new_empty(*a.shape[:3], v.shape[3]), lse, rest


@torch.library.register_fake("neural_attention::attention_backward")
def _backward_fake(
    out: Tensor,
    lse: Tensor,
    rest: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    needs: list[bool],
    *arguments: Any,
) -> tuple[Tensor, ...]:
    return tuple(
        tensor.new_empty(tensor.shape) if need else out.new_empty(0)
        for tensor, need in zip(arguments, needs, strict=False)
    )


# Not torch.library.register_autograd: it reads the schema anew in every call, once an argument for
# each argument, which takes longer than the attention of a short sequence.
class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            out, lse, rest = attention(*arguments)
        ctx.mark_non_differentiable(rest)
        # Tensors are saved as tensors, in their positions, and the rest as plain values.
        ctx.plain = [None if isinstance(value, Tensor) else value for value in arguments]
        ctx.positions = [i for i, value in enumerate(arguments) if isinstance(value, Tensor)]
        ctx.save_for_backward(out, lse, rest, *(arguments[i] for i in ctx.positions))
        return out, lse, rest

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "neural_attention has no second derivatives: its backward was asked for a graph "
                "(create_graph=True). For a gradient penalty or a Hessian, write the attention in "
                "plain torch."
            )
        out, lse, rest, *tensors = ctx.saved_tensors
        arguments = list(ctx.plain)
        for position, tensor in zip(ctx.positions, tensors, strict=True):
            arguments[position] = tensor
        needs = list(ctx.needs_input_grad[: len(DIFFERENTIABLE)])
        found = _attention_backward(out, lse, rest, grad_out, grad_lse, needs, *arguments)
        used = [gradient if need else None for gradient, need in zip(found, needs, strict=True)]
        return (*used, *[None] * (len(arguments) - len(used)))


def _autograd(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    if torch.is_grad_enabled():
        for argument in arguments[: len(DIFFERENTIABLE)]:
            if argument is not None and argument.requires_grad:
                result: tuple[Tensor, Tensor, Tensor] = _Attention.apply(*arguments)
                return result
    with torch._C._AutoDispatchBelowAutograd():
        below: tuple[Tensor, Tensor, Tensor] = attention(*arguments)
    return below


torch.library.impl("neural_attention::attention", "Autograd", _autograd)


def attend(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The operator; outside of tracing, straight to what its dispatch would lead to."""
    return (attention if torch.compiler.is_compiling() else _autograd)(*arguments)


def refuse_vmap(*_: Any) -> NoReturn:
    """The end of every ``torch.vmap``."""
    raise RuntimeError(
        "neural_attention does not support torch.vmap: put the mapped dimension into the batch "
        "dimension of a, b, v, q and k instead."
    )


torch.library.register_vmap("neural_attention::attention", refuse_vmap)
