"""Every error a user can meet at the operator: what was expected, what came, what to do.

The layers check their own arguments with the same functions. Plain calls pay for them, so the usual
case is a few comparisons, and messages are made only when they are raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import activations, backends

if TYPE_CHECKING:
    from .functional import ScoreWeights

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_INTEGERS = (torch.int64, torch.int32)
_FLAGS = (bool, torch.SymBool)
_NUMBERS = (float, int, torch.SymFloat, torch.SymInt)
_WHOLE = (int, torch.SymInt)

# Sums of a few positions and distances stay far from what int64 holds.
_FARTHEST = 2**31 - 1
_LARGEST = torch.finfo(torch.float32).max


def check_features(a: Tensor, b: Tensor, v: Tensor, q: Tensor | None, k: Tensor | None) -> None:
    """Shapes, dtypes and devices of everything that has a position."""
    if (q is None) != (k is None):
        given, missing = ("k", "q") if q is None else ("q", "k")
        raise ValueError(f"{given} is given without {missing}: pass both for a dot product.")
    check_tensor("v", v)
    check_tensor("a", a)
    tensors = {"a": a, "b": b, "v": v}
    if q is not None and k is not None:
        tensors.update(q=q, k=k)  # torch.compile of torch 2.7 cannot trace `|=`
    dtype, device, of_a = v.dtype, v.device, a.shape
    for name, tensor in tensors.items():
        check_tensor(name, tensor)
        shape = tensor.shape
        if len(shape) != 4:
            raise ValueError(
                f"{name} has shape {tuple(shape)}: expected four dimensions, "
                "(batch, heads, length, width)."
            )
        if tensor.dtype != dtype:
            raise TypeError(
                f"{name} is {tensor.dtype} and v is {dtype}: a, b, v, q and k need one dtype."
            )
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device} and v on {device}: use one device.")
        if shape[0] != of_a[0]:
            raise ValueError(
                f"{name} has batch size {shape[0]} and a has {of_a[0]}: they must agree."
            )
    if dtype not in DTYPES:
        raise TypeError(f"the inputs are {dtype}: expected float32, bfloat16, float16 or float64.")
    of_b, of_v = b.shape, v.shape
    heads, key_heads = of_a[1], of_b[1]
    if heads == 0:
        raise ValueError("a has 0 heads: expected at least one, (batch, heads, length, width).")
    if key_heads == 0 or heads % key_heads:
        raise ValueError(
            f"b has {key_heads} heads and a has {heads}: the number of key heads must divide the "
            "number of query heads (grouped-query attention)."
        )
    if of_a[3] != of_b[3]:
        raise ValueError(
            f"a has {of_a[3]} channels and b has {of_b[3]}: query and key features are added, so "
            "they need the same width."
        )
    _check_like("v", of_v, "b", of_b)
    if q is not None and k is not None:
        of_q, of_k = q.shape, k.shape
        _check_like("q", of_q, "a", of_a)
        _check_like("k", of_k, "b", of_b)
        if of_q[3] != of_k[3] or of_q[3] == 0:
            raise ValueError(
                f"q has width {of_q[3]} and k has {of_k[3]}: their dot product needs the same "
                "width, at least 1."
            )
    elif of_a[3] == 0:
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
    _, heads, _, channels = a.shape
    output = weights.output
    _check_parameter("weights.output", output, a)
    hidden = weights.hidden
    if not isinstance(hidden, (tuple, list)):
        raise TypeError(
            f"weights.hidden is a {type(hidden).__name__}: expected () for one hidden layer, or "
            "((W2, c2),) for two."
        )
    if len(hidden) > 1:
        raise ValueError(
            f"weights.hidden has {len(hidden)} entries: expected () for one hidden layer, or one "
            "pair, ((W2, c2),), for two. More layers are not supported."
        )
    last = channels
    for pair in hidden:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                f"weights.hidden holds a {type(pair).__name__}: expected a pair of two tensors, "
                "((W2, c2),)."
            )
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
        if last == 0:
            raise ValueError(
                f"W2 has shape {tuple(weight.shape)}: a second hidden layer needs at least one "
                "channel (C2 >= 1)."
            )
        if bias.dim() != 2 or bias.shape[0] not in (1, heads) or bias.shape[1] != last:
            raise ValueError(
                f"c2 has shape {tuple(bias.shape)}: expected ({heads} or 1, {last}), a bias for "
                "each row of W2."
            )
    shape = output.shape
    if len(shape) != 2 or shape[0] not in (1, heads) or shape[1] != last:
        raise ValueError(
            f"weights.output has shape {tuple(shape)}: expected ({heads} or 1, {last}), "
            "a weight for each channel of the last hidden layer, per head or shared."
        )


def check_positions(slopes: Tensor | None, alibi: Tensor | None, a: Tensor) -> None:
    """Shapes of the learned position terms."""
    if slopes is None and alibi is None:
        return
    _, heads, _, channels = a.shape
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
    shape: tuple[int, int, int, int],
    like: Tensor,
    attn_mask: Tensor | None,
    window: tuple[int | None, int | None] | None,
    query_offset: int | Tensor | None,
    key_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    """Shapes and types of the masks; their values are checked inside the operator.

    ``shape`` is (B, H, Lq, Lk), and ``like`` any tensor on the device of the inputs.
    """
    if attn_mask is not None:
        check_tensor("attn_mask", attn_mask, like)
        if attn_mask.dtype != torch.bool and attn_mask.dtype not in DTYPES:
            raise TypeError(
                f"attn_mask is {attn_mask.dtype}: expected bool (True attends) or a floating dtype "
                "(added to the scores)."
            )
        fits = attn_mask.dim() <= 4 and all(
            size in (1, wanted)
            for size, wanted in zip(reversed(attn_mask.shape), reversed(shape), strict=False)
        )
        if not fits:
            raise ValueError(
                f"attn_mask has shape {tuple(attn_mask.shape)}: expected one that broadcasts to "
                f"(batch, heads, queries, keys) = {tuple(shape)}."
            )
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise TypeError(f"window is {window!r}: expected (left, right), None where unlimited.")
        for side in window:
            if side is not None and not _is_whole(side):
                raise TypeError(f"window is {window!r}: expected integers, or None for no limit.")
            if side is not None and side < 0:
                raise ValueError(
                    f"window is {window!r}: distances are not negative; None means no limit."
                )
            if isinstance(side, int) and side > _FARTHEST:
                raise ValueError(
                    f"window is {window!r}: expected distances below 2**31; None means no limit."
                )
    if isinstance(query_offset, Tensor):
        _check_per_batch("query_offset", query_offset, shape[0], like)
    elif query_offset is not None:
        if not _is_whole(query_offset):
            raise TypeError(
                f"query_offset is {query_offset!r}: expected an int, or an integer tensor "
                f"({shape[0]},)."
            )
        if isinstance(query_offset, int) and not -_FARTHEST <= query_offset <= _FARTHEST:
            raise ValueError(
                f"query_offset is {query_offset}: expected a position between -2**31 and 2**31."
            )
    if key_lengths is not None:
        _check_per_batch("key_lengths", key_lengths, shape[0], like)
    if cu_seqlens is not None:
        check_tensor("cu_seqlens", cu_seqlens, like)
        if cu_seqlens.dtype != torch.int32 or cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
            raise ValueError(
                f"cu_seqlens is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}: expected "
                "int32 bounds (0, end of document 1, …, total length)."
            )
        batch, _, query_length, key_length = shape
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


def check_choices(
    activation: str,
    scale: float | None,
    has_dot: bool,
    dropout_p: float,
    is_causal: bool,
    return_lse: bool,
    backend: str,
) -> None:
    """Plain values."""
    activations.resolve(activation)
    if scale is not None:
        if not has_dot:
            raise ValueError("scale multiplies q · k, and there is no q and k: leave it out.")
        if not isinstance(scale, _NUMBERS) or isinstance(scale, bool):
            raise TypeError(
                f"scale is {scale!r}: expected a number. A scale that is learned multiplies q."
            )
        if not -_LARGEST <= scale <= _LARGEST:
            raise ValueError(f"scale is {scale}: expected a finite number in float32.")
    check_probability("dropout_p", dropout_p)
    check_flag("is_causal", is_causal)
    check_flag("return_lse", return_lse)
    check_backend(backend)


def check_flag(name: str, value: object) -> None:
    """A switch."""
    if not isinstance(value, _FLAGS):
        raise TypeError(f"{name} is {value!r}: expected True or False.")


def check_probability(name: str, value: object) -> None:
    """A probability of dropping, which leaves something."""
    if not isinstance(value, _NUMBERS) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}: expected a number, a probability in [0, 1).")
    # Written so that NaN is refused.
    if not 0 <= value < 1:
        raise ValueError(f"{name} is {value}: expected a probability in [0, 1).")


def check_size(name: str, value: object) -> None:
    """A number of things of which there is at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}: expected a whole number of at least 1.")


