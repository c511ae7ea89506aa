"""Sizes and schedules of a comparison, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True)
class LanguagePreset:
    """A language model, its training and its evaluation.

    Attributes:
        purpose: what the preset is for, in a few words.
        architecture: ``"current"`` or ``"paper"``, see
            :class:`neural_attention.models.language.NeuralAttentionLMConfig`.
        hidden_size, intermediate_size, num_layers, num_heads: sizes of the model.
        length: tokens of a training sequence and of an evaluation window.
        stride: how far the evaluation window moves.
        batch_size: sequences a step.
        steps: optimiser steps of a run.
        warmup_steps: steps in which the learning rate rises; then it falls along a cosine to zero.
        learning_rates: the sweep, the same for every arm.
        seeds: number of seeds at the chosen learning rate, the sweep's own included.
        weight_decay: of weight matrices; not of biases, norms, slopes and ALiBi's slopes.
        betas: of AdamW.
        max_grad_norm: the gradient is clipped to this norm.
        evaluations: points of the learning curve.
        curve_tokens: validation tokens of a point of the curve.
        vocab_size: entries of the tokeniser that is trained when none is given.
        data, tokenizer: used when the command names none; None for the built-in text and a
            tokeniser trained on it.
    """

    purpose: str
    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    length: int
    stride: int
    batch_size: int
    steps: int
    warmup_steps: int
    learning_rates: tuple[float, ...]
    seeds: int
    evaluations: int
    curve_tokens: int
    vocab_size: int
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    data: str | None = None
    tokenizer: str | None = None


LANGUAGE_PRESETS: Mapping[str, LanguagePreset] = MappingProxyType(
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
"""The presets by name. All but ``paper`` run on the built-in text unless ``--data`` is given."""

DEFAULT_ARMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "current": ("dot", "dot+alibi", "neural"),
        "paper": ("dot", "neural:release+layers=first", "neural+layers=first"),
    }
)
"""The arms of each architecture that are compared where none are named."""


def choose_preset(
    name: str,
    model: str | None = None,
    steps: int | None = None,
    seeds: int | None = None,
    learning_rates: Sequence[float] | None = None,
) -> LanguagePreset:
    """A preset with what the caller changes in it.

    Raises:
        ValueError: an unknown name or model, or a number that makes no sense.
    """
    if name not in LANGUAGE_PRESETS:
        raise ValueError(f"unknown preset {name!r}; known are {', '.join(LANGUAGE_PRESETS)}.")
    preset = LANGUAGE_PRESETS[name]
    if model is not None:
        if model not in DEFAULT_ARMS:
            raise ValueError(f"unknown model {model!r}; known are {', '.join(DEFAULT_ARMS)}.")
        preset = replace(preset, architecture=model)
    if steps is not None:
        if steps < 1:
            raise ValueError(f"steps is {steps}: at least 1 is needed.")
        preset = replace(
            preset,
            steps=steps,
            warmup_steps=min(preset.warmup_steps, steps // 10),
            evaluations=min(preset.evaluations, steps),
        )
    if seeds is not None:
        if seeds < 1:
            raise ValueError(f"seeds is {seeds}: at least 1 is needed.")
        preset = replace(preset, seeds=seeds)
    if learning_rates is not None:
        rates = tuple(map(float, learning_rates))
        if not rates or any(not 0 < rate < float("inf") for rate in rates):
            raise ValueError(f"learning rates are {list(rates)}: positive numbers are needed.")
        if len(set(rates)) < len(rates):
            raise ValueError(f"learning rates are {list(rates)}: one is given twice.")
        preset = replace(preset, learning_rates=tuple(sorted(rates)))
    return preset
