"""The table of models and features in docs/hugging-face.md, made from the tests that passed.

A run of the whole folder fails if the table says anything else; with NEURAL_ATTENTION_WRITE_TABLE=1
in the environment it writes the table instead.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .families import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "hugging-face.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
FEATURES = {
    "same logits": ("test_preserve_computes_what_the_model_did",),
    "padding": ("test_what_stands_in_padding_changes_nothing",),
    "causality": ("test_a_later_token_changes_no_earlier_logits",),
    "packed documents": (
        "test_packed_documents_equal_separate_ones",
        "test_documents_of_a_mask_do_not_see_each_other",
    ),
    "caches": ("test_a_cache_changes_nothing",),
    "beam search": ("test_beam_search_with_a_cache_changes_nothing",),
    "training": ("test_every_new_parameter_learns",),
    "saving": ("test_the_auto_classes_open_what_was_saved",),
    "maps": ("test_maps_are_what_attention_used",),
}
FEATURE_OF = {test: feature for feature, tests in FEATURES.items() for test in tests}

results: dict[tuple[str, str], bool] = {}
deselected: list[pytest.Item] = []


def pytest_deselected(items: list[pytest.Item]) -> None:
    deselected.extend(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    feature = FEATURE_OF.get(getattr(item, "originalname", ""))
    if feature is not None and report.when == "call":
        key = item.callspec.params["name"], feature
        results[key] = results.get(key, True) and report.passed
    return report


def table() -> str:
    lines = [f"| | {' | '.join(FEATURES)} |", "|---" * (len(FEATURES) + 1) + "|"]
    words = {True: "yes", False: "no", None: "–"}
    for name in FAMILIES:
        cells = [words[results.get((name, feature))] for feature in FEATURES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def pytest_sessionfinish(session: pytest.Session) -> None:
    seen = {feature for _, feature in results}
    if deselected or seen != FEATURES.keys() or {name for name, _ in results} != FAMILIES.keys():
        return  # a part of the tests
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    right = before + BEGIN + table() + END + after
    if right == text:
        return
    if os.environ.get("NEURAL_ATTENTION_WRITE_TABLE"):
        PAGE.write_text(right)
        return
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
    print(f"\n{PAGE} has another table than these tests give:\n{table()}")
