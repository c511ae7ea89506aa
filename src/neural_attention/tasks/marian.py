"""Marian models for translation: made from scratch, or pretrained ones."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from neural_attention.tasks.pretrained import load_pretrained
from neural_attention.tasks.task import RunSpec

MOST_TOKENS = 512
"""Tokens that a model from scratch takes on either side."""


def marian_config(name: str) -> Any:
    """The configuration of a pretrained Marian model, from a folder or the hub.

    Raises:
        ValueError: it cannot be loaded, or is another model's.
    """
    config = load_pretrained("config", name)
    if config.model_type != "marian":
        raise ValueError(
            f"{name} is a model of type {config.model_type!r}: a stock 'marian' is needed, such as "
            "Helsinki-NLP/opus-mt-de-en."
        )
    return config


def stock_model(spec: RunSpec) -> Any:
    """The dot-product model of a run, with its width of feed-forward layers.

    Raises:
        ValueError: what a Marian model cannot have.
    """
    if "kv_heads" in spec.overrides:
        raise ValueError("kv_heads: Marian has as many heads of keys and values as of queries.")
    pretrained = spec.sizes["pretrained"]
    if pretrained is None:
        model = _from_scratch(spec)
    else:
        model = load_pretrained("seq2seq", pretrained).float()
    if "feed_forward" in spec.overrides:
        _widen(model, spec.overrides["feed_forward"])
    return model


def _from_scratch(spec: RunSpec) -> Any:
    sizes, training = spec.sizes, spec.training
    by_side = {
        "layers": sizes["num_hidden_layers"],
        "attention_heads": sizes["num_attention_heads"],
        "ffn_dim": sizes["intermediate_size"],
    }
    sides = {f"{side}_{name}": by_side[name] for side in ("encoder", "decoder") for name in by_side}
    model: Any = MarianMTModel(
        MarianConfig(
            **sides,
            d_model=sizes["hidden_size"],
            vocab_size=sizes["vocab_size"],
            dropout=sizes["dropout"],
            max_position_embeddings=MOST_TOKENS,
            # Embeddings, scaled by the root of the width, begin as large as the sinusoids.
            scale_embedding=True,
            init_std=sizes["hidden_size"] ** -0.5,
            eos_token_id=sizes["end"],
            forced_eos_token_id=None,
            pad_token_id=sizes["pad"],
            decoder_start_token_id=sizes["pad"],
        )
    )
    model.generation_config = GenerationConfig(
        decoder_start_token_id=sizes["pad"],
        pad_token_id=sizes["pad"],
        eos_token_id=sizes["end"],
        bad_words_ids=[[sizes["pad"]]],
        num_beams=training["num_beams"],
        max_new_tokens=training["most_new_tokens"],
    )
    return model


def _widen(model: Any, width: int) -> None:
    """Give every layer a wider feed-forward that keeps what it computes: the rest ends in zeros.

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
            model._init_weights(layer.fc1)
            with torch.no_grad():
                layer.fc1.weight[:have] = first.weight
                layer.fc1.bias[:have] = first.bias
                layer.fc2.weight.zero_()
                layer.fc2.weight[:, :have] = second.weight
                layer.fc2.bias.copy_(second.bias)
    model.config.encoder_ffn_dim = model.config.decoder_ffn_dim = width
