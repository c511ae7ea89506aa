"""Sizes and schedules of the comparison of translation models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from neural_attention.tasks.task import Preset


@dataclass(frozen=True, kw_only=True)
class TranslationPreset(Preset):
    """A translation model, its training and its evaluation.

    Attributes:
        hidden_size, intermediate_size, num_layers, num_heads: sizes of a model from scratch, with
            ``num_layers`` layers in the encoder and as many in the decoder.
        dropout: of a model from scratch.
        vocab_size: entries of the vocabulary that is trained for it.
        length: tokens of a training sequence at most, on either side.
        curve_pairs: validation pairs of a point of the curve.
        validation_sentences: validation sentences that are translated at the end of a run.
        num_beams, most_new_tokens: of the beam search.
        data, source_language, target_language: see :func:`.parallel_text.load_parallel`.
        model: a pretrained Marian model; None for one from scratch.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    dropout: float
    vocab_size: int
    length: int
    curve_pairs: int
    validation_sentences: int
    num_beams: int
    most_new_tokens: int
    data: str | None = None
    source_language: str | None = None
    target_language: str | None = None
    model: str | None = None


PRESETS: Mapping[str, TranslationPreset] = MappingProxyType(
    {
        "smoke": TranslationPreset(
            purpose="does everything once, in seconds; the numbers mean nothing",
            hidden_size=16,
            intermediate_size=32,
            num_layers=1,
            num_heads=2,
            dropout=0.1,
            vocab_size=512,
            length=64,
            batch_size=4,
            steps=12,
            warmup_steps=2,
            learning_rates=(3e-3,),
            seeds=1,
            evaluations=3,
            curve_pairs=8,
            validation_sentences=4,
            num_beams=2,
            most_new_tokens=8,
        ),
        "quick": TranslationPreset(
            purpose="a first look at number words, minutes on two cores",
            hidden_size=64,
            intermediate_size=128,
            num_layers=2,
            num_heads=2,
            dropout=0.0,
            vocab_size=512,
            length=64,
            batch_size=32,
            steps=400,
            warmup_steps=40,
            learning_rates=(2e-3, 4e-3, 8e-3),
            seeds=1,
            evaluations=8,
            curve_pairs=128,
            validation_sentences=100,
            num_beams=2,
            most_new_tokens=64,
        ),
        "laptop": TranslationPreset(
            purpose="about 15 minutes a run on one core; give it some ten thousand sentence pairs",
            hidden_size=128,
            intermediate_size=512,
            num_layers=3,
            num_heads=4,
            dropout=0.2,
            vocab_size=6000,
            length=96,
            batch_size=32,
            steps=2700,
            warmup_steps=270,
            learning_rates=(1e-3, 2e-3, 4e-3),
            seeds=3,
            evaluations=15,
            curve_pairs=256,
            validation_sentences=200,
            num_beams=4,
            most_new_tokens=128,
        ),
        "paper": TranslationPreset(
            purpose="the setting of arXiv 2310.11398, fine-tuning of a pretrained model: on a GPU",
            hidden_size=512,
            intermediate_size=2048,
            num_layers=6,
            num_heads=8,
            dropout=0.1,
            vocab_size=16_000,
            length=128,
            batch_size=32,
            steps=38_640,  # six times over 206,112 pairs
            warmup_steps=500,
            learning_rates=(2e-5, 5e-5, 1e-4),
            seeds=3,
            evaluations=38,
            curve_pairs=888,
            validation_sentences=888,
            num_beams=6,
            most_new_tokens=256,
            weight_decay=0.0,
            betas=(0.9, 0.999),
            data="IWSLT/iwslt2017:iwslt2017-de-en",
            source_language="de",
            target_language="en",
            model="Helsinki-NLP/opus-mt-de-en",
        ),
    }
)
