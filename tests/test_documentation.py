"""Every example runs: README.md, docs/*.md, and the docstrings of the package."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import neural_attention
from neural_attention.cli import _parser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
MODULES = [
    module.name
    for module in pkgutil.walk_packages(neural_attention.__path__, "neural_attention.")
    if not module.name.endswith("__main__")
]


class Block(NamedTuple):
    language: str
    text: str
    line: int


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        if match[1] in languages:
            yield Block(match[1], match[2], text.count("\n", 0, match.start(2)))


def commands(page: Path) -> Iterator[str]:
    """The `neural-attention` commands of a page's shell blocks, continued lines joined."""
    for block in blocks(page, "sh", "console", "bash"):
        for line in block.text.replace("\\\n", " ").splitlines():
            command = line.removeprefix("$ ").strip()
            if command.startswith("neural-attention"):
                yield command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        # Empty lines before it, so that a traceback gives the line in the page.
        exec(compile("\n" * block.line + block.text, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_accepted_by_the_command_line(page: Path) -> None:
    from neural_attention.bench.command import chosen_groups
    from neural_attention.compare.arms import check_arms, parse_arm
    from neural_attention.compare.presets import choose_preset
    from neural_attention.tasks.registry import TASKS, load_task

    for command in commands(page):
        options = _parser().parse_args(shlex.split(command, comments=True)[1:])
        if "arms" in options:
            check_arms([parse_arm(name) for name in options.arms or ["dot"]])
            own = {one.name: getattr(options, one.name) for one in TASKS[options.task].options}
            task = load_task(options.task)
            choose_preset(task, options.preset, own, steps=options.steps, seeds=options.seeds)
        elif "cases" in options:
            assert chosen_groups(options)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for block in blocks(ROOT / "README.md", "sh", "console", "bash"):
        assert set(re.findall(r"\bmake ([a-z]+)", block.text)) <= targets


@pytest.mark.parametrize("name", ["neural_attention", *MODULES])
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name.startswith("neural_attention.backends.triton."):
        pytest.importorskip("triton")
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples failed"
