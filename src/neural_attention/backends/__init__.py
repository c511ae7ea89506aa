"""The implementations of the operator, found by name; none imports another."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

NAMES = ("reference", "blocked", "native", "triton")


def load(name: str, v: Tensor, q: Tensor | None) -> ModuleType:
    """The module with ``forward`` and ``backward`` that a backend's name stands for.

    Args:
        name: one of :data:`NAMES`, or ``auto``: ``native`` where its kernels are built and compute
            the values' dtype on their device, ``triton`` likewise, else ``blocked``.
        v: the values.
        q: the queries of a dot product, if there is one.

    Raises:
        RuntimeError: the backend cannot run on this machine.
    """
    if name == "auto":
        name = "blocked"
        if v.device.type == "cpu":
            if v.dtype != torch.float64 and unavailable_reason("native") is None:
                name = "native"
        elif _module("triton").computes(v, q):
            name = "triton"
    reason = unavailable_reason(name)
    if reason is not None:
        raise RuntimeError(f"backend {name!r} is not available: {reason}.")
    # Triton itself loads with the kernels.
    return _module("triton.launch" if name == "triton" else name)


def unavailable_reason(name: str) -> str | None:
    """Why a backend cannot run on this machine, or None if it can."""
    reason: str | None = None
    if name in ("native", "triton"):
        reason = _module(name).unavailable_reason()
    return reason


@cache
def _module(name: str) -> ModuleType:
    return import_module(f".{name}", __package__)
