"""A preset with what the caller changes in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from neural_attention.tasks.registry import TASKS
from neural_attention.tasks.task import Preset, Task


def choose_preset(
    task: Task,
    name: str,
    options: Mapping[str, Any],
    *,
    steps: int | None = None,
    seeds: int | None = None,
    learning_rates: Sequence[float] | None = None,
    accumulation: int | None = None,
    bf16: bool | None = None,
    patience: int | None = None,
) -> Preset:
    """A preset of a task with what the caller changes in it; None leaves what the preset says.

    Args:
        task: the task.
        name: of the preset.
        options: the task's own options.
        steps: of a run.
        seeds: at the chosen learning rate.
        learning_rates: the sweep.
        accumulation: parts of a step's examples.
        bf16: whether training computes in bfloat16.
        patience: points of the curve without a better one after which a run stops.

    Raises:
        ValueError: an unknown name or option, or a number that makes no sense.
    """
    if name not in task.presets:
        raise ValueError(f"unknown preset {name!r}; known are {', '.join(task.presets)}.")
    own = [option.name for option in TASKS[task.name].options]
    for option in options:
        if option not in own:
            raise ValueError(f"{task.name} has no option {option!r}; its own are {', '.join(own)}.")
    preset: Preset = task.choose(task.presets[name], options)
    counts = {"steps": steps, "seeds": seeds, "accumulation": accumulation, "patience": patience}
    for what, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{what} is {count}: at least 1 is needed.")
    changes: dict[str, Any] = {n: count for n, count in counts.items() if count is not None}
    if steps is not None:
        changes["warmup_steps"] = min(preset.warmup_steps, steps // 10)
        changes["evaluations"] = min(preset.evaluations, steps)
    if bf16 is not None:
        changes["bf16"] = bf16
    if learning_rates is not None:
        rates = tuple(map(float, learning_rates))
        if not rates or any(not 0 < rate < float("inf") for rate in rates):
            raise ValueError(f"learning rates are {list(rates)}: positive numbers are needed.")
        if len(set(rates)) < len(rates):
            raise ValueError(f"learning rates are {list(rates)}: one is given twice.")
        changes["learning_rates"] = tuple(sorted(rates))
    preset = replace(preset, **changes)
    if preset.batch_size % preset.accumulation:
        raise ValueError(
            f"accumulation is {preset.accumulation}: a step's {preset.batch_size} examples cannot "
            "be cut into so many equal parts."
        )
    return preset
