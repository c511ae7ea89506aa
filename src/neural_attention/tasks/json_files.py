"""JSON files that are written whole and believed only where they have the form they must have."""

from __future__ import annotations

import json
import math
import os
from itertools import chain, count
from pathlib import Path
from types import FunctionType
from typing import Any

NUMBER = (int, float)
_WHOLE_NUMBERS_END = 1 << 63
_LARGEST_AMOUNT = 1e18


def write_json(path: Path, content: object) -> None:
    """Write a JSON file so that it is there whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: Path, form: object) -> Any | None:
    """The content of a JSON file, or None if it is damaged or of another form.

    Args:
        path: a file that is there.
        form: see :func:`has_form`.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError):
        return None
    return content if has_form(content, form) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def set_aside(path: Path, name: str) -> Path:
    """Rename a file or folder, to ``name`` or the like; nothing is replaced but an equal file."""
    first = path.with_name(name)
    names = chain([first], (first.with_stem(f"{first.stem}-{n}") for n in count(2)))
    aside = next(p for p in names if not p.exists() or _are_equal(p, path))
    os.replace(path, aside)
    return aside


def _are_equal(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()


def has_form(value: object, form: object) -> bool:
    """Whether a value read from JSON has the form it must have.

    Args:
        value: the value.
        form: a type; a tuple of forms, one of which must fit; ``[form]`` for a list of such values;
            ``{str: form}`` for an object of such values; an object with names, each of which must
            be there, and no others unless ``...`` is among them; a function that says whether the
            value fits; or a plain value, which must be equal. Numbers are finite, whole ones fit in
            64 bits, and true and false are no numbers.

    >>> has_form({"losses": [1.5, 2]}, {"losses": [NUMBER]})
    True
    >>> has_form({"losses": None}, {"losses": [NUMBER]})
    False
    """
    if isinstance(form, type):
        if isinstance(value, bool) and form is not bool:
            return False
        if isinstance(value, int) and abs(value) >= _WHOLE_NUMBERS_END:
            return False
        return isinstance(value, form) and not (
            isinstance(value, float) and not math.isfinite(value)
        )
    if isinstance(form, FunctionType):
        return bool(form(value))
    if isinstance(form, tuple):
        return any(has_form(value, one) for one in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(has_form(item, form[0]) for item in value)
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return False
        if str in form:
            return all(has_form(item, form[str]) for item in value.values())
        if ... not in form and value.keys() - form.keys():
            return False
        named = ((name, one) for name, one in form.items() if name is not ...)
        return all(name in value and has_form(value[name], one) for name, one in named)
    return type(value) is type(form) and value == form


def is_amount(value: object) -> bool:
    """Whether it is a number of something, such as bytes or seconds, of which sums are finite."""
    return has_form(value, NUMBER) and 0 <= value <= _LARGEST_AMOUNT  # type: ignore[operator]


def is_count(value: object) -> bool:
    """Whether it is a whole number of something."""
    return has_form(value, int) and is_amount(value)
