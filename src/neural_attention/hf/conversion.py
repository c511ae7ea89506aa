"""Putting scores and projections into a model: first every check, then every change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from . import attention as interface
from .discovery import (
    Attention,
    check_pure_scores,
    check_score_keywords,
    chosen,
    find_attentions,
)
from .projections import Place, find_places, replacement
from .score import AttentionScore
from .settings import PURE_SCORES, Settings

CHILD = "neural_attention"


@dataclass(frozen=True)
class Plan:
    """What will change, all of it checked.

    Attributes:
        attentions: every attention of the model.
        scores: the keyword arguments of each one's :class:`AttentionScore`.
        places: the linear maps to replace.
    """

    attentions: list[Attention]
    scores: list[dict[str, Any]]
    places: list[Place]


@dataclass(frozen=True)
class Parts:
    """What a conversion adds to a model, made before anything of it changes.

    Attributes:
        scores: by attention module.
        projections: with the places where they go.
    """

    scores: list[tuple[nn.Module, AttentionScore]]
    projections: list[tuple[Place, nn.Module]]


def make_plan(model: PreTrainedModel, settings: Settings) -> Plan:
    """What a conversion would change.

    Raises:
        ValueError: the model cannot be converted so; nothing has changed.
    """
    attentions = find_attentions(model)
    selected = {one.name for one in chosen(attentions, settings.layers)}
    if settings.score in PURE_SCORES:
        check_pure_scores(attentions, selected, settings.positions)
    scores, places = [], []
    for attention in attentions:
        is_selected = attention.name in selected
        scores.append(_score_arguments(attention, settings if is_selected else None))
        if is_selected:
            if settings.replaces_score:
                check_score_keywords(attention)
            places += find_places(attention, settings.projection)
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"{type(model).__name__} does not let its attention implementation be set, so it "
            "cannot be converted."
        )
    return Plan(attentions, scores, places)


def make_parts(model: PreTrainedModel, settings: Settings, plan: Plan) -> Parts:
    """Everything that a plan adds; the model is as it was, also where memory does not suffice."""
    modules = [attention.module for attention in plan.attentions]
    scores = [AttentionScore(**arguments) for arguments in plan.scores]
    return Parts(
        scores=list(zip(modules, scores, strict=True)),
        projections=[(place, replacement(place, settings, model)) for place in plan.places],
    )


def install(model: PreTrainedModel, parts: Parts) -> None:
    """Change the model."""
    for module, score in parts.scores:
        module.add_module(CHILD, score)
        module.register_forward_pre_hook(interface.adapt_arguments, with_kwargs=True)
    for place, projection in parts.projections:
        setattr(place.holder, place.name, projection)
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.register_forward_pre_hook(interface.request_weights, with_kwargs=True)
            module.register_forward_hook(interface.stop_weights, with_kwargs=True, always_call=True)
    model.set_attn_implementation(interface.NAME)
    for module, _ in parts.scores:
        config: Any = module.config
        if config._attn_implementation != interface.NAME:
            # Of a model put together from others, whose modules keep the configuration they had.
            config._attn_implementation = interface.NAME


def _score_arguments(attention: Attention, settings: Settings | None) -> dict[str, Any]:
    """Keywords of an :class:`AttentionScore`; of one that only passes on where settings is None."""
    weight = next(attention.module.parameters(), None)
    if weight is None:
        raise ValueError(
            f"{attention.class_name} ({attention.name}) has no parameters, as layers that were "
            "quantized dynamically have none: convert the model before quantizing."
        )
    positions = "model" if settings is None else settings.positions
    if attention.role == "cross" and positions != "model":
        positions = "model"  # distances between two sequences mean nothing
    fallback = _fallback(attention)
    return {
        "score": "dot" if settings is None else settings.score,
        "positions": positions,
        "num_heads": attention.num_heads,
        "num_kv_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "score_network": {} if settings is None else settings.score_network,
        "init": "random" if settings is None else settings.init,
        "fallback": fallback,
        "device": weight.device,
        "dtype": weight.dtype if weight.is_floating_point() else torch.float32,
    }


def _fallback(attention: Attention) -> Callable[..., Any]:
    config: Any = attention.module.config
    return interface.fallback_of(type(attention.module), config._attn_implementation)
