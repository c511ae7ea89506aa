"""The score network on a tile of pairs.

A ``side`` is (pointers to channel 0 of its positions, stride between channels, which positions
exist); pointers are shaped ``[rows, 1]`` or ``[1, columns]``. Scores come multiplied by
``call.unit``: log2 e for 16-bit inputs, so that softmax needs nothing but ``exp2``; 1 for float32,
whose lse must equal a row's only great score to the last bit. Constants stand behind tensors,
because the interpreter takes a product that starts with a constant for a constant.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .call import UNROLLED
from .product import product

LOG2E = tl.constexpr(1.4426950408889634)
_SQRT_HALF = tl.constexpr(0.7071067811865476)
_SQRT_2_OVER_PI = tl.constexpr(0.7978845608028654)
_INVERSE_SQRT_2PI = tl.constexpr(0.3989422804014327)
_CUBIC = tl.constexpr(0.044715)


@triton.jit
def exponential(x, call):
    """e to the power of a difference of scores."""
    if call.unit == 1:
        x = x * LOG2E
    return tl.exp2(x)


@triton.jit
def log_sum(peak, total, call):
    """lse of a row from its greatest score and the sum of exponentials."""
    return peak / call.unit + tl.log2(total) / LOG2E


@triton.jit
def log_sum_rest(peak, total, lse, call):
    """What rounding has taken off lse, in the units of scores."""
    rest = (peak - lse * call.unit) + tl.log2(total) / LOG2E * call.unit
    return tl.where(rest == rest, rest, 0.0)  # not a number where lse is infinite


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp2(x * -LOG2E))


@triton.jit
def _tanh(x):
    return 2 * _sigmoid(2 * x) - 1


@triton.jit
def activate(u, call):
    """σ(u)."""
    if call.activation == "relu":
        # max alone would turn NaN into 0.
        return tl.maximum(u, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif call.activation == "leaky_relu":
        return tl.where(u > 0, u, call.leak * u)
    elif call.activation == "hardswish":
        return u * tl.minimum(tl.maximum(u * (1 / 6) + 0.5, 0.0), 1.0)
    elif call.activation == "gelu":
        return 0.5 * u * (1 + tl.erf(u * _SQRT_HALF))
    elif call.activation == "gelu_tanh":
        return u * _sigmoid((u + u * u * u * _CUBIC) * (2 * _SQRT_2_OVER_PI))
    elif call.activation == "silu":
        return u * _sigmoid(u)
    else:
        tl.static_assert(call.activation == "tanh")
        return _tanh(u)


@triton.jit
def through(gradient, u, call):
    """The gradient of σ(u), times σ'(u)."""
    if call.activation == "relu":
        return tl.where(u > 0, gradient, 0.0)
    elif call.activation == "leaky_relu":
        return tl.where(u > 0, gradient, gradient * call.leak)
    elif call.activation == "hardswish":
        inside = (u > -3) & (u < 3)
        return gradient * tl.where(inside, u * (1 / 3) + 0.5, tl.where(u > 0, 1.0, 0.0))
    elif call.activation == "gelu":
        density = tl.exp2(u * u * (-0.5 * LOG2E)) * _INVERSE_SQRT_2PI
        return gradient * (0.5 * (1 + tl.erf(u * _SQRT_HALF)) + u * density)
    elif call.activation == "gelu_tanh":
        gate = _sigmoid((u + u * u * u * _CUBIC) * (2 * _SQRT_2_OVER_PI))
        inner = (1 + u * u * (3 * _CUBIC)) * (2 * _SQRT_2_OVER_PI)
        return gradient * (gate + u * gate * (1 - gate) * inner)
    elif call.activation == "silu":
        gate = _sigmoid(u)
        return gradient * (gate * (1 + u * (1 - gate)))
    else:
        value = _tanh(u)
        return gradient * (1 - value * value)


