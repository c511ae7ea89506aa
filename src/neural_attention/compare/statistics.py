"""What the numbers of a comparison say, and what they do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neural_attention.tasks.language_modelling import perplexity
from neural_attention.tasks.wording import counted, magnitude


@dataclass(frozen=True)
class PairedRatio:
    """Perplexity of one arm over another's, paired by seed.

    Attributes:
        ratio: exp of the mean difference of losses; below 1, the first arm is better.
        low, high: 95% t-interval of ``ratio``; None with a single seed. Like ``ratio``, infinite
            where a float cannot hold it.
        seeds: number of pairs.
    """

    ratio: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def paired_ratio(losses: Sequence[float], reference: Sequence[float]) -> PairedRatio:
    r"""Ratio of perplexities from losses in nats, paired by position.

    .. math:: \exp\big(\bar d \pm t_{0.975, n-1}\, s_d / \sqrt n\big), \quad d_i = l_i - r_i

    Args:
        losses: of the arm, one a seed.
        reference: of the other arm, with the same seeds in the same order.

    Raises:
        ValueError: no pairs, or sequences of different lengths.

    >>> paired_ratio([1.0, 1.1], [1.0, 1.1]).ratio
    1.0
    """
    if len(losses) != len(reference) or not losses:
        raise ValueError(
            f"{len(losses)} losses and {len(reference)} of the reference: pairs are needed."
        )
    differences = [loss - other for loss, other in zip(losses, reference, strict=True)]
    mean = sum(differences) / len(differences)
    if len(differences) == 1:
        return PairedRatio(perplexity(mean), None, None, 1)
    from scipy import stats

    variance = sum((d - mean) ** 2 for d in differences) / (len(differences) - 1)
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * math.sqrt(variance / len(differences))
    return PairedRatio(
        perplexity(mean), perplexity(mean - half), perplexity(mean + half), len(differences)
    )


def statement(arms: dict[str, dict[str, Any]], reference: str, steps: int) -> str:
    """One sentence on what a comparison shows, made from its numbers.

    It is about the arm that validates best among those that are not the reference, and, where that
    is a plain dot product, about the best of the others too.

    Args:
        arms: by name, each with ``validation_perplexity``, ``test_perplexity``, ``parameters``,
            ``is_plain`` (a dot product with linear projections) and ``against_reference`` (a
            :class:`PairedRatio`; None for the reference and for arms without a result).
        reference: name of the arm the others are paired with.
        steps: training steps of a run.
    """
    scored = {name: arm for name, arm in arms.items() if arm["test_perplexity"] is not None}
    if not scored:
        return "No arm has a result, so this shows nothing."
    paired = {name: arm for name, arm in scored.items() if arm["against_reference"] is not None}
    if not paired:
        return f"Only {', '.join(scored)} can be scored, so this compares nothing."

    def best(names: list[str]) -> list[str]:
        return sorted(names, key=lambda name: scored[name]["validation_perplexity"])[:1]

    others = best([name for name, arm in paired.items() if not arm["is_plain"]])
    shown = list(dict.fromkeys([*best(list(paired)), *others]))
    ratios = {name: paired[name]["against_reference"] for name in shown}
    size = f"{scored[reference]['parameters'] / 1e6:.2g} M parameters and {counted(steps, 'step')}"
    lost = [name for name, arm in arms.items() if not arm["is_plain"] and name not in scored]
    loss = f"; {' and '.join(lost)} gave no result" if lost and not others else ""
    if all(ratio.seeds == 1 for ratio in ratios.values()):
        told = [_share(name, ratio, reference) for name, ratio in ratios.items()]
        a_hint = "a hint" if len(told) == 1 else "hints"
        result, it_does = ("a result", "it does") if len(told) == 1 else ("results", "they do")
        return (
            f"With one seed, the test perplexity of {', and that of '.join(told)}: {a_hint} at "
            f"this size ({size}), not {result}; {it_does} not show whether another seed, a larger "
            f"model or another text agrees (--seeds 3 tells the first){loss}."
        )
    told = [
        f"{_share(name, ratio, reference)} {_verdict(name, ratio)}"
        for name, ratio in ratios.items()
    ]
    return (
        f"The test perplexity of {', and that of '.join(told)}; this is so at this size ({size}) "
        f"and on this text, and does not show what larger models do{loss}."
    )


def _share(name: str, ratio: PairedRatio, reference: str) -> str:
    return f"{name} is {magnitude(ratio.ratio, 3)} times that of {reference}"


def _verdict(name: str, ratio: PairedRatio) -> str:
    if ratio.low is None or ratio.high is None:
        return "(one seed: a hint, not a result)"
    low, high = magnitude(ratio.low, 3), magnitude(ratio.high, 3)
    interval = f"({ratio.seeds} seeds, 95% interval {low} to {high})"
    if ratio.is_told_apart:
        return f"{interval}, so {name} is {'better' if ratio.ratio < 1 else 'worse'}"
    return f"{interval}, so these seeds do not tell the two apart"
