"""The results of finished runs on disk: read again, never mixed, never lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from neural_attention.compare.checkpoints import write_json


def read_result(path: Path, key: str) -> tuple[dict[str, Any] | None, str | None]:
    """A finished run's result.

    Args:
        path: its file.
        key: hash of what determines the run.

    Returns:
        The result, or None where the run is still to be done; and a note when a file was there that
        cannot be used. Such a file is set aside, not deleted.
    """
    if not path.is_file():
        return None, None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        is_valid = isinstance(content, dict) and content.get("key") == key
    except (OSError, ValueError):
        is_valid = False
    if is_valid:
        return content, None
    aside = path.with_name(path.name + ".unreadable")
    os.replace(path, aside)
    return None, f"{path} is damaged: set aside as {aside.name}, the run is done again"


def write_summary(folder: Path, summary: dict[str, Any]) -> Path | None:
    """Write ``result.json``; one of another configuration is kept under another name.

    Returns:
        Where the other configuration's result now lies, or None.
    """
    path, moved = folder / "result.json", None
    if path.is_file():
        try:
            other = json.loads(path.read_text(encoding="utf-8"))["key"]
        except (OSError, ValueError, KeyError, TypeError):
            other = "unreadable"
        if other != summary["key"]:
            moved = folder / f"result-{other[:8]}.json"
            os.replace(path, moved)
            if (curves := folder / "curves.png").is_file():
                os.replace(curves, folder / f"curves-{other[:8]}.png")
    write_json(path, summary)
    return moved
