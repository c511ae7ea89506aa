"""The implementations of the operator, found by name; none imports another."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

NAMES = ("reference", "blocked", "native")


def load(name: str, v: Tensor) -> ModuleType:
    """The module with ``forward`` and ``backward`` that a backend's name stands for.

    Args:
        name: one of :data:`NAMES`, or ``auto``: ``native`` where its kernels are built and compute
            the values' dtype on their device, else ``blocked``.
        v: the values.
    """
    if name == "auto":
        on_cpu = v.device.type == "cpu" and v.dtype != torch.float64
        name = "native" if on_cpu and unavailable_reason("native") is None else "blocked"
    return _module(name)


def unavailable_reason(name: str) -> str | None:
    """Why a backend cannot run on this machine, or None if it can."""
    reason: str | None = _module(name).unavailable_reason() if name == "native" else None
    return reason


@cache
def _module(name: str) -> ModuleType:
    return import_module(f".{name}", __package__)
