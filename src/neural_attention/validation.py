"""Every error a user can meet at the operator: what was expected, what came, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import activations, backends

if TYPE_CHECKING:
    from .functional import ScoreWeights

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int64, torch.int32)


def check_features(a: Tensor, b: Tensor, v: Tensor, q: Tensor | None, k: Tensor | None) -> None:
    """Shapes, dtypes and devices of everything that has a position."""
    if (q is None) != (k is None):
        given, missing = ("k", "q") if q is None else ("q", "k")
        raise ValueError(f"{given} is given without {missing}: pass both for a dot product.")
    tensors = {"a": a, "b": b, "v": v}
    if q is not None and k is not None:
        tensors.update(q=q, k=k)  # torch.compile of torch 2.7 cannot trace `|=`
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
        if tensor.dim() != 4:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}: expected four dimensions, "
                "(batch, heads, length, width)."
            )
        if tensor.dtype != v.dtype:
            raise TypeError(
                f"{name} is {tensor.dtype} and v is {v.dtype}: a, b, v, q and k need one dtype."
            )
        if tensor.device != v.device:
            raise ValueError(f"{name} is on {tensor.device} and v on {v.device}: use one device.")
        if tensor.shape[0] != a.shape[0]:
            raise ValueError(
                f"{name} has batch size {tensor.shape[0]} and a has {a.shape[0]}: they must agree."
            )
    if v.dtype not in _DTYPES:
        raise TypeError(
            f"the inputs are {v.dtype}: expected float32, bfloat16, float16 or float64."
        )
    heads, key_heads = a.shape[1], b.shape[1]
    if heads == 0:
        raise ValueError("a has 0 heads: expected at least one, (batch, heads, length, width).")
    if key_heads == 0 or heads % key_heads:
        raise ValueError(
            f"b has {key_heads} heads and a has {heads}: the number of key heads must divide the "
            "number of query heads (grouped-query attention)."
        )
    if a.shape[3] != b.shape[3]:
        raise ValueError(
            f"a has {a.shape[3]} channels and b has {b.shape[3]}: query and key features are "
            "added, so they need the same width."
        )
    _check_like("v", v, "b", b, dims=(1, 2))
    if q is not None and k is not None:
        _check_like("q", q, "a", a, dims=(1, 2))
        _check_like("k", k, "b", b, dims=(1, 2))
        if q.shape[3] != k.shape[3] or q.shape[3] == 0:
            raise ValueError(
                f"q has width {q.shape[3]} and k has {k.shape[3]}: their dot product needs the "
                "same width, at least 1."
            )
    elif a.shape[3] == 0:
        raise ValueError(
            "a and b have no channels and there is no q and k, so nothing would score the keys: "
            "pass features (C >= 1), or q and k."
        )


def check_weights(weights: ScoreWeights, a: Tensor) -> None:
    """The score network's shapes against its features'."""
    if not isinstance(weights, tuple) or not hasattr(weights, "hidden"):
        raise TypeError(
            f"weights is a {type(weights).__name__}: expected ScoreWeights(output, hidden)."
        )
    heads, channels = a.shape[1], a.shape[3]
    output = weights.output
    _check_parameter("weights.output", output, a)
    if len(weights.hidden) > 1:
        raise ValueError(
            f"weights.hidden has {len(weights.hidden)} layers: a score network has one hidden "
            "layer, or two with one (W2, c2) pair here."
        )
    last = channels
    for pair in weights.hidden:
        if len(pair) != 2:
            raise ValueError("weights.hidden holds (W2, c2) pairs: expected two tensors in it.")
        weight, bias = pair
        _check_parameter("W2", weight, a)
        _check_parameter("c2", bias, a)
        if channels == 0:
            raise ValueError("a has no channels (C = 0), so a second hidden layer has no input.")
        if weight.dim() != 3 or weight.shape[0] not in (1, heads) or weight.shape[2] != channels:
            raise ValueError(
                f"W2 has shape {tuple(weight.shape)}: expected ({heads} or 1, C2, {channels}), "
                "that is (heads or shared, width of the second layer, channels of a)."
            )
        last = weight.shape[1]
        if bias.dim() != 2 or bias.shape[0] not in (1, heads) or bias.shape[1] != last:
            raise ValueError(
                f"c2 has shape {tuple(bias.shape)}: expected ({heads} or 1, {last}), a bias for "
                "each row of W2."
            )
    if output.dim() != 2 or output.shape[0] not in (1, heads) or output.shape[1] != last:
        raise ValueError(
            f"weights.output has shape {tuple(output.shape)}: expected ({heads} or 1, {last}), "
            "a weight for each channel of the last hidden layer, per head or shared."
        )


def check_positions(slopes: Tensor | None, alibi: Tensor | None, a: Tensor) -> None:
    """Shapes of the learned position terms."""
    heads, channels = a.shape[1], a.shape[3]
    if slopes is not None:
        _check_parameter("slopes", slopes, a)
        if slopes.dim() != 2 or slopes.shape[0] not in (1, heads) or slopes.shape[1] != channels:
            raise ValueError(
                f"slopes has shape {tuple(slopes.shape)}: expected ({heads} or 1, {channels}), "
                "a slope for each channel."
            )
        if channels == 0:
            raise ValueError(
                "slopes act on channels and a has none (C = 0): use alibi for a plain dot product."
            )
    if alibi is not None:
        _check_parameter("alibi", alibi, a)
        if alibi.shape != (heads,):
            raise ValueError(
                f"alibi has shape {tuple(alibi.shape)}: expected ({heads},), a slope for each head."
            )


def check_masks(
    a: Tensor,
    b: Tensor,
    attn_mask: Tensor | None,
    window: tuple[int | None, int | None] | None,
    query_offset: int | Tensor | None,
    key_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    """Shapes and types of the masks; their values are checked inside the operator."""
    batch, heads, query_length, _ = a.shape
    key_length = b.shape[2]
    if attn_mask is not None:
        _check_tensor("attn_mask", attn_mask, like=a)
        if attn_mask.dtype != torch.bool and attn_mask.dtype not in _DTYPES:
            raise TypeError(
                f"attn_mask is {attn_mask.dtype}: expected bool (True attends) or a floating dtype "
                "(added to the scores)."
            )
        full = (batch, heads, query_length, key_length)
        fits = attn_mask.dim() <= 4 and all(
            size in (1, wanted)
            for size, wanted in zip(reversed(attn_mask.shape), reversed(full), strict=False)
        )
        if not fits:
            raise ValueError(
                f"attn_mask has shape {tuple(attn_mask.shape)}: expected one that broadcasts to "
                f"(batch, heads, queries, keys) = {full}."
            )
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise TypeError(f"window is {window!r}: expected (left, right), None where unlimited.")
        for side in window:
            if side is not None and (isinstance(side, bool) or _is_not_int(side)):
                raise TypeError(f"window is {window!r}: expected integers, or None for no limit.")
            if side is not None and side < 0:
                raise ValueError(
                    f"window is {window!r}: distances are not negative; None means no limit."
                )
    if isinstance(query_offset, Tensor):
        _check_per_batch("query_offset", query_offset, a)
    elif query_offset is not None and (isinstance(query_offset, bool) or _is_not_int(query_offset)):
        raise TypeError(
            f"query_offset is {query_offset!r}: expected an int, or an integer tensor ({batch},)."
        )
    if key_lengths is not None:
        _check_per_batch("key_lengths", key_lengths, a)
    if cu_seqlens is not None:
        _check_tensor("cu_seqlens", cu_seqlens, like=a)
        if cu_seqlens.dtype != torch.int32 or cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
            raise ValueError(
                f"cu_seqlens is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}: expected "
                "int32 bounds (0, end of document 1, …, total length)."
            )
        if batch != 1 or query_length != key_length:
            raise ValueError(
                f"cu_seqlens packs documents into one row of queries and keys: expected batch 1 "
                f"and equal lengths, got batch {batch}, {query_length} queries, {key_length} keys."
            )
        if query_offset is not None:
            raise ValueError(
                "query_offset and cu_seqlens exclude each other: in packed documents query i "
                "stands at key i."
            )


def check_choices(activation: str, scale: float | None, has_dot: bool, dropout_p: float) -> None:
    """Plain values."""
    activations.resolve(activation)
    if scale is not None and not has_dot:
        raise ValueError("scale multiplies q · k, and there is no q and k: leave it out.")
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p is {dropout_p}: expected a probability in [0, 1).")


def check_backend(name: str) -> None:
    """The backend's name."""
    if name != "auto" and name not in backends.NAMES:
        raise ValueError(
            f"backend is {name!r}: expected auto or one of {', '.join(backends.NAMES)}."
        )


