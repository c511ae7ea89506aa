"""transformers' caches, seen from a converted attention module."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor
from transformers import Cache, EncoderDecoderCache

from .score import AttentionScore


class CacheView:
    """A cache that stores what a score needs of keys: features b, or the keys themselves.

    Models hand their keys to the cache before attention sees them, so the features are made here.

    Attributes:
        stores_features: whether keys that come out are features.
        query_offset: position of the first query among the keys, after :meth:`update`.
    """

    def __init__(self, cache: Cache, score: AttentionScore) -> None:
        self.cache, self.score = cache, score
        self.stores_features = score.is_pure
        self.query_offset: int | Tensor | None = None

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """As ``Cache.update``: store keys and values, and return all of both."""
        seen = self.cache.get_seq_length(layer_idx)
        new = keys.shape[2]
        if isinstance(seen, Tensor):  # a static cache, which counts in place
            seen = _first_position(seen, *args, *kwargs.values())
            seen = seen.to(keys.device).reshape(1).repeat(keys.shape[0])
        if self.stores_features:
            keys = self.score.key_features(keys).to(values.dtype)
            self._check_width(keys, layer_idx)
        keys, values = self.cache.update(keys, values, layer_idx, *args, **kwargs)
        # A sliding cache has dropped its oldest keys; a static one has room for later ones.
        self.query_offset = seen if isinstance(seen, Tensor) else min(seen, keys.shape[2] - new)
        return keys, values

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["cache"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        # What modules leave in their cache for later layers, as those that share keys do.
        own = name in ("cache", "score", "stores_features", "query_offset")
        object.__setattr__(self if own else self.cache, name, value)

    def _check_width(self, features: Tensor, layer_idx: int) -> None:
        layers = self.cache.layers
        stored = layers[layer_idx].keys if layer_idx < len(layers) else None
        if (
            isinstance(stored, Tensor)
            and stored.dim() == 4
            and stored.shape[-1] != features.shape[-1]
        ):
            raise ValueError(
                f"the cache holds keys of width {stored.shape[-1]}, and this converted attention "
                f"stores features of width {features.shape[-1]}: it was filled by another model, "
                "or allocated in advance, as a static cache is with prefill_chunk_size. Start with "
                "an empty cache, and leave prefill_chunk_size out."
            )


def _first_position(seen: Tensor, *arguments: Any) -> Tensor:
    """Where a static cache will put the first new key.

    Early versions of transformers 5 count the keys that are not zero, which those of padding may
    be, and hand the positions to ``update`` in a dictionary.
    """
    for argument in arguments:
        if isinstance(argument, dict) and argument.get("cache_position") is not None:
            position: Tensor = argument["cache_position"][0]
            return position
    return seen


def view(cache: Cache, score: AttentionScore) -> tuple[Any, CacheView]:
    """What to hand the module in place of its cache, and the view that its attention will need."""
    if not isinstance(cache, EncoderDecoderCache):
        seen = CacheView(cache, score)
        return seen, seen
    both = copy.copy(cache)  # shares `is_updated`
    both.self_attention_cache = CacheView(cache.self_attention_cache, score)
    both.cross_attention_cache = CacheView(cache.cross_attention_cache, score)
    return both, both.self_attention_cache
