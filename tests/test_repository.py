"""Rules that hold for the repository as a whole: sizes, import directions, docstrings."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import neural_attention as na

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "neural_attention"
SOURCES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE = 500

# A module may import from its own row and from the rows before it.
LAYERS = (
    ("masks", "philox", "activations"),
    ("backends",),
    ("ops", "validation"),
    ("functional",),
    ("headwise", "presets", "starting_values", "score", "projection"),
    ("rotary", "position_slopes", "grid_positions", "sdpa", "cache"),
    (
        "layer_options",
        "folding",
        "attention_base",
        "attention",
        "multihead",
        "interop",
        "observation",
    ),
    ("doctor",),
    ("machine",),
    ("models", "hf"),
    ("tasks",),
    ("compare",),
    ("report", "bench"),
    ("cli_compare", "cli_translate"),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}
# The face of the package, and the factories that tests share.
OUTSIDE_THE_LAYERS = ("__init__", "testing")

OPTIONAL = (
    "PIL", "accelerate", "datasets", "matplotlib", "num2words", "numpy", "pandas", "psutil",
    "pyarrow", "rich", "sacrebleu", "safetensors", "scipy", "sentencepiece", "sklearn",
    "tokenizers", "torchvision", "transformers", "triton", "yaml",
)  # fmt: skip


def module_name(path: Path) -> tuple[str, ...]:
    """The module's name below the package: ``("backends", "reference")``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts


def nodes_that_run(node: ast.AST) -> Iterator[ast.AST]:
    """A syntax tree without what only a type checker sees."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from nodes_that_run(child)


def internal_imports(path: Path) -> Iterator[tuple[str, ...]]:
    """Each module of the package that a file imports, anywhere in it."""
    inside = path.relative_to(PACKAGE).parts[:-1]
    for node in nodes_that_run(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            if node.level:
                base = ["neural_attention", *inside[: len(inside) - node.level + 1], *base]
            # `from . import ops` names a module, `from .ops import attention` what is in one.
            targets = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for target in targets:
            if target[0] == "neural_attention" and len(target) > 1:
                yield tuple(target[1:])


def module_level_imports(path: Path) -> Iterator[str]:
    """The top-level packages that importing a file imports."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.split(".")[0]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_source_files_are_short_enough_to_read(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines < LONGEST_FILE, f"{named(path)} has {lines} lines: split it"


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_imports_point_one_way(path: Path) -> None:
    name = module_name(path)[0]
    if name in OUTSIDE_THE_LAYERS:
        return
    assert name in RANK, f"{named(path)} has no place in LAYERS"
    for target in internal_imports(path):
        assert target[0] not in OUTSIDE_THE_LAYERS, f"{named(path)} imports {target[0]}"
        if target[0] in RANK:
            assert RANK[target[0]] <= RANK[name], f"{named(path)} imports {'.'.join(target)}"


def test_a_backend_imports_no_other_backend() -> None:
    from neural_attention.backends import NAMES

    for path in SOURCES:
        name = module_name(path)
        if len(name) < 2 or name[0] != "backends" or name[1] not in NAMES:
            continue
        for target in internal_imports(path):
            others = set(NAMES) - {name[1]}
            assert not (target[0] == "backends" and others & set(target)), named(path)


def test_the_operator_and_the_layers_import_torch_alone() -> None:
    allowed = set(sys.stdlib_module_names) | {"torch", "neural_attention"}
    for path in SOURCES:
        name = module_name(path)
        # The kernels themselves, which load when Triton is there and a call wants them.
        kernels = {"triton"} if name[:2] == ("backends", "triton") and len(name) > 2 else set()
        if RANK.get(name[0], -1) < RANK["models"]:
            assert set(module_level_imports(path)) <= allowed | kernels, named(path)


@pytest.mark.parametrize("module", ["neural_attention", "neural_attention.cli"])
def test_imports_without_the_optional_packages(module: str) -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); import {module}"
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True)
    assert run.returncode == 0, run.stderr.decode()


def test_importing_loads_no_optional_package() -> None:
    # torch itself imports numpy where it is installed.
    code = (
        "import sys, torch; before = set(sys.modules); import neural_attention;"
        f" print(sorted(set({OPTIONAL}) & set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [name for name in na.__all__ if not name.startswith("__")])
def test_public_names_are_documented(name: str) -> None:
    value = getattr(na, name)
    if not callable(value):
        return  # a constant: its comment documents it
    assert value.__doc__, f"neural_attention.{name} has no docstring"
    assert ">>>" in value.__doc__, f"neural_attention.{name} has no example in its docstring"


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    # Paths of one machine, and hosts of package registries, which differ from site to site.
    private = re.compile(
        r"(?<![\w.])/(?:home|root|work|Users)/|pypi\.(?:org|python)|pythonhosted\."
    )
    skipped = {"runs", "build", "dist", "__pycache__"}
    for path in sorted(ROOT.rglob("*")):
        parts = set(path.relative_to(ROOT).parts)
        hidden = {part for part in parts if part.startswith(".")} - {".ci", ".gitignore"}
        if hidden or parts & skipped or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found = private.search(text)
        assert not found, f"{named(path)} holds {found.group()!r}"


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == na.__version__
