"""The headline table of a comparison, as rows, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from typing import Any

from neural_attention.compare.statistics import compare_pairs, mean_and_interval
from neural_attention.tasks.task import Measure
from neural_attention.tasks.wording import magnitude

from .page import legible


@dataclass(frozen=True)
class Table:
    """Text in rows.

    Attributes:
        head: names of the columns.
        rows: cells, as many as the head has.
        marks: for each row what is said of its arm: ``"reference"``, ``"best"``, both or neither.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marks: tuple[tuple[str, ...], ...]


def headline_table(result: dict[str, Any]) -> Table:
    """Scores with intervals, and what they cost, one row an arm.

    Args:
        result: a comparison, see :func:`neural_attention.report.results.read_result`.
    """
    measures = [Measure(**measure) for measure in result["measures"]]
    headline = measures[0]
    relation = "ratio to" if headline.comparison == "ratio" else "difference from"
    head = ["arm", *(f"test {measure.name}" for measure in measures)]
    head += [f"{relation} {result['reference']}", f"validation {headline.name}", "parameters"]
    head += [f"{result['unit']}/s", "on torch's sdpa", "training", "peak memory", "learning rate"]
    scored = {name: arm["test"].get(headline.field) for name, arm in result["arms"].items()}
    known = [value for value in scored.values() if value is not None]
    best = (min if headline.is_better_lower else max)(known) if known else None
    rows, marks = [], []
    for name, arm in result["arms"].items():
        cells = [name, *(_score(arm, measure) for measure in measures)]
        cells += [_pair(arm["against_reference"], headline), _mean(arm["validation"], headline)]
        cells += [
            _or_none(arm["parameters"], "{:,}"),
            _or_none(arm["speed"], "{:,.0f}"),
            _or_none(arm["sdpa_speed"], "{:,.0f}"),
            _or_none(arm["training_seconds"], "{:,.0f} s"),
            _or_none(arm["peak_memory_mib"], "{:,.0f} MiB"),
            _or_none(arm["learning_rate"], "{:g}"),
        ]
        rows.append(tuple(legible(cell) for cell in cells))
        is_best = best is not None and scored[name] == best
        mark = ("reference",) if name == result["reference"] else ()
        marks.append(mark + (("best",) if is_best else ()))
    return Table(tuple(map(legible, head)), tuple(rows), tuple(marks))


def as_markdown(table: Table) -> str:
    """A table of Markdown; what has a meaning there is escaped."""
    lines = ["| " + " | ".join(map(_escaped, table.head)) + " |"]
    lines.append("|---" + "|---:" * (len(table.head) - 1) + "|")
    lines += ["| " + " | ".join(map(_escaped, row)) + " |" for row in table.rows]
    return "\n".join(lines) + "\n"


def as_csv(result: dict[str, Any]) -> str:
    """Every seed's scores and costs as numbers, one row a run, and one an arm for the means."""
    fields = [measure["field"] for measure in result["measures"]]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    costs = ("parameters", "speed", "sdpa_speed", "training_seconds", "peak_memory_mib")
    writer.writerow(["arm", "seed", "learning_rate", *(f"test_{f}" for f in fields), *costs])
    for name, arm in result["arms"].items():
        tests = [arm["test"].get(field) for field in fields]
        writer.writerow([_cell(name), "mean", arm["learning_rate"], *tests,
                         *(arm[cost] for cost in costs)])  # fmt: skip
        for run in arm["results"]:
            tests = [(run["test"] or {}).get(field) for field in fields]
            writer.writerow([_cell(name), run["seed"], arm["learning_rate"], *tests])
    return file.getvalue()


def interval(arm: dict[str, Any], measure: Measure) -> tuple[float, float] | None:
    """95% t-interval of an arm's test score over its seeds; None with a single one.

    Its end is infinite where a float cannot hold it, as that of perplexities far apart.
    """
    values = [run["test"][measure.field] for run in arm["results"]
              if run["test"] is not None and measure.field in run["test"]]  # fmt: skip
    if len(values) < 2:
        return None
    if measure.comparison == "difference":
        _, low, high = mean_and_interval(values)
    else:  # of logarithms, against 1
        pair = compare_pairs(values, [1.0] * len(values), measure)
        low, high = pair.low, pair.high
    assert low is not None
    assert high is not None
    return low, high


def _score(arm: dict[str, Any], measure: Measure) -> str:
    text, found = _mean(arm["test"], measure), interval(arm, measure)
    if found is None:
        return text
    low, high = (
        magnitude(value, measure.digits) if math.isfinite(value) else "∞" for value in found
    )
    return f"{text} ({low} to {high})"


def _mean(scores: dict[str, float], measure: Measure) -> str:
    value = scores.get(measure.field)
    return "–" if value is None else magnitude(value, measure.digits) + measure.unit


def _pair(pair: dict[str, Any] | None, measure: Measure) -> str:
    if pair is None or pair["value"] is None:
        return "–"
    if pair["kind"] == "ratio":
        texts = [
            None if pair[n] is None else magnitude(pair[n], 3) for n in ("value", "low", "high")
        ]
    else:
        texts = [None if pair[n] is None else f"{pair[n]:+.{measure.digits}f}"
                 for n in ("value", "low", "high")]  # fmt: skip
    value, low, high = texts
    if pair["low"] is None and pair["seeds"] == 1:
        return f"{value} (one seed)"
    return f"{value} ({low if low is not None else '?'} to {high if high is not None else '∞'})"


def _or_none(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _escaped(text: str) -> str:
    for mark in ("\\", "|", "*", "_", "`", "<", "[", "~"):
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


def _cell(text: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    text = legible(text)
    return "'" + text if text[:1] in "=+-@" else text
