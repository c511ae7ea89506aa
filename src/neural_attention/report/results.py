"""Finished comparisons, read from their folders for a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neural_attention.tasks.json_files import NUMBER, has_form, is_amount, is_count, read_json
from neural_attention.tasks.task import FORMAT
from neural_attention.tasks.wording import counted, legible

_ANY: dict[Any, Any] = {...: ...}
_VALUES: dict[Any, Any] = {str: NUMBER}
_PAIR: dict[Any, Any] = {
    "kind": ("ratio", "difference"),
    "value": (None, NUMBER),
    "low": (None, NUMBER),
    "high": (None, NUMBER),
    "seeds": is_count,
}
_ARM: dict[Any, Any] = {
    "parameters": (None, is_count),
    "learning_rate": (None, is_amount),
    "units_per_step": (None, is_count),
    "validation": _VALUES,
    "test": _VALUES,
    "speed": (None, is_amount),
    "sdpa_speed": (None, is_amount),
    "training_seconds": (None, is_amount),
    "peak_memory_mib": (None, is_amount),
    "sweep": [
        {"learning_rate": is_amount, "diverged": bool, "validation": (None, _VALUES), ...: ...}
    ],
    "results": [
        {"seed": int, "test": (None, {str: (str, NUMBER)}), "dead_heads": {str: dict}, ...: ...}
    ],
    "curves": [[{"step": is_count, "validation_loss": is_amount, "seconds": is_amount}]],
    "against_reference": (None, _PAIR),
    ...: ...,
}
_MEASURE: dict[Any, Any] = {
    "field": str,
    "name": str,
    "is_better_lower": bool,
    "comparison": ("ratio", "difference"),
    "short": str,
    "unit": str,
    "digits": lambda digits: is_count(digits) and digits <= 9,
}
_PROTOCOL: dict[Any, Any] = {
    "schedule": str,
    "choice": str,
    "evaluation": str,
    "curves": str,
    "data_order": {str: {"same_for_all_arms": bool, ...: ...}},
    "initial_values": {str: {"shared": is_count, "own": [str]}},
    "test_was_read_for": [str],
    ...: ...,
}
_FORM: dict[Any, Any] = {
    "task": str,
    "title": str,
    "unit": str,
    "measures": [_MEASURE],
    "command": str,
    "preset_name": str,
    "preset": {**_ANY, "steps": is_count, "learning_rates": [is_amount]},
    "device": str,
    "environment": _ANY,
    "machine": _ANY,
    "finished": str,
    "seeds": is_count,
    "runs": is_count,
    "reference": str,
    "arms": {str: _ARM},
    "protocol": _PROTOCOL,
    "notes": [str],
    "failures": [{"run": str, "why": str}],
    "statement": str,
    "data": {**_ANY, "source": str, "counts": {str: is_count}, "counted": str},
    ...: ...,
}


def read_result(folder: str | Path) -> dict[str, Any]:
    """The content of a comparison's ``result.json``.

    Raises:
        FileNotFoundError: there is no such folder, or no result in it; the message says what is
            there instead.
        ValueError: the result is damaged, or of another version of this library.
    """
    folder = Path(folder).expanduser()
    shown, path = legible(folder), folder / "result.json"
    if folder.is_file():
        raise ValueError(f"{shown} is a file: give the folder of a comparison, in which it lies.")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"there is no folder {shown}: give one that neural-attention compare has written, such "
            "as comparison."
        )
    if (folder / "spec.json").is_file():
        raise ValueError(
            f"{shown} is the folder of a single run: give the folder of its comparison, two above."
        )
    if not path.is_file():
        raise FileNotFoundError(f"{shown} has no result.json: {_what_is_there(folder)}")
    content = read_json(path, {"format": int, ...: ...})
    if content is None:
        raise ValueError(
            f"{legible(path)} is damaged: it is no result of a comparison. The command that wrote "
            "it makes it again from the runs that are there."
        )
    if "targets" in content:
        raise ValueError(
            f"{legible(path)} is of compare expressivity, which has no report: its figures stand "
            "in expressivity.png beside it."
        )
    if content["format"] != FORMAT:
        newer = "a newer" if content["format"] > FORMAT else "an earlier"
        what = "install it" if content["format"] > FORMAT else "compare again, into another folder"
        raise ValueError(
            f"{legible(path)} has format {content['format']} of {newer} neural-attention, and this "
            f"one reads {FORMAT}: {what}."
        )
    if not has_form(content, _FORM) or not _is_consistent(content):
        raise ValueError(
            f"{legible(path)} is damaged: a part of it is missing or is not what it should be. The "
            "command that wrote it makes it again from the runs that are there."
        )
    return content


def _is_consistent(content: dict[str, Any]) -> bool:
    """Whether the parts of a result fit one another, and its scores can be scores."""
    arms, measures = content["arms"], content["measures"]
    if not measures or content["reference"] not in arms:
        return False
    for arm in arms.values():
        tests = [run["test"] for run in arm["results"] if run["test"] is not None]
        tried = [one["validation"] for one in arm["sweep"] if one["validation"] is not None]
        scores = [arm["validation"], arm["test"], *tests, *tried]
        if len(arm["results"]) != len(arm["curves"]):
            return False
        if not all(_can_be(score, measure) for score in scores for measure in measures):
            return False
    return True


def _can_be(score: dict[str, Any], measure: dict[str, Any]) -> bool:
    value = score.get(measure["field"], 1)
    if measure["comparison"] == "ratio":
        return has_form(value, NUMBER) and value > 0
    return has_form(value, NUMBER) and is_amount(abs(value))


def _what_is_there(folder: Path) -> str:
    runs = list(folder.glob("runs/*/spec.json"))
    if runs:
        done = sum((run.parent / "result.json").is_file() for run in runs)
        return (
            f"its comparison has not ended ({done} of {counted(len(runs), 'run')} done that have "
            "begun). The same compare command goes on with it."
        )
    return "no comparison has written to it." if any(folder.iterdir()) else "it is empty."


def differences(results: list[dict[str, Any]]) -> list[str]:
    """In what comparisons differ, so that scores of one cannot be set against those of another.

    Returns:
        Words such as ``"the data"``; empty where scores may be read side by side.
    """

    def differ(*path: str) -> bool:
        values = []
        for result in results:
            value: Any = result
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            values.append(value)
        return any(value != values[0] for value in values[1:])

    found = []
    if differ("task"):
        found.append("the task")
    if differ("data", "sha256") or differ("data", "counts"):
        found.append("the data")
    if differ("preset", "steps") or differ("preset", "batch_size"):
        found.append("the length of training")
    names = dict.fromkeys(name for result in results for name in result["preset"])
    others = [name for name in names if name not in _APART and differ("preset", name)]
    if others and not differ("task"):
        found.append(f"settings ({', '.join(others)})")
    if differ("machine", "machine") or differ("environment", "threads") or differ("device"):
        found.append("the machine (speeds alone are concerned)")
    return found


# Of a preset: told apart from the other settings, or not what scores depend on. Data and tokeniser
# are compared by their content.
_APART = ("steps", "batch_size", "purpose", "learning_rates", "seeds", "data", "tokenizer")
