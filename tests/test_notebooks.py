"""The notebooks run from top to bottom, at the smallest preset, and carry no output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
for package in ("ipykernel", "transformers", "sklearn", "torchvision", "plotly"):
    pytest.importorskip(package)

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
FULL, SMALL = 'PRESET = "quick"', 'PRESET = "smoke"'


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    notebook = nbformat.read(path, as_version=4)
    assert FULL in notebook.cells[1].source
    notebook.cells[1].source = notebook.cells[1].source.replace(FULL, SMALL)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(one for one in sys.path if one))
    client = nbclient.NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    assert any("test " in one.get("text", "") for one in outputs)
    assert any("<iframe" in one.get("data", {}).get("text/html", "") for one in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_output(path):
    cells = json.loads(path.read_text())["cells"]
    assert len(cells) > 5
    for cell in cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
