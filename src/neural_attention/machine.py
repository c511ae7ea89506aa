"""Where and with what something was measured."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from .doctor import diagnose


def describe_machine() -> dict[str, Any]:
    """Hardware, versions, threads, and the commit of the sources where they are a checkout's."""
    found = diagnose()
    kept = ("versions", "machine", "kernels", "threads", "gpu", "backends")
    return {name: found[name] for name in kept} | {"commit": _commit()}


def _commit() -> str | None:
    """The checkout's commit, with ``+changes`` where files differ from it."""

    def git(*arguments: str) -> str:
        folder = Path(__file__).parent
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # tracked, not in a venv within
        top = git("rev-parse", "--show-toplevel")
        changes = git("-C", top, "status", "--porcelain", "--", "src", "csrc")
        return git("rev-parse", "HEAD") + ("+changes" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return None
