"""``neural-attention compare expressivity``: which attention distributions a score can express."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import torch

from neural_attention.compare.curves import COLOURS
from neural_attention.compare.statistics import mean_and_interval
from neural_attention.tasks.expressivity import (
    FEATURES,
    SCORES,
    Fit,
    cases,
    fit,
    rank_optimum,
    targets,
)
from neural_attention.tasks.figures import new_figure, quieten, save_figure
from neural_attention.tasks.json_files import write_json

FORMAT = 1
OPTIMUM = "optimum"


@dataclass(frozen=True)
class Preset:
    """Sizes of the experiment.

    Attributes:
        items: number of queries and keys.
        sizes: widths of the dot product, channels of the network.
        seeds: starts.
        steps: of a fit.
        learning_rates: tried for every fit; each is reported at its best.
    """

    items: int
    sizes: tuple[int, ...]
    seeds: int
    steps: int
    learning_rates: tuple[float, ...]


PRESETS = {
    "smoke": Preset(8, (2,), 2, 5, (0.03,)),
    "quick": Preset(32, (1, 2, 4, 8), 3, 200, (0.03, 0.1)),
    "laptop": Preset(64, (1, 2, 4, 8, 16, 32), 5, 1500, (0.01, 0.03, 0.1)),
}


def compare_expressivity(
    preset: str = "quick",
    out: str | Path = "expressivity",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Fit every score to every target, and write ``result.json`` and ``expressivity.png``.

    Args:
        preset: a name of :data:`PRESETS`.
        out: folder for both.
        say: told a line for each target.

    Returns:
        The content of ``result.json``: by target its rank and, for each score, kind of features and
        size, KL(P* ‖ P) in nats: mean over seeds with a 95% t-interval.

    Raises:
        ValueError: an unknown preset.
        OSError: ``out`` cannot be written.
    """
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}; known are {', '.join(PRESETS)}.")
    chosen = PRESETS[preset]
    folder = Path(os.path.expanduser(out))
    folder.mkdir(parents=True, exist_ok=True)
    options = {name: getattr(chosen, name) for name in ("seeds", "steps", "learning_rates")}
    started, found = time.perf_counter(), {}
    for name, target in targets(chosen.items).items():
        fits = [
            {"score": score, "features": features, "size": size}
            | _numbers(fit(target, score, features, size, **options))
            for score, features, size in cases(chosen.sizes)
        ]
        fits += [
            {"score": OPTIMUM, "features": None, "size": size}
            | _numbers(rank_optimum(target, size, **options))
            for size in chosen.sizes
        ]
        found[name] = {
            "about": target.about,
            "is_control": target.is_control,
            "rank": target.rank,
            "features": target.features.shape[1],
            "fits": fits,
        }
        say(f"{name}: {target.about} ({time.perf_counter() - started:.0f} s)")
    result = {
        "format": FORMAT,
        "preset": asdict(chosen) | {"name": preset},
        "seconds": time.perf_counter() - started,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "targets": found,
    }
    write_json(folder / "result.json", result)
    _draw(result, folder / "expressivity.png")
    return result


def _numbers(one: Fit) -> dict[str, Any]:
    mean, low, high = mean_and_interval(one.kl)
    return {
        "kl": mean,
        "low": low,
        "high": high,
        "seeds": one.kl,
        "parameters": one.parameters,
        "learning_rate": one.learning_rate,
    }


def _of(target: dict[str, Any], score: str, features: str | None) -> list[dict[str, Any]]:
    return [f for f in target["fits"] if f["score"] == score and f["features"] == features]


def _draw(result: dict[str, Any], path: Path) -> None:
    """One panel for each target and kind of features: KL over size."""
    found = result["targets"]
    figure = new_figure(9, 2 * len(found), dpi=130)
    grid = figure.subplots(len(found), len(FEATURES), sharex=True, squeeze=False)
    for row, (name, target) in zip(grid, found.items(), strict=True):
        for axes, features in zip(row, FEATURES, strict=True):
            shown = [(score, features) for score in SCORES] + [(OPTIMUM, None)]
            for colour, (score, kind) in zip(COLOURS, shown, strict=False):
                points = _of(target, score, kind)
                sizes = [point["size"] for point in points]
                label = "any dot product" if score == OPTIMUM else score
                style = ":" if score == OPTIMUM else "-"
                axes.plot(sizes, [p["kl"] for p in points], style, color=colour, label=label)
                if points and points[0]["low"] is not None:
                    low = [max(p["low"], 1e-9) for p in points]
                    axes.fill_between(sizes, low, [p["high"] for p in points], color=colour,
                                      alpha=0.15, linewidth=0)  # fmt: skip
            axes.set(xscale="log", yscale="log", ylim=(1e-6, 10))
            axes.set_xticks(result["preset"]["sizes"], result["preset"]["sizes"])
            axes.minorticks_off()
            quieten(axes)
            axes.set_title(f"{name}, {features}", fontsize="small")
        row[0].set_ylabel("KL, nats")
    for axes in grid[-1]:
        axes.set_xlabel("width or channels")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    save_figure(figure, path)


def print_expressivity(result: dict[str, Any], file: IO[str]) -> None:
    """The table, 80 columns wide: for each target the KL at every size."""
    sizes = result["preset"]["sizes"]
    print("KL to the target in nats, mean over seeds, by width or channels", file=file)
    print(f"{'':30}" + "".join(f"{size:>8}" for size in sizes), file=file)
    for name, target in result["targets"].items():
        kind = "a control: " if target["is_control"] else ""
        print(f"\n{name}: {kind}{target['about']} (rank {target['rank']})", file=file)
        for features in FEATURES:
            for score in SCORES:
                _print_row(f"  {score}, {features}", _of(target, score, features), sizes, file)
        _print_row("  any dot product, fitted", _of(target, OPTIMUM, None), sizes, file)


def _print_row(label: str, points: list[dict[str, Any]], sizes: list[int], file: IO[str]) -> None:
    by_size = {point["size"]: point["kl"] for point in points}
    cells = [f"{by_size[size]:8.2g}" if size in by_size else f"{'-':>8}" for size in sizes]
    print(f"{label:30}" + "".join(cells), file=file)
