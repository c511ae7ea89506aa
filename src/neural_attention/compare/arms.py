"""The grammar of arms: an attention named by what it is, such as ``neural+width=8``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from neural_attention.activations import resolve
from neural_attention.presets import PRESETS, preset_settings
from neural_attention.starting_values import INITS
from neural_attention.tasks.wording import did_you_mean

SCORES = ("dot", "neural", "hybrid", "additive")
POSITIONS = ("rotary", "alibi", "slopes", "none")
PROJECTIONS = ("linear", "mlp", "residual", "karbevski")
SITES = "qkvo"
ROLES = ("encoder", "decoder", "cross")
STARTS = ("preserve", "random")

GRAMMAR = (
    "An arm is a score (dot, neural, hybrid, additive, or neural:PRESET with "
    f"{', '.join(PRESETS)}), then options joined by '+': positions ({', '.join(POSITIONS)}), "
    "width=N, hidden=N, bottleneck=N, activation=NAME, init=NAME, share_heads, "
    f"projection={'|'.join(PROJECTIONS)} (mlp and residual also with places: mlp:qkv, mlp:qko), "
    "no_layer_norm, kv_heads=N, layers=all|first|last|0,2, feed_forward=N; and where transformers "
    f"models are converted roles={'|'.join(ROLES)} or some of them, start=preserve|random. "
    "Without a score it is a dot product: projection=mlp is dot+projection=mlp."
)

LARGEST_SIZE = 1 << 20
"""Of widths and heads: far beyond any model, and small enough for products of two of them."""

LONGEST_ARM = 500


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: an attention, and which layers have it.

    Attributes:
        name: as given.
        score: ``"dot"``, ``"neural"``, ``"hybrid"`` or ``"additive"``.
        preset: name of a published score network, or None.
        positions: None for the score's own default.
        projection: kind of the query and key (karbevski: query) projections, or by site.
        layer_norm: whether mlp and residual projections have one inside.
        layers: ``"all"``, ``"first"`` or layer numbers; those below 0 count from the end.
        network: keywords of the score network that differ from its defaults.
        feed_forward: width of the feed-forward layers, None for the model's.
        kv_heads: heads of keys and values, None for as many as query heads.
        roles: which attention of a converted model, None for all it has.
        start: how a converted model starts, None for ``"preserve"`` wherever that is possible.
    """

    name: str
    score: str = "dot"
    preset: str | None = None
    positions: str | None = None
    projection: str | dict[str, str] = "linear"
    layer_norm: bool = True
    layers: str | tuple[int, ...] = "all"
    network: dict[str, Any] = field(default_factory=dict)
    feed_forward: int | None = None
    kv_heads: int | None = None
    roles: tuple[str, ...] | None = None
    start: str | None = None

    @property
    def has_network(self) -> bool:
        """Whether its scores come from a score network, wholly or in part."""
        return self.score != "dot"

    def layers_of(self, count: int) -> str | list[int]:
        """Its layers in a model of ``count`` layers: ``"all"``, ``"first"`` or numbers from 0."""
        if isinstance(self.layers, str):
            return self.layers
        return sorted({layer + count if layer < 0 else layer for layer in self.layers})

    def attention(self, head_dim: int) -> dict[str, Any]:
        """Keywords of :class:`neural_attention.NeuralAttention`, plain values.

        >>> parse_arm("neural+width=8").attention(64)
        {'score': 'neural', 'projection': 'linear', 'score_network': {'width': 8}}
        """
        keywords: dict[str, Any] = {"score": self.score, "projection": self.projection}
        if self.positions is not None:
            keywords["positions"] = self.positions
        if self.preset is not None:
            keywords["score_network"] = preset_settings(self.preset, head_dim, self.network)
        elif self.network:
            keywords["score_network"] = dict(self.network)
        if not self.layer_norm:
            keywords["projection_options"] = {"layer_norm": False}
        return keywords


def is_plain_dot_product(attention: Mapping[str, Any]) -> bool:
    """Whether the keywords of an attention are those of a dot product with linear projections."""
    return attention["score"] == "dot" and attention["projection"] == "linear"


