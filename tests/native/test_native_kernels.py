"""What only the native kernels can get wrong: instruction sets, threads, long rows, memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import neural_attention as na
from neural_attention.backends import native
from neural_attention.testing import (
    ACTIVATIONS,
    OperatorInputs,
    assert_close_to_float64,
    gradients,
    operator_inputs,
    output_gradients,
)

pytestmark = pytest.mark.skipif(
    native.unavailable_reason() is not None, reason=str(native.unavailable_reason())
)

INSTRUCTION_SETS = ("avx512", "avx2", "portable")

PROBE = """
import torch
from neural_attention.backends import native
from neural_attention.testing import assert_close_to_float64, operator_inputs
print(native.unavailable_reason() or native.instruction_set())
if native.unavailable_reason() is None:
    for activation in ("relu", "leaky_relu", "gelu", "silu"):
        for hidden_width in (None, 3):
            assert_close_to_float64(
                operator_inputs(
                    queries=70, keys=300, channels=9, value_width=37, dot_width=5,
                    slopes=hidden_width is None, hidden_width=hidden_width, activation=activation,
                    is_causal=True, dropout_p=0.1,
                ),
                "native",
            )
"""


def run_with(isa: str) -> subprocess.CompletedProcess[str]:
    return run_python(PROBE, NEURAL_ATTENTION_ISA=isa, OMP_NUM_THREADS="1")


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A fresh process that imports the package from where this one does."""
    environment = os.environ | variables | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )


def run(inputs: OperatorInputs) -> dict[str, torch.Tensor]:
    out, lse = inputs.run("native")
    found = gradients(inputs, out, lse, *output_gradients(inputs))
    return {"out": out.detach(), "lse": lse.detach()} | found


@pytest.fixture
def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_every_instruction_set_computes_the_same_or_says_why_it_cannot(isa: str) -> None:
    process = run_with(isa)
    assert process.returncode == 0, process.stderr
    found = process.stdout.strip()
    assert found == isa or f"no {isa} instructions" in found or "expected one of" in found


def test_the_portable_kernels_run_everywhere() -> None:
    assert run_with("portable").stdout.strip() == "portable"


def test_an_unknown_instruction_set_is_named_with_those_there_are() -> None:
    found = run_with("mmx").stdout
    assert "'mmx'" in found
    assert "portable" in found


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_lengths_beyond_one_tile(activation: str) -> None:
    assert_close_to_float64(
        operator_inputs(
            batch=1, heads=2, queries=600, keys=700, channels=8, value_width=64,
            activation=activation, is_causal=True,
        ),
        "native",
    )  # fmt: skip


@pytest.mark.parametrize("width", [1, 15, 16, 17, 33, 64, 100, 129, 256, 300])
def test_any_width_of_values_and_dot_product(width: int) -> None:
    assert_close_to_float64(
        operator_inputs(queries=30, keys=40, value_width=width, dot_width=width, is_causal=True),
        "native",
    )


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7, 16, 33])
@pytest.mark.parametrize("hidden_width", [None, 1, 2, 8])
def test_any_width_of_the_score_network(channels: int, hidden_width: int | None) -> None:
    assert_close_to_float64(
        operator_inputs(
            queries=30, keys=40, channels=channels, hidden_width=hidden_width, activation="silu"
        ),
        "native",
    )


@pytest.mark.parametrize("queries", [1, 3])
def test_few_queries_against_many_keys_on_several_threads(queries: int, threads: int) -> None:
    torch.set_num_threads(2)
    assert_close_to_float64(
        operator_inputs(
            batch=1, heads=4, key_heads=2, queries=queries, keys=5000, value_width=64,
            is_causal=True,
        ),
        "native",
    )  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_repeat_bit_for_bit(count: int, threads: int) -> None:
    torch.set_num_threads(count)
    inputs = operator_inputs(
        batch=1, heads=3, queries=700, keys=700, channels=8, value_width=40, dot_width=8,
        slopes=True, alibi=True, is_causal=True,
    )  # fmt: skip
    first = run(inputs)
    for _ in range(3):
        for name, again in run(inputs).items():
            assert torch.equal(again, first[name]), name


def test_slopes_are_exact_at_great_lengths() -> None:
    inputs = operator_inputs(
        batch=1, heads=1, queries=3, keys=200_000, channels=4, slopes=True, is_causal=True,
        window=(64, None),
    )  # fmt: skip
    assert_close_to_float64(inputs, "native")


def test_runs_in_a_forked_process_with_one_thread(threads: int) -> None:
    inputs = operator_inputs(queries=300, requires_grad=False)
    expected = inputs.run("native")[0]  # may have started threads, which a fork does not copy
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        os._exit(0 if torch.allclose(inputs.run("native")[0], expected, atol=1e-5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
def test_memory_stays_linear_in_length() -> None:
    code = """
import resource, torch
from neural_attention import ScoreWeights, neural_attention
n = 131072
a, b, v = (torch.randn(1, 1, n, width, requires_grad=True) for width in (8, 8, 64))
w = torch.randn(1, 8, requires_grad=True)
grad = torch.randn(1, 1, n, 64)
small = [t[:, :, :256].detach().requires_grad_() for t in (a, b, v)]
neural_attention(*small, ScoreWeights(w), activation="relu", backend="native").sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
options = dict(activation="relu", is_causal=True, backend="native")
out = neural_attention(a, b, v, ScoreWeights(w), **options)
out.backward(grad)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tensors = sum(t.numel() * 4 for t in (out, a.grad, b.grad, v.grad)) / 1024
print((peak - before - tensors) / 1024)
"""
    process = run_python(code)
    assert process.returncode == 0, process.stderr
    assert float(process.stdout) < 300


def test_denormals_are_zero_in_kernels_alone() -> None:
    tiny = torch.tensor([1e-40])
    b = torch.tensor([0.0, -95.0]).view(1, 1, 2, 1)  # exp(-95) is denormal in float32
    v = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1)
    out = na.neural_attention(
        torch.full((1, 1, 1, 1), 100.0),
        b,
        v,
        na.ScoreWeights(torch.ones(1, 1)),
        activation="relu",
        backend="native",
    )
    assert out.item() < 1.2e-38
    assert (tiny * 0.5).item() > 0  # the thread's own arithmetic is as it was
