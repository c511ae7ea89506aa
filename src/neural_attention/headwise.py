"""The score network's pieces for each head: linear maps, and scores in full."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .activations import resolve
from .functional import ScoreWeights


class HeadwiseLinear(nn.Module):
    """A linear map for each head, or one for all: ``(B, heads, L, in) -> (B, heads, L, out)``.

    Attributes:
        weight: ``(heads or 1, out_features, in_features)``.
        bias: ``(heads or 1, out_features)`` or None.
    """

    def __init__(
        self,
        heads: int,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(heads, out_features, in_features, device=device, dtype=dtype)
        )
        self.bias = (
            nn.Parameter(torch.empty(heads, out_features, device=device, dtype=dtype))
            if bias
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """The map of each head applied to that head's rows."""
        if self.weight.shape[0] == 1:
            return F.linear(x, self.weight[0], None if self.bias is None else self.bias[0])
        # One product a head over all rows of the batch: queries and keys, which lie in memory
        # position by position, need no copy for it.
        rows = x.transpose(0, 1).flatten(1, 2)
        weight = self.weight.transpose(-1, -2)
        if self.bias is None:
            y = torch.bmm(rows, weight)
        else:
            y = torch.baddbmm(self.bias[:, None], rows, weight)
        return y.unflatten(1, (x.shape[0], x.shape[2])).transpose(0, 1)

    def extra_repr(self) -> str:
        """The sizes, as ``print`` shows them."""
        heads, out_features, in_features = self.weight.shape
        return f"heads={heads}, {in_features} -> {out_features}, bias={self.bias is not None}"


def pair_scores(
    a: Tensor,
    b: Tensor,
    weights: ScoreWeights,
    activation: str,
    slopes: Tensor | None = None,
    offset: int = 0,
) -> Tensor:
    """Scores of ``(H, Lq, C)`` against ``(H, Lk, C)``, materialised: ``(H, Lq, Lk)``."""
    function = resolve(activation)
    hidden = a[:, :, None] + b[:, None]
    if slopes is not None:
        i = torch.arange(a.shape[1], device=a.device) + offset
        j = torch.arange(b.shape[1], device=a.device)
        hidden = hidden + (j - i[:, None])[..., None] * slopes[:, None, None]
    hidden = function(hidden)
    for weight, bias in weights.hidden:
        hidden = function(hidden @ weight[:, None].transpose(-1, -2) + bias[:, None, None])
    return (hidden @ weights.output[:, None, :, None])[..., 0]


def of_heads(weights: ScoreWeights, heads: slice) -> ScoreWeights:
    """The weights of some heads."""
    output, hidden = weights
    return ScoreWeights(
        output[heads], tuple((weight[heads], bias[heads]) for weight, bias in hidden)
    )


def compose(outer: HeadwiseLinear, inner: HeadwiseLinear) -> tuple[Tensor, Tensor]:
    """Weight and bias, in float64, of one map after another: ``outer(inner(x))``."""
    weight = outer.weight.detach().double()
    inner_weight = inner.weight.detach().double()
    bias = weight.new_zeros(weight.shape[:2])
    if inner.bias is not None:
        bias = bias + (weight @ inner.bias.detach().double()[..., None])[..., 0]
    if outer.bias is not None:
        bias = bias + outer.bias.detach().double()
    return weight @ inner_weight, bias
