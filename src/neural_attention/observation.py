"""Score networks of any model, found and listened to while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from .score import ScoreNetwork


def score_owners(model: nn.Module) -> dict[str, Any]:
    """Modules that hold a score network as ``score_network``, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(getattr(module, "score_network", None), ScoreNetwork)
    }


@contextmanager
def recorded_features(model: nn.Module) -> Iterator[dict[str, dict[str, Tensor]]]:
    """What the first layers of the score networks give while the model runs.

    Yields:
        By the owner's name, ``query`` and ``key``: the features of its latest call, with the slopes
        of a grid, if its tokens lie on one. A side that is folded into its projection, and one that
        was not called, is missing.
    """
    features: dict[str, dict[str, Tensor]] = {}
    with ExitStack() as stack:
        for name, owner in score_owners(model).items():
            seen = features[name] = {}
            for side in ("query", "key"):
                layer = getattr(owner.score_network, side)
                if layer is not None:
                    stack.callback(layer.register_forward_hook(_keep(seen, side, owner)).remove)
        yield features


def _keep(seen: dict[str, Tensor], side: str, owner: Any) -> Any:
    grid = getattr(owner, "grid", None)

    def hook(layer: Any, args: Any, output: Tensor) -> None:
        if grid is not None:
            output = grid.shift_queries(output) if side == "query" else grid.shift_keys(output)
        seen[side] = output

    return hook


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module is in the mode that it had."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
