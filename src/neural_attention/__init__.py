"""Attention whose scores and projections are small neural networks, for PyTorch."""

from importlib import import_module
from typing import Any

from .attention import NeuralAttention
from .cache import KeyValueCache
from .functional import ScoreWeights, neural_attention
from .multihead import MultiheadAttention
from .score import ScoreNetwork

__version__ = "0.1.0"

__all__ = [
    "KeyValueCache",
    "MultiheadAttention",
    "NeuralAttention",
    "ScoreNetwork",
    "ScoreWeights",
    "neural_attention",
]


def __getattr__(name: str) -> Any:
    """What is loaded when it is first used: ``hf`` imports transformers, ``view`` is a page."""
    if name == "hf":
        return import_module(".hf", __name__)
    if name == "view":
        return import_module(".report.viewer", __name__).view
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
