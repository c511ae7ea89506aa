"""What the numbers of a comparison say, and what they do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neural_attention.tasks.language_modelling import perplexity
from neural_attention.tasks.task import Measure
from neural_attention.tasks.wording import counted, magnitude


@dataclass(frozen=True)
class Paired:
    """One arm's scores against another's, paired by seed.

    Attributes:
        kind: ``"ratio"`` or ``"difference"``, see :class:`neural_attention.tasks.task.Measure`.
        value: the ratio of geometric means, or the difference of means.
        low, high: 95% t-interval of ``value``; None with a single seed. Like ``value``, infinite
            where a float cannot hold it.
        seeds: number of pairs.
    """

    kind: str
    value: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def _no_difference(self) -> int:
        return 1 if self.kind == "ratio" else 0

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval leaves out "no difference"."""
        if self.low is None or self.high is None:
            return False
        return not self.low <= self._no_difference <= self.high

    def is_better(self, measure: Measure) -> bool:
        """Whether the first arm has the better mean."""
        return (self.value < self._no_difference) == measure.is_better_lower


def mean_of(values: Sequence[float], measure: Measure) -> float:
    """The mean over seeds: geometric for a measure that is compared by ratios.

    >>> perplexity = Measure("perplexity", "perplexity", True, "ratio", "ppl")
    >>> round(mean_of([1.0, 4.0], perplexity), 6)
    2.0
    """
    if measure.comparison == "difference":
        return sum(values) / len(values)
    # exp of a mean, infinite where a float cannot hold it.
    return perplexity(sum(_log(value) for value in values) / len(values))


def compare_pairs(values: Sequence[float], reference: Sequence[float], measure: Measure) -> Paired:
    r"""Scores of an arm against another's, paired by position.

    .. math:: \bar d \pm t_{0.975, n-1}\, s_d / \sqrt n, \quad d_i = x_i - r_i

    For a ratio, of logarithms, and exp of that.

    Args:
        values: of the arm, one a seed.
        reference: of the other arm, with the same seeds in the same order.
        measure: what they measure.

    Raises:
        ValueError: no pairs, or sequences of different lengths.

    >>> accuracy = Measure("accuracy", "accuracy", False, "difference", "acc", "%")
    >>> compare_pairs([51.0, 52.0], [50.0, 51.0], accuracy).value
    1.0
    """
    if len(values) != len(reference) or not values:
        raise ValueError(
            f"{len(values)} scores and {len(reference)} of the reference: pairs are needed."
        )
    is_ratio = measure.comparison == "ratio"
    if is_ratio:
        values, reference = [_log(x) for x in values], [_log(x) for x in reference]
    differences = [x - other for x, other in zip(values, reference, strict=True)]
    numbers = mean_and_interval(differences)
    if is_ratio:
        numbers = tuple(None if x is None else perplexity(x) for x in numbers)  # type: ignore[assignment]
    mean, low, high = numbers
    return Paired(measure.comparison, mean, low, high, len(differences))


def statement(
    arms: dict[str, dict[str, Any]], reference: str, steps: int, measure: Measure, noun: str
) -> str:
    """One sentence on what a comparison shows, made from its numbers.

    It is about the arm that validates best among those that are not the reference, and, where that
    is a plain dot product, about the best of the others too.

    Args:
        arms: by name, each with ``order`` (less is better, on the validation part), ``test`` (the
            headline measure's mean, or None), ``parameters``, ``is_plain`` (a dot product with
            linear projections) and ``against_reference`` (a :class:`Paired`; None for the reference
            and for arms without a result).
        reference: name of the arm the others are paired with.
        steps: training steps of a run.
        measure: the headline measure.
        noun: what the data are, such as ``"text"``.
    """
    scored = {name: arm for name, arm in arms.items() if arm["test"] is not None}
    if not scored:
        return "No arm has a result, so this shows nothing."
    paired = {name: arm for name, arm in scored.items() if arm["against_reference"] is not None}
    if not paired:
        return f"Only {', '.join(scored)} can be scored, so this compares nothing."

    def best(names: list[str]) -> list[str]:
        return sorted(names, key=lambda name: scored[name]["order"])[:1]

    others = best([name for name, arm in paired.items() if not arm["is_plain"]])
    shown = list(dict.fromkeys([*best(list(paired)), *others]))
    found: dict[str, Paired] = {name: paired[name]["against_reference"] for name in shown}
    size = f"{scored[reference]['parameters'] / 1e6:.2g} M parameters and {counted(steps, 'step')}"
    lost = [name for name, arm in arms.items() if not arm["is_plain"] and name not in scored]
    loss = f"; {' and '.join(lost)} gave no result" if lost and not others else ""
    if all(pairs.seeds == 1 for pairs in found.values()):
        told = [_share(name, pairs, reference, measure) for name, pairs in found.items()]
        a_hint = "a hint" if len(told) == 1 else "hints"
        result, it_does = ("a result", "it does") if len(told) == 1 else ("results", "they do")
        return (
            f"With one seed, the test {measure.name} of {', and that of '.join(told)}: {a_hint} at "
            f"this size ({size}), not {result}; {it_does} not show whether another seed, a larger "
            f"model or another {noun} agrees (--seeds 3 tells the first){loss}."
        )
    told = [
        f"{_share(name, pairs, reference, measure)} {_verdict(name, pairs, measure)}"
        for name, pairs in found.items()
    ]
    return (
        f"The test {measure.name} of {', and that of '.join(told)}; this is so at this size "
        f"({size}) and on this {noun}, and does not show what larger models do{loss}."
    )


def _share(name: str, pairs: Paired, reference: str, measure: Measure) -> str:
    if pairs.kind == "ratio":
        return f"{name} is {magnitude(pairs.value, 3)} times that of {reference}"
    relation = "above" if pairs.value >= 0 else "below"
    points = " points" if measure.unit == "%" else measure.unit
    return f"{name} is {abs(pairs.value):.{measure.digits}f}{points} {relation} that of {reference}"


def _verdict(name: str, pairs: Paired, measure: Measure) -> str:
    if pairs.low is None or pairs.high is None:
        return "(one seed: a hint, not a result)"
    low, high = (
        magnitude(x, 3) if pairs.kind == "ratio" else f"{x:+.{measure.digits}f}"
        for x in (pairs.low, pairs.high)
    )
    interval = f"({pairs.seeds} seeds, 95% interval {low} to {high})"
    if pairs.is_told_apart:
        return f"{interval}, so {name} is {'better' if pairs.is_better(measure) else 'worse'}"
    return f"{interval}, so these seeds do not tell the two apart"


def mean_and_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean of values and its 95% t-interval; no interval with a single one.

    >>> mean_and_interval([1.0])
    (1.0, None, None)
    """
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, None, None
    from scipy import stats

    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = float(stats.t.ppf(0.975, len(values) - 1)) * math.sqrt(variance / len(values))
    return mean, mean - half, mean + half


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
