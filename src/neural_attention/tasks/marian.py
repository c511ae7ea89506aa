"""Marian models with an arm's attention: made from scratch, or from a pretrained one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, GenerationConfig, MarianConfig, MarianMTModel

from neural_attention.hf import convert, from_pretrained
from neural_attention.hf.classes import TYPE_PREFIX
from neural_attention.hf.dot_product import DOT_PRODUCT
from neural_attention.tasks.task import BuiltModel, RunSpec
from neural_attention.tasks.wording import legible

MOST_TOKENS = 512
"""Tokens that a model from scratch takes on either side."""

_POSITIONS = {None: "model", "slopes": "slopes", "alibi": "alibi"}


def marian_config(folder: Path) -> Any:
    """The configuration of a pretrained Marian model.

    Raises:
        ValueError: the folder holds another model.
    """
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if config.model_type != "marian":
        raise ValueError(
            f"{legible(folder)} holds a model of type {config.model_type!r}: a stock 'marian' is "
            "needed, such as Helsinki-NLP/opus-mt-de-en."
        )
    return config


def conversion(spec: RunSpec) -> dict[str, Any] | None:
    """Keywords of :func:`neural_attention.hf.convert` for an arm; None for the model's own.

    Raises:
        ValueError: a Marian model cannot have the arm's attention.
    """
    attention, layers, roles = spec.attention, spec.layers, spec.attention.get("roles")
    positions = attention.get("positions")
    if positions not in _POSITIONS:
        raise ValueError(
            f"positions are {positions!r}: Marian adds sinusoids to its embeddings, and an arm "
            "keeps them; slopes or alibi can be added to its attention."
        )
    if positions is not None and roles == ["cross"]:
        raise ValueError(
            f"{positions} are of distances within one sentence, and cross-attention has two: leave "
            f"{positions} out, or add a role."
        )
    if "kv_heads" in spec.overrides:
        raise ValueError("kv_heads: Marian has as many heads of keys and values as of queries.")
    projection = attention["projection"]
    if attention["score"] == "dot" and projection == "linear" and positions is None:
        if roles is not None:
            raise ValueError("roles say where an attention stands, and Marian's own is everywhere.")
        return None
    chosen = {"all": None, "first": [0]}[layers] if isinstance(layers, str) else layers
    return {
        "score": attention["score"],
        "projection": projection,
        "positions": _POSITIONS[positions],
        "layers": chosen if roles is None else dict.fromkeys(roles, chosen),
        "init": spec.sizes["init"],
        "score_network": attention.get("score_network"),
    }


def build(spec: RunSpec, backend: str | None) -> BuiltModel:
    """The model of a run; see :meth:`neural_attention.tasks.task.Task.build`."""
    options = conversion(spec)
    if backend == "sdpa" and options is not None and options["positions"] == "alibi":
        raise ValueError("ALiBi of a converted model is computed by this library's kernels alone")
    implementation = DOT_PRODUCT if backend is None else backend
    torch.manual_seed(spec.seed)
    model: Any = _stock(spec, implementation)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    if "feed_forward" in spec.overrides:
        shapes = _widen(model, spec.overrides["feed_forward"])
    if options is not None:
        # Drawn after the stock model's values, which every arm has.
        torch.manual_seed(spec.seed)
        model = convert(model, **options)
    shared: list[str] = []
    own: list[str] = []
    for name, parameter in model.named_parameters():
        (shared if shapes.get(name) == parameter.shape else own).append(name)
    return BuiltModel(model, tuple(shared), tuple(own))


def load(folder: Path) -> Any:
    """A saved run's model, its dot products on this library's kernels."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    is_converted = config.model_type.startswith(TYPE_PREFIX)
    opened = from_pretrained if is_converted else MarianMTModel.from_pretrained
    return opened(folder, attn_implementation=DOT_PRODUCT, local_files_only=True)


def _stock(spec: RunSpec, implementation: str) -> Any:
    """The dot-product model, before anything is converted."""
    sizes = spec.sizes
    on_meta = torch.empty(0).is_meta
    if sizes["pretrained"] is not None:
        folder = Path(sizes["pretrained"])
        if on_meta:
            config = marian_config(folder)
            config._attn_implementation = implementation
            return MarianMTModel(config)
        return MarianMTModel.from_pretrained(
            folder, attn_implementation=implementation, local_files_only=True, dtype=torch.float32
        )
    config = MarianConfig(**_from_scratch(sizes), attn_implementation=implementation)
    model: Any = MarianMTModel(config)
    model.generation_config = GenerationConfig(
        decoder_start_token_id=sizes["pad"],
        pad_token_id=sizes["pad"],
        eos_token_id=sizes["end"],
        bad_words_ids=[[sizes["pad"]]],
        num_beams=spec.training["num_beams"],
        max_new_tokens=spec.training["most_new_tokens"],
    )
    return model


def _from_scratch(sizes: Mapping[str, Any]) -> dict[str, Any]:
    width, depth, heads = (
        sizes[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    by_side = {"layers": depth, "attention_heads": heads, "ffn_dim": sizes["intermediate_size"]}
    sides = ("encoder", "decoder")
    return {f"{side}_{name}": by_side[name] for side in sides for name in by_side} | {
        "d_model": width,
        "vocab_size": sizes["vocab_size"],
        "dropout": sizes["dropout"],
        "max_position_embeddings": MOST_TOKENS,
        # Embeddings, scaled by the root of the width, begin as large as the sinusoids.
        "scale_embedding": True,
        "init_std": width**-0.5,
        "eos_token_id": sizes["end"],
        "forced_eos_token_id": None,
        "pad_token_id": sizes["pad"],
        "decoder_start_token_id": sizes["pad"],
    }


def _widen(model: Any, width: int) -> dict[str, torch.Size]:
    """Give every layer a feed-forward of another width; the parameters that stay, with shapes.

    What is wider keeps the values there are, and computes the same at the start: the new columns of
    the second map are zero.

    Raises:
        ValueError: the layers are wider already.
    """
    for side in (model.model.encoder, model.model.decoder):
        for layer in side.layers:
            first, second = layer.fc1, layer.fc2
            have = first.out_features
            if width < have:
                raise ValueError(
                    f"feed_forward is {width}, and the model's layers have {have}: a wider one is "
                    "needed."
                )
            layer.fc1 = torch.nn.Linear(first.in_features, width, device=first.weight.device)
            layer.fc2 = torch.nn.Linear(width, second.out_features, device=first.weight.device)
            if first.weight.is_meta:
                continue
            with torch.no_grad():
                for new in (layer.fc1, layer.fc2):
                    model._init_weights(new)
                layer.fc1.weight[:have] = first.weight
                layer.fc1.bias[:have] = first.bias
                layer.fc2.weight.zero_()
                layer.fc2.weight[:, :have] = second.weight
                layer.fc2.bias.copy_(second.bias)
    config = model.config
    config.encoder_ffn_dim = config.decoder_ffn_dim = width
    return {
        name: parameter.shape
        for name, parameter in model.named_parameters()
        if not name.endswith(("fc1.weight", "fc1.bias", "fc2.weight"))
    }
