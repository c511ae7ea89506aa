"""The definition: plain torch, everything materialised, gradients by autograd.

Every other backend is tested against this one. It computes in float64 for float64 inputs and in
float32 for all others.

Shapes in names: B batch, H heads, I queries, J keys, C channels, D value width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..activations import resolve
from ..philox import dropout_keep
from .problem import DIFFERENTIABLE, Problem, log_sum_exp, records_gradients


def forward(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Output in the values' dtype; lse, and the rest of it, in the accumulation dtype."""
    out, scores_BHIJ = _attend(_in_accumulate_dtype(problem))
    if scores_BHIJ.shape[-1] == 0:
        lse = scores_BHIJ.new_full(scores_BHIJ.shape[:-1], -math.inf)
        return out.to(problem.v.dtype), lse, torch.zeros_like(lse)
    peak = scores_BHIJ.amax(-1)
    shift = peak.masked_fill(peak == -math.inf, 0)
    total = torch.exp(scores_BHIJ - shift[..., None]).sum(-1)
    return out.to(problem.v.dtype), *log_sum_exp(peak, total)


def backward(
    problem: Problem,
    out: Tensor,
    lse: Tensor,
    rest: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    needs: dict[str, bool],
) -> dict[str, Tensor]:
    """Gradients of the tensors that need one, by autograd through the definition."""
    names = [name for name in DIFFERENTIABLE if needs[name]]
    attends = lse != -math.inf
    with records_gradients():
        leaves = {name: getattr(problem, name).detach().requires_grad_() for name in names}
        out, scores_BHIJ = _attend(_in_accumulate_dtype(problem.with_tensors(**leaves)))
        lse = torch.logsumexp(scores_BHIJ, dim=-1)
        # A row with nothing to attend to is a constant, whatever comes back to it.
        grad_out = grad_out.to(out.dtype).masked_fill(~attends[..., None], 0)
        grad_lse = grad_lse.to(lse.dtype).masked_fill(~attends, 0)
        # lse does not depend on v, and nothing on features without channels.
        dependent = [pair for pair in ((out, grad_out), (lse, grad_lse)) if pair[0].requires_grad]
        if not dependent:
            return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        gradients = torch.autograd.grad(
            [output for output, _ in dependent],
            list(leaves.values()),
            [upstream for _, upstream in dependent],
            materialize_grads=True,
        )
    # Where nothing broadcasts, autograd hands one and the same tensor to a and to b.
    return {name: gradient.clone() for name, gradient in zip(names, gradients, strict=True)}


def _in_accumulate_dtype(problem: Problem) -> Problem:
    tensors = {name: getattr(problem, name) for name in DIFFERENTIABLE}
    return problem.with_tensors(
        **{
            name: tensor.to(problem.accumulate_dtype)
            for name, tensor in tensors.items()
            if tensor is not None and tensor.dtype != torch.bool
        }
    )


def _attend(p: Problem) -> tuple[Tensor, Tensor]:
    """Output and scores."""
    batch, heads, key_heads, queries, keys = p.sizes
    whole = slice(0, batch), slice(0, heads), slice(0, queries), slice(0, keys)
    device = p.v.device
    visible, additive = p.masks.tile(*whole, device)
    strict = visible is not None and p.needs_strict_masking
    relative = p.masks.relative_positions(whole[0], whole[2], whole[3], device).to(p.v.dtype)
    b, v = (t.repeat_interleave(heads // key_heads, dim=1) for t in (p.b, p.v))

    scores_BHIJ = p.v.new_zeros(batch, heads, queries, keys)
    if p.a.shape[-1]:
        hidden_BHIJC = p.a[:, :, :, None] + b[:, :, None]
        if p.slopes is not None:
            hidden_BHIJC = hidden_BHIJC + relative[..., None] * p.slopes[:, None, None]
        if strict:
            assert visible is not None
            hidden_BHIJC = hidden_BHIJC.masked_fill(~visible[..., None], 0)
        activation = resolve(p.activation)
        hidden_BHIJC = activation(hidden_BHIJC)
        if p.hidden_weight is not None and p.hidden_bias is not None:
            weight = p.hidden_weight.expand(heads, -1, -1)
            mixed = torch.einsum("bhijc,hdc->bhijd", hidden_BHIJC, weight)
            hidden_BHIJC = activation(mixed + p.hidden_bias[:, None, None])
        scores_BHIJ = torch.einsum(
            "bhijc,hc->bhij", hidden_BHIJC, p.output_weight.expand(heads, -1)
        )
    if p.q is not None and p.k is not None:
        k = p.k.repeat_interleave(heads // key_heads, dim=1)
        if strict:
            assert visible is not None
            # The keys, not the products: q's gradient is a multiple of what q was multiplied by.
            keys_BHIJD = k[:, :, None].masked_fill(~visible[..., None], 0)
            dots = (p.q[:, :, :, None] * keys_BHIJD).sum(-1)
        else:
            dots = p.q @ k.transpose(-1, -2)
        scores_BHIJ = scores_BHIJ + p.scale * dots
    if p.alibi is not None:
        scores_BHIJ = scores_BHIJ + p.alibi[:, None, None] * relative
    if additive is not None:
        scores_BHIJ = scores_BHIJ + additive
    if visible is not None:
        scores_BHIJ = scores_BHIJ.masked_fill(~visible, -math.inf)

    # A row that sees nothing would be 0 / 0.
    nothing_BHI1 = (scores_BHIJ == -math.inf).all(-1, keepdim=True)
    weights_BHIJ = torch.softmax(scores_BHIJ.masked_fill(nothing_BHI1, 0), dim=-1)
    weights_BHIJ = weights_BHIJ.masked_fill(nothing_BHI1, 0)
    if p.dropout_p:
        assert p.seed is not None
        keep = dropout_keep(p.seed, p.dropout_p, *whole)
        weights_BHIJ = weights_BHIJ * keep / (1 - p.dropout_p)
    if strict:
        assert visible is not None
        values_BHIJD = v[:, :, None].masked_fill(~visible[..., None], 0)
        out_BHID = (weights_BHIJ[..., None] * values_BHIJD).sum(-2)
    else:
        out_BHID = weights_BHIJ @ v
    return out_BHID, scores_BHIJ
