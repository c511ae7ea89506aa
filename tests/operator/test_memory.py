"""The blocked backend holds nothing of size Lq × Lk, forward or backward."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

SCRIPT = """
import resource, sys, torch
import neural_attention as na
from neural_attention.testing import operator_inputs

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

length, is_causal, dropout_p = int(sys.argv[1]), sys.argv[2] == "causal", float(sys.argv[3])

def run(length):
    inputs = operator_inputs(
        batch=1, heads=1, queries=length, channels=16, value_width=64, slopes=True,
        is_causal=is_causal, dropout_p=dropout_p,
    )
    before = peak()
    out, lse = inputs.run("blocked")
    torch.autograd.grad(out.sum() + lse.sum(), list(inputs.leaves().values()))
    return peak() - before, sum(t.nbytes for t in inputs.tensors.values())

run(64)  # libraries load
grown, held = run(length)
# Beyond inputs, gradients of the same size, output and its gradient.
print(grown - 2 * held)
"""


def bytes_beyond_the_tensors(length: int, causality: str, dropout_p: float) -> int:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(length), causality, str(dropout_p)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


@pytest.mark.parametrize(("causality", "dropout_p"), [("full", 0.0), ("causal", 0.1)])
def test_memory_stays_below_one_score_matrix(causality: str, dropout_p: float) -> None:
    # 5,120² scores in float32 are 105 MB, the hidden layer's activations 1.7 GB.
    assert bytes_beyond_the_tensors(5120, causality, dropout_p) < 5120**2 * 4


@pytest.mark.slow
@pytest.mark.parametrize("causality", ["full", "causal"])
def test_length_16384_stays_below_one_gigabyte(causality: str) -> None:
    assert bytes_beyond_the_tensors(16384, causality, 0.0) < 10**9


def test_nothing_of_the_forward_but_inputs_output_and_lse_is_kept() -> None:
    from neural_attention.testing import operator_inputs

    inputs = operator_inputs(queries=64, hidden_width=3, dot_width=3, slopes=True, alibi=True)
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out, lse = inputs.run("blocked")
    named = {tensor.data_ptr() for tensor in (*inputs.tensors.values(), out, lse)}
    assert named <= {tensor.data_ptr() for tensor in kept}
    (rest,) = (tensor for tensor in kept if tensor.data_ptr() not in named)  # of lse
    assert rest.shape == lse.shape
