"""Attention maps, and what score networks see, collected from one forward pass of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import NeuralAttention
from ..multihead import MultiheadAttention
from ..observation import evaluating, recorded_features, score_owners
from ..score import ScoreNetwork

# Fields of a transformers output, the role of their maps, and what these attend from and to.
_FIELDS = {
    "encoder_attentions": "encoder",
    "decoder_attentions": "decoder",
    "cross_attentions": "cross",
    "attentions": "self",
}


@dataclass(frozen=True)
class ScoreSite:
    """A score network, its place, and the features that one input gave it.

    Attributes:
        network: itself.
        score: ``neural``, ``additive`` or ``hybrid``.
        slopes: ``(H, C)`` over relative position, or None.
        a: features of the queries, ``(H, Lq, C)``.
        b: features of the keys, ``(H, Lk, C)``.
    """

    network: ScoreNetwork
    score: str
    slopes: Tensor | None
    a: Tensor
    b: Tensor


@dataclass(frozen=True)
class LayerMaps:
    """The maps of one attention layer.

    Attributes:
        role: ``self``, ``encoder``, ``decoder`` or ``cross``.
        layer: its number, from 0.
        weights: ``(H, Lq, Lk)``.
        score: of its score network, if it has one.
    """

    role: str
    layer: int
    weights: Tensor
    score: ScoreSite | None


def collect_maps(model: nn.Module, inputs: Mapping[str, Any]) -> list[LayerMaps]:
    """Every attention map of one forward pass, in the order of the model.

    Args:
        model: a transformers model, stock or converted, or any module that holds layers of this
            library.
        inputs: keywords of its forward; a batch of one.

    Raises:
        ValueError: a model without attention that can be seen, or more than one input.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(evaluating(model))
        features = stack.enter_context(recorded_features(model))
        if hasattr(model, "set_attn_implementation"):
            stack.enter_context(_eager(model))
            found = _of_transformers(model, inputs)
        else:
            found = _of_layers(stack, model, inputs)
    if not found:
        raise ValueError(
            f"{type(model).__name__} gave no attention maps: expected a transformers model with "
            "attention, or a module that holds layers of this library."
        )
    sizes = {weights.shape[0] for _, _, weights, _ in found}
    if sizes != {1}:
        raise ValueError(
            f"the maps are of {max(sizes)} inputs: the viewer shows one, a batch of size 1."
        )
    owners = score_owners(model)
    sites = {name: _score_site(owners[name], seen) for name, seen in features.items()}
    return [
        LayerMaps(role, layer, weights[0].detach().float().cpu(), sites.get(name))
        for role, layer, weights, name in found
    ]


def _of_transformers(
    model: nn.Module, inputs: Mapping[str, Any]
) -> list[tuple[str, int, Tensor, str]]:
    output = model(**inputs, output_attentions=True)
    maps = {role: output.get(name) for name, role in _FIELDS.items()}
    maps = {role: layers for role, layers in maps.items() if layers}
    if "decoder" in maps or "encoder" in maps:
        maps.pop("self", None)
    owners = {
        (_role(name) if "self" not in maps else "self", _number(name)): name
        for name in score_owners(model)
    }
    return [
        (role, layer, weights, owners.get((role, layer), ""))
        for role, layers in maps.items()
        for layer, weights in enumerate(layers)
        if weights is not None
    ]


def _of_layers(
    stack: ExitStack, model: nn.Module, inputs: Mapping[str, Any]
) -> list[tuple[str, int, Tensor, str]]:
    """Of a module that holds our layers, by asking each layer for its map as it is called."""
    maps: dict[str, Tensor] = {}

    def ask(name: str) -> Any:
        def hook(layer: Any, args: Any, kwargs: Any) -> Any:
            if isinstance(layer, MultiheadAttention):
                return args, {**kwargs, "need_weights": True, "average_attn_weights": False}
            maps[name] = layer.attention_weights(*args, **kwargs)
            return None

        return hook

    def keep(name: str) -> Any:
        def hook(layer: Any, args: Any, output: Any) -> None:
            maps[name] = output[1]

        return hook

    for name, module in model.named_modules():
        if isinstance(module, (NeuralAttention, MultiheadAttention)):
            handle = module.register_forward_pre_hook(ask(name), with_kwargs=True)
            stack.callback(handle.remove)
        if isinstance(module, MultiheadAttention):
            stack.callback(module.register_forward_hook(keep(name)).remove)
    positional = inputs.get("")
    model(**inputs) if positional is None else model(positional)
    return [("self", layer, weights, name) for layer, (name, weights) in enumerate(maps.items())]


def _role(name: str) -> str:
    parts = name.split(".")
    if any("cross" in part or part == "encoder_attn" for part in parts):
        return "cross"
    return "decoder" if "decoder" in parts else "encoder"


def _number(name: str) -> int:
    return int(([part for part in name.split(".") if part.isdigit()] or ["0"])[-1])


def _score_site(owner: Any, seen: Mapping[str, Tensor]) -> ScoreSite | None:
    if "query" not in seen or "key" not in seen:
        return None
    a, b = (seen[side][0].detach().float().cpu() for side in ("query", "key"))
    b = b.repeat_interleave(a.shape[0] // b.shape[0], dim=0)
    slopes = None if owner.slopes is None else owner.slopes.detach().float().cpu()
    return ScoreSite(owner.score_network, owner.score, slopes, a, b)


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    """A stock model by its own implementation: torch's fused attention has no maps."""
    before = model.config._attn_implementation
    if before != "sdpa":
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
