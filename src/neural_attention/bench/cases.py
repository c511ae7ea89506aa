"""What is measured: scores, shapes, their inputs, and how many operations they need."""

from __future__ import annotations

import math
import zlib
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..functional import ScoreWeights


@dataclass(frozen=True)
class Case:
    """A score.

    Attributes:
        name: as on the command line.
        label: as in tables.
        activation: of the score network.
        channels: C; 0 for no network.
        hidden: width of a second hidden layer; 0 for none.
        dot: whether a dot product is part of the score.
        slopes: whether channels have slopes over relative position.
        dropout_p: dropout of attention weights.
    """

    name: str
    label: str
    activation: str = "relu"
    channels: int = 0
    hidden: int = 0
    dot: bool = False
    slopes: bool = False
    dropout_p: float = 0.0

    @property
    def is_plain_dot(self) -> bool:
        """Whether the score is the dot product and nothing else."""
        return self.dot and not self.channels

    def operations(self, head_dim: int, *, backward: bool) -> int:
        """Multiply-adds, or vector operations as cheap, for one query and key.

        The exponential, masks and dropout are not counted. The backward pass computes the scores
        again, as fused kernels do.
        """
        c, e = self.channels, self.hidden
        dot = head_dim if self.dot else 0
        # Sum, activation, multiply-add for each unit; a second layer is a small matrix product.
        network = 2 * c + c * e + 2 * e if e else 3 * c
        forward = dot + network + head_dim
        if not backward:
            return forward
        network_backward = 5 * c + 3 * c * e + 5 * e if e else 8 * c
        return forward + 3 * dot + network_backward + 2 * head_dim


CASES = {
    case.name: case
    for case in (
        Case("dot", "dot product", dot=True),
        Case("dot-dropout", "dot product, dropout 0.1", dot=True, dropout_p=0.1),
        Case("relu-1", "relu, C = 1", channels=1),
        Case("relu-2", "relu, C = 2", channels=2),
        Case("relu-8", "relu, C = 8", channels=8),
        Case("leaky_relu-8", "leaky_relu, C = 8", "leaky_relu", 8),
        Case("relu-16", "relu, C = 16", channels=16),
        Case("gelu_tanh-8", "gelu (tanh form), C = 8", "gelu_tanh", 8),
        Case("hybrid-8", "dot product + relu, C = 8", channels=8, dot=True),
        Case("released-2", "released form, 2 to 1", channels=2, hidden=1),
        Case("released-16", "released form, 16 to 8", channels=16, hidden=8),
        Case("relu-8-slopes", "relu, C = 8, slopes", channels=8, slopes=True),
        Case("relu-8-dropout", "relu, C = 8, dropout 0.1", channels=8, dropout_p=0.1),
    )
}
BASELINE = ("dot", "sdpa")
"""Case and method that everything else of the same shape is compared with."""


@dataclass(frozen=True)
class Shape:
    """Sizes that all cases of a group share.

    Attributes:
        batch: B.
        heads: H.
        head_dim: width of q, k and v.
        queries: Lq.
        keys: Lk.
        causal: whether later keys are hidden.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        training: whether forward and backward are measured too.
    """

    batch: int
    heads: int
    head_dim: int
    queries: int
    keys: int
    causal: bool
    dtype: str
    training: bool = True

    @property
    def label(self) -> str:
        """As in tables."""
        length = (
            f"n = {self.keys:,}"
            if self.queries == self.keys
            else f"{self.queries:,} quer{'y' if self.queries == 1 else 'ies'} × {self.keys:,} keys"
        )
        heads = f"{self.heads} head{'s' if self.heads > 1 else ''}"
        parts = [length, f"batch {self.batch}", heads, f"head_dim {self.head_dim}", self.dtype]
        return ", ".join([*parts, "causal"] if self.causal else parts)

    @property
    def pairs(self) -> int:
        """Pairs of query and key that see each other, over batch and heads."""
        offset = self.keys - self.queries
        one = self.queries * self.keys
        if self.causal:
            one = sum(max(0, min(self.keys, i + offset + 1)) for i in range(self.queries))
        return self.batch * self.heads * one

    def as_json(self) -> dict[str, Any]:
        """All attributes."""
        return asdict(self)


