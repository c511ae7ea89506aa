"""Masked language modelling as a task of a comparison: RoBERTa and its kin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from neural_attention.tasks import masking
from neural_attention.tasks.converted import build_converted, load_converted
from neural_attention.tasks.json_files import NUMBER, has_form, is_amount, is_count
from neural_attention.tasks.language_modelling import has_its_perplexity, perplexity
from neural_attention.tasks.pretrained import load_pretrained, model_sha256, named_model
from neural_attention.tasks.task import (
    PARTS,
    BuiltModel,
    Measure,
    Part,
    Preset,
    RunSpec,
    Say,
    Task,
    TrainingSet,
)
from neural_attention.tasks.text import TextSplits, load_text, overlaps
from neural_attention.tasks.tokens import TokenFiles, load_tokenizer, tokenise
from neural_attention.tasks.wording import counted

TOKENS_SCORED_AT_ONCE = 2048
PROBE_BLOCKS = 2
_SPECIAL = 2  # the tokens around a block


@dataclass(frozen=True, kw_only=True)
class MaskedPreset(Preset):
    """A masked language model, its training and its evaluation.

    Attributes:
        hidden_size, intermediate_size, num_layers, num_heads: sizes of a model from scratch.
        dropout: of a model from scratch.
        length: tokens of a block, the two around it included.
        curve_tokens: validation tokens of a point of the curve.
        vocab_size: entries of the tokeniser that is trained when none is given.
        data: used when the command names none; None for the built-in text.
        model: a pretrained model; None for one from scratch.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    dropout: float = 0.0
    length: int
    curve_tokens: int
    vocab_size: int
    data: str | None = None
    model: str | None = None


PRESETS: Mapping[str, MaskedPreset] = MappingProxyType(
    {
        "smoke": MaskedPreset(
            purpose="does everything once, in seconds; the numbers mean nothing",
            hidden_size=32,
            intermediate_size=64,
            num_layers=2,
            num_heads=2,
            length=32,
            batch_size=4,
            steps=12,
            warmup_steps=2,
            learning_rates=(3e-3,),
            seeds=1,
            evaluations=3,
            curve_tokens=256,
            vocab_size=320,
        ),
        "quick": MaskedPreset(
            purpose="a first look, minutes on two cores",
            hidden_size=128,
            intermediate_size=512,
            num_layers=2,
            num_heads=2,
            length=128,
            batch_size=8,
            steps=200,
            warmup_steps=20,
            learning_rates=(1.5e-3, 3e-3, 6e-3),
            seeds=1,
            evaluations=8,
            curve_tokens=8192,
            vocab_size=1024,
        ),
        "laptop": MaskedPreset(
            purpose="at most 15 minutes a run on one core; give it a text of some megabytes",
            hidden_size=128,
            intermediate_size=512,
            num_layers=4,
            num_heads=2,
            length=128,
            batch_size=16,
            steps=2400,
            warmup_steps=240,
            learning_rates=(1e-3, 2e-3, 4e-3),
            seeds=3,
            evaluations=20,
            curve_tokens=16384,
            vocab_size=2048,
        ),
        "paper": MaskedPreset(
            purpose="roberta-base on WikiText-103, as arXiv 2310.11398: days on a GPU",
            hidden_size=768,
            intermediate_size=3072,
            num_layers=12,
            num_heads=12,
            length=512,
            batch_size=8,
            steps=144_000,
            warmup_steps=2_000,
            learning_rates=(1e-5, 3e-5, 1e-4),
            seeds=3,
            evaluations=100,
            curve_tokens=262_144,
            vocab_size=50_265,
            data="Salesforce/wikitext:wikitext-103-raw-v1",
            model="FacebookAI/roberta-base",
        ),
    }
)

_FROM_SCRATCH = ("dot", "dot+alibi", "neural")
_PRETRAINED = ("dot", "projection=mlp:qkv+no_layer_norm", "projection=residual", "hybrid")
_PERPLEXITY = Measure("perplexity", "perplexity", True, "ratio", "ppl")
_LOSS = Measure("loss", "loss", True, "difference", "loss", " nats", 3)
_SCORE: dict[str, object] = {"tokens": is_count, "loss": is_amount, "perplexity": NUMBER}


