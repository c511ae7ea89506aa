"""Time and memory over length, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..tasks.figures import new_figure, quieten, save_figure
from .cases import CASES, Shape
from .methods import METHODS

# Okabe and Ito's colours, which colour-blind readers can tell apart, and a mark each.
_COLOURS = {
    "sdpa": "#000000",
    "native": "#D55E00",
    "triton": "#D55E00",
    "blocked": "#E69F00",
    "published": "#CC79A7",
    "flex": "#0072B2",
    "compiled": "#009E73",
}
_PANELS = (
    ("forward", "median_s", "forward, seconds"),
    ("training", "median_s", "forward + backward, seconds"),
    ("training", "peak_bytes", "peak memory beyond the inputs, MiB"),
)
_FORMATS = ("png", "svg")


def draw_result(result: dict[str, Any], folder: Path) -> list[Path]:
    """Draw one line for each case and method over the lengths, on logarithmic axes.

    A line that ends before the others, because memory or time would not have sufficed, ends with
    a cross.

    Args:
        result: the content of the benchmark's file.
        folder: where ``NAME.png`` and ``NAME.svg`` are written; further files for further batch
            sizes, dtypes and masks.

    Returns:
        The files; none where nothing was measured at two lengths.
    """
    series: dict[Shape, list[tuple[Shape, list[dict[str, Any]]]]] = {}
    for group in result["groups"]:
        shape = Shape(**group["shape"])
        if shape.queries == shape.keys:
            same = Shape(**(group["shape"] | {"queries": 0, "keys": 0}))
            series.setdefault(same, []).append((shape, group["entries"]))
    several = {same: points for same, points in series.items() if len(points) > 1}
    written = []
    for number, points in enumerate(several.values()):
        suffix = f"-{number + 1}" if len(several) > 1 else ""
        figure = _figure(result, points)
        for form in _FORMATS:
            path = folder / f"{result['name']}{suffix}.{form}"
            save_figure(figure, path)
            written.append(path)
    return written


def _figure(result: dict[str, Any], points: list[tuple[Shape, list[dict[str, Any]]]]) -> Any:
    figure = new_figure(12, 4.6)
    lengths = [shape.keys for shape, _ in points]
    lines = dict.fromkeys((e["case"], e["method"]) for _, entries in points for e in entries)
    dashes = _dashes([case for case, _ in lines])
    for axes, (mode, quantity, label) in zip(figure.subplots(1, 3), _PANELS, strict=True):
        for case, method in lines:
            unit = 2**20 if quantity == "peak_bytes" else 1
            measured = {
                shape.keys: entry[mode][quantity] / unit
                for shape, entries in points
                for entry in entries
                if (entry["case"], entry["method"]) == (case, method)
                and entry.get(mode, {}).get(quantity)
            }
            if not measured:
                continue
            colour, name = _COLOURS.get(method, "#56B4E9"), METHODS[method].label
            axes.plot(
                list(measured),
                list(measured.values()),
                dashes[case],
                color=colour,
                marker=".",
                linewidth=1.6,
                label=f"{name}: {CASES[case].label}",
            )
            if (last := max(measured)) < lengths[-1]:
                axes.plot(last, measured[last], "x", color=colour, markersize=9)
        axes.set(xscale="log", yscale="log", xlabel="length n", ylabel=label)
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=60)
        axes.minorticks_off()
        quieten(axes)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    shape, machine = points[0][0], result["machine"]
    sizes = shape.label.partition(", ")[2]
    threads = result["conditions"]["threads"]
    figure.suptitle(
        f"{sizes}; {threads} threads, torch {machine['versions']['torch']}, "
        f"{result['started'][:10]}; a cross: more would need too much memory or time",
        fontsize=9,
    )
    return figure


def _dashes(cases: list[str]) -> dict[str, str]:
    styles = ("-", "--", "-.", ":")
    return {case: styles[i % len(styles)] for i, case in enumerate(dict.fromkeys(cases))}