@triton.jit
def _channel(side, c):
    pointers, stride, inside = side
    return tl.load(pointers + tl.cast(c, tl.int64) * stride, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def unit(
    c, x, y, relative, visible, head, call, STRICT: tl.constexpr, AGAIN: tl.constexpr = False
):  # fmt: skip
    """u of channel c: a + b + slope · (j − p); 0 in masked pairs where STRICT.

    AGAIN keeps the compiler from holding the tiles of all channels in registers from the scores to
    their gradients: to compute them once more costs less than to spill them.
    """
    u = _channel(x, c)
    if AGAIN:
        u += call.zero
    u = u + _channel(y, c)
    if call.slopes is not None:
        u += tl.load(call.slopes + head * call.channels + c) * relative
    if STRICT:
        u = tl.where(visible, u, 0.0)
    return u


@triton.jit
def network_scores(x, y, relative, visible, head, call, STRICT: tl.constexpr):
    """Scores · unit, and the second layer's input where it is wide (else 0)."""
    mixed = 0
    scores = tl.zeros(visible.shape, tl.float32)
    if call.is_wide:
        mixed = _mixed(x, y, relative, visible, head, call, STRICT)
        e = tl.arange(0, call.second_block)
        w = tl.load(call.output_weight + head * call.second + e, mask=e < call.second, other=0.0)
        by_pairs = tl.sum(activate(mixed, call) * (w * call.unit)[None, :], 1)
        scores = tl.reshape(by_pairs, visible.shape)
    elif call.second > 0:
        w = call.output_weight + head * call.second
        hidden = ()
        for c in tl.static_range(call.channels):
            hidden = hidden + (
                activate(unit(c, x, y, relative, visible, head, call, STRICT), call),
            )
        for e in tl.static_range(call.second):
            row = narrow_mixed(hidden, e, head, call)
            scores += tl.load(w + e) * call.unit * activate(row, call)
    else:
        w = call.output_weight + head * call.channels
        if call.channels <= UNROLLED:
            for c in tl.static_range(call.channels):
                u = unit(c, x, y, relative, visible, head, call, STRICT)
                scores += tl.load(w + c) * call.unit * activate(u, call)
        else:
            for c in range(call.channels):
                u = unit(c, x, y, relative, visible, head, call, STRICT)
                scores += tl.load(w + c) * call.unit * activate(u, call)
    return scores, mixed


@triton.jit
def narrow_mixed(hidden, e, head, call):
    """Row e of W2 σ(u) + c2."""
    row = head * call.second + e
    mixed = tl.load(call.hidden_bias + row)
    for c in tl.static_range(call.channels):
        mixed += tl.load(call.hidden_weight + row * call.channels + c) * hidden[c]
    return mixed


@triton.jit
def units(c, x, y, relative, visible, head, call, STRICT: tl.constexpr):
    """u of a chunk of channels, [rows, columns, chunk]."""
    x_pointers, x_stride, x_inside = x
    y_pointers, y_stride, y_inside = y
    exists = (c < call.channels)[None, None, :]
    wide_c = c.to(tl.int64)[None, None, :]
    u = tl.load(
        x_pointers[:, :, None] + wide_c * x_stride, mask=x_inside[:, :, None] & exists, other=0.0
    ).to(tl.float32)
    u += tl.load(
        y_pointers[:, :, None] + wide_c * y_stride, mask=y_inside[:, :, None] & exists, other=0.0
    ).to(tl.float32)
    if call.slopes is not None:
        m = tl.load(call.slopes + head * call.channels + c, mask=c < call.channels, other=0.0)
        u += m[None, None, :] * relative[:, :, None]
    if STRICT:
        u = tl.where(visible[:, :, None], u, 0.0)
    return u


@triton.jit
def flatten_pairs(tile):
    """[rows, columns, chunk] as [rows · columns, chunk]."""
    return tl.reshape(tile, (tile.shape[0] * tile.shape[1], tile.shape[2]))


@triton.jit
def matrix_tile(e, c, head, call):
    """W2 at rows ``e`` and columns ``c``, shaped as they are, in the dtype of the products."""
    pointers = call.hidden_weight + (head * call.second + e) * call.channels + c
    weight = tl.load(pointers, mask=(e < call.second) & (c < call.channels), other=0.0)
    return weight.to(call.v.dtype.element_ty)


@triton.jit
def _mixed(x, y, relative, visible, head, call, STRICT: tl.constexpr):
    """W2 σ(u) + c2 by matrix products, [rows · columns, second]."""
    e = tl.arange(0, call.second_block)
    bias = tl.load(call.hidden_bias + head * call.second + e, mask=e < call.second, other=0.0)
    pairs: tl.constexpr = visible.shape[0] * visible.shape[1]
    mixed = tl.zeros((pairs, call.second_block), tl.float32) + bias[None, :]
    for start in range(0, call.channels, call.channel_chunk):
        c = start + tl.arange(0, call.channel_chunk)
        hidden = activate(units(c, x, y, relative, visible, head, call, STRICT), call)
        weight = matrix_tile(e[None, :], c[:, None], head, call)
        hidden = flatten_pairs(hidden).to(weight.dtype)
        mixed = product(hidden, weight, mixed, call)
    return mixed
