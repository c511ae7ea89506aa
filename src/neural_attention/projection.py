"""Projections of the hidden state to queries, keys, values and back: linear maps and networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import validation

KINDS = ("linear", "mlp", "residual", "karbevski")


def build_projection(
    kind: str,
    in_features: int,
    out_features: int,
    *,
    bias: bool = True,
    width_factor: float = 2,
    layer_norm: bool = True,
    init: str = "random",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    r"""A projection by name.

    .. math::
        \text{linear: } W x \qquad
        \text{mlp: } f(x) = W_2\,\mathrm{relu}(\mathrm{LN}(W_1 x)) \qquad
        \text{residual: } W x + f(x) \qquad
        \text{karbevski: } \tfrac12 (x + \mathrm{LN}(W_2\,\mathrm{gelu}(W_1\,\mathrm{RMSNorm}(x))))

    Args:
        kind: ``linear``; ``mlp``, a ``torch.nn.Sequential`` whose parts are numbered as in its
            authors' checkpoints; ``residual``, the linear map plus such a network; or
            ``karbevski``, which needs ``in_features == out_features``.
        in_features: width of x.
        out_features: width of the result.
        bias: whether the linear maps have biases; of ``karbevski``, whose maps have none, the
            final LayerNorm.
        width_factor: hidden width of the ``mlp`` network over ``in_features``.
        layer_norm: whether that network has its LayerNorm.
        init: ``random``, or ``preserve``: the residual's network starts at zero, so that the
            projection starts as its linear map.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: an unknown name, a size that does not fit, or ``preserve`` where there is
            nothing to preserve.
        TypeError: a value of another type.

    Source:
        ``mlp``: Zhang 2023, arXiv 2310.11398. ``karbevski``: Karbevski 2026, arXiv 2603.13381.

    >>> build_projection("mlp", 8, 8)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """
    if kind not in KINDS:
        raise ValueError(f"projection {kind!r} is unknown: expected one of {', '.join(KINDS)}.")
    if init not in ("random", "preserve"):
        raise ValueError(f"init is {init!r}: expected 'random' or 'preserve'.")
    if init == "preserve" and kind != "residual":
        raise ValueError(
            f"init='preserve' with projection {kind!r}: only 'residual' contains a linear map that "
            "could be preserved."
        )
    factory: dict[str, Any] = {"device": device, "dtype": dtype}
    if kind == "linear":
        return nn.Linear(in_features, out_features, bias=bias, **factory)
    if kind == "karbevski":
        return HalfResidualProjection(in_features, out_features, bias=bias, **factory)
    validation.check_positive("width_factor", width_factor)
    validation.check_flag("layer_norm", layer_norm)
    hidden = round(width_factor * in_features)
    if hidden < 1:
        raise ValueError(
            f"width factor {width_factor} of {in_features} features leaves a hidden layer of "
            f"{hidden}: expected at least 1."
        )
    parts: list[nn.Module] = [nn.Linear(in_features, hidden, bias=bias, **factory)]
    if layer_norm:
        parts.append(nn.LayerNorm(hidden, bias=bias, **factory))
    parts += [nn.ReLU(), nn.Linear(hidden, out_features, bias=bias, **factory)]
    network = nn.Sequential(*parts)
    if kind == "mlp":
        return network
    linear = nn.Linear(in_features, out_features, bias=bias, **factory)
    return ResidualProjection(linear, network, zero_network=init == "preserve")


class ResidualProjection(nn.Module):
    """A linear map plus a network: ``W x + f(x)``, any shape ``(..., in) -> (..., out)``.

    Args:
        linear: W.
        network: f, a sequence that ends in a linear layer.
        zero_network: start f at zero, now and at each :meth:`reset_parameters`.

    >>> linear = nn.Linear(4, 4)
    >>> residual = ResidualProjection(linear, nn.Sequential(nn.Linear(4, 4)), zero_network=True)
    >>> x = torch.randn(3, 4)
    >>> torch.equal(residual(x), linear(x))
    True
    """

    def __init__(self, linear: nn.Linear, network: nn.Sequential, *, zero_network: bool) -> None:
        super().__init__()
        self.linear, self.network = linear, network
        self.zero_network = zero_network
        self._zero()

    def forward(self, x: Tensor) -> Tensor:
        """``W x + f(x)``."""
        y: Tensor = self.linear(x) + self.network(x)
        return y

    def reset_parameters(self) -> None:
        """Draw starting values anew, as torch starts each part."""
        reset_projection(self.linear)
        reset_projection(self.network)
        self._zero()

    def _zero(self) -> None:
        if self.zero_network:
            for parameter in self.network[-1].parameters():
                nn.init.zeros_(parameter)


class HalfResidualProjection(nn.Module):
    """Karbevski's nonlinear query: ``(x + LN(W2 gelu(W1 RMSNorm(x)))) / 2``.

    The inner width is half the outer, so it has as many weights as the linear map it replaces.

    Args:
        in_features: width of x, ``(..., in_features)``, at least 2.
        out_features: must equal in_features.
        bias: whether the LayerNorm has one.
        device: of the parameters.
        dtype: of the parameters.

    Raises:
        ValueError: the widths differ, or are below 2.

    >>> HalfResidualProjection(8, 8)(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if in_features != out_features or in_features < 2:
            raise ValueError(
                f"projection 'karbevski' adds its input of width {in_features} to its result of "
                f"width {out_features}: num_heads * head_dim must equal embed_dim, and be at "
                "least 2."
            )
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        inner = in_features // 2
        self.norm_in = nn.RMSNorm(in_features, **factory)
        self.linear1 = nn.Linear(in_features, inner, bias=False, **factory)
        self.linear2 = nn.Linear(inner, in_features, bias=False, **factory)
        self.norm_out = nn.LayerNorm(in_features, bias=bias, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """``(x + f(x)) / 2``."""
        inner = nn.functional.gelu(self.linear1(self.norm_in(x)))
        y: Tensor = (x + self.norm_out(self.linear2(inner))) / 2
        return y

    def reset_parameters(self) -> None:
        """Draw starting values anew, as torch starts each part."""
        for part in self.children():
            reset_projection(part)


def reset_projection(projection: nn.Module) -> None:
    """Draw a projection's starting values anew from torch's generator."""
    if isinstance(projection, nn.Sequential):
        for part in projection:
            reset_projection(part)
    elif not isinstance(projection, nn.ReLU):
        projection.reset_parameters()  # type: ignore[operator]
