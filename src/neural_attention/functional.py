"""The operator: one function, checked and dispatched."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import (
    is_batchedtensor,
    is_gradtrackingtensor,
    peek_interpreter_stack,
)
from torch.autograd import forward_ad

from . import ops, validation

_AUTOCAST_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class ScoreWeights(NamedTuple):
    r"""The weights of a score network behind its first layer.

    .. math:: s = w^\top h, \qquad h = \sigma(u) \text{ or } \sigma(W_2\,\sigma(u) + c_2)

    Attributes:
        output: w, ``(H or 1, C_last)``; a leading 1 shares it between heads.
        hidden: ``()``, or one pair ``((W2, c2),)`` with W2 ``(H or 1, C2, C)`` and c2
            ``(H or 1, C2)``.

    >>> ScoreWeights(torch.ones(8, 16)).hidden
    ()
    """

    output: Tensor
    hidden: tuple[tuple[Tensor, Tensor], ...] = ()


def neural_attention(
    a: Tensor,
    b: Tensor,
    v: Tensor,
    weights: ScoreWeights,
    *,
    activation: str,
    q: Tensor | None = None,
    k: Tensor | None = None,
    scale: float | None = None,
    slopes: Tensor | None = None,
    alibi: Tensor | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    query_offset: int | Tensor | None = None,
    window: tuple[int | None, int | None] | None = None,
    key_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dropout_p: float = 0.0,
    backend: str = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention whose scores are a small feed-forward network of query and key.

    .. math::
        u_{ij} &= a_i + b_j + m\,(j - p_i) \\
        s_{ij} &= w^\top \sigma(u_{ij}) \quad\text{or}\quad
                  w^\top \sigma(W_2\,\sigma(u_{ij}) + c_2) \\
        s_{ij} &\mathrel{+}= \mathrm{scale}\; q_i^\top k_j + \mathrm{alibi}\,(j - p_i)
                  + \mathrm{mask}_{ij} \\
        o_i &= \sum_j \operatorname{softmax}_j(s_{ij})\, v_j

    A first layer on the concatenation of query and key is a sum of two layers, so a and b carry it
    exactly, at linear cost. With q and k the score is hybrid; with C = 0 it is the plain dot
    product.

    Query i stands at key position p = i + offset with offset = Lk − Lq, so that the last query
    sees the last key: causality is aligned to the *bottom right*, as in decoding. This differs from
    ``torch.nn.functional.scaled_dot_product_attention(is_causal=True)``, which aligns to the top
    left (``query_offset=0`` does that here).

    A row with nothing to attend to gives output 0, gradients 0 and lse −inf. What stands in masked
    entries of b, k and v, NaN and Inf included, reaches nothing.

    Args:
        a: query features, ``(B, H, Lq, C)``; the first layer's bias is already in them.
        b: key features, ``(B, Hkv, Lk, C)``; Hkv divides H (grouped-query attention).
        v: values, ``(B, Hkv, Lk, Dv)``. a, b, v, q and k share a dtype: float32, bfloat16,
            float16 (all accumulate in float32) or float64. Under autocast they are cast together.
        weights: the layers behind the first, per head or shared; float32 or a's dtype.
        activation: ``relu``, ``leaky_relu`` (slope 0.01; ``leaky_relu:0.2`` sets another),
            ``hardswish``, ``gelu`` (exact), ``gelu_tanh``, ``silu`` or ``tanh``.
        q: queries of the dot product, ``(B, H, Lq, D)``, any D.
        k: keys of the dot product, ``(B, Hkv, Lk, D)``.
        scale: factor of the dot product; D^−½ if None.
        slopes: m, ``(H or 1, C)``: each channel's learned slope over relative position.
        alibi: ``(H,)``: slopes over relative position on the score itself (Press et al. 2022).
        attn_mask: broadcastable to ``(B, H, Lq, Lk)``; bool, True attends, or floating, added.
        is_causal: hide keys after the query: j ≤ p.
        query_offset: int or ``(B,)`` integers that replace Lk − Lq.
        window: ``(left, right)``: p − left ≤ j ≤ p + right; None leaves a side open.
        key_lengths: ``(B,)`` integers: j < key_lengths[b]. Does not move the offset.
        cu_seqlens: int32 ``(documents + 1,)``: bounds of documents packed into one row, each
            attending to itself alone; B = 1, Lq = Lk.
        dropout_p: probability of dropping an attention weight; always applied, as in
            ``scaled_dot_product_attention``: pass 0 in evaluation. The mask depends on the seed
            drawn from torch's generator and the indices alone, not on the backend.
        backend: ``auto``, or one by name: ``native`` (fused CPU kernels; not float64), ``triton``
            (fused GPU kernels; not float64, widths up to 256), ``blocked`` (plain torch, memory
            linear in length, any device) or ``reference`` (materialises all; the definition).
            ``auto`` is ``native`` or ``triton`` where they can run, else ``blocked``.
        return_lse: also return the log-sum-exp of the scores, which is differentiable.

    Returns:
        ``(B, H, Lq, Dv)`` in v's dtype; with ``return_lse``, also ``(B, H, Lq)`` in float32
        (float64 for float64 inputs).

    Raises:
        ValueError, TypeError: an argument that does not fit; the message gives both sides.
        RuntimeError: second derivatives, forward-mode derivatives, ``torch.vmap``, the gradient
            transforms of ``torch.func`` and ONNX export.

    Source:
        DiGiugno & Mahmood 2025, arXiv 2502.17206; with tanh and one hidden layer, Bahdanau, Cho &
        Bengio 2014, arXiv 1409.0473.

    >>> a, b, v = torch.randn(1, 8, 128, 16), torch.randn(1, 8, 128, 16), torch.randn(1, 8, 128, 64)
    >>> weights = ScoreWeights(torch.randn(8, 16))
    >>> neural_attention(a, b, v, weights, activation="relu", is_causal=True).shape
    torch.Size([1, 8, 128, 64])
    """
    a, b, v, q, k = _autocast(a, b, v, q, k)
    validation.check_features(a, b, v, q, k)
    validation.check_weights(weights, a)
    validation.check_positions(slopes, alibi, a)
    shape = (*a.shape[:3], b.shape[2])
    validation.check_masks(shape, a, attn_mask, window, query_offset, key_lengths, cu_seqlens)
    validation.check_choices(
        activation, scale, q is not None, dropout_p, is_causal, return_lse, backend
    )
    output, hidden = weights
    hidden_weight, hidden_bias = hidden[0] if hidden else (None, None)
    _refuse_unsupported_transforms(
        a, b, v, output, hidden_weight, hidden_bias, q, k, slopes, alibi, attn_mask
    )

    offset, offsets = b.shape[2] - a.shape[2], None
    if isinstance(query_offset, Tensor):
        offset, offsets = 0, query_offset
    elif query_offset is not None:
        offset = query_offset
    left, right = window or (None, None)
    seed = None
    if dropout_p:
        seed = torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=v.device)
    out, lse, _ = ops.attend(
        a,
        b,
        v,
        output,
        hidden_weight,
        hidden_bias,
        q,
        k,
        slopes,
        alibi,
        attn_mask,
        offsets,
        key_lengths,
        cu_seqlens,
        seed,
        activation,
        _scale(scale, q),
        is_causal,
        offset,
        left,
        right,
        float(dropout_p),
        backend,
    )
    return (out, lse) if return_lse else out


