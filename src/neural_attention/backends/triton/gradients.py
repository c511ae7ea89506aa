"""Gradients of the score network on a tile of pairs, summed over its columns.

Rows are the side whose features get their gradient, so that sums run along a row and what is kept
from tile to tile is one number for each row and channel. A program computes the gradients of one
chunk of channels. Sums are tuples: (for the features, for the parameters).
"""

from __future__ import annotations

import triton
import triton.language as tl

from .network import activate, flatten_pairs, matrix_tile, narrow_mixed, through, unit, units
from .product import product

# Sums of a row are kept in this many parts.
_PARTS = tl.constexpr(4)


@triton.jit
def _row_sums(tile):
    """[rows, columns] as [rows, 4]: the parts that lie in different threads, not yet added.

    The matrix units' tiles give columns 2n and 2n + 1 of every eight to the n-th of four threads:
    these sums cost no exchange between threads, which comes once, at the end.
    """
    rows: tl.constexpr = tile.shape[0]
    columns: tl.constexpr = tile.shape[1]
    split = tl.reshape(tile, (rows, columns // (2 * _PARTS), _PARTS, 2))
    return tl.sum(tl.sum(split, 3), 1)


@triton.jit
def _zeros(COUNT: tl.constexpr, ROWS: tl.constexpr):
    sums = ()
    for _ in tl.static_range(COUNT):
        sums = sums + (tl.zeros((ROWS, _PARTS), tl.float32),)
    return sums


@triton.jit
def _whole(sums):
    """One number of a kept sum over all rows."""
    return tl.sum(tl.sum(sums, 1), 0)


@triton.jit
def plus(sums, more):
    """Two tuples of tiles, added."""
    total = ()
    for n in tl.static_range(len(sums)):
        total = total + (sums[n] + more[n],)
    return total


@triton.jit
def zero_feature_sums(call, ROWS: tl.constexpr):
    """What the features' gradients start from."""
    if call.is_wide:
        sums = (tl.zeros((ROWS, call.channel_chunk), tl.float32),)
    else:
        sums = _zeros(call.channel_chunk, ROWS)
    return sums


@triton.jit
def zero_parameter_sums(call, ROWS: tl.constexpr):
    """What the parameters' gradients start from: output, bias, matrix, slopes, alibi."""
    slopes: tl.constexpr = 0 if call.slopes is None else 1
    if call.is_wide:
        sums = (
            tl.zeros((call.second_block,), tl.float32),
            tl.zeros((call.second_block,), tl.float32),
            tl.zeros((call.second_block, call.channel_chunk), tl.float32),
        )
        if call.slopes is not None:
            sums = sums + (tl.zeros((call.channel_chunk,), tl.float32),)
    elif call.second > 0:
        sums = _zeros(call.second * (2 + call.channels) + slopes * call.channels, ROWS)
    else:
        sums = _zeros((1 + slopes) * call.channel_chunk, ROWS)
    if call.alibi is not None:
        sums = sums + (tl.zeros((ROWS, _PARTS), tl.float32),)
    return sums


@triton.jit
def network_gradients(
    grad_scores, x, y, relative, mixed, chunk, visible, head, call, MASKED: tl.constexpr,
    PARAMETERS: tl.constexpr,
):  # fmt: skip
    """A tile's part of both sums; ``grad_scores`` is 0 in masked pairs."""
    if call.is_wide:
        found = _wide(
            grad_scores, x, y, relative, mixed, chunk, visible, head, call, MASKED, PARAMETERS
        )
    elif call.second > 0:
        found = _narrow(grad_scores, x, y, relative, visible, head, call, MASKED, PARAMETERS)
    else:
        found = _one_layer(
            grad_scores, x, y, relative, chunk, visible, head, call, MASKED, PARAMETERS
        )
    return found


@triton.jit
def _one_layer(
    grad_scores, x, y, relative, chunk, visible, head, call, MASKED: tl.constexpr,
    PARAMETERS: tl.constexpr,
):  # fmt: skip
    features = ()
    outputs = ()
    slopes = ()
    for n in tl.static_range(call.channel_chunk):
        # Beyond the last channel the last is computed again, and not stored.
        c = n
        if call.channels > call.channel_chunk:
            c = tl.minimum(chunk * call.channel_chunk + n, call.channels - 1)
        u = unit(c, x, y, relative, visible, head, call, MASKED, AGAIN=True)
        w = tl.load(call.output_weight + head * call.channels + c)
        # The weight is multiplied with sums, not with every pair.
        grad_u = through(grad_scores, u, call)
        features = features + (_row_sums(grad_u) * w,)
        if PARAMETERS:
            outputs = outputs + (_row_sums(grad_scores * activate(u, call)),)
            if call.slopes is not None:
                slopes = slopes + (_row_sums(grad_u * relative) * w,)
    parameters = ()
    if PARAMETERS:
        parameters = outputs + slopes + _alibi(grad_scores, relative, call)
    return features, parameters


@triton.jit
def _narrow(
    grad_scores, x, y, relative, visible, head, call, MASKED: tl.constexpr,
    PARAMETERS: tl.constexpr,
):  # fmt: skip
    hidden = ()
    for c in tl.static_range(call.channels):
        u = unit(c, x, y, relative, visible, head, call, MASKED, AGAIN=True)
        hidden = hidden + (activate(u, call),)
    outputs = ()
    biases = ()
    matrix = ()
    grad_hidden = ()
    for _ in tl.static_range(call.channels):
        grad_hidden = grad_hidden + (tl.zeros(visible.shape, tl.float32),)
    for e in tl.static_range(call.second):
        mixed = narrow_mixed(hidden, e, head, call)
        w = tl.load(call.output_weight + head * call.second + e)
        grad_mixed = through(grad_scores * w, mixed, call)
        if PARAMETERS:
            outputs = outputs + (_row_sums(grad_scores * activate(mixed, call)),)
            biases = biases + (_row_sums(grad_mixed),)
            for c in tl.static_range(call.channels):
                matrix = matrix + (_row_sums(grad_mixed * hidden[c]),)
        pushed = ()
        for c in tl.static_range(call.channels):
            weight = tl.load(call.hidden_weight + (head * call.second + e) * call.channels + c)
            pushed = pushed + (grad_mixed * weight,)
        grad_hidden = plus(grad_hidden, pushed)
    features = ()
    slopes = ()
    for c in tl.static_range(call.channels):
        u = unit(c, x, y, relative, visible, head, call, MASKED, AGAIN=True)
        grad_u = through(grad_hidden[c], u, call)
        features = features + (_row_sums(grad_u),)
        if PARAMETERS and (call.slopes is not None):
            slopes = slopes + (_row_sums(grad_u * relative),)
    parameters = ()
    if PARAMETERS:
        parameters = outputs + biases + matrix + slopes + _alibi(grad_scores, relative, call)
    return features, parameters


@triton.jit
def _wide(
    grad_scores, x, y, relative, mixed, chunk, visible, head, call, MASKED: tl.constexpr,
    PARAMETERS: tl.constexpr,
):  # fmt: skip
    rows: tl.constexpr = visible.shape[0]
    columns: tl.constexpr = visible.shape[1]
    e = tl.arange(0, call.second_block)
    c = chunk * call.channel_chunk + tl.arange(0, call.channel_chunk)
    w = tl.load(call.output_weight + head * call.second + e, mask=e < call.second, other=0.0)
    by_pairs = tl.reshape(grad_scores, (rows * columns,))[:, None]
    grad_mixed = through(by_pairs * w[None, :], mixed, call)
    u = units(c, x, y, relative, visible, head, call, MASKED)
    weight = matrix_tile(e[:, None], c[None, :], head, call)
    low = grad_mixed.to(weight.dtype)
    zeros = tl.zeros((rows * columns, call.channel_chunk), tl.float32)
    grad_hidden = product(low, weight, zeros, call)
    grad_u = through(tl.reshape(grad_hidden, (rows, columns, call.channel_chunk)), u, call)
    features = (tl.sum(grad_u, 1),)
    parameters = ()
    if PARAMETERS:
        hidden = flatten_pairs(activate(u, call)).to(weight.dtype)
        zeros = tl.zeros((call.second_block, call.channel_chunk), tl.float32)
        outputs = tl.sum(by_pairs * activate(mixed, call), 0)
        biases = tl.sum(grad_mixed, 0)
        matrix = product(tl.trans(low), hidden, zeros, call)
        parameters = (outputs, biases, matrix)
        if call.slopes is not None:
            parameters = parameters + (tl.sum(tl.sum(grad_u * relative[:, :, None], 1), 0),)
        parameters = parameters + _alibi(grad_scores, relative, call)
    return features, parameters


@triton.jit
def _alibi(grad_scores, relative, call):
    sums = ()
    if call.alibi is not None:
        sums = (_row_sums(grad_scores * relative),)
    return sums


@triton.jit
def store_features(pointer, sums, chunk, n, limit, stride, call):
    """Gradients of features, (channels, positions): ``pointer`` is at channel 0 of the head."""
    if call.is_wide:
        c = chunk * call.channel_chunk + tl.arange(0, call.channel_chunk)[None, :]
        pointers = pointer + c.to(tl.int64) * stride + n[:, None]
        tl.store(pointers, sums[0], mask=(n < limit)[:, None] & (c < call.channels))
    else:
        for m in tl.static_range(call.channel_chunk):
            c = chunk * call.channel_chunk + m
            pointers = pointer + c.to(tl.int64) * stride + n
            tl.store(pointers, tl.sum(sums[m], 1), mask=(n < limit) & (c < call.channels))


@triton.jit
def add_parameters(pointer, sums, chunk, call):
    """Adds a program's sums to its own row: output, bias, matrix, slopes, alibi."""
    first = chunk == 0
    alibi_pointer = pointer + call.parameters - 1
    slopes_pointer = alibi_pointer - call.channels
    if call.alibi is not None:
        _add(alibi_pointer, _whole(sums[len(sums) - 1]), first)
    if call.is_wide:
        e = tl.arange(0, call.second_block)
        c = chunk * call.channel_chunk + tl.arange(0, call.channel_chunk)
        _add(pointer + e, sums[0], (e < call.second) & first)
        _add(pointer + call.second + e, sums[1], (e < call.second) & first)
        matrix = pointer + 2 * call.second + e[:, None] * call.channels + c[None, :]
        _add(matrix, sums[2], (e < call.second)[:, None] & (c < call.channels)[None, :])
        if call.slopes is not None:
            _add(slopes_pointer + c, sums[3], c < call.channels)
    elif call.second > 0:
        before_slopes: tl.constexpr = call.second * (2 + call.channels)
        for n in tl.static_range(before_slopes):
            _add(pointer + n, _whole(sums[n]), first)
        if call.slopes is not None:
            for c in tl.static_range(call.channels):
                _add(slopes_pointer + c, _whole(sums[before_slopes + c]), first)
    else:
        for n in tl.static_range(call.channel_chunk):
            c = chunk * call.channel_chunk + n
            _add(pointer + c, _whole(sums[n]), c < call.channels)
            if call.slopes is not None:
                _add(slopes_pointer + c, _whole(sums[call.channel_chunk + n]), c < call.channels)


@triton.jit
def _add(pointers, values, mask):
    tl.store(pointers, tl.load(pointers, mask=mask, other=0.0) + values, mask=mask)
