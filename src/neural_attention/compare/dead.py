"""Score networks that give every key the same score, found by a probe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from neural_attention.score import ScoreNetwork

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


@torch.no_grad()
def dead_score_networks(
    model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]
) -> dict[str, list[int]]:
    """Heads whose score network gives every key the same score, by layer.

    Args:
        model: any model; its attentions hold a :class:`neural_attention.ScoreNetwork` as
            ``score_network``, and perhaps ``slopes``.
        inputs: keyword arguments of the model, with at least two positions.

    Returns:
        The number of the layer, or its name where two have the same number, to heads; empty when
        all are alive.
    """
    attentions = {
        name: module
        for name, module in model.named_modules()
        if isinstance(getattr(module, "score_network", None), ScoreNetwork)
    }
    features: dict[tuple[str, str], torch.Tensor] = {}
    hooks = []
    for name, module in attentions.items():
        for side in ("query", "key"):

            def keep(_: Any, __: Any, output: Any, key: tuple[str, str] = (name, side)) -> None:
                features[key] = output

            hooks.append(getattr(module.score_network, side).register_forward_hook(keep))
    was_training = model.training
    model.eval()
    try:
        model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    dead = {}
    for name, module in attentions.items():
        network: Any = module.score_network
        slopes: Any = getattr(module, "slopes", None)
        heads = network.dead_heads(features[name, "query"], features[name, "key"], slopes)
        if heads.any():
            dead[_label(name, list(attentions))] = [int(head) for head in heads.nonzero().flatten()]
    return dead


def _label(name: str, names: list[str]) -> str:
    numbers = [_NUMBER.search(one) for one in names]
    found = [number[1] for number in numbers if number is not None]
    mine = _NUMBER.search(name)
    return mine[1] if mine is not None and found.count(mine[1]) == 1 else name
