"""One layer's part of a transformers cache, as the attention layer wants it."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from neural_attention.cache import check_continues


class LayerCache:
    """One layer's part of a transformers cache, as the attention layer wants it."""

    def __init__(self, cache: DynamicCache, layer: int) -> None:
        self.cache, self.layer = cache, layer

    @property
    def length(self) -> int:
        """Number of keys stored."""
        return self.cache.get_seq_length(self.layer)

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put keys and values behind those stored, and return all of both."""
        if self.length:
            layer = self.cache.layers[self.layer]
            check_continues((layer.keys, layer.values), (keys, values))
        return self.cache.update(keys, values, self.layer)


class ReadOnlyLayerCache(LayerCache):
    """The same without keeping what comes: attention maps are computed before the layer runs."""

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put keys and values behind those stored, and return all of both."""
        if self.length == 0:
            return keys, values
        layer = self.cache.layers[self.layer]
        return torch.cat([layer.keys, keys], -2), torch.cat([layer.values, values], -2)
