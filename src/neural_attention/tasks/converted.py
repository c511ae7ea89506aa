"""Arms in models of transformers: the stock model of a task, converted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from neural_attention.tasks.sharing import share_values
from neural_attention.tasks.task import BuiltModel, RunSpec

_KEEPS_THE_MODEL = {"score": ("dot", "hybrid"), "projection": ("linear", "residual")}
DOT_PRODUCT = {"sdpa": "sdpa", None: "neural_attention_dot"}
"""The attention implementation of dot products, by a run's backend: our kernels unless asked."""


def build_converted(
    stock: Callable[[RunSpec], Any], spec: RunSpec, backend: str | None, *, is_pretrained: bool
) -> BuiltModel:
    """A stock model with the arm's attention.

    What the arm leaves of the stock model starts as it does there, and so does every parameter of
    the same name and shape. Dot products are computed by this library's operator.

    Args:
        stock: makes the stock model of a run, from the generator's state or from a checkpoint.
        spec: the run.
        backend: ``"sdpa"`` for torch's dot product.
        is_pretrained: whether the stock model has learned something, which an arm then keeps
            wherever its attention contains the stock model's.

    Raises:
        ValueError: the arm does not fit the model.
    """
    from neural_attention.hf import convert

    torch.manual_seed(spec.seed)
    base = stock(replace(spec, overrides={}))
    torch.manual_seed(spec.seed)
    model = stock(spec)
    model.set_attn_implementation(DOT_PRODUCT[backend])
    options = _options(spec, is_pretrained=is_pretrained)
    if backend == "sdpa" and options is not None and options["positions"] == "alibi":
        raise ValueError("ALiBi in a converted model is computed by this library's kernels alone.")
    if options is not None:
        convert(model, **options)
    shared, own = share_values(base, model)
    return BuiltModel(model, shared, own)


def load_converted(kind: Any, folder: Path) -> Any:
    """A model that ``save_pretrained`` wrote, converted or stock.

    Args:
        kind: the ``Auto`` class of the task's models.
        folder: where it lies.
    """
    import neural_attention.hf  # noqa: F401 (its classes)

    return kind.from_pretrained(folder, attn_implementation=DOT_PRODUCT[None])


def _options(spec: RunSpec, *, is_pretrained: bool) -> dict[str, Any] | None:
    """Keywords of ``convert``; None for the stock model's own attention."""
    attention = dict(spec.attention)
    score, positions = attention["score"], attention.pop("positions", None)
    if positions == "rotary":
        raise ValueError(
            "rotary positions are not this model's: alibi and slopes add to its own, none adds "
            "nothing."
        )
    roles = spec.overrides.get("roles")
    if positions in ("alibi", "slopes") and roles is not None and [*roles] == ["cross"]:
        raise ValueError(
            f"{positions} are of distances within one sequence, and cross-attention has two: leave "
            f"{positions} out, or add a role."
        )
    if positions is None:
        positions = "model" if score == "dot" else "slopes"
    start = spec.overrides.get("start")
    if not is_pretrained and start is not None:
        raise ValueError("start is for pretrained models, and this one is trained from scratch.")
    projections = attention["projection"]
    kinds = set(projections.values()) if isinstance(projections, dict) else {projections}
    contains = score in _KEEPS_THE_MODEL["score"] and kinds <= {*_KEEPS_THE_MODEL["projection"]}
    if start is None:
        start = "preserve" if is_pretrained and contains else "random"
    positions = "model" if positions == "none" else positions
    if score == "dot" and positions == "model" and kinds == {"linear"}:
        if roles is not None:
            raise ValueError("roles say where an arm's attention stands, and this is the model's.")
        return None
    return {**attention, "positions": positions, "layers": _layers(spec), "init": start}


def _layers(spec: RunSpec) -> Any:
    """Which attention is converted, as ``convert`` takes it."""
    layers = spec.layers
    chosen = {"all": None, "first": [0]}[layers] if isinstance(layers, str) else layers
    roles = spec.overrides.get("roles")
    return chosen if roles is None else dict.fromkeys(roles, chosen)
