"""Causal language modelling as a task of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from neural_attention.models.language import NeuralAttentionForCausalLM, NeuralAttentionLMConfig
from neural_attention.tasks import language_modelling as scoring
from neural_attention.tasks.json_files import NUMBER, has_form, is_amount, is_count
from neural_attention.tasks.sharing import share_values
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
from neural_attention.tasks.tokens import TokenFiles, tokenise
from neural_attention.tasks.wording import counted

PROBE_LENGTH = 128
TOKENS_SCORED_AT_ONCE = 2048
MOST_PASSES = 10


@dataclass(frozen=True, kw_only=True)
class LanguagePreset(Preset):
    """A language model, its training and its evaluation.

    Attributes:
        architecture: ``"current"`` or ``"paper"``, see
            :class:`neural_attention.models.language.NeuralAttentionLMConfig`.
        hidden_size, intermediate_size, num_layers, num_heads: sizes of the model.
        length: tokens of a training sequence and of an evaluation window.
        stride: how far the evaluation window moves.
        curve_tokens: validation tokens of a point of the curve.
        vocab_size: entries of the tokeniser that is trained when none is given.
        data, tokenizer: used when the command names none; None for the built-in text and a
            tokeniser trained on it.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    length: int
    stride: int
    curve_tokens: int
    vocab_size: int
    data: str | None = None
    tokenizer: str | None = None


PRESETS: Mapping[str, LanguagePreset] = MappingProxyType(
    {
        "smoke": LanguagePreset(
            purpose="does everything once, in seconds; the numbers mean nothing",
            architecture="current",
            hidden_size=32,
            intermediate_size=64,
            num_layers=2,
            num_heads=2,
            length=32,
            stride=16,
            batch_size=4,
            steps=12,
            warmup_steps=2,
            learning_rates=(3e-3,),
            seeds=1,
            evaluations=3,
            curve_tokens=256,
            vocab_size=320,
        ),
        "quick": LanguagePreset(
            purpose="a first look, minutes on two cores",
            architecture="current",
            hidden_size=128,
            intermediate_size=344,
            num_layers=2,
            num_heads=2,
            length=128,
            stride=64,
            batch_size=8,
            steps=200,
            warmup_steps=20,
            learning_rates=(3e-3, 6e-3, 1.2e-2),
            seeds=1,
            evaluations=8,
            curve_tokens=2048,
            vocab_size=1024,
        ),
        "laptop": LanguagePreset(
            purpose="at most 15 minutes a run on one core; give it a text of some megabytes",
            architecture="current",
            hidden_size=128,
            intermediate_size=344,
            num_layers=4,
            num_heads=2,
            length=256,
            stride=128,
            batch_size=8,
            steps=2400,
            warmup_steps=120,
            learning_rates=(2e-3, 4e-3, 8e-3),
            seeds=3,
            evaluations=20,
            curve_tokens=8192,
            vocab_size=2048,
        ),
        "paper": LanguagePreset(
            purpose="the sizes of arXiv 2502.17206: days on a GPU",
            architecture="paper",
            hidden_size=512,
            intermediate_size=1024,
            num_layers=8,
            num_heads=8,
            length=1024,
            stride=512,
            batch_size=16,
            steps=125_000,
            warmup_steps=2_000,
            learning_rates=(1e-4, 3e-4, 1e-3),
            seeds=3,
            evaluations=100,
            curve_tokens=262_144,
            vocab_size=28_996,
            data="Salesforce/wikitext:wikitext-103-raw-v1",
            tokenizer="google-bert/bert-base-cased",
        ),
    }
)

DEFAULT_ARMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "current": ("dot", "dot+alibi", "neural"),
        "paper": ("dot", "neural:release+layers=first", "neural+layers=first"),
    }
)
"""The arms of each architecture that are compared where none are named."""

_SCORE: dict[str, object] = {
    "tokens": is_count,
    "bytes": is_count,
    "loss": is_amount,
    "perplexity": NUMBER,
    "bits_per_byte": is_amount,
}
_PERPLEXITY = Measure("perplexity", "perplexity", True, "ratio", "ppl")
_LOSS = Measure("loss", "loss", True, "difference", "loss", " nats", 3)


