"""What tests of comparisons share: sizes of a small model, and a run of it."""

from __future__ import annotations

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
