"""What a conversion does, as checked options and as plain values in a model's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from .. import layer_options

VERSION = 1
ROLES = ("encoder", "decoder", "cross")
POSITIONS = ("model", "slopes", "alibi", "none")
PURE_SCORES = ("neural", "additive")


@dataclass(frozen=True)
class Settings:
    """A conversion's options, checked; :func:`neural_attention.hf.convert` documents them.

    Attributes:
        layers: indices by role; a role that is missing is left alone.
    """

    score: str
    projection: Mapping[str, str]
    projection_options: Mapping[str, Any]
    positions: str
    score_network: Mapping[str, Any]
    layers: Mapping[str, list[int]]
    init: str

    @property
    def replaces_score(self) -> bool:
        """Whether attention weights come from anything but the model's own dot product."""
        return self.score != "dot" or self.positions == "alibi"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a configuration, with the version of their meaning."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Settings:
        """What :meth:`to_dict` wrote.

        Raises:
            ValueError: it was written by a newer version, or is not what a conversion writes.
        """
        if not isinstance(stored, Mapping):
            raise ValueError(
                f"the configuration's neural_attention is {stored!r}: expected what a conversion "
                "writes."
            )
        version = stored.get("version")
        if not isinstance(version, int) or not 1 <= version <= VERSION:
            raise ValueError(
                f"the configuration's neural_attention has version {version!r}, and this "
                f"neural-attention knows up to {VERSION}: install a newer one."
            )
        names = {field.name for field in fields(cls)}
        given = {name: value for name, value in stored.items() if name != "version"}
        if given.keys() != names:
            odd = ", ".join(sorted(given.keys() ^ names))
            raise ValueError(
                f"the configuration's neural_attention does not fit: {odd} missing or unknown."
            )
        layers = given.pop("layers")
        if not isinstance(layers, Mapping) or not all(
            role in ROLES and isinstance(indices, list) and all(type(i) is int for i in indices)
            for role, indices in layers.items()
        ):
            raise ValueError(
                f"the configuration's neural_attention has {layers!r} for layers: expected lists "
                f"of indices by {', '.join(ROLES)}."
            )
        try:
            options = check_options(**{**given, "score_network": given["score_network"] or None})
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the configuration's neural_attention does not fit: {error}"
            ) from error
        return cls(layers=layers, **options)


def check_options(
    *,
    score: str,
    projection: str | Mapping[str, str],
    projection_options: Mapping[str, Any] | None,
    positions: str,
    score_network: str | Mapping[str, Any] | None,
    init: str,
) -> dict[str, Any]:
    """Options that do not depend on a model, checked: keywords of :class:`Settings`.

    Raises:
        ValueError: an unknown name, options that exclude each other, or nothing to convert.
    """
    if not isinstance(score, str) or not isinstance(positions, str):
        raise TypeError(f"score is {score!r} and positions is {positions!r}: expected names.")
    layer_options.resolve_score(score)
    projections = layer_options.resolve_projections(projection)
    layer_options.check_projection_options(projection_options, projections)
    if positions not in POSITIONS:
        raise ValueError(
            f"positions is {positions!r}: expected one of {', '.join(POSITIONS)}. A converted "
            "model keeps its own positions with 'model'."
        )
    if positions == "slopes" and score == "dot":
        raise ValueError(
            "positions='slopes' act on the channels of a score network and score='dot' has none: "
            "use positions='alibi', or 'model'."
        )
    if positions == "none" and score not in PURE_SCORES:
        raise ValueError(
            f"positions='none' takes the model's rotation away from a score network, and the dot "
            f"product of score={score!r} keeps it: leave positions out."
        )
    if score == "dot" and positions == "model" and set(projections.values()) == {"linear"}:
        raise ValueError(
            "score='dot', projection='linear' and positions='model' are what the model has: there "
            "is nothing to convert."
        )
    if init not in ("random", "preserve"):
        raise ValueError(f"init is {init!r}: expected 'random' or 'preserve'.")
    kinds = set(projections.values())
    if init == "preserve" and (score in PURE_SCORES or kinds - {"linear", "residual"}):
        shown = ", ".join(f"{site}: {kind}" for site, kind in projections.items())
        raise ValueError(
            f"init='preserve' with score={score!r} and projections {shown}: the model would not "
            "compute what it did. Only score='hybrid' (or 'dot') with 'residual' (or 'linear') "
            "projections contains the model; anything else starts with init='random'."
        )
    # A preset's widths depend on head_dim, which differs between a model's attentions.
    layer_options.score_network_settings(score, score_network, 64)
    network = {"preset": score_network} if isinstance(score_network, str) else score_network
    return {
        "score": score,
        "projection": projections,
        "projection_options": dict(projection_options or {}),
        "positions": positions,
        "score_network": _plain(network or {}),
        "init": init,
    }


def check_layers(
    layers: Iterable[int] | Mapping[str, Iterable[int] | None] | None,
    found: Mapping[str, set[int]],
) -> dict[str, list[int]]:
    """The chosen indices of each role.

    Args:
        layers: as the caller gave them.
        found: the model's indices by role.

    Raises:
        ValueError: a role or an index that the model does not have, or nothing chosen.
        TypeError: an index that is not an integer.
    """
    if layers is not None and not isinstance(layers, Iterable):
        raise TypeError(f"layers is {layers!r}: expected indices of layers, such as [0].")
    if layers is None:
        return {role: sorted(indices) for role, indices in found.items()}
    if not isinstance(layers, Mapping):
        layers = {role: list(layers) for role in found}
    chosen = {}
    for role, indices in layers.items():
        if role not in found:
            raise ValueError(
                f"layers names {role!r}, and this model has {', '.join(found)} attention."
            )
        if indices is not None and not isinstance(indices, Iterable):
            raise TypeError(f"layers has {indices!r} for {role}: expected indices, such as [0].")
        wanted = sorted(found[role]) if indices is None else list(indices)
        for index in wanted:
            if isinstance(index, bool) or not isinstance(index, int):
                raise TypeError(f"layers has {index!r}: expected indices of layers.")
            if index not in found[role]:
                raise ValueError(
                    f"layers has {index}, and the {role} attention of this model has layers "
                    f"{min(found[role])} to {max(found[role])}."
                )
        if wanted:
            chosen[role] = sorted(set(wanted))
    if not chosen:
        raise ValueError("layers is empty: there is nothing to convert. None means all.")
    return chosen


def _plain(network: Mapping[str, Any]) -> dict[str, Any]:
    """Values that JSON keeps."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in network.items()
    }
