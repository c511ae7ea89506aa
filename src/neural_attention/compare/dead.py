"""Score networks that give every key the same score, found by a probe."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from neural_attention.observation import evaluating, recorded_features, score_owners

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
    with evaluating(model), recorded_features(model) as features:
        model(**inputs)
    owners, dead = score_owners(model), {}
    for name, owner in owners.items():
        seen, slopes = features[name], getattr(owner, "slopes", None)
        heads = owner.score_network.dead_heads(seen["query"], seen["key"], slopes)
        if heads.any():
            dead[_label(name, list(owners))] = [int(head) for head in heads.nonzero().flatten()]
    return dead


def _label(name: str, names: list[str]) -> str:
    numbers = [_NUMBER.search(one) for one in names]
    found = [number[1] for number in numbers if number is not None]
    mine = _NUMBER.search(name)
    return mine[1] if mine is not None and found.count(mine[1]) == 1 else name
