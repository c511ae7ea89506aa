"""What the machine can do at most, to set the times beside."""

from __future__ import annotations

import time
from typing import Any

import torch

from .probe import synchronise

_SIZE, _ROUNDS = 2048, 7


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
