"""Matrix products of tiles."""

from __future__ import annotations

import triton
import triton.language as tl

from . import interprets

# Its matrix product takes the bits of bfloat16 numbers for integers.
_INTERPRETED = tl.constexpr(interprets())


@triton.jit
def product(left, right, total, call):
    """``total + left @ right`` with float32 sums."""
    if _INTERPRETED:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, total, input_precision=call.precision)
