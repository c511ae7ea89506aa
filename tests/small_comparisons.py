"""What tests of comparisons share: sizes of a small model, a run of it, and what was told."""

from __future__ import annotations

import math

from neural_attention.compare.progress import Progress
from neural_attention.compare.statistics import compare_pairs
from neural_attention.tasks.language import LanguageModelling
from neural_attention.tasks.task import RunSpec

TASK = LanguageModelling()
PERPLEXITY = TASK.measures[0]

SIZES = {
    "architecture": "current",
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def spec_content(**changes):
    content = {
        "task": "lm",
        "arm": "odd",
        "attention": {"score": "dot"},
        "layers": "all",
        "overrides": {},
        "sizes": SIZES,
        "training": {},
        "learning_rate": 1e-3,
        "seed": 0,
        "data": {},
        "device": "cpu",
        "environment": {},
    }
    return {**content, **changes}


def spec_of_arm(arm, seed=0, **overrides):
    """The run of a parsed arm, as far as building the model goes."""
    return RunSpec(
        **spec_content(
            arm=arm.name,
            attention=arm.attention(8),
            layers=arm.layers_of(SIZES["num_hidden_layers"]),
            seed=seed,
            overrides=overrides,
        )
    )


def paired_ratio(losses, reference):
    """Perplexities of these losses, compared."""
    return compare_pairs(*([math.exp(x) for x in one] for one in (losses, reference)), PERPLEXITY)


class Said(Progress):
    """Keeps what is told."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)
