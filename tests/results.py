"""A comparison's result as compare writes it, made by hand: quick, and with any names."""

from __future__ import annotations

import json
import math
from pathlib import Path

from neural_attention.compare.execution import Execution
from neural_attention.compare.presets import choose_preset
from neural_attention.compare.summary import Found, summarise
from neural_attention.tasks.task import RunSpec

from .small_comparisons import TASK, spec_content


def run_result(seed: int, loss: float, rate: float = 3e-3) -> dict:
    """A finished run."""
    score = {"tokens": 9, "bytes": 30, "loss": loss, "bits_per_byte": loss / 3}
    score["perplexity"] = math.exp(loss)
    points = [(6, loss + 1, 0.5), (12, loss, 1.0)]
    return {
        "seed": seed,
        "learning_rate": rate,
        "diverged": False,
        "divergence": None,
        "steps": 12,
        "units_per_step": 128,
        "validation": score,
        "test": score,
        "parameters": 100,
        "speed": 5.0,
        "training_seconds": 1.5,
        "peak_memory_bytes": 1000,
        "dead_heads": {"at_start": {}, "after_training": {}},
        "curve": [
            {"step": step, "validation_loss": value, "seconds": seconds}
            for step, value, seconds in points
        ],
        "data_order_sha256": "ab",
        "initial_values": {"shared": 3, "own": []},
        "resumed_from": None,
        "broken_checkpoints": [],
        "command_started": "2026-12-01T00:00:00+00:00",
    }


def result_of(losses: dict[str, list[float]], root: Path, **changes) -> dict:
    """Of arms with these losses, one a seed; the first is a dot product, the others networks.

    Args:
        losses: by the arm's name.
        root: folder of the comparison.
        changes: of fields of :class:`Found`.
    """
    data = {
        "counts": {"train": 10_000, "validation": 500, "test": 500},
        "source": "a text",
        "sha256": "cd",
        "counted": "tokens",
    }
    scores = ["dot", *["neural"] * len(losses)]
    specs = {
        name: RunSpec(
            **spec_content(arm=name, attention={"score": score, "projection": "linear"}, data=data)
        )
        for name, score in zip(losses, scores, strict=False)
    }
    runs = {name: [run_result(*one) for one in enumerate(losses[name])] for name in losses}
    found = {
        "task": TASK,
        "preset": choose_preset(TASK, "smoke", {}, seeds=max(map(len, losses.values()))),
        "data": data,
        "specs": specs,
        "sweeps": {
            name: [run_result(0, one[0] + 0.2, 1e-3), runs[name][0]] for name, one in losses.items()
        },
        "final": runs,
        "timings": dict.fromkeys(losses),
        "notes": [],
        "failures": [],
        "root": root,
        "execution": Execution(),
        "preset_name": "smoke",
        "command": "neural-attention compare lm --preset smoke",
    }
    return summarise(Found(**{**found, **changes}))


def write_result(folder: Path, losses: dict[str, list[float]], **changes) -> Path:
    """A folder with that result."""
    folder.mkdir(parents=True, exist_ok=True)
    result = result_of(losses, folder, **changes)
    (folder / "result.json").write_text(json.dumps(result, allow_nan=False))
    return folder
