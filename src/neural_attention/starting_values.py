"""Starting values of a score network: alive, and with scores of standard deviation near 1."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .activations import resolve
from .functional import ScoreWeights
from .headwise import HeadwiseLinear, of_heads, pair_scores

INITS = ("difference_pairs", "random", "torch")

# Rows of the private sample on which starting values are measured, and the most elements of a
# materialised hidden layer at a time.
_SAMPLE_QUERIES, _SAMPLE_KEYS, _CHUNK = 64, 256, 1 << 20


def choose_init(init: str | None, activation: str) -> str:
    """The initialisation that None stands for, or the one given if it can work.

    Raises:
        ValueError: an unknown name, or difference pairs under an odd activation.
    """
    cancels = even_part_sign(activation) == 0
    if init is None:
        return "random" if cancels else "difference_pairs"
    if init not in INITS:
        raise ValueError(f"init is {init!r}: expected one of {', '.join(INITS)}, or None.")
    if init == "difference_pairs" and cancels:
        raise ValueError(
            f"init='difference_pairs' with activation {activation!r}: the two channels of a pair "
            "cancel under an odd activation, so every score would be 0. Use init='random'."
        )
    return init


def even_part_sign(activation: str) -> int:
    """Sign of σ(1) + σ(−1), what a pair of opposite channels adds; 0 for odd activations."""
    even_part = float(resolve(activation)(torch.tensor([1.0, -1.0], device="cpu")).sum())
    return 0 if abs(even_part) < 1e-6 else 1 if even_part > 0 else -1


def reset_first_layer(
    query: HeadwiseLinear, key: HeadwiseLinear, *, tied: bool, paired: bool
) -> None:
    """Unit directions, so that N(0, 1) inputs give N(0, 1) features; biases zero.

    Args:
        query: the layer's half that takes queries.
        key: the half that takes keys.
        tied: the query heads of a group use their key head's directions.
        paired: channels 2m and 2m+1 are opposite, and so are query and key.
    """
    key_heads, out, columns = key.weight.shape
    heads = query.weight.shape[0]
    if paired:
        directions = _unit_rows(key_heads, (out + 1) // 2, columns, key.weight)
        directions = directions.repeat_interleave(2, dim=1)[:, :out]
        directions[:, 1::2].neg_()
    else:
        directions = _unit_rows(key_heads, out, columns, key.weight)
    key.weight.copy_(-directions if paired else directions)
    if tied:
        query.weight.copy_(directions.repeat_interleave(heads // key_heads, dim=0))
    else:
        query.weight.copy_(_unit_rows(heads, out, columns, query.weight))
    for bias in (query.bias, key.bias):
        if bias is not None:
            bias.zero_()


def reset_second_layer(hidden: HeadwiseLinear, *, paired: bool) -> None:
    """Paired: positive and alike within a pair, so that every unit is alive. Else N(0, 1 / C)."""
    heads, last, width = hidden.weight.shape
    device = hidden.weight.device
    if paired:
        positive = (
            torch.rand(heads, last, (width + 1) // 2, device=device, dtype=torch.float32) + 0.5
        )
        hidden.weight.copy_(positive.repeat_interleave(2, dim=-1)[..., :width] / width)
    else:
        hidden.weight.copy_(
            torch.randn(heads, last, width, device=device, dtype=torch.float32) / width**0.5
        )
    if hidden.bias is not None:
        hidden.bias.zero_()


def reset_as_torch(parameter: Tensor, fan_in: int) -> None:
    """What ``nn.Linear`` does to its weight and bias."""
    parameter.uniform_(-(fan_in**-0.5), fan_in**-0.5)


def centre_and_scale(
    first_layers: tuple[list[HeadwiseLinear], list[HeadwiseLinear]],
    hidden: HeadwiseLinear | None,
    output: Tensor,
    activation: str,
    *,
    centre: bool,
) -> None:
    """Scale the output weights so that scores of N(0, 1) inputs deviate by 1 over the keys.

    Measured for each head, averaged over queries, on a private sample (torch's generator is not
    touched). With ``centre`` the second layer's bias first moves its units' means to 0: a unit that
    varies is then sometimes above 0, so none starts dead.

    Args:
        first_layers: the maps from queries to a, and from keys to b.
        hidden: the second hidden layer, changed in place.
        output: the output weights ``(heads, C_last)``, changed in place.
        activation: σ.
        centre: whether to centre the second layer.
    """
    generator = torch.Generator().manual_seed(0)
    head_dim = first_layers[0][0].weight.shape[2]
    sample = torch.randn(
        _SAMPLE_QUERIES + _SAMPLE_KEYS, head_dim, generator=generator, device="cpu"
    ).to(output.device)
    a = _apply(first_layers[0], sample[:_SAMPLE_QUERIES])
    b = _apply(first_layers[1], sample[_SAMPLE_QUERIES:])
    b = b.repeat_interleave(a.shape[0] // b.shape[0], dim=0)
    function = resolve(activation)
    step = max(1, _CHUNK // (_SAMPLE_QUERIES * _SAMPLE_KEYS * a.shape[2]))
    for start in range(0, output.shape[0], step):
        heads = slice(start, start + step)
        if centre and hidden is not None and hidden.bias is not None:
            mean = function(a[heads, :, None] + b[heads, None]).mean((1, 2))
            hidden.bias[heads] = -(hidden.weight[heads].float() @ mean[..., None])[..., 0].to(
                hidden.bias.dtype
            )
        weights = ScoreWeights(output.float())
        if hidden is not None and hidden.bias is not None:
            weights = ScoreWeights(weights.output, ((hidden.weight.float(), hidden.bias.float()),))
        weights = of_heads(weights, heads)
        scores = pair_scores(a[heads], b[heads], weights, activation)
        deviation = scores.std(-1).mean(-1, keepdim=True)
        output[heads] = (weights.output / deviation).to(output.dtype)


def _unit_rows(heads: int, rows: int, columns: int, like: Tensor) -> Tensor:
    drawn = torch.randn(heads, rows, columns, device=like.device, dtype=torch.float32)
    return F.normalize(drawn, dim=-1)


def _apply(layers: list[HeadwiseLinear], x: Tensor) -> Tensor:
    """``(rows, in) -> (heads, rows, out)`` in float32, whatever the layers' dtype."""
    x = x[None]
    for layer in layers:
        x = x @ layer.weight.float().transpose(-1, -2)
        if layer.bias is not None:
            x = x + layer.bias.float()[:, None]
    return x
