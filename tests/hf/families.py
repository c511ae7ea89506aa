"""Tiny stock models of every supported family, with weights large enough for attention to show."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

import neural_attention as na

VOCABULARY, WIDTH, HEADS, LAYERS, PAD = 61, 32, 4, 2, 0
_COMMON = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}
_ROTARY = {
    **_COMMON,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
_BERT = {
    **_COMMON,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_IMAGE = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "image_size": 8,
    "patch_size": 2,
    "num_labels": 5,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_TRANSLATION = {
    **_COMMON,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 64,
    "init_std": 0.2,
    "dropout": 0.0,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}


@dataclass(frozen=True)
class Family:
    """A model type, the class that is tested, and its configuration's keywords."""

    name: str
    model: str
    config: str
    options: Mapping[str, Any]
    kind: str  # decoder, encoder, translation or image

    def make(self, **changes: Any) -> Any:
        """The stock model with random weights, in eval mode: the same each time."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**{**self.options, **changes})
        model = getattr(transformers, self.model)(config).eval()
        model.requires_grad_(True)
        return model

    def converted(self, changes: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """A converted one, all of whose new parameters do something."""
        model = quiet_convert(self.make(**(changes or {})), **{"init": "random", **options})
        disturb(model)
        return model

    def inputs(self, batch: int = 2, length: int = 9) -> dict[str, Tensor]:
        """Inputs without padding."""
        torch.manual_seed(1)
        if self.kind == "image":
            return {"pixel_values": torch.randn(batch, 3, 8, 8)}
        tokens = torch.randint(3, VOCABULARY, (batch, length))
        inputs = {"input_ids": tokens}
        if self.kind == "translation":
            inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (batch, length - 2))
        return inputs


FAMILIES = {
    family.name: family
    for family in (
        Family("marian", "MarianMTModel", "MarianConfig", _TRANSLATION, "translation"),
        Family("bart", "BartForConditionalGeneration", "BartConfig", _TRANSLATION, "translation"),
        Family("roberta", "RobertaForMaskedLM", "RobertaConfig", _BERT, "encoder"),
        Family("bert", "BertForMaskedLM", "BertConfig", _BERT, "encoder"),
        Family(
            "distilbert",
            "DistilBertForMaskedLM",
            "DistilBertConfig",
            {
                **_COMMON,
                "dim": WIDTH,
                "hidden_dim": 48,
                "n_layers": LAYERS,
                "n_heads": HEADS,
                "max_position_embeddings": 64,
                "initializer_range": 0.2,
                "dropout": 0.0,
                "attention_dropout": 0.0,
            },
            "encoder",
        ),
        Family(
            "gpt2",
            "GPT2LMHeadModel",
            "GPT2Config",
            {
                **_COMMON,
                "n_embd": WIDTH,
                "n_layer": LAYERS,
                "n_head": HEADS,
                "n_positions": 64,
                "initializer_range": 0.2,
                "resid_pdrop": 0.0,
                "embd_pdrop": 0.0,
                "attn_pdrop": 0.0,
            },
            "decoder",
        ),
        Family("vit", "ViTForImageClassification", "ViTConfig", _IMAGE, "image"),
        Family("deit", "DeiTForImageClassification", "DeiTConfig", _IMAGE, "image"),
        Family("llama", "LlamaForCausalLM", "LlamaConfig", _ROTARY, "decoder"),
        Family("qwen3", "Qwen3ForCausalLM", "Qwen3Config", _ROTARY, "decoder"),
        Family(
            "mistral",
            "MistralForCausalLM",
            "MistralConfig",
            {**_ROTARY, "sliding_window": 5},
            "decoder",
        ),
        Family(
            "gemma",
            "GemmaForCausalLM",
            "GemmaConfig",
            {**_ROTARY, "num_key_value_heads": 1},
            "decoder",
        ),
        Family(
            "gemma3_text",
            "Gemma3ForCausalLM",
            "Gemma3TextConfig",
            {
                **_ROTARY,
                "sliding_window": 5,
                "layer_types": ["sliding_attention", "full_attention"],
                "query_pre_attn_scalar": 8,
            },
            "decoder",
        ),
    )
}

DECODERS = [name for name, family in FAMILIES.items() if family.kind == "decoder"]
TRANSLATORS = [name for name, family in FAMILIES.items() if family.kind == "translation"]
TEXT = [name for name, family in FAMILIES.items() if family.kind != "image"]

# Scores whose every part is used, for tests that any of them must pass.
SCORES: dict[str, dict[str, Any]] = {
    "neural": {"score": "neural", "positions": "slopes", "score_network": {"width": 6}},
    "hybrid": {"score": "hybrid", "positions": "slopes", "score_network": {"width": 6}},
    "alibi": {"score": "dot", "positions": "alibi"},
}


def cache_name(model: Any) -> str:
    """The argument and output that holds the key-value cache, renamed in transformers 5.24."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def quiet_convert(model: Any, **options: Any) -> Any:
    """``convert`` without the warning about rotated queries and keys."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is not relative.*")
        return na.hf.convert(model, **options)


@torch.no_grad()
def disturb(model: Any, scale: float = 0.2) -> None:
    """Move every parameter that a conversion added away from its start."""
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        if "neural_attention" in name or "network" in name:
            parameter.add_(scale * torch.randn_like(parameter))


def logits(model: Any, inputs: Mapping[str, Any]) -> Tensor:
    """Of the last layer, in float32."""
    return model(**inputs).logits.float()
