"""What tests of comparisons share: sizes of a small model, a run of it, and what was told."""

from __future__ import annotations

from neural_attention.compare.progress import Progress

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
        "arm": "odd",
        "attention": {"score": "dot"},
        "layers": "all",
        "overrides": {},
        "sizes": SIZES,
        "training": {},
        "learning_rate": 1e-3,
        "seed": 0,
        "tokens": {},
        "device": "cpu",
        "environment": {},
    }
    return {**content, **changes}


class Said(Progress):
    """Keeps what is told."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)
