"""Weights of the papers' published attention modules, loaded into this library's layer.

Three published modules are known, each by the names in its own state dict:

``released``
    ``NeuralAttention`` of DiGiugno & Mahmood, arXiv 2502.17206: ``to_qkv``, ``q_proj``, ``k_proj``,
    ``linear1``, ``linear2``, ``linear3``, ``W_out``.
``zhang_marian``
    Zhang's Marian attention, arXiv 2310.11398: ``q_proj.0``, ``.1`` (LayerNorm), ``.3``, likewise
    ``k_proj`` and ``out_proj``; a linear ``v_proj``.
``zhang_roberta``
    Zhang's RoBERTa attention: ``self.query.0``, ``.2``, likewise ``self.key`` and ``self.value``; a
    linear ``output.dense``.

``build_…`` makes a layer of the sizes in the state dict, loaded; ``load_…`` fills a layer that is
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .attention import NeuralAttention

_RELEASED_LAYERS = ("q_proj", "k_proj", "linear1", "linear2", "linear3")
_RELEASED = (
    "to_qkv.weight",
    "W_out.weight",
    *(f"{layer}.{kind}" for layer in _RELEASED_LAYERS for kind in ("weight", "bias")),
)
_ZHANG_MARIAN = tuple(
    f"{name}.{kind}"
    for name in (
        *(f"{projection}.{i}" for projection in ("q_proj", "k_proj", "out_proj") for i in "013"),
        "v_proj",
    )
    for kind in ("weight", "bias")
)
_ROBERTA_NAMES = {
    **{
        f"self.{theirs}.{i}": f"{ours}.{i}"
        for theirs, ours in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))
        for i in "02"
    },
    "output.dense": "out_proj",
}
_ZHANG_ROBERTA = tuple(f"{name}.{kind}" for name in _ROBERTA_NAMES for kind in ("weight", "bias"))
# Part of RoBERTa's attention output module, but behind the residual connection: not attention.
_ROBERTA_NORM = ("output.LayerNorm.weight", "output.LayerNorm.bias")

_MATRIX = torch.empty(0, 0, device="meta")


def build_released(
    state_dict: Mapping[str, Tensor], num_heads: int, *, prefix: str = "", **options: Any
) -> NeuralAttention:
    """The released ``NeuralAttention`` as a layer of this library, with its weights.

    Scores are unscaled and have no positions; pass ``is_causal=True`` to the layer where the
    published module was causal.

    Args:
        state_dict: of the module, or of a model that contains it.
        num_heads: H, which the weights do not tell.
        prefix: what stands before the module's names, such as ``layers.0.attention.``.
        options: further keywords of :class:`neural_attention.NeuralAttention`, such as
            ``backend``, ``device`` and ``dtype``.

    Raises:
        ValueError: names are missing or unexpected, or sizes do not fit each other.

    Source:
        DiGiugno & Mahmood 2025, arXiv 2502.17206, the authors' code.

    >>> weights = {"to_qkv.weight": torch.randn(24, 8), "W_out.weight": torch.randn(8, 8)}
    >>> maps = {"q_proj": (2, 4), "k_proj": (2, 4), "linear1": (2, 4), "linear2": (1, 2)}
    >>> for name, (rows, columns) in {**maps, "linear3": (1, 1)}.items():
    ...     weights[f"{name}.weight"] = torch.randn(rows, columns)
    ...     weights[f"{name}.bias"] = torch.randn(rows)
    >>> build_released(weights, num_heads=2)(torch.randn(1, 5, 8)).shape
    torch.Size([1, 5, 8])
    """
    weights = _select(state_dict, prefix, _RELEASED)
    inner, embed_dim = weights["W_out.weight"].shape[1], weights["W_out.weight"].shape[0]
    layer = NeuralAttention(
        embed_dim,
        num_heads,
        head_dim=_divide(inner, num_heads, f"{prefix}W_out.weight"),
        score="neural",
        # Any starting values do, as all are replaced: not the ones that warn.
        score_network={
            "bottleneck": weights["q_proj.weight"].shape[0],
            "width": weights["linear1.weight"].shape[0],
            "hidden": (weights["linear2.weight"].shape[0],),
            "share_heads": True,
            "init": "random",
        },
        positions="none",
        bias=False,
        **options,
    )
    load_released(layer, state_dict, prefix=prefix)
    return layer


def load_released(
    layer: NeuralAttention, state_dict: Mapping[str, Tensor], *, prefix: str = ""
) -> None:
    """Load a released ``NeuralAttention`` into a layer of the same sizes.

    The fused ``to_qkv`` has rows ordered feature, then query/key/value, then head; the first d'
    input columns of ``linear1`` take the query. The bias of ``linear3`` adds the same to all scores
    of a query and so drops out of the softmax.

    Args:
        layer: ``score="neural"``, ``positions="none"``, ``bias=False``, with a score network like
            the preset ``release``.
        state_dict: of the module, or of a model that contains it.
        prefix: what stands before the module's names.

    Raises:
        ValueError: names are missing or unexpected, or sizes do not fit; nothing is loaded.

    Source:
        DiGiugno & Mahmood 2025, arXiv 2502.17206, the authors' code.
    """
    weights = _select(state_dict, prefix, _RELEASED)
    network = layer.score_network
    if layer.score != "neural" or network is None:
        raise ValueError(f"the layer has score={layer.score!r}: the released one is 'neural'.")
    bottleneck = network.bottleneck
    if (
        network.activation != "relu"
        or not network.share_heads
        or not network.hidden_widths
        or bottleneck is None
    ):
        raise ValueError(
            f"the layer's score network is {network.extra_repr()}: the released one has a "
            "bottleneck, two hidden layers of relu and share_heads=True."
        )
    heads, head_dim = layer.num_heads, layer.head_dim
    expected: dict[str, tuple[int, ...]] = {
        "to_qkv.weight": (3 * heads * head_dim, layer.embed_dim),
        "W_out.weight": (layer.embed_dim, heads * head_dim),
    }
    for name, (out_features, in_features) in {
        "q_proj": (bottleneck, head_dim),
        "k_proj": (bottleneck, head_dim),
        "linear1": (network.width, 2 * bottleneck),
        "linear2": (network.hidden_widths[0], network.width),
        "linear3": (1, network.hidden_widths[0]),
    }.items():
        expected |= {f"{name}.weight": (out_features, in_features), f"{name}.bias": (out_features,)}
    _check_shapes(weights, expected, prefix)
    fused = weights["to_qkv.weight"].view(head_dim, 3, heads, layer.embed_dim)
    q, k, v = fused.permute(1, 2, 0, 3).flatten(1, 2)
    first = weights["linear1.weight"]
    converted = {
        "q_proj.weight": (q, "to_qkv.weight"),
        "k_proj.weight": (k, "to_qkv.weight"),
        "v_proj.weight": (v, "to_qkv.weight"),
        "out_proj.weight": (weights["W_out.weight"], "W_out.weight"),
        "score_network.query.weight": (first[None, :, :bottleneck], "linear1.weight"),
        "score_network.key.weight": (first[None, :, bottleneck:], "linear1.weight"),
        "score_network.query.bias": (weights["linear1.bias"][None], "linear1.bias"),
        "score_network.output": (weights["linear3.weight"], "linear3.weight"),
    }
    for ours, theirs in (
        ("query_bottleneck", "q_proj"),
        ("key_bottleneck", "k_proj"),
        ("hidden", "linear2"),
    ):
        for kind in ("weight", "bias"):
            name = f"{theirs}.{kind}"
            converted[f"score_network.{ours}.{kind}"] = (weights[name][None], name)
    _load(layer, converted, prefix)


def build_zhang_marian(
    state_dict: Mapping[str, Tensor], num_heads: int, *, prefix: str = "", **options: Any
) -> NeuralAttention:
    """One attention of Zhang's Marian (self- or cross-) as a layer, with its weights.

    Args:
        state_dict: of the module, or of a model that contains it.
        num_heads: H, which the weights do not tell.
        prefix: what stands before the module's names, such as
            ``model.encoder.layers.0.self_attn.``.
        options: further keywords of :class:`neural_attention.NeuralAttention`.

    Raises:
        ValueError: names are missing or unexpected, or sizes do not fit each other.

    Source:
        Zhang 2023, arXiv 2310.11398, the author's code.

    >>> def network():
    ...     layers = torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.ReLU()
    ...     return torch.nn.Sequential(*layers, torch.nn.Linear(16, 8))
    >>> parts = {f"{name}_proj": network() for name in ("q", "k", "out")}
    >>> published = torch.nn.ModuleDict({**parts, "v_proj": torch.nn.Linear(8, 8)})
    >>> build_zhang_marian(published.state_dict(), num_heads=2).projections
    {'q': 'mlp', 'k': 'mlp', 'v': 'linear', 'o': 'mlp'}
    """
    weights = _select(state_dict, prefix, _ZHANG_MARIAN)
    hidden, embed_dim = weights["q_proj.0.weight"].shape
    layer = NeuralAttention(
        embed_dim,
        num_heads,
        head_dim=_divide(embed_dim, num_heads, f"{prefix}q_proj.0.weight"),
        score="dot",
        projection={"q": "mlp", "k": "mlp", "o": "mlp"},
        projection_options={"width_factor": hidden / embed_dim, "layer_norm": True},
        positions="none",
        **options,
    )
    load_zhang_marian(layer, state_dict, prefix=prefix)
    return layer


def load_zhang_marian(
    layer: NeuralAttention, state_dict: Mapping[str, Tensor], *, prefix: str = ""
) -> None:
    """Load one attention of Zhang's Marian into a layer of the same sizes.

    Args:
        layer: ``score="dot"``, ``positions="none"``, ``mlp`` projections with LayerNorm at q, k
            and o. Queries are scaled by head_dim^−½ there as here.
        state_dict: of the module, or of a model that contains it.
        prefix: what stands before the module's names.

    Raises:
        ValueError: names are missing or unexpected, or sizes do not fit; nothing is loaded.

    Source:
        Zhang 2023, arXiv 2310.11398, the author's code.
    """
    weights = _select(state_dict, prefix, _ZHANG_MARIAN)
    _check_is_dot(layer)
    _load(layer, {name: (tensor, name) for name, tensor in weights.items()}, prefix)


def build_zhang_roberta(
    state_dict: Mapping[str, Tensor], num_heads: int, *, prefix: str = "", **options: Any
) -> NeuralAttention:
    """One attention of Zhang's RoBERTa as a layer, with its weights.

    Args:
        state_dict: of the attention module (``self`` and ``output``), or of a model that contains
            it. ``output.LayerNorm`` stands behind the residual connection and is left out.
        num_heads: H, which the weights do not tell.
        prefix: what stands before the module's names, such as
            ``roberta.encoder.layer.0.attention.``.
        options: further keywords of :class:`neural_attention.NeuralAttention`.

    Raises:
        ValueError: names are missing or unexpected, or sizes do not fit each other.

    Source:
        Zhang 2023, arXiv 2310.11398, the author's code.

    >>> layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)
    >>> inner = {name: torch.nn.Sequential(*layers) for name in ("query", "key", "value")}
    >>> published = torch.nn.ModuleDict({"self": torch.nn.ModuleDict(inner)})
    >>> published["output"] = torch.nn.ModuleDict({"dense": torch.nn.Linear(8, 8)})
    >>> build_zhang_roberta(published.state_dict(), num_heads=2).projections
    {'q': 'mlp', 'k': 'mlp', 'v': 'mlp', 'o': 'linear'}
    """
    weights = _select(state_dict, prefix, _ZHANG_ROBERTA, _ROBERTA_NORM)
    hidden, embed_dim = weights["self.query.0.weight"].shape
    layer = NeuralAttention(
        embed_dim,
        num_heads,
        head_dim=_divide(embed_dim, num_heads, f"{prefix}self.query.0.weight"),
        score="dot",
        projection={"q": "mlp", "k": "mlp", "v": "mlp"},
        projection_options={"width_factor": hidden / embed_dim, "layer_norm": False},
        positions="none",
        **options,
    )
    load_zhang_roberta(layer, state_dict, prefix=prefix)
    return layer


def load_zhang_roberta(
    layer: NeuralAttention, state_dict: Mapping[str, Tensor], *, prefix: str = ""
) -> None:
    """Load one attention of Zhang's RoBERTa into a layer of the same sizes.

    Args:
        layer: ``score="dot"``, ``positions="none"``, ``mlp`` projections without LayerNorm at q,
            k and v.
        state_dict: as in :func:`build_zhang_roberta`.
        prefix: what stands before the module's names.

    Raises:
        ValueError: names are missing or unexpected, or sizes do not fit; nothing is loaded.

    Source:
        Zhang 2023, arXiv 2310.11398, the author's code.
    """
    weights = _select(state_dict, prefix, _ZHANG_ROBERTA, _ROBERTA_NORM)
    _check_is_dot(layer)
    converted = {
        f"{ours}.{kind}": (weights[f"{theirs}.{kind}"], f"{theirs}.{kind}")
        for theirs, ours in _ROBERTA_NAMES.items()
        for kind in ("weight", "bias")
    }
    _load(layer, converted, prefix)


def _select(
    state_dict: Mapping[str, Tensor],
    prefix: str,
    expected: tuple[str, ...],
    left_out: tuple[str, ...] = (),
) -> dict[str, Tensor]:
    """The module's tensors by their own names: all of them, and no others."""
    own = {
        name.removeprefix(prefix): tensor
        for name, tensor in state_dict.items()
        if name.startswith(prefix)
    }
    problems = {
        "missing": [name for name in expected if name not in own],
        "unexpected": [name for name in own if name not in (*expected, *left_out)],
        "not a matrix": [
            name
            for name in expected
            # Biases and a LayerNorm's weight are vectors.
            if not name.endswith(("bias", ".1.weight")) and own.get(name, _MATRIX).dim() != 2
        ],
    }
    if any(problems.values()):
        parts = [
            f"{problem}: {', '.join(prefix + name for name in names)}"
            for problem, names in problems.items()
            if names
        ]
        raise ValueError(
            f"the state dict is not that of the published module. {'; '.join(parts)}. "
            "With a whole model's state dict, pass the module's prefix."
        )
    return {name: own[name] for name in expected}


