"""The attention viewer: what it shows of a model and an input, as one page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from .maps import LayerMaps, collect_maps
from .packing import BUDGET, pack_maps
from .page import asset, legible, make_page, write_page
from .scores import POINTS, describe_score
from .tokens import image_of, side_labels

_TITLES = {
    "self": "Self-attention",
    "encoder": "Encoder",
    "decoder": "Decoder",
    "cross": "Cross-attention",
}
# What a role attends from and to.
SIDES = {
    "self": ("input", "input"),
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
_SCORE_BYTES = 3_000_000
_MOST_BYTES = 8 << 30


class View:
    """A page of attention maps: shown by notebooks, or saved.

    Attributes:
        html: the page.
    """

    def __init__(self, html: str) -> None:
        self.html = html

    def save(self, path: str | Path) -> Path:
        """Write the page, whole or not at all; a file that is there is replaced.

        Raises:
            OSError: it cannot be written.
        """
        return write_page(path, self.html)

    def _repr_html_(self) -> str:
        # Sandboxed: the notebook's own page is out of its reach.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" title="Attention maps" '
            'sandbox="allow-scripts" style="width:100%;height:760px;border:0"></iframe>'
        )

    def __repr__(self) -> str:
        return f"View of {len(self.html):,} bytes: .save(path) writes it"


def view(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Any],
    tokens: Any = None,
    *,
    against: nn.Module | None = None,
    names: Sequence[str] = ("A", "B"),
    title: str | None = None,
) -> View:
    """The attention maps of a model for one input, as a page that needs nothing else.

    Every layer and head, one map with its tokens, the heat over an image's patches; where there is
    a score network, its surface over two channels and each channel's share of the score. Maps that
    would make the page larger than 20 MB are reduced, and the page says how.

    Args:
        model: a transformers model, stock or converted, or a module with layers of this library.
        inputs: keywords of its forward, or its first argument; a batch of one.
        tokens: a tokenizer, or the tokens as text; for an encoder-decoder a pair for source and
            target. Numbers if None.
        against: a second model, shown beside the first with the difference of the two.
        names: of the two models.
        title: of the page.

    Raises:
        ValueError: no attention can be seen, more than one input, or two models whose maps differ
            in shape.

    >>> import torch
    >>> import neural_attention as na
    >>> layer = na.NeuralAttention(32, 2)
    >>> na.view(layer, torch.randn(1, 4, 32), ["to", "be", "or", "not"]).save("maps.html").name
    'maps.html'
    """
    arms = [model] if against is None else [model, against]
    keywords = _keywords(model, inputs)
    _check_size(model, keywords)
    collected = [collect_maps(arm, keywords) for arm in arms]
    _check_alike(collected)
    shown = [legible(name) for name in names[: len(arms)]]
    if against is not None:
        shown.append("Difference")
    page = _Page(shown)
    roles = list(dict.fromkeys(one.role for one in collected[0]))
    points = _points(collected)
    described = [page.role(role, collected, points) for role in roles]
    page.pack(described)
    lengths: dict[str, int] = {}
    for one in collected[0]:
        lengths.update(zip(SIDES[one.role], one.weights.shape[1:], strict=True))
    data: dict[str, Any] = {
        "title": legible(title or f"Attention of {type(model).__name__}"),
        "arms": shown,
        "roles": described,
        "tokens": side_labels(model, keywords, lengths, tokens),
        "image": image_of(model, keywords, lengths),
    }
    return View(
        make_page(
            data["title"],
            asset("viewer.html"),
            style=asset("page.css") + asset("viewer.css"),
            script=asset("blobs.js") + asset("surface.js") + asset("viewer.js"),
            data=data,
            blobs=page.blobs,
            without_script="The maps of this page are drawn by JavaScript, which is off here.",
        )
    )


class _Page:
    """Collects what the page embeds."""

    def __init__(self, arms: Sequence[str]) -> None:
        self.arms = arms
        self.blobs: dict[str, bytes] = {}
        self.maps: dict[str, list[list[Tensor]]] = {}

    def role(self, role: str, collected: list[list[LayerMaps]], points: int) -> dict[str, Any]:
        """One role for the page; its maps are packed later, when all sizes are known."""
        arms = [[one for one in arm if one.role == role] for arm in collected]
        maps = [[one.weights for one in arm] for arm in arms]
        if len(arms) == 2:
            maps.append([a - b for a, b in zip(*maps, strict=True)])
        self.maps[role] = maps
        queries, keys = maps[0][0].shape[1:]
        return {
            "name": role,
            "title": _TITLES[role],
            "sides": SIDES[role],
            "size": [queries, keys],
            "layers": [one.layer + 1 for one in arms[0]],
            "heads": [one.weights.shape[0] for one in arms[0]],
            "scores": [self.scores(role, number, arm, points) for number, arm in enumerate(arms)],
        }

    def scores(self, role: str, arm: int, layers: list[LayerMaps], points: int) -> list[Any]:
        """The score networks of an arm, None for layers without one."""
        found: list[Any] = []
        for number, one in enumerate(layers):
            if one.score is None:
                found.append(None)
                continue
            described, features = describe_score(one.score, one.weights, points)
            self.blobs[f"score-{role}-{arm}-{number}"] = features
            found.append(described)
        return found

    def pack(self, roles: list[dict[str, Any]]) -> None:
        """The maps of all roles, each with its part of what the page may hold."""
        left = BUDGET - sum(map(len, self.blobs.values()))
        sizes = {
            role: sum(x.numel() for arm in maps for x in arm) for role, maps in self.maps.items()
        }
        for role in roles:
            name = role["name"]
            part = left * sizes[name] // sum(sizes.values()) // len(self.arms)
            role["maps"] = []
            block = 1
            for arm, layers in enumerate(self.maps[name]):
                packed = pack_maps(layers, budget=part, block=block)
                block = packed.block
                for number, blob in enumerate(packed.maps):
                    self.blobs[f"map-{name}-{arm}-{number}"] = blob
                for number, blob in enumerate(packed.strongest):
                    self.blobs[f"top-{name}-{arm}-{number}"] = blob
                self.blobs[f"small-{name}-{arm}"] = packed.thumbnails
                role["maps"].append(
                    {
                        "block": packed.block,
                        "cells": [packed.rows, packed.columns],
                        "small": packed.thumbnail,
                        "largest": [float(f"{value:.4g}") for value in packed.largest],
                    }
                )


def _keywords(model: nn.Module, inputs: Tensor | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(inputs, Tensor):
        name = getattr(model, "main_input_name", None)
        # A plain module's first argument, whatever its name.
        return {name: inputs} if name else {"": inputs}
    if not isinstance(inputs, Mapping):
        raise TypeError(
            f"inputs is a {type(inputs).__name__}: expected keywords of the model's forward, such "
            "as a tokenizer gives them, or one tensor."
        )
    return dict(inputs)


def _check_size(model: nn.Module, keywords: Mapping[str, Any]) -> None:
    """Before the pass: whether its maps fit in memory at all."""
    ids = keywords.get("input_ids")
    config: Any = getattr(model, "config", None)
    heads = getattr(config, "num_attention_heads", 1)
    layers = getattr(config, "num_hidden_layers", 1)
    if not isinstance(ids, Tensor) or not isinstance(heads, int) or not isinstance(layers, int):
        return
    needed = 4 * layers * heads * ids.shape[-1] ** 2
    if needed > _MOST_BYTES:
        raise ValueError(
            f"{ids.shape[-1]:,} tokens in {layers} layers of {heads} heads are {needed / 2**30:.0f}"
            f" GiB of maps, and {_MOST_BYTES >> 30} are the most: give a shorter input."
        )


def _check_alike(collected: list[list[LayerMaps]]) -> None:
    shapes = [{(one.role, one.layer): tuple(one.weights.shape) for one in arm} for arm in collected]
    first = shapes[0]
    for role in {role for role, _ in first}:
        lengths = {shape[1:] for (name, _), shape in first.items() if name == role}
        if len(lengths) > 1:
            raise ValueError(
                f"the layers attend over different lengths ({sorted(lengths)}): the viewer shows "
                "models whose layers all see one sequence."
            )
    for other in shapes[1:]:
        if other != first:
            different = sorted(set(first.items()) ^ set(other.items()))[0]
            raise ValueError(
                "the two models' maps differ in shape, so there is no difference to show: both "
                "need the same layers, heads and tokens. The first that differs is "
                f"{different[0][0]} layer {different[0][1] + 1}, {different[1]}."
            )


def _points(collected: list[list[LayerMaps]]) -> int:
    """Tokens of each head whose features the page can hold."""
    channels = sum(
        one.score.a.shape[0] * one.score.a.shape[2]
        for arm in collected
        for one in arm
        if one.score is not None
    )
    return max(16, min(POINTS, _SCORE_BYTES // (4 * max(1, channels))))
