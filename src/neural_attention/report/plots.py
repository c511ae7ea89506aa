"""The plots of a comparison, for plotly in the page and drawn by matplotlib in files."""

from __future__ import annotations

import math
import textwrap
import warnings
from pathlib import Path
from typing import Any

from neural_attention.tasks.figures import new_figure, quieten, save_figure
from neural_attention.tasks.task import Measure

from .page import legible
from .table import interval

# Okabe and Ito's colours, which colour-blind readers can tell apart, as they stand on white and on
# black; and a dash and a marker, so that no arm is told from another by colour alone.
COLOURS = (
    ("#0072B2", "#56B4E9"), ("#D55E00", "#FF8A3D"), ("#009E73", "#2FD0A5"), ("#CC79A7", "#E39AC4"),
    ("#B07A00", "#F0C04A"), ("#5B4FC4", "#A79DF5"), ("#3C3C3C", "#D0D0D0"),
)  # fmt: skip
DASHES = ("solid", "dash", "dashdot", "dot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
_MATPLOTLIB_DASHES = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":"}
_MATPLOTLIB_MARKERS = dict(zip(MARKERS, "osD^PX*", strict=True))
FORMATS = ("svg", "png")


def style(index: int) -> dict[str, str]:
    """Colours, dash and marker of the arm with this number."""
    light, dark = COLOURS[index % len(COLOURS)]
    dash = DASHES[index % len(DASHES)]
    return {"light": light, "dark": dark, "dash": dash, "marker": MARKERS[index % len(MARKERS)]}


def plots_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What is drawn of a comparison, ready for JSON.

    Returns:
        Plots with ``name``, ``title``, ``note``, ``y`` (a label), ``axes`` (one or more horizontal
        axes, each ``name``, ``label`` and ``log``), ``lines`` (whether points are joined) and
        ``series``: ``arm`` (its number), ``label``, ``x`` (by the axis' name), ``y`` and perhaps
        ``low`` and ``high``.
    """
    return [_curves(result), _sweep(result), _costs(result)]


def _curves(result: dict[str, Any]) -> dict[str, Any]:
    unit, series = result["unit"], []
    for index, arm in enumerate(result["arms"].values()):
        for run, curve in zip(arm["results"], arm["curves"], strict=True):
            steps = [point["step"] for point in curve]
            series.append(
                {
                    "arm": index,
                    "label": f"seed {run['seed']}",
                    "x": {
                        "steps": steps,
                        "units": [step * (arm["units_per_step"] or 0) for step in steps],
                        "seconds": [point["seconds"] for point in curve],
                    },
                    "y": [point["validation_loss"] for point in curve],
                }
            )
    return {
        "name": "curves",
        "title": "Learning curves",
        "note": result["protocol"]["curves"],
        "y": "validation loss",
        "axes": [
            {"name": "steps", "label": "training steps", "log": False},
            {"name": "units", "label": f"training {unit}", "log": False},
            {"name": "seconds", "label": "seconds of training", "log": False},
        ],
        "lines": True,
        "series": series,
    }


def _sweep(result: dict[str, Any]) -> dict[str, Any]:
    headline = Measure(**result["measures"][0])
    # Some scores are too dear for the validation part; what is chosen by is always there.
    tried = [one["validation"] for arm in result["arms"].values() for one in arm["sweep"]]
    field = headline.field if all(headline.field in one for one in tried if one) else None
    name = headline.name if field else "loss"
    series = []
    for index, arm in enumerate(result["arms"].values()):
        scored = [one for one in arm["sweep"] if one["validation"]]
        values = [one["validation"].get(field or "loss") for one in scored]
        if scored and None not in values:
            rates = [one["learning_rate"] for one in scored]
            series.append({"arm": index, "label": "seed 0", "x": {"rate": rates}, "y": values})
    return {
        "name": "sweep",
        "title": "Learning-rate sweep",
        "note": f"Seed 0 of every arm; the choice is the {result['protocol']['choice']}. Rates at "
        "which a run diverged have no point.",
        "y": f"validation {name}",
        "axes": [{"name": "rate", "label": "learning rate", "log": True}],
        "lines": True,
        "series": series,
    }


def _costs(result: dict[str, Any]) -> dict[str, Any]:
    headline = Measure(**result["measures"][0])
    seconds, memory = "training_seconds", "peak_memory_mib"
    fields = {"seconds": seconds, "parameters": "parameters", "memory": memory}
    series = []
    for index, arm in enumerate(result["arms"].values()):
        value = arm["test"].get(headline.field)
        costs = {name: [arm[field]] for name, field in fields.items()}
        if value is None or any(cost == [None] for cost in costs.values()):
            continue
        one: dict[str, Any] = {"arm": index, "label": "mean of seeds", "x": costs, "y": [value]}
        found = interval(arm, headline)
        if found is not None and all(map(math.isfinite, found)):
            one |= {"low": [found[0]], "high": [found[1]]}
        series.append(one)
    return {
        "name": "costs",
        "title": "Quality against cost",
        "note": "Means over seeds, with 95% intervals where there are several. Speeds are those of "
        "this machine.",
        "y": f"test {headline.name}",
        "axes": [
            {"name": "seconds", "label": "seconds of training", "log": False},
            {"name": "parameters", "label": "parameters", "log": False},
            {"name": "memory", "label": "peak memory, MiB", "log": False},
        ],
        "lines": False,
        "series": series,
    }


def draw_plots(result: dict[str, Any], folder: Path) -> list[Path]:
    """Draw every plot over each of its axes, as SVG and PNG for a paper.

    Args:
        result: a comparison.
        folder: where the files go; it is there.

    Returns:
        The files.
    """
    names, written = list(result["arms"]), []
    for plot in plots_of(result):
        for axis in plot["axes"]:
            figure = _figure(plot, axis, names)
            several = len(plot["axes"]) > 1
            for form in FORMATS:
                path = folder / f"{plot['name']}{'-' + axis['name'] if several else ''}.{form}"
                with warnings.catch_warnings():
                    # A name may have letters that the font lacks: boxes will do.
                    warnings.filterwarnings("ignore", message="Glyph .* missing from font")
                    save_figure(figure, path)
                written.append(path)
    return written


def _figure(plot: dict[str, Any], axis: dict[str, Any], names: list[str]) -> Any:
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    told: set[int] = set()
    for one in plot["series"]:
        index, look = one["arm"], style(one["arm"])
        label = None if index in told else textwrap.shorten(legible(names[index]), 60)
        told.add(index)
        x, y = one["x"][axis["name"]], one["y"]
        dash = _MATPLOTLIB_DASHES[look["dash"]] if plot["lines"] else ""
        marker = _MATPLOTLIB_MARKERS[look["marker"]]
        axes.plot(x, y, dash, marker=marker, color=look["light"], label=label,
                  linewidth=1.4, markersize=4 if plot["lines"] else 8)  # fmt: skip
        if "low" in one:
            axes.vlines(x, one["low"], one["high"], color=look["light"], linewidth=1.2)
    axes.set_xscale("log" if axis["log"] else "linear")
    axes.set_xlabel(axis["label"])
    axes.set_ylabel(plot["y"])
    quieten(axes)
    if told:
        for text in axes.legend(frameon=False, fontsize="small").get_texts():
            text.set_parse_math(False)
    return figure
