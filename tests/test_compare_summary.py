"""The summary and the table where the numbers and the names are odd."""

from __future__ import annotations

import io
import json
import math

import pytest

pytest.importorskip("transformers")

from neural_attention.compare.execution import Execution
from neural_attention.compare.presets import choose_preset
from neural_attention.compare.progress import progress_on
from neural_attention.compare.statistics import statement
from neural_attention.compare.summary import Found, summarise
from neural_attention.compare.table import print_summary
from neural_attention.tasks.task import RunSpec

from .small_comparisons import PERPLEXITY, TASK, paired_ratio, spec_content

DATA = {
    "counts": {"train": 10_000, "validation": 500, "test": 500},
    "source": "a :smile: [red] file",
    "folder": "/a/folder",
}


def result(seed: int, loss: float) -> dict:
    score = {"tokens": 9, "bytes": 30, "loss": loss, "bits_per_byte": loss / 3}
    score["perplexity"] = math.exp(loss)
    return {
        "seed": seed,
        "learning_rate": 3e-3,
        "diverged": False,
        "divergence": None,
        "steps": 12,
        "validation": score,
        "test": score,
        "parameters": 100,
        "speed": 5.0,
        "training_seconds": 1.5,
        "peak_memory_bytes": 1000,
        "dead_heads": {"at_start": {}, "after_training": {}},
        "curve": [],
        "data_order_sha256": "ab",
        "initial_values": {"shared": 3, "own": []},
        "resumed_from": None,
        "broken_checkpoints": [],
        "command_started": "2026-12-01T00:00:00+00:00",
    }


def summary_of(tmp_path, **losses: list[float]) -> dict:
    """Of arms with these losses, one a seed; the first is the reference."""
    scores = ["dot", *["neural"] * len(losses)]
    specs = {
        name: RunSpec(
            **spec_content(arm=name, attention={"score": score, "projection": "linear"}, data=DATA)
        )
        for name, score in zip(losses, scores, strict=False)
    }
    runs = {name: [result(*one) for one in enumerate(losses[name])] for name in losses}
    return summarise(
        Found(
            task=TASK,
            preset=choose_preset(TASK, "smoke", {}),
            data=DATA,
            specs=specs,
            sweeps={name: found[:1] for name, found in runs.items()},
            final=runs,
            timings=dict.fromkeys(losses),
            notes=[],
            failures=[],
            root=tmp_path,
            execution=Execution(),
        )
    )


def test_an_interval_that_no_float_holds_is_infinite():
    ratio = paired_ratio([10.0, 130.0], [10.0, 10.0])
    assert ratio.value == pytest.approx(math.exp(60))
    assert ratio.low == pytest.approx(0)
    assert ratio.high == math.inf
    assert not ratio.is_told_apart


def test_a_summary_with_such_an_interval_can_be_written_and_says_so(tmp_path):
    summary = summary_of(tmp_path, dot=[10.0, 10.0], neural=[10.0, 130.0])
    against = json.loads(json.dumps(summary, allow_nan=False))["arms"]["neural"][
        "against_reference"
    ]
    assert against["high"] is None
    assert against["seeds"] == 2
    assert "neural is 1.1e+26 times that of dot (2 seeds, 95% interval" in summary["statement"]
    assert "to inf), so these seeds do not tell the two apart" in summary["statement"]


def printed(summary: dict) -> str:
    file = io.StringIO()
    print_summary(summary, file, is_terminal=False)
    return file.getvalue()


def test_huge_perplexities_take_the_place_of_small_ones(tmp_path):
    text = printed(summary_of(tmp_path, dot=[3.0], neural=[325.0]))
    assert max(map(len, text.splitlines()[:4])) <= 80
    assert "1.4e+141" in text
    assert f"neural is {math.exp(322):.1e} times that of dot" in " ".join(text.split())


def test_names_are_printed_as_they_are(tmp_path, monkeypatch):
    assert "data: a :smile: [red] file;" in printed(summary_of(tmp_path, dot=[3.0]))
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setenv("TERM", "xterm")
    progress = progress_on(terminal)
    progress.say("data: a :smile: [red] file")
    progress.close()
    assert "data: a :smile: [red] file" in terminal.getvalue()


def test_a_ratio_too_small_for_three_decimals_is_not_called_zero():
    ratio = paired_ratio([3.0], [23.0])
    arms = {
        name: {
            "is_plain": name == "dot",
            "test": 1.0,
            "order": 1.0,
            "parameters": 1e6,
            "against_reference": ratio if name != "dot" else None,
        }
        for name in ("dot", "neural")
    }
    assert "neural is 2.1e-09 times" in statement(arms, "dot", 3, PERPLEXITY, "text")
