"""Fused GPU kernels in Triton, for NVIDIA and AMD; ``launch`` runs them.

Without a GPU, ``TRITON_INTERPRET=1`` in the environment runs them on the CPU, slowly, for tests.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from ..problem import Problem

# The widest values, queries and keys whose tiles fit.
_WIDEST = 256


def interprets() -> bool:
    """Whether Triton interprets its kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def unavailable_reason() -> str | None:
    """Why the kernels cannot run here; None if they can."""
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    if not (interprets() or torch.cuda.is_available()):
        return "torch sees no CUDA or HIP device"
    return None


def computes(v: Tensor, q: Tensor | None) -> bool:
    """Whether the kernels compute these dtypes and widths on this device."""
    widest = max(v.shape[-1], 0 if q is None else q.shape[-1])
    return (
        v.is_cuda
        and v.dtype != torch.float64
        and widest <= _WIDEST
        and unavailable_reason() is None
    )


def check(problem: Problem) -> None:
    """What these kernels do not compute is refused by name."""
    v = problem.v
    if v.dtype == torch.float64 or not (v.is_cuda or interprets()):
        raise ValueError(
            f"backend 'triton' computes float32, bfloat16 and float16 on a GPU; the inputs are "
            f"{v.dtype} on {v.device}: use backend='auto' or 'blocked'."
        )
    widths = {"v": v.shape[-1]} | ({} if problem.q is None else {"q": problem.q.shape[-1]})
    for name, width in widths.items():
        if width > _WIDEST:
            raise ValueError(
                f"backend 'triton' computes widths up to {_WIDEST}; {name} has {width}: use "
                "backend='auto' or 'blocked'."
            )
