"""The attention function that converted models call, and the hooks around it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.masking_utils import sdpa_mask

from ..functional import ScoreWeights, neural_attention
from .caching import CacheView, view
from .score import AttentionScore

NAME = "neural_attention"
DOT = "neural_attention_dot"
# The keyword in which a module passes its cache's view on to its attention function.
VIEW = "neural_attention_cache"
FALLBACKS = ("eager", "sdpa", DOT)

# Keywords that change attention weights, given by some models; see discovery.UNDERSTOOD.
_NOT_COMPUTED = ("softcap", "s_aux", "sinks", "position_bias", "indices", "block_indices")


def neural_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Transformers' attention interface: ``(B, H, L, D)`` in, ``(B, Lq, H, Dv)`` and maps out.

    Args:
        module: the attention module, which holds an :class:`AttentionScore`.
        query: as the module projected it.
        key: as its cache, or without one the module, returned it.
        value: likewise.
        attention_mask: from the mask function registered under the same name, or of the caller's.
            None is a causal mask from the top left where the module is causal and has more than
            one query.
        dropout: probability of dropping an attention weight.
        scaling: of the dot product.
        is_causal: whether later keys are hidden; the module's attribute if None.
        kwargs: what else the model hands over.

    Raises:
        ValueError: a keyword that would change the weights and is not computed here.
    """
    score: AttentionScore = module.neural_attention  # type: ignore[assignment]
    cache: CacheView | None = kwargs.pop(VIEW, None)
    is_causal = _is_causal(module, is_causal)
    learns = contextlib.nullcontext() if score.weights_learn else torch.no_grad()
    if not score.is_own:
        given = (module, query, key, value, attention_mask)
        arguments = {"scaling": scaling, "is_causal": is_causal, **kwargs}
        out, weights = score.fallback(*given, dropout=dropout, **arguments)
        kind: Any = type(module)
        eager = _eager_of(kind)
        if not score.returns_weights or weights is not None:
            return out, weights
        if eager is not None:  # it knows what the model adds to its scores
            with learns:
                return out, eager(*given, dropout=0.0, **arguments)[1]
    _refuse_what_is_not_computed(module, kwargs)
    options: dict[str, Any] = {
        "keys_are_features": cache is not None and cache.stores_features,
        "scale": scaling,
        **_masks(query, attention_mask, is_causal, None if cache is None else cache.query_offset),
    }
    if score.is_own:
        out = score(query, key, value, dropout_p=dropout, **options).transpose(1, 2)
    weights = None
    if score.returns_weights:
        with learns:
            weights = score.attention_weights(query, key, value, **options)
    return out, weights


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
    """The plain dot product by this library's operator, as :func:`neural_attention_forward`.

    ``model.set_attn_implementation("neural_attention_dot")`` has a stock model compute with it, so
    that a comparison measures scores and not kernels. Like ``sdpa`` it returns no maps.

    Raises:
        ValueError: a keyword that would change the weights and is not computed here.
    """
    _refuse_what_is_not_computed(module, kwargs)
    query, key = query.to(value.dtype), key.to(value.dtype)
    out = neural_attention(
        query[..., :0],
        key[..., :0],
        value,
        ScoreWeights(query.new_empty(1, 0)),
        activation="relu",
        q=query,
        k=key,
        scale=scaling,
        dropout_p=dropout,
        **_masks(query, attention_mask, _is_causal(module, is_causal), None),
    )
    assert isinstance(out, Tensor)
    return out.transpose(1, 2), None


def _is_causal(module: nn.Module, given: bool | None) -> bool:
    return bool(getattr(module, "is_causal", True) if given is None else given)


def _masks(
    query: Tensor, attention_mask: Tensor | None, is_causal: bool, offset: int | Tensor | None
) -> dict[str, Any]:
    """Arguments of the operator: no mask and several queries mean causal, from the top left."""
    causal = is_causal and attention_mask is None and query.shape[2] > 1
    if causal and offset is None:
        offset = 0
    return {"attn_mask": attention_mask, "is_causal": causal, "query_offset": offset}


def _refuse_what_is_not_computed(module: nn.Module, keywords: dict[str, Any]) -> None:
    for name in _NOT_COMPUTED:
        if keywords.get(name) is not None:
            raise ValueError(
                f"{type(module).__name__} gives its attention {name!r}, which this library's "
                "attention does not compute."
            )


