"""Locks that the operating system lets go when their process ends, however it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

WAIT_S = 30.0


class Locked(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(path: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold a file's lock; wait for a process that is about to end.

    Raises:
        Locked: another process held it for ``wait_s`` seconds.
    """
    deadline = time.monotonic() + wait_s
    with path.open("a") as file:
        while not _try_lock(file):
            if time.monotonic() >= deadline:
                raise Locked(str(path))
            time.sleep(0.1)
        yield


def _try_lock(file: IO[str]) -> bool:
    try:
        import fcntl
    except ImportError:
        import msvcrt

        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
