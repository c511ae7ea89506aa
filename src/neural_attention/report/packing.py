"""Numbers made small enough for a page: reduced, quantised, compressed."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

# Sizes before base64, which makes 4 bytes of 3: a page stays under 20 MB.
BUDGET = 13_500_000
THUMBNAIL = 48
STRONGEST = 5


@dataclass(frozen=True)
class PackedMaps:
    """Maps of one role and arm.

    Attributes:
        block: queries and keys that one cell stands for, on each side.
        rows, columns: cells of a map.
        maps: one a head of each layer: float32 scales of the rows, then a signed byte a cell.
        strongest: one a head of each layer, where ``block`` is above 1: for each query the keys of
            its largest weights, uint16, then these weights, uint16 of their share of 1.
        thumbnails: all heads of all layers, a signed byte a cell, of the root of the share of the
            map's largest value.
        thumbnail: rows and columns of one.
        largest: the largest value of each map.
    """

    block: int
    rows: int
    columns: int
    maps: list[bytes]
    strongest: list[bytes]
    thumbnails: bytes
    thumbnail: tuple[int, int]
    largest: list[float]


def pack_maps(layers: list[Tensor], *, budget: int, block: int = 1) -> PackedMaps:
    """Maps ``(H, Lq, Lk)`` of each layer, values from −1 to 1, in ``budget`` bytes.

    Each is reduced, if it must be, to the values of largest magnitude in square blocks.

    Args:
        layers: the maps.
        budget: of all of them together.
        block: the least size of a block.

    Raises:
        ValueError: maps of one cell would still be too large.
    """
    heads = [head for layer in layers for head in layer]
    queries, keys = heads[0].shape
    most = max(queries, keys)
    while (packed := _packed(heads, block, budget)) is None:
        if block >= most:
            raise ValueError(f"{len(heads):,} maps of {queries:,} tokens do not fit into a page.")
        block *= 2
    maps, strongest = packed
    step = -(-most // THUMBNAIL)
    small = [extreme_of_blocks(head, step) for head in heads]
    largest = [float(head.abs().max()) for head in heads]
    thumbnails = torch.stack(
        [
            (one.sign() * (one.abs() / (top or 1)).sqrt() * 127).round().to(torch.int8)
            for one, top in zip(small, largest, strict=True)
        ]
    )
    return PackedMaps(
        block,
        -(-queries // block),
        -(-keys // block),
        maps,
        strongest,
        compress(thumbnails),
        (small[0].shape[0], small[0].shape[1]),
        largest,
    )


def _packed(
    heads: Iterable[Tensor], block: int, budget: int
) -> tuple[list[bytes], list[bytes]] | None:
    maps, strongest = [], []
    for head in heads:
        reduced = extreme_of_blocks(head, block)
        scale = reduced.abs().amax(-1)
        cells = (reduced / scale.clamp_min(1e-30)[:, None] * 127).round().to(torch.int8)
        maps.append(compress(scale, cells))
        budget -= len(maps[-1])
        if block > 1:
            top = head.abs().topk(min(STRONGEST, head.shape[1]), dim=-1).indices
            values = (head.gather(-1, top).clamp(-1, 1) * 32767).round().to(torch.int16)
            strongest.append(compress(top.to(torch.uint16), values))
            budget -= len(strongest[-1])
        if budget < 0:
            return None
    return maps, strongest


def extreme_of_blocks(x: Tensor, block: int) -> Tensor:
    """The value of largest magnitude in each square block of a matrix; the last may be smaller.

    >>> extreme_of_blocks(torch.tensor([[1.0, -3.0, 2.0], [0.0, 1.0, 0.5]]), 2)
    tensor([[-3.,  2.]])
    """
    if block == 1:
        return x
    high = F.max_pool2d(x[None], block, ceil_mode=True)[0]
    low = -F.max_pool2d(-x[None], block, ceil_mode=True)[0]
    return torch.where(high >= -low, high, low)


def compress(*tensors: Tensor) -> bytes:
    """The bytes of tensors one after another, deflated."""
    parts = []
    for tensor in tensors:
        whole = tensor.contiguous()
        # Without NumPy, which torch does not need.
        parts.append(ctypes.string_at(whole.data_ptr(), whole.nbytes))
    return zlib.compress(b"".join(parts), 6)


def pack_features(a: Tensor, b: Tensor) -> bytes:
    """Features ``(H, n, C)`` of queries and keys: for each channel its low and high, then uint16.

    Order: float32 low and high of a, ``(H, C)`` each, a, then the same of b.
    """
    parts = []
    for x in (a, b):
        low, high = x.amin(1), x.amax(1)
        span = (high - low).clamp_min(1e-30)
        share = (x - low[:, None]) / span[:, None]
        parts += [low, high, (share * 65535).round().to(torch.int32).to(torch.uint16)]
    return compress(*parts)
