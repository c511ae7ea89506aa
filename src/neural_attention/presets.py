"""Published score networks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from . import validation


def _paper(head_dim: int, bottleneck: int | None) -> dict[str, Any]:
    bottleneck = bottleneck or max(1, head_dim // 32)
    return {"bottleneck": bottleneck, "width": 2 * bottleneck, "share_heads": True}


def _release(head_dim: int, bottleneck: int | None) -> dict[str, Any]:
    bottleneck = bottleneck or max(1, head_dim // 32)
    return {
        "bottleneck": bottleneck,
        "width": bottleneck,
        "hidden": (max(1, bottleneck // 2),),
        "share_heads": True,
        "init": "torch",
    }


def _bahdanau(head_dim: int, bottleneck: int | None) -> dict[str, Any]:
    return {"activation": "tanh"}


def _gatv2(head_dim: int, bottleneck: int | None) -> dict[str, Any]:
    return {"activation": "leaky_relu:0.2"}


PRESETS: Mapping[str, Callable[[int, int | None], dict[str, Any]]] = MappingProxyType(
    {"paper": _paper, "release": _release, "bahdanau": _bahdanau, "gatv2": _gatv2}
)
"""From a name to a function of (head_dim, bottleneck or None) that gives ScoreNetwork keywords.

``paper``
    DiGiugno & Mahmood 2025, arXiv 2502.17206, as written: bottleneck d' = head_dim // 32, one
    hidden layer (of any width; here 2 d'), relu, shared by heads.
``release``
    the same authors' code: 2 d' -> d' -> d' // 2 -> 1, two hidden layers, relu, shared by heads,
    started as torch starts ``nn.Linear``.
``bahdanau``
    Bahdanau, Cho & Bengio 2014, arXiv 1409.0473: one hidden layer, tanh.
``gatv2``
    Brody, Alon & Yahav 2021, arXiv 2105.14491: one hidden layer, leaky_relu with slope 0.2.

The last two name a form; their width is ScoreNetwork's default unless given.
"""


def preset_settings(
    name: str, head_dim: int, overrides: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """ScoreNetwork keywords of a preset, with some overridden.

    Widths that a preset derives from its bottleneck follow an overridden ``bottleneck``.

    Raises:
        ValueError: no preset has this name, or the bottleneck is no size.

    >>> preset_settings("paper", 64)
    {'bottleneck': 2, 'width': 4, 'share_heads': True}
    """
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(
            f"score network preset {name!r} is unknown: expected one of {', '.join(PRESETS)}."
        )
    bottleneck = overrides.get("bottleneck")
    if bottleneck is not None:
        validation.check_size("bottleneck", bottleneck)
    return PRESETS[name](head_dim, bottleneck) | dict(overrides)
