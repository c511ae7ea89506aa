"""Checkpoints that are whole: a mark beside the files says what they must contain."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

_MARK = "complete.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def mark_complete(checkpoint: Path) -> None:
    """Note the hash of every file of a checkpoint that has been written in full."""
    hashes = {file.name: _sha256(file) for file in sorted(checkpoint.iterdir()) if file.is_file()}
    write_json(checkpoint / _MARK, hashes)


def last_complete(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole; broken ones are removed.

    Returns:
        The checkpoint, or None; and the names of those that were incomplete or damaged, as a
        process that was killed while writing leaves them.
    """
    broken: list[str] = []
    found = [path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name)]
    for checkpoint in sorted(found, key=lambda path: -int(path.name.split("-")[1])):
        if _is_complete(checkpoint):
            return checkpoint, broken
        broken.append(checkpoint.name)
        shutil.rmtree(checkpoint, ignore_errors=True)
    return None, broken


def write_json(path: Path, content: object) -> None:
    """Write a JSON file so that it is there whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _is_complete(checkpoint: Path) -> bool:
    try:
        hashes = json.loads((checkpoint / _MARK).read_text())
        return all(_sha256(checkpoint / name) == value for name, value in hashes.items())
    except (OSError, ValueError, AttributeError):
        return False


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