def check_key_lengths(key_lengths: Tensor, key_length: int) -> None:
    """Values of ``key_lengths``; needs them, so it runs inside the operator."""
    outside = (key_lengths < 0) | (key_lengths > key_length)
    if bool(outside.any()):
        raise ValueError(
            f"key_lengths are {key_lengths.tolist()}: expected 0 to {key_length}, the number of "
            "keys."
        )


def check_cu_seqlens(cu_seqlens: Tensor, length: int) -> None:
    """Values of ``cu_seqlens``; needs them, so it runs inside the operator."""
    bounds = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] != length or sorted(bounds) != bounds:
        shown = bounds if len(bounds) <= 12 else [*bounds[:6], "…", *bounds[-6:]]
        raise ValueError(
            f"cu_seqlens is {shown}: expected bounds that start at 0, never fall and end at the "
            f"length, {length}."
        )


def _is_not_int(value: Any) -> bool:
    return not isinstance(value, (int, torch.SymInt))


def _check_tensor(name: str, value: Any, like: Tensor | None = None) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: expected a torch.Tensor.")
    if like is not None and value.device != like.device:
        raise ValueError(f"{name} is on {value.device} and a on {like.device}: use one device.")


def _check_parameter(name: str, value: Any, a: Tensor) -> None:
    _check_tensor(name, value, like=a)
    allowed = {torch.float32, a.dtype}
    if value.dtype not in allowed:
        wanted = " or ".join(sorted(str(dtype) for dtype in allowed))
        raise TypeError(f"{name} is {value.dtype}: expected {wanted}, with inputs in {a.dtype}.")


def _check_like(
    name: str, tensor: Tensor, other: str, model: Tensor, dims: tuple[int, ...]
) -> None:
    for dim in dims:
        if tensor.shape[dim] != model.shape[dim]:
            what = {1: "heads", 2: "positions"}[dim]
            raise ValueError(
                f"{name} has {tensor.shape[dim]} {what} and {other} has {model.shape[dim]}: they "
                f"must agree. Shapes: {name} {tuple(tensor.shape)}, {other} {tuple(model.shape)}."
            )


def _check_per_batch(name: str, value: Tensor, a: Tensor) -> None:
    _check_tensor(name, value, like=a)
    if value.dtype not in _INTEGERS or value.shape != (a.shape[0],):
        raise ValueError(
            f"{name} is {value.dtype} of shape {tuple(value.shape)}: expected int64 or int32 of "
            f"shape ({a.shape[0]},), one for each batch entry."
        )
