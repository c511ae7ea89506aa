"""Counter-based random numbers: the same dropout on every backend, in any order, without state."""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox_4x32_10(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rounds of Philox4x32: four 32-bit words for each counter.

    Words are carried in int64 tensors with values below 2³²; shapes broadcast.

    Source:
        Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3.

    >>> zero = torch.zeros((), dtype=torch.int64)
    >>> [hex(int(word)) for word in philox_4x32_10((zero,) * 4, (zero, zero))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # A 32 x 32-bit product may wrap int64, but its 64 bits are right: the masks pick them out.
        product0, product2 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product2 >> 32) & _LOW) ^ c1 ^ k0,
            product2 & _LOW,
            ((product0 >> 32) & _LOW) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def dropout_keep(
    seed: Tensor, dropout_p: float, batch: slice, heads: slice, rows: slice, columns: slice
) -> Tensor:
    """Which attention probabilities of a tile survive dropout.

    The word for (batch b, head h, query i, key j) is word ``j mod 4`` of the counter
    ``(j div 4, i, h, b)`` under the key (low word of the seed, high word); it survives where the
    word is at least ``⌊dropout_p · 2³²⌋``.

    Args:
        seed: one int64 on the device of the result.
        dropout_p: probability of dropping, in [0, 1).
        batch: the tile's batch entries, as a slice with start and stop, like the next three.
        heads: its heads.
        rows: its queries.
        columns: its keys.

    Returns:
        bool, ``(batch, heads, rows, columns)``.

    >>> keep = dropout_keep(
    ...     torch.tensor([7]), 0.5, slice(0, 1), slice(0, 2), slice(0, 64), slice(0, 64)
    ... )
    >>> keep.shape, 0.45 < keep.float().mean() < 0.55
    (torch.Size([1, 2, 64, 64]), tensor(True))
    """

    def indices(start: int, stop: int, dim: int) -> Tensor:
        index = torch.arange(start, stop, dtype=torch.int64, device=seed.device)
        return index.view([-1 if axis == dim else 1 for axis in range(4)])

    first_group = columns.start // 4
    words = philox_4x32_10(
        (
            indices(first_group, (columns.stop + 3) // 4, 3),
            indices(rows.start, rows.stop, 2),
            indices(heads.start, heads.stop, 1),
            indices(batch.start, batch.stop, 0),
        ),
        (seed & _LOW, (seed >> 32) & _LOW),
    )
    flat = torch.stack(torch.broadcast_tensors(*words), dim=-1).flatten(-2)
    skipped = columns.start - 4 * first_group
    wanted = flat[..., skipped : skipped + columns.stop - columns.start]
    return wanted >= int(dropout_p * 2**32)
