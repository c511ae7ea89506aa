"""What a conversion does to the key-value cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .conversion import CHILD
from .discovery import find_attentions


@dataclass(frozen=True)
class CacheReport:
    """Bytes that a model's cache takes for one token, all layers together.

    Attributes:
        before: of the stock model, for a token it reads or writes.
        after: of the converted model.
        cross_before: of the stock model, for a token of the encoder that it attends to.
        cross_after: of the converted model.
    """

    before: int
    after: int
    cross_before: int
    cross_after: int


def cache_report(model: Any) -> CacheReport:
    """Bytes a token of the cache, before and after a conversion.

    With a pure score network keys take C numbers in place of head_dim; a hybrid score keeps them.

    Args:
        model: a converted model.

    Raises:
        ValueError: the model is not converted.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from neural_attention.hf import convert
    >>> config = LlamaConfig(vocab_size=99, hidden_size=64, intermediate_size=64,
    ...                      num_hidden_layers=2, num_attention_heads=2)
    >>> options = {"score": "neural", "positions": "slopes", "score_network": {"width": 8}}
    >>> cache_report(convert(LlamaForCausalLM(config), init="random", **options))
    CacheReport(before=1024, after=640, cross_before=0, cross_after=0)
    """
    if getattr(model.config, CHILD, None) is None:
        raise ValueError(
            f"this {type(model).__name__} is not converted: there is nothing to report."
        )
    sums = {"before": 0, "after": 0, "cross_before": 0, "cross_after": 0}
    for attention in find_attentions(model):
        if attention.role == "encoder":
            continue
        score: Any = attention.module.neural_attention
        numbers = attention.num_kv_heads * model.dtype.itemsize
        prefix = "cross_" if attention.role == "cross" else ""
        sums[f"{prefix}before"] += numbers * 2 * attention.head_dim
        sums[f"{prefix}after"] += numbers * (score.key_width + attention.head_dim)
    return CacheReport(**sums)
