"""Tile sizes, warps and pipeline stages of every kernel.

Nothing here was tuned on a GPU: tiles are those that compile without spilling much (see
``benchmarks/triton_resources.py``). What a call gets depends on its shapes alone, so that no first
call waits for measurements.
"""

from __future__ import annotations

from typing import NamedTuple

KERNELS = ("forward", "split", "keys", "queries")


class Tile(NamedTuple):
    """One kernel's tile: its own side, the side it walks over, warps and stages."""

    rows: int
    columns: int
    warps: int
    stages: int


# 16-bit numbers, by kernel: (most work of the network, largest width, tile), the first that fits.
_ANY = 10**9
_HALF: dict[str, tuple[tuple[int, int, Tile], ...]] = {
    "forward": (
        (8, 64, Tile(128, 64, 8, 3)),
        (_ANY, 128, Tile(128, 32, 8, 2)),
        (_ANY, _ANY, Tile(64, 32, 8, 2)),
    ),
    "split": (
        (_ANY, 128, Tile(16, 64, 4, 2)),
        (_ANY, 256, Tile(16, 32, 4, 2)),
        (_ANY, _ANY, Tile(16, 16, 4, 1)),
    ),
    "keys": (
        (_ANY, 64, Tile(64, 16, 4, 2)),
        (_ANY, 128, Tile(64, 16, 8, 1)),
        (_ANY, _ANY, Tile(32, 16, 8, 1)),
    ),
    "queries": (
        (_ANY, 64, Tile(64, 32, 4, 2)),
        (_ANY, 128, Tile(64, 32, 4, 1)),
        (_ANY, _ANY, Tile(32, 32, 8, 1)),
    ),
}
# True float32 products run on the ordinary units and read both operands from shared memory.
_FLOAT: dict[str, tuple[tuple[int, int, Tile], ...]] = {
    "forward": (
        (_ANY, 64, Tile(64, 32, 4, 1)),
        (_ANY, 128, Tile(32, 32, 4, 1)),
        (_ANY, _ANY, Tile(16, 16, 4, 1)),
    ),
    "split": (
        (_ANY, 128, Tile(16, 32, 4, 1)),
        (_ANY, _ANY, Tile(16, 16, 4, 1)),
    ),
    "keys": (
        (_ANY, 64, Tile(32, 32, 4, 1)),
        (_ANY, _ANY, Tile(16, 16, 4, 1)),
    ),
    "queries": (
        (_ANY, 64, Tile(32, 32, 4, 1)),
        (_ANY, _ANY, Tile(16, 16, 4, 1)),
    ),
}
# Two layers by matrix products hold (rows · columns) × width numbers.
_WIDE = Tile(16, 16, 8, 1)
# Under the interpreter every operation costs the same, whatever its size; tests still want
# several tiles.
INTERPRETED = Tile(16, 16, 1, 1)


def tile(
    kernel: str, channels: int, second: int, is_wide: bool, width: int, item_size: int
) -> Tile:
    """The tile of a kernel.

    Args:
        kernel: one of ``KERNELS``.
        channels: C.
        second: width of the second hidden layer; 0: none.
        is_wide: whether that layer uses matrix products.
        width: of values and queries together, each as a power of two.
        item_size: bytes of an element: 2 or 4.
    """
    if is_wide:
        return _WIDE
    work = channels * (1 + second)
    table = _HALF if item_size == 2 else _FLOAT
    return next(found for most, widest, found in table[kernel] if work <= most and width <= widest)
