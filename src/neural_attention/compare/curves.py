"""Learning curves of a comparison as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart, and a dash pattern each.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":")


def draw_curves(summary: dict[str, Any], path: Path) -> None:
    """Draw validation loss over steps, every arm at its chosen learning rate.

    Args:
        summary: the content of ``result.json``; each arm has ``curves``, one list of points a seed.
        path: the PNG to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, (name, arm) in enumerate(summary["arms"].items()):
        colour, dash = _COLOURS[index % len(_COLOURS)], _DASHES[index % len(_DASHES)]
        for number, curve in enumerate(arm["curves"]):
            label = f"{name} (learning rate {arm['learning_rate']:g})" if number == 0 else None
            steps = [point["step"] for point in curve]
            losses = [point["validation_loss"] for point in curve]
            axes.plot(steps, losses, dash, color=colour, label=label, linewidth=1.6, alpha=0.9)
    axes.set_xlabel("training steps")
    axes.set_ylabel("validation loss, nats a token")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False)
    temporary = path.with_name(path.name + ".tmp")
    figure.savefig(temporary, format="png")
    temporary.replace(path)
