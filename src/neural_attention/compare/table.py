"""The table at the end of a comparison, 80 columns wide."""

from __future__ import annotations

from typing import IO, Any

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
    for name in (
        "valid\nppl",
        "test\nppl",
        "bits/\nbyte",
        "params",
        "tokens\n/s",
        "peak\nMiB",
        "learn.\nrate",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    scores = [arm["test_perplexity"] for arm in summary["arms"].values()]
    best = min((score for score in scores if score is not None), default=None)
    for name, arm in summary["arms"].items():
        is_best = best is not None and arm["test_perplexity"] == best
        table.add_row(
            name,
            _number(arm["validation_perplexity"]),
            _number(arm["test_perplexity"]),
            _number(arm["test_bits_per_byte"], 3),
            _count(arm["parameters"]),
            _count(arm["tokens_per_second"]),
            _number(arm["peak_memory_mib"], 0),
            f"{arm['learning_rate']:g}" if arm["learning_rate"] is not None else "-",
            style="bold" if is_best else None,
        )
        if arm["sdpa_tokens_per_second"] is not None:
            table.add_row(
                "  on torch's sdpa", "", "", "", "", _count(arm["sdpa_tokens_per_second"]), "", ""
            )
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
