"""What every test runs under: no network, no display, a fixed random state."""

from __future__ import annotations

import os

# Before anything imports transformers, datasets or matplotlib.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", MPLBACKEND="Agg")
# As the command does it in a process of its own, where transformers is not imported yet.
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take minutes")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        # Shared fixtures are made once, and the table of models sees all of its tests.
        together = item.path.parent if item.path.parent.name == "hf" else item.path
        item.add_marker(pytest.mark.xdist_group(str(together)))
    if config.getoption("--slow"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="takes minutes: run pytest with --slow"))


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)
