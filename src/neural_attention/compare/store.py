"""The files of a comparison: read again where they are whole, never mixed, never lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neural_attention.tasks.json_files import (
    NUMBER,
    is_amount,
    is_count,
    read_json,
    set_aside,
    write_json,
)
from neural_attention.tasks.task import RunSpec, Task

_DEAD = {str: [int]}
_RESULT: dict[str, object] = {
    "diverged": False,
    "divergence": None,
    "steps": is_count,
    "parameters": is_count,
    "speed": (None, is_amount),
    "training_seconds": is_amount,
    "peak_memory_bytes": is_amount,
    "dead_heads": {"at_start": _DEAD, "after_training": _DEAD},
    "units_per_step": is_count,
    "curve": [{"step": is_count, "validation_loss": is_amount, "seconds": is_amount}],
    "training_curve": [{"step": is_count, "loss": NUMBER}],
    "data_order_sha256": str,
    "initial_values": {"shared": is_count, "own": [str]},
    "resumed_from": (None, str),
    "broken_checkpoints": [str],
    "command_started": str,
}
_DIVERGENCE = {"step": is_count, "where": str, "last_checkpoint": (None, str)}
_TESTED = {"seed": int, "learning_rate": NUMBER, "test": (None, {str: (str, NUMBER)}), ...: ...}
_SUMMARY = {"key": lambda key: isinstance(key, str) and re.fullmatch("[0-9a-f]{64}", key),
            "arms": {str: {"results": [_TESTED], ...: ...}}, ...: ...}  # fmt: skip
_MOST_CHANGES_TOLD = 4


def result_form(spec: RunSpec, task: Task) -> object:
    """The form of a run's ``result.json``; see :func:`neural_attention.tasks.json_files.has_form`.

    The validation score may be missing only where the run diverged.
    """
    whole = _RESULT | {
        "key": spec.key,
        "arm": spec.arm,
        "learning_rate": spec.learning_rate,
        "seed": spec.seed,
        "validation": lambda score: task.is_score(score, "validation"),
    }
    diverged = {"validation": None, "diverged": True, "divergence": (None, _DIVERGENCE)}
    return (whole, whole | diverged)


def form_of_test(spec: RunSpec, task: Task) -> object:
    """The form of a run's ``test.json``."""
    return {"key": spec.key, "score": lambda score: task.is_score(score, "test")}


def timing_form(spec: RunSpec) -> object:
    """The form of the times of an arm on our kernels and on torch's, ``timing.json``."""
    return {"key": spec.key, "ours": is_amount, "sdpa": is_amount, "command_started": str}


def read_or_set_aside(path: Path, form: object) -> tuple[Any | None, str | None]:
    """The content of a run's file.

    Args:
        path: its file.
        form: what it must hold.

    Returns:
        The content, or None where it is still to be made; and a note when a file was there that
        cannot be used. Such a file is set aside, not deleted.
    """
    if not path.exists():
        return None, None
    content = read_json(path, form)
    if content is not None:
        return content, None
    aside = set_aside(path, path.name + ".unreadable")
    return None, f"{path} is damaged: set aside as {aside.name}, and made again"


def write_summary(folder: Path, summary: dict[str, Any]) -> str | None:
    """Write ``result.json``, and keep under another name one that it must not replace.

    Those are results of another configuration, damaged ones, and ones with test scores that the new
    one lacks.

    Returns:
        What was kept and why, or None.
    """
    path, note = folder / "result.json", None
    if path.is_file():
        earlier = read_json(path, _SUMMARY)
        if earlier is None:
            why, name = "the earlier result.json was damaged", "damaged"
        elif earlier["key"] != summary["key"]:
            why, name = "the result of another configuration is there", earlier["key"][:8]
        elif lacking := len(_scored(earlier) - _scored(summary)):
            why = f"the earlier result has test scores that this one lacks ({lacking})"
            name = earlier["key"][:8]
        else:
            why = name = ""
        if why:
            kept = set_aside(path, f"result-{name}.json")
            note = f"{why}: it is kept as {kept.name}"
            if (curves := folder / "curves.png").is_file():
                set_aside(curves, kept.with_suffix(".png").name.replace("result", "curves", 1))
    write_json(path, summary)
    return note


def _scored(summary: dict[str, Any]) -> set[tuple[str, float, int]]:
    return {
        (name, result["learning_rate"], result["seed"])
        for name, arm in summary["arms"].items()
        for result in arm["results"]
        if result["test"] is not None
    }


def write_spec(folder: Path, spec: RunSpec) -> None:
    """Note what determines a run, so that a later call can say what has changed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "spec.json", spec.content)


def changed_since(root: Path, spec: RunSpec) -> str | None:
    """In what a run differs from the most similar finished one of its arm, rate and seed.

    Args:
        root: folder of all runs.
        spec: the run.

    Returns:
        Such as ``"threads was 2 and is 1"``; None where there is no other such run.
    """
    now, found = dict(_flat(spec.content)), []
    for folder in root.iterdir() if root.is_dir() else ():
        if not folder.name.startswith(spec.label + "_") or not (folder / "result.json").is_file():
            continue
        earlier = read_json(folder / "spec.json", {"arm": spec.arm, ...: ...})
        if earlier is not None and (differing := _changes(dict(_flat(earlier)), now)):
            found.append(differing)
    if not found:
        return None
    told = min(found, key=len)
    more = len(told) - _MOST_CHANGES_TOLD
    return ", ".join(told[:_MOST_CHANGES_TOLD]) + (f" and {more} more" if more > 0 else "")


def _changes(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    differing = [name for name in sorted(earlier | now) if earlier.get(name) != now.get(name)]
    told = []
    if any(name.startswith("data.") for name in differing):
        told.append("the data are others")
        of_data = ("data.", "sizes.vocab_size", "sizes.bos_token_id")
        differing = [name for name in differing if not name.startswith(of_data)]
    for name in differing:
        was, now_is = (str(values.get(name, "absent"))[:40] for values in (earlier, now))
        told.append(f"{name.rpartition('.')[2]} was {was} and is {now_is}")
    return told


def _flat(content: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
