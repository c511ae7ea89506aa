"""Run where the wheel and torch alone are installed: all works, and what is missing is named."""

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

ABSENT = ("accelerate", "datasets", "matplotlib", "numpy", "rich", "scipy", "transformers")
assert not [name for name in ABSENT if find_spec(name)], "this environment holds more than torch"
# torch brings triton on Linux, and torch works without it; so must we.
sys.modules["triton"] = None  # type: ignore[assignment]

import torch  # noqa: E402

import neural_attention as na  # noqa: E402
from neural_attention import backends, testing  # noqa: E402

assert Path(na.__file__).is_relative_to(sys.prefix), f"imported from {na.__file__}, not the wheel"
assert (Path(na.__file__).parent / "py.typed").exists()
for name in na.__all__:
    getattr(na, name)

# The kernels came with the wheel, agree with the definition, and brought no second OpenMP runtime.
libraries = [
    file.name
    for file in distribution("neural-attention").files or []
    if {".so", ".dylib", ".1"} & set(Path(file.name).suffixes)
]
assert libraries == ["kernels.so"], libraries
assert backends.unavailable_reason("native") is None, backends.unavailable_reason("native")
testing.assert_close_to_float64(testing.operator_inputs(queries=70, is_causal=True), "native")
layer = na.NeuralAttention(64, 4)
x = torch.randn(2, 10, 64, requires_grad=True)
layer(x, is_causal=True).sum().backward()
assert x.grad is not None
assert x.grad.isfinite().all()

# A page of maps needs the style sheets and scripts that lie beside the modules.
assert len(na.view(layer, x[:1]).html) > 40_000

run = subprocess.run(
    [sys.executable, "-c", "import neural_attention as na; na.hf"], capture_output=True
)
assert b'pip install "neural-attention[hf]"' in run.stderr, run.stderr

command = str(Path(sys.executable).with_name("neural-attention"))
subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)
found = json.loads(
    subprocess.run([command, "doctor", "--json"], check=True, capture_output=True).stdout
)
assert len(found["threads"]["openmp_runtimes"] or []) <= 1, found["threads"]
if platform.machine() in ("x86_64", "AMD64"):
    assert {"avx512", "avx2", "portable"} <= set(found["kernels"]["instruction_sets"]), found
for arguments in (["compare", "lm"], ["bench", "--preset", "smoke"]):
    run = subprocess.run([command, *arguments], capture_output=True, text=True)
    assert run.returncode == 2, run.stderr
    assert 'pip install "neural-attention[compare]"' in run.stderr, run.stderr
    assert "Traceback" not in run.stderr, run.stderr
compiler = shutil.which("c++") or shutil.which("cc")
if os.environ.get("NO_COMPILER"):
    assert compiler is None, f"meant to run without a compiler, and {compiler} is on the path"
print(f"The wheel works beside torch alone, compiler: {compiler}.")
