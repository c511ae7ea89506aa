"""The table of models and features in docs/hugging-face.md, made from the tests that passed.

A run of the whole folder fails if the table says anything else (test_table.py); with
NEURAL_ATTENTION_WRITE_TABLE=1 in the environment it writes the table instead.
"""

from __future__ import annotations

import pytest

from .families import FAMILIES

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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The test of the table comes after those that it is made of."""
    items.sort(key=lambda item: item.path.name == "test_table.py")


@pytest.fixture
def found() -> dict[tuple[str, str], bool]:
    """By family and feature, whether its tests passed in this run, if all of them were run."""
    seen = {feature for _, feature in results}
    if seen != FEATURES.keys() or {name for name, _ in results} != FAMILIES.keys() or deselected:
        pytest.skip("a part of the tests was run")
    return results
