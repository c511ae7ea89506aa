"""Starting values of learned slopes over relative position."""

from __future__ import annotations

import torch
from torch import Tensor

# Exponents of the geometric magnitudes: 2⁻¹ … 2⁻⁷ along a text, 2⁻¹ … 2⁻⁴ along a side of a grid.
_FIRST, _LAST, _LAST_OF_GRID = 1.0, 7.0, 4.0


def channel_slopes(num_heads: int, width: int) -> Tensor:
    r"""A slope for each channel of a score network: ``(num_heads, width)`` float32.

    Channels 2m and 2m+1 get opposite slopes, whose magnitudes are geometric over the pairs, from
    2⁻¹ to 2⁻⁷: every hidden unit is a hinge in relative distance, near or far, on either side. A
    network with a single pair spreads the magnitudes over its heads instead.

    >>> channel_slopes(1, 4)
    tensor([[ 0.5000, -0.5000,  0.0078, -0.0078]])
    """
    return _opposite_pairs(num_heads, width, _LAST)


def grid_slopes(num_heads: int, width: int) -> Tensor:
    r"""Slopes over rows and columns for each channel: ``(2, num_heads, width)`` float32.

    Pairs of channels take turns, one with a slope over the rows, one over the columns; heads next
    to each other begin with different ones. Magnitudes are as in :func:`channel_slopes`, but from
    2⁻¹ to 2⁻⁴, since a side of a grid is short.

    >>> grid_slopes(1, 4)
    tensor([[[ 0.5000, -0.5000,  0.0000,  0.0000]],
    <BLANKLINE>
            [[ 0.0000,  0.0000,  0.0625, -0.0625]]])
    """
    slopes = _opposite_pairs(num_heads, width, _LAST_OF_GRID)
    turns = torch.arange(num_heads)[:, None] + torch.arange(width) // 2
    return torch.stack([torch.where(turns % 2 == axis, slopes, 0.0) for axis in (0, 1)])


def alibi_slopes(num_heads: int) -> Tensor:
    r"""ALiBi's slope for each head, ``(num_heads,)`` float32: 2^(−8h/H) for H a power of two.

    For another H: those of the next lower power of two, then every other one of the next higher.
    The term is m_h (j − p): keys before the query lose by distance, keys after it would gain, so it
    is meant for causal attention.

    Source:
        Press, Smith & Lewis 2021, arXiv 2108.12409, section 3.

    >>> alibi_slopes(2)
    tensor([0.0625, 0.0039])
    """
    lower = 1 << (num_heads.bit_length() - 1)
    exponents = [8 * h / lower for h in range(1, lower + 1)]
    exponents += [4 * h / lower for h in range(1, 2 * lower, 2)][: num_heads - lower]
    return torch.tensor([2.0**-exponent for exponent in exponents])


def _opposite_pairs(num_heads: int, width: int, last: float) -> Tensor:
    pairs = (width + 1) // 2
    if pairs == 1:
        magnitudes = _geometric(num_heads, last)[:, None]
    else:
        magnitudes = _geometric(pairs, last).expand(num_heads, pairs)
    slopes = magnitudes.repeat_interleave(2, dim=1)[:, :width]
    return slopes * torch.tensor([1.0, -1.0]).repeat(pairs)[:width]


def _geometric(count: int, last: float) -> Tensor:
    return 2.0 ** -torch.linspace(_FIRST, last, count)
