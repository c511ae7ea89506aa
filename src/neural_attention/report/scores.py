"""What only a score network has: its surface, and the share of each channel in its scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..activations import resolve
from .maps import ScoreSite
from .packing import pack_features

# Tokens that stand for all in a longer input.
POINTS = 256
_PAIRS = 128


def describe_score(site: ScoreSite, weights: Tensor, points: int) -> tuple[dict[str, Any], bytes]:
    """A layer's score network for the page: its values as JSON, its features packed.

    Args:
        site: the network and its features.
        weights: the layer's maps ``(H, Lq, Lk)``.
        points: tokens whose features are kept, at most.
    """
    network = site.network
    layers = network.weights()
    queries, keys = (spread(x.shape[1], points) for x in (site.a, site.b))
    a, b = site.a[:, queries], site.b[:, keys]
    described = {
        "score": site.score,
        "activation": network.activation,
        "channels": network.width,
        "output": _numbers(layers.output),
        "hidden": [[_numbers(weight), _numbers(bias)] for weight, bias in layers.hidden],
        "slopes": None if site.slopes is None else _numbers(site.slopes),
        "shares": _numbers(channel_shares(site, weights)),
        "queries": queries.tolist(),
        "keys": keys.tolist(),
    }
    return described, pack_features(a, b)


def channel_shares(site: ScoreSite, weights: Tensor) -> Tensor:
    r"""How much of the scores' variation over the keys each channel makes, ``(H, C)``.

    A channel's contribution to a score is what the score loses without it: w_c σ(u_c) with one
    hidden layer. What is the same for all keys of a query drops out of the softmax, so it is
    counted from its mean over these keys; shares of the mean magnitudes sum to 1 in each head. A
    long input is sampled.
    """
    queries, keys = (spread(x.shape[1], _PAIRS) for x in (site.a, site.b))
    seen = weights[:, queries][:, :, keys] > 0
    count = seen.sum(-1, keepdim=True).clamp_min(1)
    network = site.network
    activation = resolve(network.activation)
    output, hidden = network.weights()
    hidden_units = site.a[:, queries, None] + site.b[:, None, keys]
    if site.slopes is not None:
        # Position of a query among the keys: the masks' rule, aligned to the bottom right.
        offset = site.b.shape[1] - site.a.shape[1]
        distance = keys - (queries[:, None] + offset)
        hidden_units = hidden_units + distance[..., None] * site.slopes[:, None, None]
    hidden_units = activation(hidden_units)
    heads, *_, channels = hidden_units.shape
    output = output.detach().float().cpu().expand(heads, -1)
    shares = torch.zeros(heads, channels)

    def second(units: Tensor) -> Tensor:
        (weight, bias), *_ = hidden
        weight, bias = weight.detach().float().cpu(), bias.detach().float().cpu()
        inner = activation(units @ weight[:, None].transpose(-1, -2) + bias[:, None, None])
        return (inner @ output[:, None, :, None])[..., 0]

    whole = second(hidden_units) if hidden else None
    for channel in range(channels):
        if whole is None:
            lost = hidden_units[..., channel] * output[:, channel, None, None]
        else:
            without = hidden_units.clone()
            without[..., channel] = 0
            lost = whole - second(without)
        lost = torch.where(seen, lost, 0.0)
        lost = torch.where(seen, lost - lost.sum(-1, keepdim=True) / count, 0.0)
        shares[:, channel] = lost.abs().mean((-1, -2))
    return shares / shares.sum(-1, keepdim=True).clamp_min(1e-30)


def spread(length: int, most: int) -> Tensor:
    """At most so many indices, evenly over a length, first and last among them.

    >>> spread(3, 5), spread(9, 3)
    (tensor([0, 1, 2]), tensor([0, 4, 8]))
    """
    if length <= most:
        return torch.arange(length)
    return torch.linspace(0, length - 1, most).round().long()


def _numbers(x: Tensor) -> Any:
    """A tensor as nested lists of six digits."""
    x = x.detach().float().cpu()
    if x.dim() == 1:
        return [float(f"{value:.6g}") for value in x.tolist()]
    return [_numbers(row) for row in x]