def fallback_of(kind: Any, implementation: str) -> Callable[..., Any]:
    """The attention function that a class of modules uses under an implementation's name.

    Raises:
        ValueError: not one of :data:`FALLBACKS`.
    """
    if implementation in ("sdpa", DOT):
        return AttentionInterface()[implementation]
    if implementation != "eager":
        raise ValueError(
            f"the model's attention implementation is {implementation!r}: expected "
            f"{', '.join(FALLBACKS)}. Call model.set_attn_implementation('sdpa') before."
        )
    eager = _eager_of(kind)
    if eager is None:
        raise ValueError(
            f"{kind.__name__} has no eager attention function: call "
            "model.set_attn_implementation('sdpa') before."
        )
    return eager


@cache
def _eager_of(kind: Any) -> EagerAttention | None:
    """The eager attention function that stands beside a class of modules."""
    function = inspect.unwrap(kind.forward).__globals__.get("eager_attention_forward")
    return None if function is None else EagerAttention(function)


class EagerAttention:
    """A model's own eager function, which adds its mask and knows no causality without one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        is_causal: bool,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """See :func:`neural_attention_forward`."""
        if attention_mask is None and is_causal and query.shape[2] > 1:
            shape = 1, 1, query.shape[2], key.shape[2]
            attention_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            lowest = torch.finfo(query.dtype).min
            zero = torch.zeros((), dtype=query.dtype, device=query.device)
            attention_mask = torch.where(attention_mask, zero, lowest)
        return self.function(module, query, key, value, attention_mask, **kwargs)


def adapt_arguments(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Forward pre-hook of an attention module: its cache through a view, its rotation off.

    Raises:
        ValueError: somebody changed the attention implementation of a converted model.
    """
    score: AttentionScore = module.neural_attention  # type: ignore[assignment]
    if not score.is_own:
        return None
    implementation = module.config._attn_implementation  # type: ignore[union-attr]
    if implementation != NAME:
        raise ValueError(
            f"the attention implementation of this converted model was changed to "
            f"{implementation!r}, which does not know its scores: "
            f"call model.set_attn_implementation({NAME!r})."
        )
    found: list[CacheView] = []

    def adapt(argument: Any) -> Any:
        if not isinstance(argument, Cache):
            return argument
        replaced, seen = view(argument, score)
        found.append(seen)
        return replaced

    args = tuple(adapt(argument) for argument in args)
    kwargs = {name: adapt(argument) for name, argument in kwargs.items()}
    if found:
        kwargs[VIEW] = found[0]
    if score.turns_off_rotation and "position_embeddings" in kwargs:
        kwargs["position_embeddings"] = _no_rotation(kwargs["position_embeddings"])
    return args, kwargs


def _no_rotation(angles: Any) -> Any:
    """Angles of zero: a pair of cosines and sines, complex numbers, or what is no rotation."""
    if isinstance(angles, tuple):
        cos, sin = angles
        return torch.ones_like(cos), torch.zeros_like(sin)
    return torch.ones_like(angles) if torch.is_complex(angles) else angles


def request_weights(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Forward pre-hook of a model: tell its attention that maps are wanted.

    Not every model hands ``output_attentions`` down to its attention modules. Under gradient
    checkpointing maps have no gradient: the recomputation does without them.
    """
    if kwargs.get("output_attentions"):
        is_recomputed = model.training and any(
            getattr(module, "gradient_checkpointing", False) for module in model.modules()
        )
        _set_returns_weights(model, True, learn=not is_recomputed)


def stop_weights(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> None:
    """Forward hook of a model: the end of :func:`request_weights`."""
    if kwargs.get("output_attentions"):
        _set_returns_weights(model, False, learn=True)


def _set_returns_weights(model: nn.Module, wanted: bool, *, learn: bool) -> None:
    for module in model.modules():
        if isinstance(module, AttentionScore):
            module.returns_weights, module.weights_learn = wanted, learn


AttentionInterface.register(NAME, neural_attention_forward)
AttentionInterface.register(DOT, dot_product_forward)
for _name in (NAME, DOT):
    AttentionMaskInterface.register(_name, sdpa_mask)
