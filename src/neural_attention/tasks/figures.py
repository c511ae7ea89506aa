"""Figures for files: without a screen, and written whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def new_figure(width: float, height: float, dpi: int = 150) -> Any:
    """A matplotlib figure of so many inches, which needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def quieten(axes: Any) -> None:
    """A pale grid, and no frame above and to the right."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure so that it is there whole or not at all; the ending says its format."""
    temporary = path.with_name(path.name + ".tmp")
    figure.savefig(temporary, format=path.suffix[1:])
    temporary.replace(path)