def _scale(scale: float | None, q: Tensor | None) -> float:
    if scale is not None:
        return float(scale)
    return 1.0 if q is None else 1.0 / math.sqrt(q.shape[-1])


def _autocast(*tensors: Any) -> tuple[Any, ...]:
    """What autocast does to the operands of a matrix product; float64 keeps its precision."""
    device = tensors[0].device.type if isinstance(tensors[0], Tensor) else "meta"
    # meta carries shapes alone and raises when asked about autocast.
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        tensor.to(dtype)
        if isinstance(tensor, Tensor) and tensor.dtype in _AUTOCAST_DTYPES
        else tensor
        for tensor in tensors
    )


def _refuse_unsupported_transforms(*tensors: Tensor | None) -> None:
    if torch.compiler.is_compiling():
        return
    if torch._C._get_tracing_state() is not None and torch.onnx.is_in_onnx_export():
        raise RuntimeError(
            "neural_attention cannot be exported to ONNX, which has no such operator: use "
            "torch.export."
        )
    # Each of these is asked for only where a transform is under way at all.
    if forward_ad._current_level >= 0 and any(
        tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None
        for tensor in tensors
    ):
        raise RuntimeError(
            "neural_attention has no forward-mode derivatives: use reverse mode "
            "(torch.autograd.grad)."
        )
    if peek_interpreter_stack() is None:
        return
    given = [tensor for tensor in tensors if tensor is not None]
    if any(map(is_batchedtensor, given)):
        ops.refuse_vmap()
    if any(map(is_gradtrackingtensor, given)):
        raise RuntimeError(
            "neural_attention does not support the transforms of torch.func, which torch does "
            "not offer to operators from outside: use torch.autograd.grad."
        )
