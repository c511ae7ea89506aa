"""``convert``: score networks and neural projections in a transformers model, in place."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from .classes import model_class
from .conversion import CHILD, install, make_parts, make_plan
from .discovery import chosen, find_attentions, roles
from .settings import PURE_SCORES, Settings, check_layers, check_options


def convert(
    model: Any,
    *,
    score: str = "hybrid",
    projection: str | Mapping[str, str] = "linear",
    positions: str = "model",
    layers: Iterable[int] | Mapping[str, Iterable[int] | None] | None = None,
    init: str = "preserve",
    score_network: str | Mapping[str, Any] | None = None,
    projection_options: Mapping[str, Any] | None = None,
) -> Any:
    r"""Put score networks and neural projections into a transformers model, in place.

    The model stays what it was in every other way: ``generate``, ``Trainer``, caches, masks,
    saving. Its class and configuration become subclasses of what they were, whose model type begins
    with ``neural_attention_``. All checks come first: a model that cannot be converted is left as
    it was.

    Args:
        model: a transformers model whose attention goes through the attention interface, with
            ``eager``, ``sdpa`` or ``neural_attention_dot`` attention.
        score: ``hybrid``, the dot product plus a score network; ``neural``, a network alone;
            ``additive``, Bahdanau's; ``dot``, the model's own.
        projection: ``linear``, the model's own; ``mlp`` and ``residual`` (queries and keys),
            ``karbevski`` (queries); or a dict from some of ``q``, ``k``, ``v``, ``o`` to a kind. A
            residual keeps the model's linear map and adds a network to it.
        positions: ``model``, its own; ``slopes``, learned, on the network's channels; ``alibi``,
            learned, on the score; ``none``. With any but ``model``, a pure network gets queries and
            keys without the model's rotation; a dot product keeps it. Cross-attention has none.
        layers: indices of layers; or a dict from some of ``encoder``, ``decoder``, ``cross`` to
            indices, None for all of that role; None for all there are.
        init: ``preserve``, the converted model computes what the model did, since networks start at
            zero: for ``hybrid`` and ``dot`` scores with ``linear`` and ``residual`` projections; or
            ``random``, new layers start as the model starts its linear layers.
        score_network: keywords of :class:`neural_attention.ScoreNetwork`, the name of a preset, or
            keywords with ``preset`` among them.
        projection_options: ``width_factor`` (2) and ``layer_norm`` (True) of ``mlp`` and
            ``residual``.

    Returns:
        The model.

    Raises:
        TypeError: not a transformers model.
        ValueError: a model or an option that does not fit.

    Warns:
        UserWarning: a pure network on rotated queries and keys.

    Source:
        Scores: DiGiugno & Mahmood 2025, arXiv 2502.17206. Projections: Zhang 2023, arXiv
        2310.11398, and Karbevski 2026, arXiv 2603.13381.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=64,
    ...                      num_hidden_layers=2, num_attention_heads=4)
    >>> model = LlamaForCausalLM(config).eval()
    >>> tokens = torch.arange(8)[None]
    >>> before = model(tokens).logits
    >>> model = convert(model, score="hybrid", layers=[0])
    >>> torch.allclose(model(tokens).logits, before, atol=1e-5)
    True
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model is a {type(model).__name__}: expected a transformers PreTrainedModel. Convert "
            "before wrapping it (PEFT, torch.compile, DistributedDataParallel)."
        )
    if getattr(model.config, CHILD, None) is not None:
        raise ValueError(
            f"this {type(model).__name__} is converted already: load the stock model to convert it "
            "otherwise."
        )
    if model.config.output_attentions:
        raise ValueError(
            "model.config.output_attentions is set, which transformers allows for eager attention "
            "alone: set it to False, and pass output_attentions=True to the calls that want maps."
        )
    options = check_options(
        score=score,
        projection=projection,
        projection_options=projection_options,
        positions=positions,
        score_network=score_network,
        init=init,
    )
    attentions = find_attentions(model)
    settings = Settings(layers=check_layers(layers, roles(attentions)), **options)
    plan = make_plan(model, settings)
    selected = chosen(attentions, settings.layers)
    if score in PURE_SCORES and positions == "model" and any(one.is_rotary for one in selected):
        warnings.warn(
            f"score={score!r} on this model's rotated queries and keys is not relative: a network "
            "of them depends on both positions, not on their difference. positions='slopes' is "
            "relative, and takes the rotation's place.",
            stacklevel=2,
        )
    kind = _converted_class(model, settings)
    parts = make_parts(model, settings, plan)
    _own_config(model)
    model.config.__class__ = kind.config_class
    setattr(model.config, CHILD, settings.to_dict())
    install(model, parts)
    model.__class__ = kind
    return model


def _converted_class(model: PreTrainedModel, settings: Settings) -> Any:
    """The class that loading would make, which has made an instance.

    transformers remembers then, by class, which outputs it can record.
    """
    stock: Any = type(model)
    stock_config: Any = type(model.config)
    kind = model_class(stock, stock_config)
    config = copy.deepcopy(model.config)
    config.__class__ = kind.config_class
    setattr(config, CHILD, settings.to_dict())
    with torch.device("meta"):
        kind(config)
    return kind


def _own_config(model: PreTrainedModel) -> None:
    """Copy every configuration that the model holds, since other models may share them."""
    copies: dict[int, Any] = {}  # one for each, however many modules hold it
    for module in model.modules():
        if isinstance(getattr(module, "config", None), PreTrainedConfig):
            module.config = copy.deepcopy(module.config, copies)
