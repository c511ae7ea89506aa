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
    steps: int | None = None,
    seeds: int | None = None,
    learning_rates: Sequence[float] | None = None,
) -> Preset:
    """A preset of a task with what the caller changes in it.

    Args:
        task: the task.
        name: of the preset.
        options: the task's own options; None for those that are not given.
        steps: of a run.
        seeds: at the chosen learning rate.
        learning_rates: the sweep.

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
    if steps is not None:
        if steps < 1:
            raise ValueError(f"steps is {steps}: at least 1 is needed.")
        preset = replace(
            preset,
            steps=steps,
            warmup_steps=min(preset.warmup_steps, steps // 10),
            evaluations=min(preset.evaluations, steps),
        )
    if seeds is not None:
        if seeds < 1:
            raise ValueError(f"seeds is {seeds}: at least 1 is needed.")
        preset = replace(preset, seeds=seeds)
    if learning_rates is not None:
        rates = tuple(map(float, learning_rates))
        if not rates or any(not 0 < rate < float("inf") for rate in rates):
            raise ValueError(f"learning rates are {list(rates)}: positive numbers are needed.")
        if len(set(rates)) < len(rates):
            raise ValueError(f"learning rates are {list(rates)}: one is given twice.")
        preset = replace(preset, learning_rates=tuple(sorted(rates)))
    return preset
