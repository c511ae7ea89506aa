"""What the numbers of a comparison say, and what they do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PairedRatio:
    """Perplexity of one arm over another's, paired by seed.

    Attributes:
        ratio: exp of the mean difference of losses; below 1, the first arm is better.
        low, high: 95% t-interval of ``ratio``; None with a single seed.
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
        return PairedRatio(math.exp(mean), None, None, 1)
    from scipy import stats

    variance = sum((d - mean) ** 2 for d in differences) / (len(differences) - 1)
    half = float(stats.t.ppf(0.975, len(differences) - 1)) * math.sqrt(variance / len(differences))
    return PairedRatio(
        math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(differences)
    )


def statement(arms: dict[str, dict[str, Any]], reference: str, steps: int) -> str:
    """One sentence on what a comparison shows, made from its numbers.

    Args:
        arms: by name, each with ``validation_perplexity``, ``test_perplexity``, ``parameters`` and
            ``against_reference`` (a :class:`PairedRatio`, None for the reference); arms without a
            result are left out. The sentence is about the one that validates best.
        reference: name of the arm the others are paired with.
        steps: training steps of a run.
    """
    scored = {name: arm for name, arm in arms.items() if arm["test_perplexity"] is not None}
    if not scored:
        return "No arm has a result, so this shows nothing."
    others = [name for name, arm in scored.items() if arm["against_reference"] is not None]
    if not others:
        return f"Only {', '.join(scored)} can be scored, so this compares nothing."
    shown = min(others, key=lambda name: scored[name]["validation_perplexity"])
    ratio: PairedRatio = scored[shown]["against_reference"]
    times = f"{ratio.ratio:.3f} times that of {reference}"
    size = f"{scored[reference]['parameters'] / 1e6:.2g} M parameters and {steps:,} steps"
    if ratio.seeds == 1:
        return (
            f"With one seed, the test perplexity of {shown} is {times}: a hint at this size "
            f"({size}), not a result; it does not show whether another seed, a larger model or "
            "another text agrees (--seeds 3 tells the first)."
        )
    interval = f"{ratio.seeds} seeds, 95% interval {ratio.low:.3f} to {ratio.high:.3f}"
    if ratio.is_told_apart:
        direction = "better" if ratio.ratio < 1 else "worse"
        return (
            f"The test perplexity of {shown} is {times} ({interval}), so {shown} is {direction} at "
            f"this size ({size}) and on this text; it does not show what larger models do."
        )
    return (
        f"The test perplexity of {shown} is {times} ({interval}): these seeds do not tell the two "
        f"apart at this size ({size}), and it does not show what larger models do."
    )
