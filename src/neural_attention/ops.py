"""The flat ``torch.library`` operator: schema, shapes for tracing, autograd, vmap.

Two operators, ``neural_attention::attention`` and ``neural_attention::attention_backward``, carry
every option as a flat argument, so that ``torch.compile``, ``torch.export`` and checkpointing see
one opaque node each way. Argument checks that need values happen inside.
"""

from __future__ import annotations

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

torch.library.define("neural_attention::attention", f"({_ARGUMENTS}) -> (Tensor, Tensor)")
torch.library.define(
    "neural_attention::attention_backward",
    "(Tensor out, Tensor lse, Tensor grad_out, Tensor grad_lse, bool[] needs, "
    f"{_ARGUMENTS}) -> ({_GRADIENTS})",
)

attention = torch.ops.neural_attention.attention.default


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
def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    *rest, backend = arguments
    # The caller has cast what autocast casts; what is computed here keeps its own precision.
    with torch.autocast(arguments[0].device.type, enabled=False):
        problem = _problem(*rest)
        return backends.load(backend, problem.v, problem.q).forward(problem)


@torch.library.impl("neural_attention::attention_backward", "CompositeExplicitAutograd")
def _backward(
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    needs: list[bool],
    *arguments: Any,
) -> tuple[Tensor, ...]:
    *rest, backend = arguments
    problem = _problem(*rest)
    with torch.autocast(out.device.type, enabled=False):
        gradients: dict[str, Tensor] = backends.load(backend, problem.v, problem.q).backward(
            problem, out, lse, grad_out, grad_lse, dict(zip(DIFFERENTIABLE, needs, strict=True))
        )
    return tuple(
        gradients[name].to(getattr(problem, name).dtype).contiguous() if need else out.new_empty(0)
        for name, need in zip(DIFFERENTIABLE, needs, strict=True)
    )


@torch.library.register_fake("neural_attention::attention")
def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    a, _, v = arguments[:3]
    lse_dtype = torch.float64 if v.dtype == torch.float64 else torch.float32
    return v.new_empty(*a.shape[:3], v.shape[3]), v.new_empty(a.shape[:3], dtype=lse_dtype)


@torch.library.register_fake("neural_attention::attention_backward")
def _backward_fake(
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    needs: list[bool],
    *arguments: Any,
) -> tuple[Tensor, ...]:
    return tuple(
        tensor.new_empty(tensor.shape) if need else out.new_empty(0)
        for tensor, need in zip(arguments, needs, strict=False)
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    # Positions of the tensors, so that they are saved as tensors and the rest as plain values.
    ctx.plain = [None if isinstance(value, Tensor) else value for value in inputs]
    ctx.tensor_positions = [i for i, value in enumerate(inputs) if isinstance(value, Tensor)]
    ctx.save_for_backward(*output, *(inputs[i] for i in ctx.tensor_positions))


def _differentiate(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError(
            "neural_attention has no second derivatives: its backward was asked for a graph "
            "(create_graph=True). For a gradient penalty or a Hessian, write the attention in "
            "plain torch."
        )
    out, lse, *tensors = ctx.saved_tensors
    arguments = list(ctx.plain)
    for position, tensor in zip(ctx.tensor_positions, tensors, strict=True):
        arguments[position] = tensor
    needs = [
        bool(needed) and isinstance(argument, Tensor) and argument.is_floating_point()
        for needed, argument in zip(
            ctx.needs_input_grad[: len(DIFFERENTIABLE)], arguments, strict=False
        )
    ]
    gradients = torch.ops.neural_attention.attention_backward(
        out, lse, grad_out, grad_lse, needs, *arguments
    )
    used = [gradient if need else None for gradient, need in zip(gradients, needs, strict=True)]
    return (*used, *[None] * (len(arguments) - len(used)))


torch.library.register_autograd(
    "neural_attention::attention", _differentiate, setup_context=_setup_context
)


@torch.library.register_vmap("neural_attention::attention")
def _vmap(*_: Any) -> NoReturn:
    raise RuntimeError(
        "neural_attention does not support torch.vmap: put the mapped dimension into the batch "
        "dimension of a, b, v, q and k instead."
    )
