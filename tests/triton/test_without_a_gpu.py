"""What can be known of the GPU kernels without one: interpreted values and what they compile to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from neural_attention.testing import operator_inputs

ROOT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")


def run_python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, cwd=ROOT
    )


@needs_triton
def test_the_kernels_compute_the_operator_when_interpreted() -> None:
    process = run_python(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/triton/test_kernels.py",
        TRITON_INTERPRET="1",
    )  # fmt: skip
    assert process.returncode == 0, process.stdout[-10_000:]
    assert "skipped" not in process.stdout


@needs_triton
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "sm_100", "gfx942"])
def test_the_kernels_compile_for_every_architecture(architecture: str, tmp_path: Path) -> None:
    process = run_python(
        "benchmarks/triton_resources.py", "--architectures", architecture, "--cases",
        "bfloat16, C = 2, head 64", "--out", str(tmp_path),
    )  # fmt: skip
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    results = json.loads((tmp_path / "triton_resources.json").read_text())
    (kernels,) = results["architectures"][architecture].values()
    assert {found["kernel"] for found in kernels} == {
        "split", "merge", "forward", "delta", "keys", "queries"
    }  # fmt: skip


@needs_triton
def test_spills_and_too_much_shared_memory_are_faults() -> None:
    code = """
import sys
sys.path.insert(0, "benchmarks")
from triton_resources import faults
def found(spilled, shared):
    kernel = {"kernel": "keys", "tile": [16, 16, 4, 1], "registers": 255}
    kernels = [kernel | {"spilled": spilled, "shared": shared}]
    return len(list(faults({"architectures": {"sm_89": {"case": kernels}}})))
print(found(0, 0), found(2**20, 0), found(0, 2**20))
"""
    assert run_python("-c", code).stdout.split() == ["0", "1", "1"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_asked_for_by_name_the_backend_says_why_it_cannot_run() -> None:
    with pytest.raises(RuntimeError, match="backend 'triton' is not available"):
        operator_inputs().run("triton")


def test_without_triton_the_backend_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from neural_attention.backends import unavailable_reason\n"
        "print(unavailable_reason('triton'))"
    )
    assert "pip install triton" in run_python("-c", code).stdout
