"""What the layers' options mean together, checked before anything is built."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from . import validation
from .activations import resolve
from .presets import preset_settings
from .projection import KINDS
from .score import ScoreNetwork

SCORES = ("neural", "dot", "hybrid", "additive")
POSITIONS = ("slopes", "alibi", "rotary", "none")
SITES = {"q": "queries", "k": "keys", "v": "values", "o": "output"}

# What a layer hands to its score network itself.
_OF_THE_LAYER = {"head_dim", "num_heads", "num_kv_heads", "zero_output", "device", "dtype"}
_NETWORK_KEYWORDS = [
    name for name in inspect.signature(ScoreNetwork).parameters if name not in _OF_THE_LAYER
]

# Where a kind of projection goes when it is named alone.
_USUAL_SITES = {"linear": "", "mlp": "qk", "residual": "qk", "karbevski": "q"}


def resolve_score(score: str) -> str:
    """The score's name, known.

    Raises:
        ValueError: it is not one of :data:`SCORES`.
    """
    if score not in SCORES:
        raise ValueError(f"score is {score!r}: expected one of {', '.join(SCORES)}.")
    return score


def resolve_positions(score: str, positions: str | None) -> str:
    """The positions that None stands for, or those given if the score can have them.

    Raises:
        ValueError: an unknown name, or slopes without a score network.

    Warns:
        UserWarning: a score network alone on rotated queries and keys.
    """
    if positions is None:
        return "rotary" if score == "dot" else "slopes"
    if positions not in POSITIONS:
        raise ValueError(f"positions is {positions!r}: expected one of {', '.join(POSITIONS)}.")
    if positions == "slopes" and score == "dot":
        raise ValueError(
            "positions='slopes' act on the channels of a score network and score='dot' has none: "
            "use positions='alibi' or 'rotary'."
        )
    if positions == "rotary" and score in ("neural", "additive"):
        warnings.warn(
            f"score={score!r} with positions='rotary' is not relative: a network of rotated "
            "queries and keys depends on both positions, not on their difference. "
            "positions='slopes' is relative.",
            stacklevel=4,
        )
    return positions


def check_grid(grid: Sequence[int] | None, positions: str) -> None:
    """Whether a grid is rows and columns, and there are positions to lie on it.

    Raises:
        ValueError: a number that is no size, another count of them, or no positions.
        TypeError: not a sequence.
    """
    if grid is None:
        return
    if isinstance(grid, str) or not isinstance(grid, Sequence):
        raise TypeError(f"grid is {grid!r}: expected (rows, columns).")
    if len(grid) != 2:
        raise ValueError(f"grid has {len(grid)} entries: expected (rows, columns).")
    for name, size in zip(("rows", "columns"), grid, strict=True):
        validation.check_size(f"the number of {name} of grid", size)
    if positions == "none":
        raise ValueError(
            "grid says where tokens lie and positions='none' do not look: leave it out, or use "
            "slopes, alibi or rotary."
        )


def resolve_projections(projection: str | Mapping[str, str]) -> dict[str, str]:
    """The kind of projection of q, k, v and o.

    A name alone means queries and keys (``mlp``, ``residual``) or queries (``karbevski``).

    Raises:
        ValueError: an unknown kind or site, or ``karbevski`` elsewhere than at q.
        TypeError: neither a name nor a dict.

    >>> resolve_projections("mlp")
    {'q': 'mlp', 'k': 'mlp', 'v': 'linear', 'o': 'linear'}
    """
    if isinstance(projection, str):
        if projection not in KINDS:
            raise ValueError(
                f"projection {projection!r} is unknown: expected one of {', '.join(KINDS)}."
            )
        given = dict.fromkeys(_USUAL_SITES[projection], projection)
    elif isinstance(projection, Mapping):
        given = dict(projection)
    else:
        raise TypeError(
            f"projection is {projection!r}: expected a name, one of {', '.join(KINDS)}, or a dict "
            "from q, k, v and o to names."
        )
    for site, kind in given.items():
        if site not in SITES:
            raise ValueError(
                f"projection has the key {site!r}: expected q (queries), k (keys), v (values) or "
                "o (output)."
            )
        if kind not in KINDS:
            raise ValueError(
                f"projection[{site!r}] is {kind!r}: expected one of {', '.join(KINDS)}."
            )
        if kind == "karbevski" and site != "q":
            raise ValueError(
                f"projection[{site!r}] is 'karbevski': it replaces the query projection alone."
            )
    return {site: given.get(site, "linear") for site in SITES}


def check_projection_options(
    options: Mapping[str, Any] | None, projections: Mapping[str, str]
) -> dict[str, Any]:
    """Keywords of the projections that are networks.

    Raises:
        ValueError: an unknown keyword, a width that is none, or no network to act on.
        TypeError: not a dict, or a value of another type.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise TypeError(
            f"projection_options is {options!r}: expected a dict with width_factor, layer_norm."
        )
    if options and not {"mlp", "residual"} & set(projections.values()):
        raise ValueError(
            f"projection_options {dict(options)} have nothing to act on: no projection is 'mlp' or "
            "'residual'."
        )
    unknown = sorted(map(str, options.keys() - {"width_factor", "layer_norm"}))
    if unknown:
        raise ValueError(
            f"projection_options has {', '.join(unknown)}: expected width_factor, layer_norm."
        )
    return dict(options)


