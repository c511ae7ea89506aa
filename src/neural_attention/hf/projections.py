"""Projections of a transformers attention module, replaced by networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ..projection import ResidualProjection, build_projection
from .discovery import Attention
from .settings import Settings

_NAMES = {
    "q": ("q_proj", "query", "q_lin", "q"),
    "k": ("k_proj", "key", "k_lin", "k"),
    "v": ("v_proj", "value", "v_lin", "v"),
    "o": ("o_proj", "out_proj", "out_lin", "c_proj", "dense", "o"),
}
# One matrix for several projections, side by side, and the projections it holds by whether a
# second matrix stands beside it for the queries (cross-attention).
_FUSED, _FUSED_QUERY = "c_attn", "q_attn"


@dataclass(frozen=True)
class Place:
    """Where linear maps of one module stand.

    Attributes:
        holder: the module whose attribute it is.
        name: the attribute.
        sites: the projections it holds, q, k, v or o; several where they are fused.
    """

    holder: nn.Module
    name: str
    sites: tuple[str, ...]

    @property
    def linear(self) -> Any:
        """The module that is there."""
        return getattr(self.holder, self.name)


class FusedProjection(nn.Module):
    """Projections of one input, side by side: ``(..., in) -> (..., sum of outs)``.

    Args:
        parts: the projections by site, in the order of their outputs.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(parts)

    def forward(self, x: Tensor) -> Tensor:
        """All of them."""
        return torch.cat([part(x) for part in self.parts.values()], dim=-1)


def find_places(attention: Attention, projection: Mapping[str, str]) -> list[Place]:
    """The modules that have to be replaced.

    Raises:
        ValueError: the module's linear maps have other names or kinds than those known.
    """
    places = []
    for place in _places(attention):
        if all(projection[site] == "linear" for site in place.sites):
            continue
        if not isinstance(place.linear, (nn.Linear, Conv1D)):
            raise ValueError(
                f"{attention.class_name} ({attention.name}) has a {type(place.linear).__name__} as "
                f"{place.name}: only plain linear maps can be replaced."
            )
        if not place.linear.weight.is_floating_point():
            raise ValueError(
                f"{attention.name}.{place.name} is quantized: convert the model before quantizing."
            )
        places.append(place)
    wanted = {site for site, kind in projection.items() if kind != "linear"}
    missing = wanted - {site for place in places for site in place.sites}
    if missing:
        raise ValueError(
            f"{attention.class_name} ({attention.name}) has no linear map for "
            f"{', '.join(sorted(missing))} under a name that is known, so that projection cannot "
            "be replaced."
        )
    for place in places:
        if projection[place.sites[0]] == "karbevski":
            rows, columns = _sizes(place.linear)
            if rows != columns * len(place.sites):
                raise ValueError(
                    f"projection 'karbevski' needs as many outputs as inputs, and "
                    f"{attention.name}.{place.name} maps {columns} to {rows}."
                )
    return places


def replacement(place: Place, settings: Settings, model: Any) -> nn.Module:
    """The projections of a place; linear maps inside them keep their weights."""
    projection, options, init = settings.projection, settings.projection_options, settings.init
    linears = _split(place.linear, len(place.sites))
    parts = {
        site: _build(projection[site], linear, options, init, model)
        for site, linear in zip(place.sites, linears, strict=True)
    }
    return FusedProjection(parts) if len(parts) > 1 else parts[place.sites[0]]


def _places(attention: Attention) -> list[Place]:
    module, parent = attention.module, attention.parent
    places = []
    if isinstance(getattr(module, _FUSED, None), Conv1D):
        if hasattr(module, _FUSED_QUERY):
            places.append(Place(module, _FUSED_QUERY, ("q",)))
            places.append(Place(module, _FUSED, ("k", "v")))
        else:
            places.append(Place(module, _FUSED, ("q", "k", "v")))
    for site, names in _NAMES.items():
        for name in names:
            if isinstance(getattr(module, name, None), nn.Module):
                places.append(Place(module, name, (site,)))
                break
    if not any("o" in place.sites for place in places):
        output = getattr(parent, "output", None)
        if isinstance(getattr(output, "dense", None), nn.Module):
            places.append(Place(output, "dense", ("o",)))  # type: ignore[arg-type]
    return places


def _build(
    kind: str, linear: nn.Linear, options: Mapping[str, Any], init: str, model: Any
) -> nn.Module:
    if kind == "linear":
        return linear
    projection = build_projection(
        kind,
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        init=init if kind == "residual" else "random",
        **({} if kind == "karbevski" else options),
        device=linear.weight.device,
        dtype=linear.weight.dtype,
    )
    if not linear.weight.is_meta:
        # New linear layers start as the model starts its own; the zero of a residual stays.
        new: nn.Module = projection
        if isinstance(projection, ResidualProjection):
            new = projection.network[:-1] if projection.zero_network else projection.network
        new.apply(model._init_weights)
    if isinstance(projection, ResidualProjection):
        projection.linear = linear
    return projection


def _sizes(linear: nn.Linear | Conv1D) -> tuple[int, int]:
    rows, columns = linear.weight.shape
    return (columns, rows) if isinstance(linear, Conv1D) else (rows, columns)


def _split(linear: nn.Linear | Conv1D, count: int) -> list[nn.Linear]:
    """A linear map as several, each with its rows."""
    if isinstance(linear, nn.Linear):
        assert count == 1
        return [linear]
    parts = []
    biases = linear.bias.chunk(count)
    for weight, bias in zip(linear.weight.T.chunk(count), biases, strict=True):
        part = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        learns = linear.weight.requires_grad, linear.bias.requires_grad
        part.weight = nn.Parameter(weight.detach().clone().contiguous(), learns[0])
        part.bias = nn.Parameter(bias.detach().clone(), learns[1])
        parts.append(part)
    return parts
