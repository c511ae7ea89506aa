"""The table of a benchmark, 80 columns wide."""

from __future__ import annotations

from typing import IO, Any

from .cases import CASES, Shape
from .methods import METHODS
from .run import MODES

WIDTH = 80
_NOTES = """\
ratio: of the time to scaled_dot_product_attention's with the same shape, dtype and number of \
threads; medians of {repeats} repetitions, in turns. peak: operations that the score needs, \
exponentials not counted, as a share of {how}: {peak:.0f} billion multiply-adds a second. MiB: \
{memory}. {device}, threads: {threads}, torch {torch}, kernels: {isa}."""
_MODE_NAMES = {"forward": "forward", "training": "forward + backward"}


def print_result(result: dict[str, Any], file: IO[str], *, is_terminal: bool) -> None:
    """Print every group's times, and what could not be measured and why.

    Args:
        result: the content of the benchmark's file.
        file: where to.
        is_terminal: whether colours and bold can be shown.
    """
    from rich.console import Console

    console = Console(
        file=file, width=WIDTH, highlight=False, emoji=False, force_terminal=is_terminal
    )
    for group in result["groups"]:
        console.print(f"\n[bold]{Shape(**group['shape']).label}")
        console.print(_table(group))
        for line in [*_skipped(group), *_beyond_the_empty_operator(group)]:
            console.print(line, markup=False)
    machine, conditions = result["machine"], result["conditions"]
    peak = result["multiply_add_peak"]
    notes = _NOTES.format(
        repeats=conditions["repeats"],
        how=peak["how"],
        peak=peak["per_second"] / 1e9,
        memory=result["memory"],
        device=_hardware(result),
        threads=conditions["threads"],
        torch=machine["versions"]["torch"],
        isa=machine["kernels"]["instruction_set"] or "none",
    )
    console.print(f"\n{notes}", markup=False, style="dim" if is_terminal else None)


def _hardware(result: dict[str, Any]) -> str:
    machine = result["machine"]
    if result["conditions"]["device"] == "cuda":
        return str(machine["gpu"]["devices"][0]["name"])
    return str(machine["machine"]["processor"])


def _table(group: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("", overflow="fold", ratio=1)
    for heading in ("forward", "ratio", "peak", "fwd+bwd", "ratio", "peak", "MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    previous = None
    for entry in group["entries"]:
        if entry["case"] != previous:
            previous = entry["case"]
            table.add_row(f"[bold]{CASES[previous].label}")
        modes = [entry.get(mode, {}) for mode in MODES]
        peaks = [mode["peak_bytes"] for mode in modes if "peak_bytes" in mode]
        cells = [cell for mode in modes for cell in _cells(mode)]
        memory = f"{peaks[-1] / 2**20:,.0f}" if peaks else "-"
        table.add_row(f"  {METHODS[entry['method']].label}", *cells, memory)
    return table


def _cells(times: dict[str, Any]) -> tuple[str, str, str]:
    if "median_s" not in times:
        return "-", "", ""
    ratio, share = times.get("ratio"), times["share_of_peak"]
    return (
        duration(times["median_s"]),
        "-" if ratio is None else f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}",
        f"{share:.0%}" if share >= 0.005 else "-",
    )


def duration(seconds: float) -> str:
    """Three digits and a unit.

    >>> duration(0.0123)
    '12.3 ms'
    """
    for factor, unit in ((1e6, "µs"), (1e3, "ms"), (1, "s")):
        number = seconds * factor
        if number < 999.5 or unit == "s":
            digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
            return f"{number:,.{digits}f} {unit}"
    raise AssertionError("the last unit takes all")


def _skipped(group: dict[str, Any]) -> list[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for entry in group["entries"]:
        for mode in MODES:
            if reason := entry.get(mode, {}).get("skipped"):
                where = f"{METHODS[entry['method']].label}, {_MODE_NAMES[mode]}"
                reasons.setdefault((where, reason), []).append(CASES[entry["case"]].label)
    return [
        f"Not measured: {where} ({'; '.join(cases)}): {reason}."
        for (where, reason), cases in reasons.items()
    ]


def _beyond_the_empty_operator(group: dict[str, Any]) -> list[str]:
    times = {entry["method"]: entry for entry in group["entries"]}
    if "empty" not in times:
        return []
    lines = []
    for method, entry in times.items():
        if method == "empty":
            continue
        for mode in MODES:
            both = [each.get(mode, {}).get("median_s") for each in (entry, times["empty"])]
            if None not in both:
                lines.append(
                    f"Beyond an empty operator of the same schema: {METHODS[method].label}, "
                    f"{_MODE_NAMES[mode]}: {1e6 * (both[0] - both[1]):.1f} µs."
                )
    return lines
