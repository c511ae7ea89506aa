"""Which modules of a transformers model are attention, and what can be said of them."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import nn

# What models hand to the attention interface that either does not change the attention weights or
# is computed by us. A keyword that is not here changes them in a way of its own.
UNDERSTOOD = frozenset(
    (
        "query", "key", "value", "attention_mask", "dropout", "scaling", "is_causal",
        "sliding_window", "output_attentions", "position_ids", "deterministic",
        "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
    )
)  # fmt: skip

_INTERFACE = "ALL_ATTENTION_FUNCTIONS"
_ROTATES = re.compile("rotary|_rope|rope_")
_HEADS = ("num_heads", "num_attention_heads", "n_heads")
_HEAD_DIM = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim")


@dataclass(frozen=True)
class Attention:
    """A module that calls transformers' attention interface.

    Attributes:
        name: its path in the model.
        module: itself.
        parent: the module that holds it.
        role: ``encoder`` (sees all), ``decoder`` (causal) or ``cross``.
        index: of its layer: the last number in the path.
        num_heads, num_kv_heads, head_dim: sizes.
    """

    name: str
    module: nn.Module
    parent: nn.Module
    role: str
    index: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def class_name(self) -> str:
        """Of the module."""
        return type(self.module).__name__

    @property
    def is_rotary(self) -> bool:
        """Whether the module turns queries and keys by their positions."""
        return _ROTATES.search(_source(type(self.module))) is not None

    @property
    def is_given_its_rotation(self) -> bool:
        """Whether the angles come from outside, so that they can be set to nothing."""
        return "position_embeddings" in inspect.signature(type(self.module).forward).parameters


def find_attentions(model: nn.Module) -> list[Attention]:
    """Every attention of the model, in order.

    Raises:
        ValueError: there is none, or one does not tell its sizes.
    """
    found = []
    for name, module in model.named_modules():
        kind: Any = type(module)
        if not calls_interface(kind):
            continue
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        num_heads = _size(module, _HEADS)
        groups = getattr(module, "num_key_value_groups", 1)
        found.append(
            Attention(
                name=name,
                module=module,
                parent=model.get_submodule(name.rpartition(".")[0]),
                role=_role(name, module),
                index=numbers[-1] if numbers else 0,
                num_heads=num_heads,
                num_kv_heads=num_heads // groups,
                head_dim=_size(module, _HEAD_DIM),
            )
        )
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no attention that goes through transformers' attention "
            "interface, so it cannot be converted."
        )
    return found


def check_score_keywords(attention: Attention) -> None:
    """Whether the module asks for nothing that would change the scores behind our back.

    Raises:
        ValueError: it does, such as a soft cap, sinks or a position bias.
    """
    if hasattr(attention.module, "kv_lora_rank"):
        raise ValueError(
            f"{attention.class_name} ({attention.name}) is latent attention, whose keys and values "
            "differ in width: its scores cannot be replaced."
        )
    kind: Any = type(attention.module)
    for name, value in _keywords(kind):
        if name in UNDERSTOOD:
            continue
        # `softcap=self.attn_logit_softcapping` is no cap where the attribute is None.
        if value is not None and getattr(attention.module, value, value) is None:
            continue
        raise ValueError(
            f"{attention.class_name} ({attention.name}) gives its attention {name!r}, which this "
            "conversion does not compute: its scores cannot be replaced."
        )


def check_pure_scores(attentions: list[Attention], selected: set[str], positions: str) -> None:
    """Whether networks alone can stand in the place of the dot products.

    Args:
        attentions: every one of the model.
        selected: names of those whose score is replaced.
        positions: of the conversion.

    Raises:
        ValueError: layers share their keys, or one turns queries and keys itself where they are
            wanted without.
    """
    for attention in attentions:
        if getattr(attention.module, "is_kv_shared_layer", False):
            raise ValueError(
                f"{attention.class_name} ({attention.name}) takes the keys of another layer from "
                "the cache, where a network alone stores its own features of them: use "
                "score='hybrid'."
            )
        turns = attention.is_rotary and not attention.is_given_its_rotation
        if turns and positions != "model" and attention.name in selected:
            raise ValueError(
                f"{attention.class_name} ({attention.name}) turns queries and keys itself, and "
                f"positions={positions!r} needs them as they were: use positions='model' or "
                "score='hybrid'."
            )


@cache
def calls_interface(kind: Any) -> bool:
    """Whether a class's forward calls the attention interface, by its source."""
    return _INTERFACE in _source(kind)


@cache
def _keywords(kind: Any) -> tuple[tuple[str, str | None], ...]:
    """Keywords of the call of the interface, each with the attribute of self that it hands over."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(textwrap.dedent(_source(kind)))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id.endswith("_interface"):
            for keyword in node.keywords:
                value = keyword.value
                own = isinstance(value, ast.Attribute) and ast.unparse(value.value) == "self"
                if keyword.arg is not None:
                    found.append((keyword.arg, value.attr if own else None))  # type: ignore[attr-defined]
    return tuple(found)


def _source(kind: Any) -> str:
    if kind.__module__.partition(".")[0] == "torch":
        return ""
    try:
        return inspect.getsource(inspect.unwrap(kind.forward))
    except (OSError, TypeError):  # made at run time
        return ""


def _role(name: str, module: nn.Module) -> str:
    crosses = (part for part in name.split(".") if "cross" in part or part == "encoder_attn")
    if any(crosses) or getattr(module, "is_cross_attention", False):
        return "cross"
    # True where a module does not say: so does transformers.
    return "decoder" if getattr(module, "is_causal", True) else "encoder"


def _size(module: nn.Module, names: tuple[str, ...]) -> int:
    for holder in (module, getattr(module, "config", None)):
        for name in names:
            value: Any = getattr(holder, name, None)
            if isinstance(value, int):
                return value
    raise ValueError(
        f"{type(module).__name__} tells none of {', '.join(names)}, so it cannot be converted."
    )


def roles(attentions: list[Attention]) -> dict[str, set[int]]:
    """The layers of each role."""
    found: dict[str, set[int]] = {}
    for attention in attentions:
        found.setdefault(attention.role, set()).add(attention.index)
    return found


def chosen(attentions: list[Attention], layers: Any) -> Iterator[Attention]:
    """Those whose layer is among the role's."""
    return (one for one in attentions if one.index in layers.get(one.role, ()))