class Inputs:
    """The random inputs of a case; cases of one group share those that have one shape.

    Args:
        shape: of the group.
        device: of all tensors.
        drawn: tensors by name and size; pass the same to share them.
    """

    def __init__(
        self, case: Case, shape: Shape, device: str, drawn: dict[tuple[Any, ...], Tensor]
    ) -> None:
        self.case, self.shape, self.device, self._drawn = case, shape, device, drawn

    def _draw(self, name: str, *size: int, scale: float = 1.0, leaf: bool = True) -> Tensor:
        key = (name, *size)
        if key not in self._drawn:
            generator = torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))
            values = torch.randn(size, generator=generator) * scale
            is_parameter = name.startswith("w_")
            dtype = torch.float32 if is_parameter else getattr(torch, self.shape.dtype)
            self._drawn[key] = values.to(self.device, dtype).requires_grad_(leaf)
        return self._drawn[key]

    def _for_queries(self, name: str, width: int) -> Tensor:
        shape = self.shape
        return self._draw(name, shape.batch, shape.heads, shape.queries, width)

    def _for_keys(self, name: str, width: int) -> Tensor:
        return self._draw(name, self.shape.batch, self.shape.heads, self.shape.keys, width)

    @cached_property
    def a(self) -> Tensor:
        """Query features, (B, H, Lq, C)."""
        return self._for_queries("a", self.case.channels)

    @cached_property
    def b(self) -> Tensor:
        """Key features, (B, H, Lk, C)."""
        return self._for_keys("b", self.case.channels)

    @cached_property
    def q(self) -> Tensor:
        """Queries of the dot product, (B, H, Lq, D)."""
        return self._for_queries("q", self.shape.head_dim)

    @cached_property
    def k(self) -> Tensor:
        """Keys of the dot product, (B, H, Lk, D)."""
        return self._for_keys("k", self.shape.head_dim)

    @cached_property
    def v(self) -> Tensor:
        """Values, (B, H, Lk, D)."""
        return self._for_keys("v", self.shape.head_dim)

    @cached_property
    def grad(self) -> Tensor:
        """Gradient of the output."""
        shape = self.shape
        size = (shape.batch, shape.heads, shape.queries, shape.head_dim)
        return self._draw("grad", *size, leaf=False)

    def _per_head(self, name: str, *size: int) -> Tensor:
        """A parameter for each head, all starting equal, so that sharing it gives the same."""
        key = (name, "per head", *size)
        if key not in self._drawn:
            one = self._draw(name, *size, scale=1 / math.sqrt(size[-1]), leaf=False)
            copies = one.expand(self.shape.heads, *size).contiguous()
            self._drawn[key] = copies.requires_grad_()
        return self._drawn[key]

    @cached_property
    def weights(self) -> ScoreWeights:
        """Of the layers behind the first, for each head."""
        case = self.case
        if not case.channels:
            return ScoreWeights(torch.zeros(self.shape.heads, 0, device=self.device))
        if not case.hidden:
            return ScoreWeights(self._per_head("w_output", case.channels))
        hidden = self._per_head("w_hidden", case.hidden, case.channels)
        bias = self._per_head("w_bias", case.hidden)
        return ScoreWeights(self._per_head("w_output", case.hidden), ((hidden, bias),))

    @cached_property
    def slopes(self) -> Tensor | None:
        """(H, C), of magnitudes 2⁻¹ … 2⁻⁷ with both signs."""
        if not self.case.slopes:
            return None
        exponents = torch.linspace(1, 7, self.case.channels)
        signs = torch.tensor([1.0, -1.0]).repeat(self.case.channels)[: self.case.channels]
        one = (signs * 2**-exponents).expand(self.shape.heads, -1)
        return one.contiguous().to(self.device).requires_grad_()

    @property
    def parameters(self) -> list[Tensor]:
        """Weights and slopes that a gradient is taken of."""
        if not self.case.channels:
            return []
        output, hidden = self.weights
        tensors = [output, *(hidden[0] if hidden else ())]
        return tensors if self.slopes is None else [*tensors, self.slopes]
