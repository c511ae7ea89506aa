"""What a comparison's protocol asked for, and whether it held, in words."""

from __future__ import annotations

from typing import Any

from neural_attention.compare.statistics import Paired
from neural_attention.tasks.task import Measure
from neural_attention.tasks.wording import counted


def checks_of(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Each rule of the protocol, then the notes and the failures.

    Args:
        result: a comparison, see :func:`neural_attention.report.results.read_result`.

    Returns:
        Pairs of a word (``"held"``, ``"mind"``, ``"note"`` or ``"failed"``) and a sentence.
    """
    rules = [_data_order(result), _initial_values(result)]
    rules += [(True, text) for text in _as_configured(result)]
    rules += [_seeds(result), _test_part(result), _dead_networks(result), _sizes(result)]
    found = [("held" if good else "mind", text) for good, text in rules]
    found += [("note", note) for note in result["notes"]]
    return found + [("failed", f"{one['run']}: {one['why']}") for one in result["failures"]]


def verdicts(result: dict[str, Any]) -> str:
    """Which arms the seeds tell apart from the reference, and which they do not."""
    measure, reference = Measure(**result["measures"][0]), result["reference"]
    pairs = {
        name: Paired(**arm["against_reference"])
        for name, arm in result["arms"].items()
        if arm["against_reference"] is not None and arm["against_reference"]["value"] is not None
    }
    if not pairs:
        return ""
    if all(pair.seeds == 1 for pair in pairs.values()):
        return f"One seed tells no arm apart from {reference}."
    told, others = [], []
    for name, pair in pairs.items():
        seeds = counted(pair.seeds, "seed")
        if pair.is_told_apart:
            told.append(f"{name} ({'better' if pair.is_better(measure) else 'worse'}, {seeds})")
        else:
            others.append(f"{name} ({seeds})")
    sentences = [f"Told apart from {reference}: {', '.join(told) or 'no arm'}."]
    if others:
        sentences.append(f"Not told apart: {', '.join(others)}.")
    return " ".join(sentences)


def _data_order(result: dict[str, Any]) -> tuple[bool, str]:
    orders = result["protocol"]["data_order"].values()
    same = all(one["same_for_all_arms"] for one in orders)
    return same, f"Data order the same for all arms: {'yes' if same else 'no'}"


def _initial_values(result: dict[str, Any]) -> tuple[bool, str]:
    values = result["protocol"]["initial_values"]
    counts = "; ".join(
        f"{name}: {one['shared']:,} shared and {len(one['own'])} of its own"
        for name, one in values.items()
    )
    apart = [name for name, one in values.items() if one["shared"] == 0]
    text = f"Equal initial values for each parameter that an arm shares ({counts})"
    return not apart, text + (f"; nothing is shared by {', '.join(apart)}" if apart else "")


def _as_configured(result: dict[str, Any]) -> list[str]:
    """What one piece of code does for every arm, and so cannot differ between them."""
    protocol = result["protocol"]
    rates = ", ".join(f"{rate:g}" for rate in result["preset"]["learning_rates"])
    return [
        f"One schedule: {protocol['schedule']}",
        f"Learning rates tried for every arm: {rates}. Chosen: {protocol['choice']}",
        f"Scores: {protocol['evaluation']}",
    ]


def _seeds(result: dict[str, Any]) -> tuple[bool, str]:
    asked = result["seeds"]
    paired = {
        name: (arm["against_reference"] or {"seeds": 0})["seeds"]
        for name, arm in result["arms"].items()
        if name != result["reference"]
    }
    fewest = min(paired.values(), default=asked)
    text = f"{counted(asked, 'seed')}, paired"
    if fewest < asked:
        lacking = ", ".join(f"{name} {count}" for name, count in paired.items() if count < asked)
        text += f"; of fewer there are results in both arms: {lacking}"
    if fewest < 3:
        text += ": at least three are needed for an interval that means much"
    return fewest >= max(3, asked), text


def _test_part(result: dict[str, Any]) -> tuple[bool, str]:
    read = len(result["protocol"]["test_was_read_for"])
    shown = sum(
        run["test"] is not None for arm in result["arms"].values() for run in arm["results"]
    )
    text = f"The test part read for {counted(read, 'run')}, after the choice"
    if read > shown:
        text += (
            f", of which {shown} are shown: the folder has others, and who has seen more test "
            "scores than these must not choose by them"
        )
    return read <= shown, text


def _dead_networks(result: dict[str, Any]) -> tuple[bool, str]:
    dead = any(
        heads
        for arm in result["arms"].values()
        for run in arm["results"]
        for heads in run["dead_heads"].values()
    )
    return not dead, "Dead score networks: see the notes" if dead else "No dead score network"


def _sizes(result: dict[str, Any]) -> tuple[bool, str]:
    sizes = {
        name: arm["parameters"]
        for name, arm in result["arms"].items()
        if arm["parameters"] is not None
    }
    largest = max(sizes.values(), default=0)
    if largest <= 1.01 * min(sizes.values(), default=0):
        return True, "Equally many parameters in all arms, within 1%"
    wider = [
        name
        for name, size in sizes.items()
        if name.startswith("dot") and "feed_forward=" in name and size >= 0.99 * largest
    ]
    if wider:
        return True, (
            f"The arms differ in parameters; {wider[0]} is a dot product with as many as the "
            "largest has"
        )
    return False, "The arms differ in parameters, and no control has as many (--control adds one)"
