"""Which cases, shapes and methods a preset measures."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import torch

from .cases import CASES, Shape
from .methods import METHODS

PEERS = ("sdpa", "native", "triton", "blocked", "published", "flex", "compiled")
_FUSED = ("sdpa", "native", "triton")


@dataclass(frozen=True)
class Grid:
    """All combinations of what it names.

    Attributes:
        cases: names of :data:`CASES`.
        lengths: of the keys.
        methods: names of :data:`METHODS`.
        batches: batch sizes.
        causal: with a causal mask, without, or both.
        dtypes: of the inputs.
        heads: number of heads.
        head_dim: width of q, k and v.
        queries: their number; None: as many as keys.
    """

    cases: tuple[str, ...]
    lengths: tuple[int, ...]
    methods: tuple[str, ...] = PEERS
    batches: tuple[int, ...] = (1,)
    causal: tuple[bool, ...] = (True,)
    dtypes: tuple[str, ...] = ("float32",)
    heads: int = 8
    head_dim: int = 64
    queries: int | None = None

    def groups(self) -> list[Group]:
        """One for each shape, short ones first."""
        return [
            Group(
                Shape(
                    batch=batch,
                    heads=self.heads,
                    head_dim=self.head_dim,
                    queries=self.queries or length,
                    keys=length,
                    causal=causal and self.queries is None,
                    dtype=dtype,
                    training=self.queries is None,
                ),
                self.cases,
                self.methods,
            )
            for dtype, batch, causal, length in product(
                self.dtypes, self.batches, self.causal, sorted(self.lengths)
            )
        ]


@dataclass(frozen=True)
class Group:
    """What is measured in turns: one shape, several cases, several methods."""

    shape: Shape
    cases: tuple[str, ...]
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Preset:
    """Grids, repetitions, and seconds that one method may take for all of them at one point."""

    about: str
    grids: tuple[Grid, ...]
    repeats: int = 10
    budget_s: float = 300.0


PRESETS = {
    "smoke": Preset(
        "seconds, to see that it works",
        (Grid(("dot", "relu-2"), (32, 64), ("sdpa", "native", "blocked", "published"), heads=2),),
        repeats=2,
        budget_s=20.0,
    ),
    "table": Preset(
        "every score at n = 4,096, and decoding",
        (
            Grid(
                (
                    "dot",
                    "relu-2",
                    "relu-8",
                    "leaky_relu-8",
                    "relu-16",
                    "gelu_tanh-8",
                    "hybrid-8",
                    "released-2",
                    "released-16",
                    "relu-8-slopes",
                    "relu-8-dropout",
                    "dot-dropout",
                ),
                (4096,),
            ),
            Grid(("dot", "relu-2", "relu-8", "hybrid-8"), (4096,), _FUSED, dtypes=("bfloat16",)),
            Grid(
                ("dot", "relu-8"),
                (32768,),
                ("sdpa", "native", "triton", "blocked", "flex"),
                queries=1,
            ),
        ),
    ),
    "grid": Preset(
        "relu, C = 2 at short and long lengths, batch 1 and 8, causal or not",
        (
            Grid(
                ("dot", "relu-2"),
                (128, 512, 1024, 16384),
                _FUSED,
                batches=(1, 8),
                causal=(True, False),
            ),
        ),
        budget_s=1800.0,
    ),
    "scaling": Preset(
        "time and memory from n = 256 to 32,768",
        (Grid(("dot", "relu-8"), tuple(2**power for power in range(8, 16))),),
        budget_s=400.0,
    ),
    "overhead": Preset(
        "microseconds of a call beyond an empty operator",
        (
            Grid(
                ("relu-1",),
                (1,),
                ("native", "triton", "operator", "empty"),
                causal=(False,),
                heads=1,
                head_dim=1,
            ),
        ),
        repeats=30,
        budget_s=20.0,
    ),
}


def groups_of(preset: Preset, changes: dict[str, Any]) -> list[Group]:
    """A preset's groups, with other cases, lengths and so on where ``changes`` names them.

    Raises:
        ValueError: a name that is not known, or a size that is none.
    """
    assert changes.keys() <= {field.name for field in fields(Grid)}
    _check("case", changes.get("cases", ()), tuple(CASES))
    _check("method", changes.get("methods", ()), tuple(METHODS))
    _check("dtype", changes.get("dtypes", ()), ("float32", "bfloat16", "float16"))
    for name in ("lengths", "batches", "heads", "head_dim"):
        value = changes.get(name, 1)
        if any(size < 1 for size in (value if isinstance(value, tuple) else (value,))):
            raise ValueError(f"{name.replace('_', '-')} is {value}: it must be 1 or more.")
    groups: dict[Shape, Group] = {}
    for grid in preset.grids:
        for group in replace(grid, **changes).groups():
            # Grids that the changes made alike are one.
            known = groups.get(group.shape, group)
            cases = tuple(dict.fromkeys((*known.cases, *group.cases)))
            methods = tuple(dict.fromkeys((*known.methods, *group.methods)))
            groups[group.shape] = Group(group.shape, cases, methods)
    return list(groups.values())


def _check(what: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {what} {name!r}; known are {', '.join(known)}.")


def check_device(device: str) -> None:
    """Refuse a device that is not there.

    Raises:
        ValueError: it is not.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda': torch finds no CUDA GPU here. Use --device cpu.")