def _divide(width: int, num_heads: int, name: str) -> int:
    if num_heads < 1 or width % num_heads:
        raise ValueError(
            f"{name} has inner width {width}, which {num_heads} heads do not divide: check "
            "num_heads."
        )
    return width // num_heads


def _check_is_dot(layer: NeuralAttention) -> None:
    if layer.score != "dot" or layer.positions != "none":
        raise ValueError(
            f"the layer has score={layer.score!r} and positions={layer.positions!r}: the published "
            "one has 'dot' and 'none'."
        )


def _check_shapes(
    weights: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], prefix: str
) -> None:
    wrong = [
        f"{prefix}{name} is {tuple(weights[name].shape)}, expected {shape}"
        for name, shape in expected.items()
        if tuple(weights[name].shape) != shape
    ]
    if wrong:
        raise ValueError(f"sizes do not fit the layer: {'; '.join(wrong)}.")


@torch.no_grad()
def _load(layer: NeuralAttention, converted: Mapping[str, tuple[Tensor, str]], prefix: str) -> None:
    """Copy tensors, given with the name they came from, into the layer: all or none."""
    parameters = dict(layer.named_parameters())
    wrong = [f"the layer's {name} is not in it" for name in parameters if name not in converted]
    for name, (tensor, source) in converted.items():
        if name not in parameters:
            wrong.append(f"the layer has no {name}, for {prefix}{source}")
        elif parameters[name].shape != tensor.shape:
            wrong.append(
                f"{prefix}{source} gives {tuple(tensor.shape)}, and the layer's {name} is "
                f"{tuple(parameters[name].shape)}"
            )
    if wrong:
        raise ValueError(f"the state dict does not fit the layer: {'; '.join(wrong)}.")
    for name, (tensor, _) in converted.items():
        parameters[name].copy_(tensor)