def check_positive(name: str, value: object) -> None:
    """A finite factor above zero."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}: expected a number above 0.")
    if not 0 < value <= _LARGEST:
        raise ValueError(f"{name} is {value}: expected a finite number above 0.")


def check_backend(name: str) -> None:
    """The backend's name."""
    if not isinstance(name, str):
        raise TypeError(f"backend is {name!r}: expected a name, such as 'auto'.")
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


def check_query_offsets(query_offsets: Tensor) -> None:
    """Values of a ``query_offset`` for each batch entry; runs inside the operator."""
    if bool(((query_offsets < -_FARTHEST) | (query_offsets > _FARTHEST)).any()):
        raise ValueError(
            f"query_offset is {query_offsets.tolist()}: expected positions between -2**31 and "
            "2**31."
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


def check_tensor(name: str, value: object, like: Tensor | None = None) -> None:
    """A dense tensor, on the device of another."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: expected a torch.Tensor.")
    if value.layout is not torch.strided or value.is_nested:
        raise TypeError(f"{name} is sparse or nested: expected a dense torch.Tensor.")
    if like is not None and value.device != like.device:
        raise ValueError(
            f"{name} is on {value.device} and the inputs on {like.device}: use one device."
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, _WHOLE) and not isinstance(value, bool)


def _check_parameter(name: str, value: Any, a: Tensor) -> None:
    check_tensor(name, value, a)
    if value.dtype != a.dtype and value.dtype != torch.float32:
        wanted = " or ".join(sorted({"torch.float32", str(a.dtype)}))
        raise TypeError(f"{name} is {value.dtype}: expected {wanted}, with inputs in {a.dtype}.")


def _check_like(name: str, shape: torch.Size, other: str, model: torch.Size) -> None:
    for dim, what in ((1, "heads"), (2, "positions")):
        if shape[dim] != model[dim]:
            raise ValueError(
                f"{name} has {shape[dim]} {what} and {other} has {model[dim]}: they must agree. "
                f"Shapes: {name} {tuple(shape)}, {other} {tuple(model)}."
            )


def _check_per_batch(name: str, value: Tensor, batch: int, like: Tensor) -> None:
    check_tensor(name, value, like)
    if value.dtype not in _INTEGERS or value.shape != (batch,):
        raise ValueError(
            f"{name} is {value.dtype} of shape {tuple(value.shape)}: expected int64 or int32 of "
            f"shape ({batch},), one for each batch entry."
        )
