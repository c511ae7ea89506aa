"""The table at the end of a comparison, 80 columns wide."""

from __future__ import annotations

from typing import IO, Any

from neural_attention.tasks.task import Measure
from neural_attention.tasks.wording import counted, magnitude

WIDTH = 80


def print_summary(summary: dict[str, Any], file: IO[str], *, is_terminal: bool) -> None:
    """Print the table, the notes and the sentence of a comparison.

    Args:
        summary: the content of ``result.json``.
        file: where to.
        is_terminal: whether colours and bold can be shown.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(
        file=file,
        width=WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
        force_terminal=is_terminal,
        soft_wrap=False,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("arm", overflow="fold", ratio=1)
    measures = [Measure(**measure) for measure in summary["measures"]]
    headline = measures[0]
    unit = summary["unit"]
    columns = [f"valid\n{headline.short}", f"test\n{headline.short}"]
    columns += [measure.short for measure in measures[1:]]
    columns += ["params", f"{unit}\n/s", "peak\nMiB", "learn.\nrate"]
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    best = _best([arm["test"].get(headline.field) for arm in summary["arms"].values()], headline)
    for name, arm in summary["arms"].items():
        test = arm["test"]
        is_best = best is not None and test.get(headline.field) == best
        table.add_row(
            name,
            _number(arm["validation"].get(headline.field), headline.digits),
            *(_number(test.get(measure.field), measure.digits) for measure in measures),
            _count(arm["parameters"]),
            _count(arm["speed"]),
            _number(arm["peak_memory_mib"], 0),
            f"{arm['learning_rate']:g}" if arm["learning_rate"] is not None else "-",
            style="bold" if is_best else None,
        )
        if arm["sdpa_speed"] is not None:
            blank = [""] * (len(measures) + 2)
            table.add_row("  on torch's sdpa", *blank, _count(arm["sdpa_speed"]), "", "")
    console.print(table)
    seeds, runs = summary["seeds"], summary["runs"]
    console.print(
        f"\nMean of {counted(seeds, 'seed')}; {counted(runs, 'run')}; "
        f"data: {summary['data']['source']}; device: {summary['device']}.",
        style="dim" if is_terminal else None,
    )
    for note in summary["notes"]:
        console.print(f"Note: {note}")
    console.print(f"\n{summary['statement']}")


def _best(scores: list[float | None], measure: Measure) -> float | None:
    known = [score for score in scores if score is not None]
    return (min if measure.is_better_lower else max)(known) if known else None


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else magnitude(value, digits)


def _count(value: float | None) -> str:
    if value is None:
        return "-"
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return (
                f"{value / limit:.3g}{unit}"
                if value < 1000 * limit
                else f"{value / limit:.0f}{unit}"
            )
    return f"{value:.0f}"
