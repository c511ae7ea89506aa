"""Time of attention on a CPU as ratios to torch's ``scaled_dot_product_attention``, in one run.

    python benchmarks/cpu_kernels.py --length 4096 --rounds 10

Batch 1, 8 heads, head_dim 64, float32, causal. The cases take turns within each round, so that what
else the machine does strikes all alike; medians over the rounds are compared.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

import neural_attention as na
from neural_attention.backends import native

HEADS, HEAD_DIM = 8, 64
# Name: activation, C, width of a second hidden layer (0: none), whether a dot product is added.
CASES = {
    "relu, C = 2": ("relu", 2, 0, False),
    "relu, C = 8": ("relu", 8, 0, False),
    "relu, C = 16": ("relu", 16, 0, False),
    "leaky_relu, C = 8": ("leaky_relu", 8, 0, False),
    "gelu_tanh, C = 8": ("gelu_tanh", 8, 0, False),
    "released form, 2 to 1": ("relu", 2, 1, False),
    "dot product, our kernel": ("relu", 0, 0, True),
    "dot product + relu, C = 8": ("relu", 8, 0, True),
}


def case(
    length: int, activation: str, channels: int, hidden: int, dot: bool
) -> Callable[[], Tensor]:
    """A call of the operator on fresh random inputs."""

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, requires_grad=True)

    a, b = leaf(1, HEADS, length, channels), leaf(1, HEADS, length, channels)
    q, k, v = (leaf(1, HEADS, length, HEAD_DIM) for _ in range(3))
    second = ((leaf(HEADS, hidden, channels), leaf(HEADS, hidden)),) if hidden else ()
    weights = na.ScoreWeights(leaf(HEADS, hidden or channels), second)
    products = {"q": q, "k": k} if dot else {}
    return lambda: na.neural_attention(
        a, b, v, weights, activation=activation, is_causal=True, backend="native", **products
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    reason = native.unavailable_reason()
    if reason is not None:
        parser.exit(2, f"{reason}\n")

    q, k, v, grad = (
        torch.randn(1, HEADS, arguments.length, HEAD_DIM, requires_grad=i < 3) for i in range(4)
    )
    peer = "scaled_dot_product_attention"
    calls = {peer: lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)}
    calls |= {name: case(arguments.length, *settings) for name, settings in CASES.items()}
    forward: dict[str, list[float]] = {name: [] for name in calls}
    both: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(arguments.rounds + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            out = call()
            middle = time.perf_counter()
            out.backward(grad)
            if round_number:  # the first warms up
                forward[name].append(middle - started)
                both[name].append(time.perf_counter() - started)

    print(
        f"n = {arguments.length}, median of {arguments.rounds}; {platform.machine()}, "
        f"{native.instruction_set()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print(f"{'':30}{'forward':>16}{'forward + backward':>24}")
    for name in calls:
        shown = [
            f"{1000 * statistics.median(times[name]):.1f} ms "
            f"{statistics.median(times[name]) / statistics.median(times[peer]):.2f}"
            for times in (forward, both)
        ]
        print(f"{name:30}{shown[0]:>16}{shown[1]:>24}")


if __name__ == "__main__":
    main()
