"""The summary and the table where the numbers and the names are odd."""

from __future__ import annotations

import io
import json
import math

import pytest

pytest.importorskip("transformers")

from neural_attention.compare.progress import progress_on
from neural_attention.compare.statistics import statement
from neural_attention.compare.table import print_summary

from .results import result_of
from .small_comparisons import PERPLEXITY, paired_ratio


def summary_of(tmp_path, **losses):
    return result_of(losses, tmp_path)


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
    odd = summary_of(tmp_path, dot=[3.0])
    odd["data"]["source"] = "a :smile: [red] file"
    assert "data: a :smile: [red] file;" in printed(odd)
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
