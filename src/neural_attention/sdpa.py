"""The plain dot product by torch's own kernel, to stand beside this library's in a comparison."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from . import validation
from .masks import Masks


def scaled_dot_product(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alibi: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    query_offset: int | Tensor | None,
    window: tuple[int | None, int | None] | None,
    cu_seqlens: Tensor | None,
    dropout_p: float,
) -> Tensor:
    """``scaled_dot_product_attention`` with the meanings of this library's operator.

    Masks that torch's kernel does not know (windows, documents, offsets) are written out, one
    entry for each query and key. A row with nothing to attend to gives zeros.

    Args:
        q: ``(B, H, Lq, D)``.
        k: ``(B, Hkv, Lk, D)``.
        v: ``(B, Hkv, Lk, Dv)``.
        alibi: ``(H,)`` or None.
        attn_mask: as at the operator, True attends; so are all further arguments.
        is_causal: hide keys after the query, aligned to the bottom right.
        query_offset: see :func:`neural_attention.neural_attention`.
        window: see there.
        cu_seqlens: see there.
        dropout_p: see there.

    Returns:
        ``(B, H, Lq, Dv)``.
    """
    queries, keys = q.shape[2], k.shape[2]
    validation.check_flag("is_causal", is_causal)
    shape = (*q.shape[:3], keys)
    validation.check_masks(shape, q, attn_mask, window, query_offset, None, cu_seqlens)
    if cu_seqlens is not None:
        validation.check_cu_seqlens(cu_seqlens, keys)
    sdpa: dict[str, Any] = {"dropout_p": dropout_p, "enable_gqa": q.shape[1] != k.shape[1]}
    needs_order = is_causal and not (queries == 1 and query_offset is None)
    others = (alibi, attn_mask, query_offset, window, cu_seqlens)
    if all(argument is None for argument in others) and (not needs_order or queries == keys):
        return F.scaled_dot_product_attention(q, k, v, is_causal=needs_order, **sdpa)

    is_tensor = isinstance(query_offset, Tensor)
    masks = Masks(
        query_length=queries,
        key_length=keys,
        is_causal=is_causal,
        window=window or (None, None),
        offset=keys - queries if query_offset is None or is_tensor else query_offset,  # type: ignore[arg-type]
        offsets=query_offset if is_tensor else None,  # type: ignore[arg-type]
        cu_seqlens=cu_seqlens,
        attn_mask=attn_mask,
    )
    whole = slice(0, q.shape[0]), slice(0, q.shape[1]), slice(0, queries), slice(0, keys)
    visible, bias = masks.tile(*whole, q.device)
    if alibi is not None:
        relative = masks.relative_positions(whole[0], whole[2], whole[3], q.device)
        ramp = (alibi[:, None, None] * relative).to(q.dtype)
        bias = ramp if bias is None else bias.to(q.dtype) + ramp
    if visible is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, **sdpa)
    attends = visible.any(-1, keepdim=True)
    # A row that sees nothing looks at everything and is then cleared: no NaN on the way.
    mask = visible | ~attends
    if bias is not None:
        mask = torch.where(visible, bias.to(q.dtype), -torch.inf).masked_fill(~attends, 0)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **sdpa)
    return out.masked_fill(~attends, 0)