def check_preserve(init: str, score: str, projections: Mapping[str, str]) -> None:
    """Whether ``init`` is known and has something to act on.

    Raises:
        ValueError: it is neither ``random`` nor ``preserve``, or there is nothing to preserve.
    """
    if init not in ("random", "preserve"):
        raise ValueError(f"init is {init!r}: expected 'random' or 'preserve'.")
    if init == "preserve" and score != "hybrid" and "residual" not in projections.values():
        kinds = ", ".join(f"{site}: {kind}" for site, kind in projections.items())
        raise ValueError(
            f"init='preserve' with score={score!r} and projections {kinds}: it keeps the dot "
            "product of score='hybrid' or the linear map of projection='residual', and here is "
            "neither."
        )


def score_network_settings(
    score: str, given: str | Mapping[str, Any] | None, head_dim: int
) -> dict[str, Any] | None:
    """ScoreNetwork keywords of a layer; None for a dot product.

    Args:
        score: one of :data:`SCORES`.
        given: a preset's name, or keywords, among them perhaps ``preset``.
        head_dim: the layer's.

    Raises:
        ValueError: keywords that there are not or that the layer sets itself, a network for a dot
            product, or one that is not additive attention for ``score="additive"``.
        TypeError: neither a name nor a dict, or a value of another type.
    """
    if score == "dot":
        if given is not None:
            raise ValueError(
                "score='dot' has no score network, and score_network is given: leave it out, or "
                "use score='neural' or 'hybrid'."
            )
        return None
    if given is not None and not isinstance(given, (str, Mapping)):
        raise TypeError(
            f"score_network is {given!r}: expected a preset's name, or a dict of keywords of "
            "ScoreNetwork."
        )
    overrides = {"preset": given} if isinstance(given, str) else dict(given or {})
    own = sorted(_OF_THE_LAYER & overrides.keys())
    if own:
        raise ValueError(
            f"score_network sets {', '.join(own)}, which the layer sets itself: leave it out."
        )
    unknown = sorted(map(str, overrides.keys() - {"preset", *_NETWORK_KEYWORDS}))
    if unknown:
        raise ValueError(
            f"score_network has {', '.join(unknown)}: expected preset or keywords of ScoreNetwork, "
            f"{', '.join(_NETWORK_KEYWORDS)}."
        )
    preset = overrides.pop("preset", "bahdanau" if score == "additive" else None)
    settings = overrides if preset is None else preset_settings(preset, head_dim, overrides)
    if score == "additive":
        activation, hidden = settings.get("activation", "relu"), settings.get("hidden", ())
        if activation != "tanh" or tuple(hidden):
            raise ValueError(
                f"score='additive' is Bahdanau's network, one hidden layer of tanh, and "
                f"score_network asks for activation {activation!r} and hidden {tuple(hidden)}: use "
                "score='neural' for any other."
            )
    resolve(settings.get("activation", "relu"))
    return settings
