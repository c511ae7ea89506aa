"""The folder that results are written to."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from neural_attention.tasks.wording import legible


def prepare_folder(out: str | Path) -> Path:
    """The folder, made and tried.

    Raises:
        ValueError: its name cannot be used.
        OSError: it cannot be written to.
    """
    if not str(out).strip():
        raise ValueError("the output folder has an empty name: give one with --out.")
    root = Path(os.path.expanduser(out))
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise OSError(
            f"cannot write to the output folder {legible(root)} ({error.strerror or error}): give "
            "another with --out."
        ) from error
    root = root.resolve()
    if legible(root) != str(root):
        raise ValueError(
            f"the output folder {legible(root)} has a name that is not UTF-8, which the files of "
            "models and tokenisers cannot have: give another with --out."
        )
    return root


@contextlib.contextmanager
def saying_what_to_move_away(root: Path) -> Iterator[None]:
    """A file where a folder must be, a folder where a file must be, or no right to one of them."""
    try:
        yield
    except OSError as error:
        path = error.filename2 or error.filename
        if not isinstance(path, str) or not Path(path).is_relative_to(root):
            raise
        raise OSError(
            f"cannot use {path} ({error.strerror}): move away what stands there, or give another "
            "folder with --out."
        ) from error
