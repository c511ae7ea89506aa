"""Learning curves of a comparison as a picture."""

from __future__ import annotations

import textwrap
import warnings
from pathlib import Path
from typing import Any

from neural_attention.tasks.figures import new_figure, quieten, save_figure

# Okabe and Ito's colours, which colour-blind readers can tell apart, and a dash pattern each.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", "-.", ":")


def draw_curves(summary: dict[str, Any], path: Path) -> None:
    """Draw validation loss over steps, every arm at its chosen learning rate.

    What a point is stands in ``protocol.curves``: mostly less than the score of the table.

    Args:
        summary: the content of ``result.json``; each arm has ``curves``, one list of points a seed.
        path: the PNG to write.
    """
    figure = new_figure(7, 4.2)
    axes = figure.add_subplot()
    for index, (name, arm) in enumerate(summary["arms"].items()):
        colour, dash = COLOURS[index % len(COLOURS)], _DASHES[index % len(_DASHES)]
        for number, curve in enumerate(arm["curves"]):
            label = f"{name} (learning rate {arm['learning_rate']:g})" if number == 0 else None
            steps = [point["step"] for point in curve]
            losses = [point["validation_loss"] for point in curve]
            axes.plot(steps, losses, dash, color=colour, label=label, linewidth=1.6, alpha=0.9)
    axes.set_xlabel("training steps")
    axes.set_ylabel(textwrap.fill(summary["protocol"]["curves"], 48), fontsize="small")
    axes.set_title(_title(summary), fontsize="small", parse_math=False)
    quieten(axes)
    if axes.lines:
        axes.legend(frameon=False)
    with warnings.catch_warnings():
        # A data path may have letters that the font lacks: boxes in the title will do.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        save_figure(figure, path)


def _title(summary: dict[str, Any]) -> str:
    """Size of the models, and what they were trained on."""
    sizes = [arm["parameters"] for arm in summary["arms"].values() if arm["parameters"] is not None]
    shown = dict.fromkeys(f"{size / 1e6:.3g}" for size in (min(sizes), max(sizes))) if sizes else ()
    parameters = f"{' to '.join(shown)} M parameters, " if shown else ""
    data = textwrap.shorten(summary["data"]["source"], 160, placeholder=" …")
    count = summary["data"]["counts"]["train"]
    trained = f"{parameters}{count:,} training {summary['data']['counted']} of {data}"
    return textwrap.fill(trained, 90)
