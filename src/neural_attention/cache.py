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


def check_continues(stored: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> None:
    """Whether keys and values can stand behind those that a cache holds.

    Raises:
        ValueError: another batch size, number of heads, width or device.
        TypeError: another dtype.
    """
    for name, old, tensor in zip(("keys", "values"), stored, new, strict=True):
        if old.shape[:2] != tensor.shape[:2] or old.shape[3] != tensor.shape[3]:
            raise ValueError(
                f"the cache holds {name} of shape {tuple(old.shape)} and this call brings "
                f"{tuple(tensor.shape)}: all of (batch, heads, length, width) but the length must "
                "agree. Each layer and each batch needs a cache of its own."
            )
        if old.device != tensor.device:
            raise ValueError(
                f"the cache is on {old.device} and this call's {name} on {tensor.device}: use one "
                "device."
            )
        if old.dtype != tensor.dtype:
            raise TypeError(
                f"the cache holds {name} in {old.dtype} and this call brings {tensor.dtype}: use "
                "one dtype, and autocast for all calls or for none."
            )


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

        Raises:
            ValueError, TypeError: they do not continue those stored.
        """
        if self.keys is not None and self.values is not None:
            check_continues((self.keys, self.values), (keys, values))
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values
