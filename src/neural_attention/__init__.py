"""Attention whose scores and projections are small neural networks, for PyTorch."""

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
