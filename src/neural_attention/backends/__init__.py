"""The implementations of the operator, found by name; none imports another."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

NAMES = ("reference", "blocked")


def load(name: str) -> ModuleType:
    """The module with ``forward`` and ``backward`` that a name, or ``auto``, stands for."""
    return import_module(f".{'blocked' if name == 'auto' else name}", __package__)
