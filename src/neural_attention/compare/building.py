"""Models of a comparison: arms that share every initial value they can share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from neural_attention.attention import NeuralAttention
from neural_attention.models.language import (
    NeuralAttentionForCausalLM,
    NeuralAttentionLMConfig,
)


@dataclass(frozen=True)
class BuiltModel:
    """A model and where its initial values come from.

    Attributes:
        model: the model.
        shared: names of parameters that start as those of the dot-product model of the same seed.
        own: names of the others: parameters that the dot-product model lacks or has in another
            shape.
    """

    model: NeuralAttentionForCausalLM
    shared: tuple[str, ...]
    own: tuple[str, ...]


def model_config(
    sizes: dict[str, Any], attention: dict[str, Any], layers: str | list[int], **overrides: Any
) -> NeuralAttentionLMConfig:
    """The configuration of an arm: the comparison's sizes with the arm's attention in them."""
    settings = {**sizes, **{name: value for name, value in overrides.items() if value is not None}}
    return NeuralAttentionLMConfig(attention=attention, attention_layers=layers, **settings)


def build_model(config: NeuralAttentionLMConfig, sizes: dict[str, Any], seed: int) -> BuiltModel:
    """A model whose parameters start, wherever possible, as those of the dot-product model.

    The dot-product model of ``sizes`` is built from ``seed``; each parameter of the same name and
    shape is copied from it. So the arms of a comparison differ at the start in what their attention
    adds and in nothing else.

    Args:
        config: the arm's model.
        sizes: sizes of the comparison, without an arm's changes.
        seed: seed of the initial values.
    """
    torch.manual_seed(seed)
    base = NeuralAttentionForCausalLM(model_config(sizes, {"score": "dot"}, "all"))
    values = dict(base.named_parameters())
    torch.manual_seed(seed)
    model = NeuralAttentionForCausalLM(config)
    shared, own = [], []
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in values and values[name].shape == parameter.shape:
                parameter.copy_(values[name])
                shared.append(name)
            else:
                own.append(name)
    return BuiltModel(model, tuple(shared), tuple(own))


def count_parameters(config: NeuralAttentionLMConfig) -> int:
    """Number of trainable values, tied ones once, without allocating them."""
    with torch.device("meta"):
        model = NeuralAttentionForCausalLM(config)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def control_feed_forward(base: NeuralAttentionLMConfig, target: int) -> int:
    """Width of the feed-forward layers that gives the dot-product model ``target`` parameters.

    The least width that reaches it, so that the control is never the smaller one.
    """
    width = base.intermediate_size
    have = count_parameters(base)
    wider = NeuralAttentionLMConfig(**{**base.to_dict(), "intermediate_size": width + 1})
    step = count_parameters(wider) - have
    return width + max(0, -(-(target - have) // step))


@torch.no_grad()
def dead_score_networks(
    model: NeuralAttentionForCausalLM, input_ids: torch.Tensor
) -> dict[str, list[int]]:
    """Heads whose score network gives every key the same score, by layer.

    Args:
        model: the model.
        input_ids: a probe batch, (B, L) with at least two positions.

    Returns:
        Layer number (as a string, for JSON) to heads; empty when all are alive.
    """
    features: dict[tuple[int, str], torch.Tensor] = {}
    hooks = []
    layers = [cast(NeuralAttention, block.attention) for block in model.blocks]
    networks = {
        number: (layer, layer.score_network)
        for number, layer in enumerate(layers)
        if layer.score_network is not None
    }
    for number, (_, network) in networks.items():
        for side in ("query", "key"):

            def keep(
                _: Any, __: Any, output: torch.Tensor, key: tuple[int, str] = (number, side)
            ) -> None:
                features[key] = output

            hooks.append(getattr(network, side).register_forward_hook(keep))
    was_training = model.training
    model.eval()
    try:
        model(input_ids=input_ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
        model.train(was_training)
    dead = {}
    for number, (layer, network) in networks.items():
        heads = network.dead_heads(features[number, "query"], features[number, "key"], layer.slopes)
        if heads.any():
            dead[str(number)] = [int(head) for head in heads.nonzero().flatten()]
    return dead
