"""The key-value cache of one layer."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Cache(Protocol):
    """What :class:`neural_attention.NeuralAttention` needs of a cache: any object with these two.

    Attributes:
        length: number of keys stored.
    """

    @property
    def length(self) -> int:
        """Number of keys stored."""

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append ``(B, Hkv, L, Ck)`` and ``(B, Hkv, L, Dv)``; return all of both."""


class KeyValueCache:
    """Keys and values of one layer, kept between decoding steps.

    What is stored as keys depends on the score: key features b with C channels (``neural``), keys k
    (``dot``; already rotated under rotary positions), or both side by side (``hybrid``).

    >>> cache = KeyValueCache()
    >>> keys, values = cache.update(torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 3, 64))
    >>> keys, values = cache.update(torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 64))
    >>> cache.length, keys.shape
    (4, torch.Size([1, 2, 4, 16]))
    """

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of keys stored."""
        return 0 if self.keys is None else self.keys.shape[2]

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append new keys and values along the length, and return all of both.

        Args:
            keys: ``(B, Hkv, L, Ck)``.
            values: ``(B, Hkv, L, Dv)``.
        """
        if self.keys is not None and self.values is not None:
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values
