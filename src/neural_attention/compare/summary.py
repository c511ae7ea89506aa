"""The summary of a comparison: scores, costs, checks of the protocol, and what to mind."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from neural_attention.compare.arms import is_plain_dot_product
from neural_attention.compare.presets import LanguagePreset
from neural_attention.compare.runs import FORMAT, RunSpec
from neural_attention.compare.statistics import paired_ratio, statement
from neural_attention.tasks.language_modelling import perplexity
from neural_attention.tasks.wording import counted

MOST_PASSES = 10


def summarise(
    *,
    preset: LanguagePreset,
    specs: dict[str, RunSpec],
    sweeps: dict[str, list[dict[str, Any]]],
    final: dict[str, list[dict[str, Any]]],
    timings: dict[str, dict[str, Any] | None],
    notes: list[str],
    failures: list[dict[str, str]],
    root: Path,
) -> dict[str, Any]:
    """Put together what ``result.json`` holds.

    Args:
        preset: sizes and schedule.
        specs: by arm, its first run.
        sweeps: by arm, the results of the learning-rate sweep.
        final: by arm, the results at the chosen rate, one a seed, each with ``test``.
        timings: by arm, tokens a second on our kernel and on torch's, or None.
        notes: what was noticed on the way.
        failures: runs that gave no result.
        root: folder of the comparison.
    """
    reference = _reference(specs, final)
    arms = {name: _arm(specs[name], sweeps[name], final[name], timings[name]) for name in specs}
    ratios = {name: _against(final[name], final[reference]) for name in specs if name != reference}
    for name, arm in arms.items():
        ratio = ratios.get(name)
        arm["against_reference"] = _finite(asdict(ratio)) if ratio is not None else None
    first = next(iter(specs.values()))
    identity = [spec.key for spec in specs.values()]
    identity += [repr(preset.learning_rates), repr(preset.seeds)]
    return {
        "format": FORMAT,
        "key": hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
        "preset": asdict(preset),
        "device": first.device,
        "environment": first.environment,
        "seeds": preset.seeds,
        "runs": sum(len(results) for results in sweeps.values())
        + sum(max(0, len(results) - 1) for results in final.values()),
        "reference": reference,
        "arms": arms,
        "protocol": _protocol(preset, specs, sweeps, final, timings, root),
        "notes": notes
        + _notes(preset, arms, sweeps, final, failures, first.tokens["counts"]["train"])
        + _speed_notes(final, timings),
        "failures": failures,
        "statement": statement(
            {
                name: {
                    **arm,
                    "is_plain": is_plain_dot_product(arm["attention"]),
                    "against_reference": ratios.get(name),
                }
                for name, arm in arms.items()
            },
            reference,
            preset.steps,
        ),
    }


def _reference(specs: dict[str, RunSpec], final: dict[str, list[dict[str, Any]]]) -> str:
    """The arm that the others are paired with: the plain dot product that validates best.

    Not simply the first: slopes inside a score network are to be measured against ALiBi, and
    against rotary positions only if those are better.
    """

    def validation_loss(name: str) -> float:
        return _mean([result["validation"]["loss"] for result in final[name]]) or math.inf

    plain = [name for name, spec in specs.items() if is_plain_dot_product(spec.attention)]
    return min(plain or specs, key=validation_loss)


def _arm(
    spec: RunSpec,
    sweep: list[dict[str, Any]],
    final: list[dict[str, Any]],
    timing: dict[str, Any] | None,
) -> dict[str, Any]:
    """Means over seeds; perplexities are exp of mean losses, as the pairs are."""
    results = final or sweep
    tests = [result["test"] for result in final if result.get("test") is not None]
    return {
        "attention": spec.attention,
        "layers": spec.layers,
        "overrides": spec.overrides,
        "parameters": results[0]["parameters"] if results else None,
        "learning_rate": final[0]["learning_rate"] if final else None,
        "validation_perplexity": _perplexity([r["validation"]["loss"] for r in final]),
        "test_perplexity": _perplexity([test["loss"] for test in tests]),
        "test_bits_per_byte": _mean([test["bits_per_byte"] for test in tests]),
        "tokens_per_second": _mean([r["tokens_per_second"] for r in final]),
        "sdpa_tokens_per_second": timing["sdpa"] if timing is not None else None,
        "training_seconds": _mean([r["training_seconds"] for r in final]),
        "peak_memory_mib": (max(r["peak_memory_bytes"] for r in final) / 2**20 if final else None),
        "sweep": [
            {
                "learning_rate": result["learning_rate"],
                "diverged": result["diverged"],
                "validation_perplexity": (result["validation"] or {}).get("perplexity"),
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
    "seed", "learning_rate", "validation", "tokens_per_second", "training_seconds",
    "peak_memory_bytes", "dead_heads", "data_order_sha256", "resumed_from", "broken_checkpoints",
    "command_started",
)  # fmt: skip


def _against(arm: list[dict[str, Any]], reference: list[dict[str, Any]]) -> Any:
    losses = {r["seed"]: r["test"]["loss"] for r in arm if r.get("test") is not None}
    others = {r["seed"]: r["test"]["loss"] for r in reference if r.get("test") is not None}
    seeds = sorted(losses.keys() & others.keys())
    if not seeds:
        return None
    return paired_ratio([losses[seed] for seed in seeds], [others[seed] for seed in seeds])


def _protocol(
    preset: LanguagePreset,
    specs: dict[str, RunSpec],
    sweeps: dict[str, list[dict[str, Any]]],
    final: dict[str, list[dict[str, Any]]],
    timings: dict[str, dict[str, Any] | None],
    root: Path,
) -> dict[str, Any]:
    counts = next(iter(specs.values())).tokens["counts"]
    curve_tokens = min(preset.curve_tokens, counts["validation"])
    orders: dict[int, set[str]] = {}
    for result in [r for runs in (*sweeps.values(), *final.values()) for r in runs]:
        orders.setdefault(result["seed"], set()).add(result["data_order_sha256"])
    return {
        "data_order": {
            str(seed): {"sha256": sorted(hashes), "same_for_all_arms": len(hashes) == 1}
            for seed, hashes in sorted(orders.items())
        },
        "initial_values": {
            name: results[0]["initial_values"] for name, results in sweeps.items() if results
        },
        "schedule": (
            f"AdamW, weight decay {preset.weight_decay} on matrices, betas {preset.betas}, "
            f"{counted(preset.warmup_steps, 'step')} of warm-up, then a cosine to zero at step "
            f"{preset.steps}, gradient norm at most {preset.max_grad_norm}"
        ),
        "learning_rates_tried": {name: list(preset.learning_rates) for name in specs},
        "choice": "least validation loss at seed 0, for each arm alone",
        "evaluation": (
            f"windows of {preset.length} tokens moved by {preset.stride}, each token scored once"
        ),
        "curves": (
            f"validation loss over the first {counted(curve_tokens, 'token')} of that part, "
            f"in windows of {preset.length} without overlap"
        ),
        "speed_measured_by_commands_of": _moments(final, timings),
        "test_was_read_for": sorted(
            path.parent.name for path in (root / "runs").glob("*/test.json")
        ),
    }


def _notes(
    preset: LanguagePreset,
    arms: dict[str, dict[str, Any]],
    sweeps: dict[str, list[dict[str, Any]]],
    final: dict[str, list[dict[str, Any]]],
    failures: list[dict[str, str]],
    tokens: int,
) -> list[str]:
    notes = [f"{failure['run']} failed: {failure['why']}" for failure in failures]
    read = preset.steps * preset.batch_size * preset.length / tokens
    if read > MOST_PASSES:
        notes.append(
            f"the training text is read {read:.0f} times over, which models of this size learn by "
            "heart: give a longer text with --data."
        )
    for name, arm in arms.items():
        dead = [
            f"seed {result['seed']} {moment.replace('_', ' ')}: "
            + ", ".join(f"layer {layer} heads {heads}" for layer, heads in found.items())
            for result in (final[name] or sweeps[name])
            for moment, found in result["dead_heads"].items()
            if found
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
    return {name: value if math.isfinite(value or 0) else None for name, value in numbers.items()}


def _moments(
    final: dict[str, list[dict[str, Any]]], timings: dict[str, dict[str, Any] | None]
) -> list[str]:
    """When the commands began that measured the speeds of the table."""
    measured = [result for results in final.values() for result in results]
    measured += [timing for timing in timings.values() if timing is not None]
    return sorted({one["command_started"] for one in measured})


def _speed_notes(
    final: dict[str, list[dict[str, Any]]], timings: dict[str, dict[str, Any] | None]
) -> list[str]:
    moments = _moments(final, timings)
    notes = []
    if len(moments) > 1:
        first, last = (moment[:16].replace("T", " ") for moment in (moments[0], moments[-1]))
        notes.append(
            f"the speeds were measured by {len(moments)} commands, begun from {first} to {last} "
            "(UTC), and the machine may have been busier at one time than at another."
        )
    if any(result["resumed_from"] for results in final.values() for result in results):
        notes.append("a run was interrupted and resumed: its speed is of more than one moment.")
    return notes


def _mean(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def _perplexity(losses: list[float]) -> float | None:
    mean = _mean(list(losses))
    return perplexity(mean) if mean is not None else None
