"""Checkpoints and weights that are whole: a mark beside the files says what they must contain."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from neural_attention.tasks.json_files import read_json, write_json

_MARK = "complete.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def mark_complete(folder: Path) -> None:
    """Note the hash of every file of a folder that has been written in full."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    hashes = {file.relative_to(folder).as_posix(): _sha256(file) for file in files}
    write_json(folder / _MARK, hashes)


def last_complete(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole; broken ones are removed.

    Returns:
        The checkpoint, or None; and the names of those that were incomplete or damaged, as a
        process that was killed while writing leaves them.
    """
    broken: list[str] = []
    found = [path for path in folder.glob("checkpoint-*") if _NAME.fullmatch(path.name)]
    for checkpoint in sorted(found, key=lambda path: -int(path.name.split("-")[1])):
        if is_complete(checkpoint):
            return checkpoint, broken
        broken.append(checkpoint.name)
        shutil.rmtree(checkpoint, ignore_errors=True)
    return None, broken


def is_complete(folder: Path) -> bool:
    """Whether every file that the mark names is there and unchanged."""
    hashes = read_json(folder / _MARK, {str: str})
    if not hashes:
        return False
    try:
        return all(_sha256(folder / name) == value for name, value in hashes.items())
    except (OSError, ValueError):
        return False


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