def parse_arm(text: str) -> Arm:
    """An arm from its name.

    Args:
        text: a score, ``neural`` with a preset, or an option, then options joined by ``+``; see
            :data:`GRAMMAR`.

    Raises:
        ValueError: an unknown or repeated part, a value that is no number or too large
            a one, or an option that the score does not have; the message lists what is known.

    >>> parse_arm("neural:release+layers=first").layers
    'first'
    >>> parse_arm("projection=mlp").score
    'dot'
    """
    if len(text) > LONGEST_ARM:
        raise ValueError(
            f"arm '{text[:60]}…' has {len(text):,} characters: {LONGEST_ARM} at most are taken."
        )
    parts = [part.strip() for part in text.split("+")]
    score, preset = "dot", None
    if parts[0].partition(":")[0] in SCORES:
        head = parts.pop(0)
        score, colon, preset_name = head.partition(":")
        preset = preset_name if colon else None
        if preset is not None and preset not in PRESETS:
            raise ValueError(
                f"arm {text!r}: unknown preset {preset!r}; known are {', '.join(PRESETS)}."
            )
        if preset is not None and score not in ("neural", "hybrid"):
            raise ValueError(
                f"arm {text!r}: a preset is a score network, so it goes with neural or hybrid."
            )
    fields: dict[str, Any] = {}
    network: dict[str, Any] = {}
    seen: set[str] = set()
    for part in parts:
        key, equals, value = part.partition("=")
        kind = "positions" if part in POSITIONS else key
        if kind in seen:
            raise ValueError(f"arm {text!r} gives {kind} twice.")
        seen.add(kind)
        if part in POSITIONS:
            fields["positions"] = part
        elif part == "share_heads":
            network["share_heads"] = True
        elif part == "no_layer_norm":
            fields["layer_norm"] = False
        elif equals and key in _NETWORK_OPTIONS:
            network[key] = _NETWORK_OPTIONS[key](text, key, value)
        elif equals and key in _ARM_OPTIONS:
            fields[key] = _ARM_OPTIONS[key](text, key, value)
        else:
            raise ValueError(f"arm {text!r}: unknown part {part!r}{_suggestion(part)}. {GRAMMAR}")
    if network and score == "dot":
        raise ValueError(
            f"arm {text!r}: {', '.join(sorted(network))} belongs to a score network, and a dot "
            "product has none. Begin the arm with neural or hybrid."
        )
    if fields.get("positions") == "slopes" and score == "dot":
        raise ValueError(
            f"arm {text!r}: slopes are positions of a score network; a dot product takes alibi, "
            "rotary or none."
        )
    return Arm(name=text, score=score, preset=preset, network=network, **fields)


def check_arms(arms: Iterable[Arm]) -> None:
    """Refuse a comparison with itself.

    Raises:
        ValueError: fewer than one arm, or two that are the same but for their names.
    """
    known: dict[str, str] = {}
    for arm in arms:
        what = repr((arm.score, arm.preset, arm.positions, arm.projection, arm.layer_norm,
                     arm.layers, sorted(arm.network.items()), arm.feed_forward, arm.kv_heads,
                     arm.roles, arm.start))  # fmt: skip
        if what in known:
            raise ValueError(f"the arms {known[what]!r} and {arm.name!r} are the same.")
        known[what] = arm.name
    if not known:
        raise ValueError("there is no arm to train.")


def _whole(text: str, key: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= LARGEST_SIZE:
        raise ValueError(
            f"arm {text!r}: {key} is {value!r}, a whole number from 1 to {LARGEST_SIZE:,} is "
            "needed."
        )
    return int(value)


def _hidden(text: str, key: str, value: str) -> tuple[int, ...]:
    return (_whole(text, key, value),)


def _activation(text: str, key: str, value: str) -> str:
    try:
        resolve(value)
    except ValueError as error:
        raise ValueError(f"arm {text!r}: {error}") from None
    return value


def _init(text: str, key: str, value: str) -> str:
    if value not in INITS:
        raise ValueError(f"arm {text!r}: unknown init {value!r}; known are {', '.join(INITS)}.")
    return value


def _projection(text: str, key: str, value: str) -> str | dict[str, str]:
    kind, colon, sites = value.partition(":")
    if kind not in PROJECTIONS:
        raise ValueError(
            f"arm {text!r}: unknown projection {kind!r}; known are {', '.join(PROJECTIONS)}."
        )
    if not colon:
        return kind
    if not sites or set(sites) - set(SITES) or len(set(sites)) < len(sites):
        raise ValueError(
            f"arm {text!r}: the places of a projection are {sites!r}; they are some of q, k, v and "
            "o (output), such as mlp:qkv."
        )
    return {site: kind for site in SITES if site in sites}


def _roles(text: str, key: str, value: str) -> tuple[str, ...]:
    given = value.split(",")
    if set(given) - set(ROLES):
        raise ValueError(f"arm {text!r}: roles is {value!r}; it is some of {', '.join(ROLES)}.")
    return tuple(role for role in ROLES if role in given)


def _start(text: str, key: str, value: str) -> str:
    if value not in STARTS:
        raise ValueError(f"arm {text!r}: start is {value!r}; it is {' or '.join(STARTS)}.")
    return value


def _layers(text: str, key: str, value: str) -> str | tuple[int, ...]:
    if value in ("all", "first"):
        return value
    names = {"first": 0, "last": -1}
    parts = value.split(",")
    if not all(part in names or (part.isascii() and part.isdigit()) for part in parts):
        raise ValueError(
            f"arm {text!r}: layers is {value!r}; it is all, first, last or numbers, or some of "
            "them such as 0,2 or first,last."
        )
    return tuple(sorted({names[part] if part in names else int(part) for part in parts}))


_NETWORK_OPTIONS: dict[str, Callable[[str, str, str], Any]] = {
    "width": _whole,
    "hidden": _hidden,
    "bottleneck": _whole,
    "activation": _activation,
    "init": _init,
}
_ARM_OPTIONS: dict[str, Callable[[str, str, str], Any]] = {
    "projection": _projection,
    "layers": _layers,
    "kv_heads": _whole,
    "feed_forward": _whole,
    "roles": _roles,
    "start": _start,
}


def _suggestion(part: str) -> str:
    known = [*SCORES, *POSITIONS, "share_heads", "no_layer_norm", *_NETWORK_OPTIONS, *_ARM_OPTIONS]
    return did_you_mean(part.partition("=")[0].partition(":")[0], known)
