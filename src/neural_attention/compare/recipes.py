"""Recipes: the options of a comparison in a YAML file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from neural_attention.tasks.json_files import NUMBER, has_form
from neural_attention.tasks.registry import TASKS
from neural_attention.tasks.wording import did_you_mean, legible

_FORMS: dict[str, tuple[object, str]] = {
    "task": (str, "the name of a task"),
    "arms": ([str], "a list of arms"),
    "preset": (str, "the name of a preset"),
    "seeds": (int, "a whole number"),
    "learning_rates": ([NUMBER], "a list of numbers"),
    "steps": (int, "a whole number"),
    "device": (str, "the name of a device"),
    "control": (bool, "true or false"),
    "out": (str, "a folder"),
    "accumulation": (int, "a whole number"),
    "bf16": (bool, "true or false"),
    "patience": (int, "a whole number"),
}


def read_recipe(path: str, task: str) -> dict[str, Any]:
    """The options that a recipe gives, by the names of :func:`neural_attention.compare.compare`.

    Args:
        path: a YAML file: a mapping from names of options, written with ``-`` or ``_``, to values.
        task: the task of the command, which the recipe's ``task`` must name.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no YAML, an unknown name, a value of another kind, or another task's recipe.
        ImportError: PyYAML is missing.
    """
    import yaml

    file = Path(os.path.expanduser(path))
    if not file.is_file():
        raise FileNotFoundError(f"there is no recipe {legible(path)}: expected a YAML file.")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = " ".join(str(error).split())
        raise ValueError(f"the recipe {legible(path)} is not YAML: {where}") from None
    if not isinstance(content, dict):
        raise ValueError(f"the recipe {legible(path)} is no mapping from options to values.")
    forms = _FORMS | {option.name: (str, "text") for option in TASKS[task].options}
    options = {}
    for given, value in content.items():
        name = str(given).replace("-", "_")
        if name not in forms:
            hint = did_you_mean(name, forms)
            raise ValueError(
                f"the recipe {legible(path)} has {str(given)!r}, no option of {task}{hint}; "
                f"known are {', '.join(forms)}."
            )
        form, kind = forms[name]
        if not has_form(value, form):
            raise ValueError(
                f"the recipe {legible(path)} has {value!r} for {given}: {kind} is needed."
            )
        options[name] = value
    if (of := options.pop("task", task)) != task:
        raise ValueError(
            f"the recipe {legible(path)} is one of {of!r}, and the command says {task!r}."
        )
    return options
