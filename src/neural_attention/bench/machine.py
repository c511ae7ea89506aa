"""Where and with what something was measured."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from ..doctor import diagnose
from .probe import synchronise

_SIZE, _ROUNDS = 2048, 7


def describe() -> dict[str, Any]:
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


def multiply_add_peak(device: str) -> dict[str, Any]:
    """Multiply-adds a second in float32: the best of a few large matrix products by torch."""
    a, b, product = (torch.randn(_SIZE, _SIZE, device=device) for _ in range(3))
    best = float("inf")
    for _ in range(_ROUNDS):
        synchronise(device)
        started = time.perf_counter()
        torch.mm(a, b, out=product)
        synchronise(device)
        best = min(best, time.perf_counter() - started)
    return {
        "per_second": _SIZE**3 / best,
        "how": f"torch's product of two float32 matrices of {_SIZE} × {_SIZE}",
    }
