"""Translation as a task of a comparison."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neural_attention.tasks.converted import build_converted, load_converted
from neural_attention.tasks.parallel_text import ParallelText, load_parallel, overlaps
from neural_attention.tasks.parallel_tokens import (
    PairFiles,
    encode_pairs,
    load_pair_tokenizer,
)
from neural_attention.tasks.pretrained import load_pretrained, model_sha256, named_model
from neural_attention.tasks.task import (
    PARTS,
    BuiltModel,
    Measure,
    Part,
    RunSpec,
    Say,
    Task,
    TrainingSet,
)
from neural_attention.tasks.translating import (
    NO_LABEL,
    batch_of,
    measure,
    signatures,
    token_loss,
    translate_ids,
)
from neural_attention.tasks.translation_presets import PRESETS, TranslationPreset
from neural_attention.tasks.wording import counted

PAIRS_AT_ONCE = 32
MOST_PASSES = 50


_FROM_SCRATCH = ("dot", "dot+alibi", "neural", "hybrid", "projection=mlp:qko")
_PRETRAINED = ("dot", "projection=mlp:qko", "projection=residual:qko", "hybrid")
_LOSS = Measure("loss", "loss", True, "difference", "loss", " nats", 3)


class Translation(Task):
    """BLEU of Marian models from scratch or pretrained; see :class:`TranslationPreset`."""

    name = "translation"
    title = "translation models"
    presets = PRESETS
    measures = (
        Measure("bleu", "BLEU", False, "difference", "BLEU"),
        Measure("chrf", "chrF", False, "difference", "chrF"),
        _LOSS,
    )
    choice = _LOSS
    unit = "tokens"
    data_noun = "text"
    converts = True

    def choose(self, preset: TranslationPreset, options: Mapping[str, Any]) -> TranslationPreset:
        """The preset with what the options change in its model and data."""
        changes = {name: value for name, value in options.items() if value is not None}
        if "data" in changes:
            # The preset's languages are those of its own data.
            changes = {"source_language": None, "target_language": None, **changes}
        if "vocab_size" in changes:
            size = changes["vocab_size"]
            if not (size.isascii() and size.isdigit() and int(size) > 0):
                raise ValueError(f"vocab size is {size!r}: a whole number of entries is needed.")
            changes["vocab_size"] = int(size)
        if "model" in changes:
            changes["model"] = named_model(changes["model"])
        chosen = replace(preset, **changes)
        if chosen.model is not None and "vocab_size" in changes:
            raise ValueError("a pretrained model has its own vocabulary: leave --vocab-size out.")
        return chosen

    def default_arms(self, preset: TranslationPreset) -> tuple[str, ...]:
        """From scratch scores are compared too, in a pretrained model the paper's projections."""
        return _FROM_SCRATCH if preset.model is None else _PRETRAINED

    def read(self, preset: TranslationPreset, say: Say) -> tuple[ParallelText, list[str]]:
        """The pairs, and what is the matter with them; the pretrained model is looked at too."""
        signatures()  # better without sacreBLEU now than after the training
        if preset.model is not None:
            from neural_attention.tasks.marian import marian_config

            marian_config(preset.model)
            # Better now than in every run.
            load_pretrained("seq2seq", preset.model)
        text = load_parallel(preset.data, preset.source_language, preset.target_language)
        source, target = text.languages
        say(f"data: {text.source}, {source} to {target}; sha256 {text.sha256[:16]}")
        return text, [*text.notes, *overlaps(text)]

    def prepare(
        self, source: ParallelText, preset: TranslationPreset, folder: Path, say: Say
    ) -> dict[str, Any]:
        """The sequences, written into ``folder``."""
        files = encode_pairs(
            source,
            folder,
            tokenizer=preset.model,
            vocab_size=preset.vocab_size,
            length=preset.length,
            limit=_most_tokens(preset),
            say=say,
        )
        return {
            **asdict(files),
            "source": source.source,
            "languages": list(source.languages),
            "text_sha256": source.sha256,
            "model_sha256": model_sha256(preset.model) if preset.model is not None else None,
            "counted": "pairs",
        }

    def describe(self, data: Mapping[str, Any]) -> str:
        """Pairs of each part, and the vocabulary."""
        counts = ", ".join(f"{data['counts'][part]:,} {part}" for part in PARTS)
        return f"pairs: {counts} ({data['tokenizer']})"

    def notes(self, preset: TranslationPreset, data: Mapping[str, Any]) -> list[str]:
        """How translations were measured, and what to mind about the data."""
        told = [f"{name}: sacreBLEU, {value}." for name, value in signatures().items()]
        if data["left_out"]:
            pairs = counted(data["left_out"], "training pair")
            told.append(f"{pairs} of more than {preset.length} tokens left out.")
        if data["cut"]:
            told.append(
                f"{counted(data['cut'], 'validation or test sequence')} cut to the "
                f"{_most_tokens(preset)} tokens that the model takes."
            )
        passes = preset.steps * preset.batch_size / data["counts"]["train"]
        if passes > MOST_PASSES:
            told.append(
                f"the training pairs are read {passes:.0f} times over, which models of this size "
                "learn by heart: give more with --data."
            )
        return told

    def evaluation(self, preset: TranslationPreset, data: Mapping[str, Any]) -> dict[str, str]:
        """How scores and curves are taken."""
        told = ", ".join(f"{name} {value}" for name, value in signatures().items())
        counts = data["counts"]
        sentences = min(preset.validation_sentences, counts["validation"])
        return {
            "evaluation": (
                f"sacreBLEU ({told}) of translations by beam search with "
                f"{counted(preset.num_beams, 'beam')} and at most {preset.most_new_tokens} tokens: "
                f"all {counted(counts['test'], 'test sentence')}, the first "
                f"{sentences:,} of the validation part; loss is the mean over all target tokens of "
                "a part, not smoothed"
            ),
            "curves": (
                "validation loss over the first "
                f"{counted(min(preset.curve_pairs, counts['validation']), 'pair')} of that part"
            ),
        }

    def sizes(self, preset: TranslationPreset, data: Mapping[str, Any] | None) -> dict[str, Any]:
        """Sizes of the model; any vocabulary where there are no data yet."""
        if preset.model is not None:
            from neural_attention.tasks.marian import marian_config

            config = marian_config(preset.model)
            return {
                "pretrained": preset.model,
                "hidden_size": config.d_model,
                "intermediate_size": config.encoder_ffn_dim,
                "num_hidden_layers": config.encoder_layers,
                "num_attention_heads": config.encoder_attention_heads,
            }
        return {
            "pretrained": None,
            "hidden_size": preset.hidden_size,
            "intermediate_size": preset.intermediate_size,
            "num_hidden_layers": preset.num_layers,
            "num_attention_heads": preset.num_heads,
            "dropout": preset.dropout,
            "vocab_size": data["vocab_size"] if data is not None else preset.vocab_size,
            "end": data["end"] if data is not None else 0,
            "pad": data["pad"] if data is not None else 1,
        }

    def head_dim(self, preset: TranslationPreset) -> int:
        """Width of a head."""
        sizes = self.sizes(preset, None)
        return int(sizes["hidden_size"] // sizes["num_attention_heads"])

    def training(self, preset: TranslationPreset) -> dict[str, Any]:
        """What training and scoring read of the preset."""
        names = ("curve_pairs", "validation_sentences", "num_beams", "most_new_tokens")
        return {name: getattr(preset, name) for name in names}

    def build(self, spec: RunSpec, backend: str | None = None) -> BuiltModel:
        """Every parameter of the dot-product model that the arm keeps starts as it does there."""
        from neural_attention.tasks.marian import stock_model

        is_pretrained = spec.sizes["pretrained"] is not None
        return build_converted(stock_model, spec, backend, is_pretrained=is_pretrained)

    def save(self, model: Any, folder: Path, spec: RunSpec) -> None:
        """The weights of a run with the tokeniser, so that it can translate."""
        model.save_pretrained(folder)
        load_pair_tokenizer(_files(spec).tokenizer_folder).save_pretrained(folder)

    def load(self, folder: Path, spec: RunSpec) -> Any:
        """The weights of a run."""
        from transformers import AutoModelForSeq2SeqLM

        return load_converted(AutoModelForSeq2SeqLM, folder)

    def training_set(self, spec: RunSpec) -> TrainingSet:
        """Pairs of the training part."""
        count = spec.training["steps"] * spec.training["batch_size"]
        return TrainingPairs(_files(spec).load("train"), count, spec.seed)

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """A batch: source ids and their mask, and labels, each (batch, longest), int64."""
        return batch_of([(one["source"], one["target"]) for one in examples])

    def units(self, batch: Mapping[str, torch.Tensor]) -> int:
        """Tokens of the translations, padding left out."""
        return int(batch["labels"].ne(NO_LABEL).sum())

    def curve_point(self, model: Any, spec: RunSpec) -> float:
        """Loss over the first pairs of the validation part."""
        pairs = _files(spec).load("validation")
        count = min(spec.training["curve_pairs"], len(pairs))
        return token_loss(model, [pairs[index] for index in range(count)], PAIRS_AT_ONCE)

    def score(self, model: Any, spec: RunSpec, part: Part) -> dict[str, Any]:
        """The loss of a part; BLEU and chrF of it, or of the first validation sentences."""
        files = _files(spec)
        pairs = list(files.load(part))
        references = files.references(part)
        if part == "validation":
            references = references[: spec.training["validation_sentences"]]
        made = translate_ids(
            model,
            [source for source, _ in pairs[: len(references)]],
            batch_size=PAIRS_AT_ONCE,
            num_beams=spec.training["num_beams"],
            max_new_tokens=spec.training["most_new_tokens"],
        )
        tokenizer = load_pair_tokenizer(files.tokenizer_folder)
        texts = tokenizer.batch_decode(made, skip_special_tokens=True)
        return {
            "loss": token_loss(model, pairs, PAIRS_AT_ONCE),
            **measure(texts, references),
            "sentences": len(texts),
        }

    def probe(self, spec: RunSpec) -> dict[str, torch.Tensor]:
        """Two pairs of the validation part."""
        pairs = _files(spec).load("validation")
        return batch_of([pairs[index] for index in range(min(2, len(pairs)))])


class TrainingPairs(TrainingSet):
    """Pairs in random order, each once a pass.

    Args:
        pairs: the training part.
        count: how many are read in the whole run.
        seed: of the order.
    """

    def __init__(self, pairs: Any, count: int, seed: int) -> None:
        self.pairs = pairs
        generator = np.random.Generator(np.random.PCG64(seed))
        passes = -(-count // len(pairs))
        orders = [generator.permutation(len(pairs)) for _ in range(passes)]
        self.order = np.concatenate(orders)[:count]

    @property
    def sha256(self) -> str:
        """Hash of the order in which the pairs are read."""
        return hashlib.sha256(self.order.astype("<i8").tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Any]:
        source, target = self.pairs[int(self.order[index])]
        return {"source": source, "target": target}


def _files(spec: RunSpec) -> PairFiles:
    return PairFiles.of(spec.data)


def _most_tokens(preset: TranslationPreset) -> int:
    from neural_attention.tasks.marian import MOST_TOKENS, marian_config

    if preset.model is None:
        return MOST_TOKENS
    return int(marian_config(preset.model).max_position_embeddings)