class LanguageModelling(Task):
    """Perplexity of small language models on a text; see :class:`LanguagePreset`."""

    name = "lm"
    title = "language models"
    presets = PRESETS
    measures = (
        _PERPLEXITY,
        Measure("bits_per_byte", "bits per byte", True, "difference", "bits/\nbyte", "", 3),
    )
    choice = _LOSS
    unit = "tokens"
    data_noun = "text"

    def choose(self, preset: LanguagePreset, options: Mapping[str, Any]) -> LanguagePreset:
        """The preset with what the options change in its model and data."""
        changes = {name: options.get(name) for name in ("data", "tokenizer")}
        changes["architecture"] = model = options.get("model")
        if model is not None and model not in DEFAULT_ARMS:
            raise ValueError(f"unknown model {model!r}; known are {', '.join(DEFAULT_ARMS)}.")
        return replace(preset, **{n: value for n, value in changes.items() if value is not None})

    def default_arms(self, preset: LanguagePreset) -> tuple[str, ...]:
        """Those of the architecture."""
        return DEFAULT_ARMS[preset.architecture]

    def read(self, preset: LanguagePreset, say: Say) -> tuple[TextSplits, list[str]]:
        """The text, and what is the matter with its parts."""
        text = load_text(preset.data)
        say(f"data: {text.source}; sha256 {text.sha256[:16]}")
        notes = overlaps(text)
        for part in PARTS:
            # No tokeniser makes more tokens of a text than it has bytes.
            size = len(getattr(text, part).encode())
            if size < _tokens_needed(part, preset):
                raise _too_short(part, counted(size, "byte"), preset)
        return text, notes

    def prepare(
        self, source: TextSplits, preset: LanguagePreset, folder: Path, say: Say
    ) -> dict[str, Any]:
        """The tokens, written into ``folder``."""
        files = tokenise(
            source, folder, tokenizer=preset.tokenizer, say=say, vocab_size=preset.vocab_size
        )
        for part in PARTS:
            if files.counts[part] < _tokens_needed(part, preset):
                raise _too_short(part, counted(files.counts[part], "token"), preset)
        return {
            **asdict(files),
            "source": source.source,
            "text_sha256": source.sha256,
            "counted": "tokens",
        }

    def describe(self, data: Mapping[str, Any]) -> str:
        """Tokens of each part."""
        counts = ", ".join(f"{data['counts'][part]:,} {part}" for part in PARTS)
        return f"tokens: {counts} ({data['tokenizer']})"

    def notes(self, preset: LanguagePreset, data: Mapping[str, Any]) -> list[str]:
        """Whether the text is read too often."""
        passes = preset.steps * preset.batch_size * preset.length / data["counts"]["train"]
        if passes <= MOST_PASSES:
            return []
        return [
            f"the training text is read {passes:.0f} times over, which models of this size learn "
            "by heart: give a longer text with --data."
        ]

    def evaluation(self, preset: LanguagePreset, data: Mapping[str, Any]) -> dict[str, str]:
        """How scores and curves are taken."""
        tokens = min(preset.curve_tokens, data["counts"]["validation"])
        return {
            "evaluation": (
                f"windows of {preset.length} tokens moved by {preset.stride}, each token scored "
                "once"
            ),
            "curves": (
                f"validation loss over the first {counted(tokens, 'token')} of that part, in "
                f"windows of {preset.length} without overlap"
            ),
        }

    def sizes(self, preset: LanguagePreset, data: Mapping[str, Any] | None) -> dict[str, Any]:
        """Keywords of the model's configuration; any vocabulary where there are no data yet."""
        return {
            "architecture": preset.architecture,
            "vocab_size": data["vocab_size"] if data is not None else preset.vocab_size,
            "hidden_size": preset.hidden_size,
            "intermediate_size": preset.intermediate_size,
            "num_hidden_layers": preset.num_layers,
            "num_attention_heads": preset.num_heads,
            "bos_token_id": data["start_token"] if data is not None else 0,
        }

    def head_dim(self, preset: LanguagePreset) -> int:
        """Width of a head."""
        return preset.hidden_size // preset.num_heads

    def training(self, preset: LanguagePreset) -> dict[str, Any]:
        """What training and scoring read of the preset."""
        return {name: getattr(preset, name) for name in ("length", "stride", "curve_tokens")}

    def build(self, spec: RunSpec, backend: str | None = None) -> BuiltModel:
        """Each parameter of the dot-product model's name and shape is copied from that."""
        torch.manual_seed(spec.seed)
        plain = replace(spec, attention={"score": "dot"}, layers="all", overrides={})
        base = NeuralAttentionForCausalLM(_config(plain))
        torch.manual_seed(spec.seed)
        model = NeuralAttentionForCausalLM(_config(spec, backend))
        shared, own = share_values(base, model)
        return BuiltModel(model, shared, own)

    def load(self, folder: Path, spec: RunSpec) -> NeuralAttentionForCausalLM:
        """The weights of a run."""
        return NeuralAttentionForCausalLM.from_pretrained(folder)

    def training_set(self, spec: RunSpec) -> TrainingSet:
        """Blocks of the training text."""
        settings = spec.training
        return scoring.TrainingBlocks(
            _files(spec).load("train"),
            settings["length"],
            settings["steps"] * settings["batch_size"],
            spec.seed,
        )

    def units(self, batch: Mapping[str, torch.Tensor]) -> int:
        """Tokens."""
        return batch["input_ids"].numel()

    def curve_point(self, model: Any, spec: RunSpec) -> float:
        """Loss over the first tokens of the validation part, in windows without overlap."""
        length, files = spec.training["length"], _files(spec)
        return scoring.strided_score(
            model,
            files.load("validation")[: spec.training["curve_tokens"]],
            length=length,
            stride=length,
            start_token=files.start_token,
            num_bytes=1,
            batch_size=_windows_at_once(length),
        ).loss

    def score(self, model: Any, spec: RunSpec, part: Part) -> dict[str, Any]:
        """The strided score of a part."""
        files = _files(spec)
        score = scoring.strided_score(
            model,
            files.load(part),
            length=spec.training["length"],
            stride=spec.training["stride"],
            start_token=files.start_token,
            num_bytes=files.bytes[part],
            batch_size=_windows_at_once(spec.training["length"]),
        )
        return asdict(score)

    def is_score(self, score: object, part: Part) -> bool:
        """Whether it has the fields of a score, and its loss and perplexity are one another's."""
        return has_form(score, _SCORE) and scoring.has_its_perplexity(score)  # type: ignore[arg-type]

    def probe(self, spec: RunSpec) -> dict[str, torch.Tensor]:
        """Two windows of the validation part."""
        tokens = torch.from_numpy(
            _files(spec).load("validation")[: 2 * PROBE_LENGTH].astype("int64")
        )
        return {"input_ids": tokens[: len(tokens) // 2 * 2].view(2, -1)}


_OVERRIDES = {"feed_forward": "intermediate_size", "kv_heads": "num_key_value_heads"}


def _config(spec: RunSpec, backend: str | None = None) -> NeuralAttentionLMConfig:
    attention = dict(spec.attention) | ({} if backend is None else {"backend": backend})
    overrides = {_OVERRIDES[name]: value for name, value in spec.overrides.items()}
    return NeuralAttentionLMConfig(
        attention=attention, attention_layers=spec.layers, **{**spec.sizes, **overrides}
    )


def _files(spec: RunSpec) -> TokenFiles:
    return TokenFiles.of(spec.data)


def _windows_at_once(length: int) -> int:
    return max(1, TOKENS_SCORED_AT_ONCE // length)


def _tokens_needed(part: str, preset: LanguagePreset) -> int:
    return preset.length + (part == "train")


def _too_short(part: str, size: str, preset: LanguagePreset) -> ValueError:
    return ValueError(
        f"the {part} part of the data has {size}, and one sequence needs "
        f"{counted(_tokens_needed(part, preset), 'token')}: give a longer text."
    )
