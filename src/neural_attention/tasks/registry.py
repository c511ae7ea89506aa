"""The tasks by name, each imported when first asked for."""

from __future__ import annotations

import importlib

from neural_attention.tasks.task import Task

TASKS = {
    "lm": "neural_attention.tasks.language:LanguageModelling",
    "masked-lm": "neural_attention.tasks.masked_language:MaskedLanguageModelling",
    "translation": "neural_attention.tasks.translation:Translation",
    "images": "neural_attention.tasks.images:ImageClassification",
}


def load_task(name: str) -> Task:
    """A task by its word on the command line.

    Raises:
        ValueError: there is no such task.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}; known are {', '.join(TASKS)}.")
    module, _, attribute = TASKS[name].partition(":")
    task: Task = getattr(importlib.import_module(module), attribute)()
    return task
