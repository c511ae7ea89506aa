"""The summary of a comparison: scores, costs, checks of the protocol, and what to mind."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from neural_attention.compare.arms import is_plain_dot_product
from neural_attention.compare.execution import Execution
from neural_attention.compare.statistics import Paired, compare_pairs, mean_of, statement
from neural_attention.machine import describe_machine
from neural_attention.tasks.task import FORMAT, Measure, Preset, RunSpec, Task
from neural_attention.tasks.wording import counted


@dataclass(frozen=True)
class Found:
    """What the runs of a comparison gave.

    Attributes:
        task, preset: of the comparison.
        data: the description of the data.
        specs: by arm, its first run.
        sweeps: by arm, the results of the learning-rate sweep.
        final: by arm, the results at the chosen rate, one a seed, each with ``test``.
        timings: by arm, units a second on our kernel and on torch's, or None.
        notes: what was noticed on the way.
        failures: runs that gave no result.
        root: folder of the comparison.
        execution: how the runs were carried out.
        preset_name: the preset's.
        command: what does it again, for a shell.
    """

    task: Task
    preset: Preset
    data: Mapping[str, Any]
    specs: dict[str, RunSpec]
    sweeps: dict[str, list[dict[str, Any]]]
    final: dict[str, list[dict[str, Any]]]
    timings: dict[str, dict[str, Any] | None]
    notes: list[str]
    failures: list[dict[str, str]]
    root: Path
    execution: Execution
    preset_name: str
    command: str


def summarise(found: Found) -> dict[str, Any]:
    """Put together what ``result.json`` holds."""
    task, preset, specs, final = found.task, found.preset, found.specs, found.final
    headline = task.measures[0]
    reference = _reference(found)
    arms = {name: _arm(found, name) for name in specs}
    pairs = {name: _pairs(final[name], final[reference], headline) for name in specs}
    del pairs[reference]
    for name, arm in arms.items():
        pair = pairs.get(name)
        arm["against_reference"] = _finite(asdict(pair)) if pair is not None else None
    first = next(iter(specs.values()))
    identity = [spec.key for spec in specs.values()]
    identity += [repr(preset.learning_rates), repr(preset.seeds)]
    return {
        "format": FORMAT,
        "key": hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
        "task": task.name,
        "title": task.title,
        "unit": task.unit,
        "measures": [asdict(measure) for measure in task.measures],
        "command": found.command,
        "preset_name": found.preset_name,
        "preset": asdict(preset),
        "device": first.device,
        "environment": first.environment,
        "machine": describe_machine(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seeds": preset.seeds,
        "runs": sum(len(results) for results in found.sweeps.values())
        + sum(max(0, len(results) - 1) for results in final.values()),
        "reference": reference,
        "arms": arms,
        "protocol": _protocol(found),
        "notes": found.notes + _notes(found, arms) + _speed_notes(found),
        "failures": found.failures,
        "statement": statement(
            {
                name: {
                    "order": _order(final[name], task.choice),
                    "test": arm["test"].get(headline.field),
                    "parameters": arm["parameters"],
                    "is_plain": is_plain_dot_product(arm["attention"]),
                    "against_reference": pairs.get(name),
                }
                for name, arm in arms.items()
            },
            reference,
            preset.steps,
            headline,
            task.data_noun,
        ),
        "data": {name: value for name, value in found.data.items() if name != "folder"},
    }


def better_first(result: dict[str, Any], choice: Measure) -> float:
    """A key to sort results by, the best first: its score on the validation part."""
    value = float(result["validation"][choice.field])
    return value if choice.is_better_lower else -value


def _order(results: list[dict[str, Any]], choice: Measure) -> float:
    mean = _mean([better_first(result, choice) for result in results])
    return math.inf if mean is None else mean


def _reference(found: Found) -> str:
    """The arm that the others are paired with: the plain dot product that validates best.

    Not simply the first: slopes inside a score network are to be measured against ALiBi, and
    against rotary positions only if those are better.
    """
    specs = found.specs
    plain = [name for name, spec in specs.items() if is_plain_dot_product(spec.attention)]
    return min(plain or specs, key=lambda name: _order(found.final[name], found.task.choice))


def _arm(found: Found, name: str) -> dict[str, Any]:
    spec, sweep, final = found.specs[name], found.sweeps[name], found.final[name]
    timing, measures = found.timings[name], found.task.measures
    results = final or sweep
    tests = [result["test"] for result in final if result.get("test") is not None]
    return {
        "attention": spec.attention,
        "layers": spec.layers,
        "overrides": spec.overrides,
        "parameters": results[0]["parameters"] if results else None,
        "learning_rate": final[0]["learning_rate"] if final else None,
        "units_per_step": final[0]["units_per_step"] if final else None,
        "validation": _means([r["validation"] for r in final], measures),
        "test": _means(tests, measures),
        "speed": _mean([r["speed"] for r in final]),
        "sdpa_speed": timing["sdpa"] if timing is not None else None,
        "training_seconds": _mean([r["training_seconds"] for r in final]),
        "peak_memory_mib": (max(r["peak_memory_bytes"] for r in final) / 2**20 if final else None),
        "sweep": [
            {
                "learning_rate": result["learning_rate"],
                "diverged": result["diverged"],
                "validation": _means([result["validation"]], measures)
                if result["validation"]
                else None,
            }
            for result in sweep
        ],
        "results": [
            {name: result[name] for name in _KEPT} | {"test": result.get("test")}
            for result in final
        ],
        "curves": [result["curve"] for result in final],
    }


_KEPT = (
    "seed", "learning_rate", "validation", "speed", "training_seconds", "peak_memory_bytes",
    "steps", "dead_heads", "data_order_sha256", "resumed_from", "broken_checkpoints",
    "command_started",
)  # fmt: skip


def _means(scores: list[dict[str, Any]], measures: tuple[Measure, ...]) -> dict[str, float]:
    """By field of a measure, the mean over seeds; without those that no score has."""
    found = {}
    for measure in measures:
        values = [score[measure.field] for score in scores if measure.field in score]
        if values:
            found[measure.field] = mean_of(values, measure)
    return found


def _pairs(
    arm: list[dict[str, Any]], reference: list[dict[str, Any]], measure: Measure
) -> Paired | None:
    values, others = (
        {r["seed"]: r["test"][measure.field] for r in results if r.get("test") is not None}
        for results in (arm, reference)
    )
    seeds = sorted(values.keys() & others.keys())
    if not seeds:
        return None
    return compare_pairs(
        [values[seed] for seed in seeds], [others[seed] for seed in seeds], measure
    )


def _protocol(found: Found) -> dict[str, Any]:
    preset = found.preset
    orders: dict[int, set[str]] = {}
    for result in [r for runs in (*found.sweeps.values(), *found.final.values()) for r in runs]:
        orders.setdefault(result["seed"], set()).add(result["data_order_sha256"])
    return {
        "data_order": {
            str(seed): {"sha256": sorted(hashes), "same_for_all_arms": len(hashes) == 1}
            for seed, hashes in sorted(orders.items())
        },
        "initial_values": {
            name: results[0]["initial_values"] for name, results in found.sweeps.items() if results
        },
        "schedule": (
            f"AdamW, weight decay {preset.weight_decay} on matrices, betas {preset.betas}, "
            f"{counted(preset.warmup_steps, 'step')} of warm-up, then a cosine to zero at step "
            f"{preset.steps}, gradient norm at most {preset.max_grad_norm}"
            + ("; computed in bfloat16, scored in float32" if preset.bf16 else "")
            + (
                f"; stopped after {counted(preset.patience, 'point')} of the curve without a "
                "better one, and the best weights kept"
                if preset.patience is not None
                else ""
            )
        ),
        "learning_rates_tried": {name: list(preset.learning_rates) for name in found.specs},
        "choice": (
            f"{'least' if found.task.choice.is_better_lower else 'greatest'} validation "
            f"{found.task.choice.name} at seed 0, for each arm alone"
        ),
        **found.task.evaluation(preset, found.data),
        "speed_measured_by_commands_of": _moments(found),
        "test_was_read_for": sorted(
            path.parent.name for path in (found.root / "runs").glob("*/test.json")
        ),
    }


def _notes(found: Found, arms: dict[str, dict[str, Any]]) -> list[str]:
    preset, sweeps, final = found.preset, found.sweeps, found.final
    notes = [f"{failure['run']} failed: {failure['why']}" for failure in found.failures]
    notes += found.task.notes(preset, found.data)
    for name, arm in arms.items():
        dead = [
            f"seed {result['seed']} {moment.replace('_', ' ')}: "
            + ", ".join(f"layer {layer} heads {heads}" for layer, heads in layers.items())
            for result in (final[name] or sweeps[name])
            for moment, layers in result["dead_heads"].items()
            if layers
        ]
        if dead:
            notes.append(f"{name} has dead score networks (uniform attention): {'; '.join(dead)}")
        rate, rates = arm["learning_rate"], preset.learning_rates
        if rate is None:
            notes.append(f"{name} has no run that ended well.")
        elif len(rates) > 1 and rate in (rates[0], rates[-1]):
            notes.append(
                f"the best learning rate of {name} is at the edge of the sweep: "
                f"--learning-rates may be widened {'downwards' if rate == rates[0] else 'upwards'}."
            )
    return notes


def _finite(numbers: dict[str, Any]) -> dict[str, Any]:
    """The same for JSON, which has no infinity: None instead."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in numbers.items()
    }


def _moments(found: Found) -> list[str]:
    """When the commands began that measured the speeds of the table."""
    measured = [result for results in found.final.values() for result in results]
    measured += [timing for timing in found.timings.values() if timing is not None]
    return sorted({one["command_started"] for one in measured})


def _speed_notes(found: Found) -> list[str]:
    moments = _moments(found)
    notes = []
    if len(moments) > 1:
        first, last = (moment[:16].replace("T", " ") for moment in (moments[0], moments[-1]))
        notes.append(
            f"the speeds were measured by {len(moments)} commands, begun from {first} to {last} "
            "(UTC), and the machine may have been busier at one time than at another."
        )
    if found.execution.jobs > 1:
        notes.append(
            f"{found.execution.jobs} runs were at work at once, and shared the machine: speeds are "
            "lower than those of a run alone."
        )
    if any(result["resumed_from"] for results in found.final.values() for result in results):
        notes.append("a run was interrupted and resumed: its speed is of more than one moment.")
    return notes


def _mean(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
