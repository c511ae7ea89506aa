"""Run where only torch is installed: the package works, and what is missing is named."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ABSENT = ("accelerate", "datasets", "matplotlib", "numpy", "rich", "scipy", "transformers")
assert not [name for name in ABSENT if find_spec(name)], "this environment holds more than torch"
# torch brings triton on Linux, and torch works without it; so must we.
sys.modules["triton"] = None  # type: ignore[assignment]

import torch  # noqa: E402

import neural_attention as na  # noqa: E402
from neural_attention import backends  # noqa: E402

assert Path(na.__file__).is_relative_to(sys.prefix), f"imported from {na.__file__}, not the wheel"
assert (Path(na.__file__).parent / "py.typed").exists()
for name in na.__all__:
    getattr(na, name)

reason = backends.unavailable_reason("native")
assert reason is None, reason
layer = na.NeuralAttention(64, 4)
x = torch.randn(2, 10, 64, requires_grad=True)
layer(x, is_causal=True).sum().backward()
assert x.grad is not None
assert x.grad.isfinite().all()

run = subprocess.run(
    [sys.executable, "-c", "import neural_attention as na; na.hf"], capture_output=True
)
assert b'pip install "neural-attention[hf]"' in run.stderr, run.stderr

command = str(Path(sys.executable).with_name("neural-attention"))
subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)
run = subprocess.run([command, "compare", "lm"], capture_output=True, text=True)
assert run.returncode != 0
assert 'pip install "neural-attention[compare]"' in run.stderr, run.stderr
assert "Traceback" not in run.stderr, run.stderr
print("The wheel works beside torch alone.")