class MaskedLanguageModelling(Task):
    """exp of the loss of masked tokens on a text; see :class:`MaskedPreset`."""

    name = "masked-lm"
    title = "masked language models"
    presets = PRESETS
    measures = (_PERPLEXITY,)
    choice = _LOSS
    unit = "tokens"
    data_noun = "text"
    converts = True

    def choose(self, preset: MaskedPreset, options: Mapping[str, Any]) -> MaskedPreset:
        """The preset with another text or model; ``model`` may be ``"scratch"``."""
        changes = {name: value for name, value in options.items() if value is not None}
        if "model" in changes:
            changes["model"] = named_model(changes["model"])
        return replace(preset, **changes)

    def default_arms(self, preset: MaskedPreset) -> tuple[str, ...]:
        """From scratch scores are compared, in a pretrained model also the paper's projections."""
        return _FROM_SCRATCH if preset.model is None else _PRETRAINED

    def read(self, preset: MaskedPreset, say: Say) -> tuple[TextSplits, list[str]]:
        """The text, and what is the matter with its parts."""
        text = load_text(preset.data)
        say(f"data: {text.source}; sha256 {text.sha256[:16]}")
        if preset.model is not None:
            # Better now than in every run.
            load_pretrained("masked-lm", preset.model)
        return text, overlaps(text)

    def prepare(
        self, source: TextSplits, preset: MaskedPreset, folder: Path, say: Say
    ) -> dict[str, Any]:
        """The tokens, written into ``folder``, and the numbers of the special ones."""
        files = tokenise(
            source, folder, tokenizer=preset.model, say=say, vocab_size=preset.vocab_size
        )
        for part in PARTS:
            if files.counts[part] < preset.length:
                raise ValueError(
                    f"the {part} part of the data has {counted(files.counts[part], 'token')}, and "
                    f"one block needs {preset.length:,}: give a longer text."
                )
        if preset.model is None:
            # Two entries more, for the mask and for padding, which no text has.
            start = files.start_token
            special = {"start": start, "end": start, "mask": files.vocab_size}
            special |= {"pad": files.vocab_size + 1, "entries": files.vocab_size + 2}
        else:
            special = masking.special_tokens(load_tokenizer(preset.model))
        return {
            **asdict(files),
            "model_sha256": model_sha256(preset.model) if preset.model is not None else None,
            "special": special,
            "source": source.source,
            "text_sha256": source.sha256,
            "counted": "tokens",
        }

    def describe(self, data: Mapping[str, Any]) -> str:
        """Tokens of each part."""
        counts = ", ".join(f"{data['counts'][part]:,} {part}" for part in PARTS)
        return f"tokens: {counts} ({data['tokenizer']})"

    def notes(self, preset: MaskedPreset, data: Mapping[str, Any]) -> list[str]:
        """None: masks differ in every pass over the text."""
        return []

    def evaluation(self, preset: MaskedPreset, data: Mapping[str, Any]) -> dict[str, str]:
        """How scores and curves are taken."""
        tokens = min(preset.curve_tokens, data["counts"]["validation"])
        return {
            "evaluation": (
                f"{masking.SHARE:.0%} of the tokens masked, the same ones for all arms and seeds, "
                f"in blocks of {preset.length} tokens; perplexity is exp of their mean loss"
            ),
            "curves": f"loss of the masked ones of the first {counted(tokens, 'token')} "
            "of the validation part",
        }

    def sizes(self, preset: MaskedPreset, data: Mapping[str, Any] | None) -> dict[str, Any]:
        """Keywords of ``RobertaConfig``, or those that a pretrained model has."""
        if preset.model is not None:
            config = load_pretrained("config", preset.model)
            return {
                "pretrained": preset.model,
                "intermediate_size": config.intermediate_size,
                "num_hidden_layers": config.num_hidden_layers,
            }
        special = {"entries": preset.vocab_size, "start": 0, "end": 0, "pad": 1}
        if data is not None:
            special = data["special"]
        return {
            "vocab_size": special["entries"],
            "hidden_size": preset.hidden_size,
            "intermediate_size": preset.intermediate_size,
            "num_hidden_layers": preset.num_layers,
            "num_attention_heads": preset.num_heads,
            "hidden_dropout_prob": preset.dropout,
            "attention_probs_dropout_prob": preset.dropout,
            # RoBERTa counts positions from behind the number of its padding token.
            "max_position_embeddings": preset.length + special["pad"] + 1,
            "type_vocab_size": 1,
            "bos_token_id": special["start"],
            "eos_token_id": special["end"],
            "pad_token_id": special["pad"],
            "tie_word_embeddings": True,
        }

    def head_dim(self, preset: MaskedPreset) -> int:
        """Width of a head."""
        if preset.model is not None:
            config = load_pretrained("config", preset.model)
            return int(config.hidden_size // config.num_attention_heads)
        return preset.hidden_size // preset.num_heads

    def training(self, preset: MaskedPreset) -> dict[str, Any]:
        """What training and scoring read of the preset."""
        return {name: getattr(preset, name) for name in ("length", "curve_tokens")}

    def build(self, spec: RunSpec, backend: str | None = None) -> BuiltModel:
        """RoBERTa, or the pretrained model, with the arm's attention."""
        return build_converted(_stock, spec, backend, is_pretrained="pretrained" in spec.sizes)

    def load(self, folder: Path, spec: RunSpec) -> Any:
        """The weights of a run."""
        from transformers import AutoModelForMaskedLM

        return load_converted(AutoModelForMaskedLM, folder)

    def training_set(self, spec: RunSpec) -> TrainingSet:
        """Blocks of the training text, each with masks of its own."""
        settings = spec.training
        return masking.MaskedBlocks(
            TokenFiles.of(spec.data).load("train"),
            length=settings["length"] - _SPECIAL,
            samples=settings["steps"] * settings["batch_size"],
            seed=spec.seed,
            special=spec.data["special"],
        )

    def units(self, batch: Mapping[str, torch.Tensor]) -> int:
        """Tokens, masked or not."""
        return batch["input_ids"].numel()

    def curve_point(self, model: Any, spec: RunSpec) -> float:
        """Loss of the masked ones of the first tokens of the validation part."""
        tokens = TokenFiles.of(spec.data).load("validation")[: spec.training["curve_tokens"]]
        return self._loss(model, spec, tokens)[0]

    def score(self, model: Any, spec: RunSpec, part: Part) -> dict[str, Any]:
        """The loss of the masked tokens of a part, and exp of it."""
        loss, tokens = self._loss(model, spec, TokenFiles.of(spec.data).load(part))
        return {"tokens": tokens, "loss": loss, "perplexity": perplexity(loss)}

    def _loss(self, model: Any, spec: RunSpec, tokens: Any) -> tuple[float, int]:
        length = spec.training["length"]
        return masking.masked_loss(
            model,
            tokens,
            length=length - _SPECIAL,
            special=spec.data["special"],
            batch_size=max(1, TOKENS_SCORED_AT_ONCE // length),
        )

    def is_score(self, score: object, part: Part) -> bool:
        """Whether it has the fields of a score, and its loss and perplexity are one another's."""
        return has_form(score, _SCORE) and has_its_perplexity(score)  # type: ignore[arg-type]

    def probe(self, spec: RunSpec) -> dict[str, torch.Tensor]:
        """Two blocks of the validation part as they are scored."""
        body = spec.training["length"] - _SPECIAL
        tokens = TokenFiles.of(spec.data).load("validation")[: PROBE_BLOCKS * body]
        inputs, *_ = next(masking.scored_blocks(tokens, body, spec.data["special"], PROBE_BLOCKS))
        return {"input_ids": inputs}


def _stock(spec: RunSpec) -> Any:
    from transformers import AutoModelForMaskedLM, RobertaConfig

    overrides = {n: v for n, v in spec.overrides.items() if n in ("feed_forward", "kv_heads")}
    if "kv_heads" in overrides:
        raise ValueError("kv_heads is for decoders: this model has as many heads for all.")
    if "pretrained" in spec.sizes:
        if overrides:
            raise ValueError("feed_forward is that of the pretrained model, and cannot differ.")
        return load_pretrained("masked-lm", spec.sizes["pretrained"])
    sizes = dict(spec.sizes)
    if "feed_forward" in overrides:
        sizes["intermediate_size"] = overrides["feed_forward"]
    return AutoModelForMaskedLM.from_config(RobertaConfig(**sizes))
