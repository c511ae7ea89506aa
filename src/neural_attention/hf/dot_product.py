"""The dot product of stock models on this library's kernels, as an attention implementation."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from ..functional import ScoreWeights, neural_attention

DOT_PRODUCT = "neural_attention_dot"


def dot_product_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention interface: ``(B, H, L, D)`` in, ``(B, Lq, H, Dv)`` out.

    The arguments are those of :func:`.attention.neural_attention_forward`.

    Raises:
        ValueError: a keyword that would change the weights and is not computed here.
    """
    refuse_not_computed(module, kwargs)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = is_causal and attention_mask is None and query.shape[2] > 1
    out = neural_attention(
        query[..., :0],
        key[..., :0],
        value,
        ScoreWeights(query.new_empty(1, 0)),
        activation="relu",
        q=query,
        k=key,
        scale=scaling,
        attn_mask=attention_mask,
        is_causal=causal,
        query_offset=0 if causal else None,
        dropout_p=dropout,
    )
    assert isinstance(out, Tensor)
    return out.transpose(1, 2), None


# Keywords that change attention weights, given by some models; see discovery.UNDERSTOOD.
_NOT_COMPUTED = ("softcap", "s_aux", "sinks", "position_bias", "indices", "block_indices")


def refuse_not_computed(module: nn.Module, keywords: dict[str, Any]) -> None:
    """Refuse what would change the weights behind our back.

    Raises:
        ValueError: one of them has a value.
    """
    for name in _NOT_COMPUTED:
        if keywords.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} gives its attention {name!r}, which this library does "
                "not compute."
            )


AttentionInterface.register(DOT_PRODUCT, dot_product_forward)
AttentionMaskInterface.register(DOT_PRODUCT, sdpa_mask)
