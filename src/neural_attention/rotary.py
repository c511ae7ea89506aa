"""Rotary position embedding of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rotary(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    r"""Rotate channel pairs by an angle proportional to position.

    .. math:: (x_c, x_{c+D/2}) \mapsto R(p\,\theta_c)\,(x_c, x_{c+D/2}), \qquad
              \theta_c = \mathrm{base}^{-2c/D}

    so that a dot product of rotated vectors depends on their positions' difference alone. Channel c
    is paired with c + D/2 (half-split, as in Llama). Angles are computed in float32 (float64 for
    float64 inputs) from the positions of this call; no state is kept between calls, so that
    compiling, casting the model to bfloat16 and changing lengths are all safe.

    Args:
        x: ``(B, H, L, D)``, D even.
        positions: ``(L,)`` or ``(B, L)`` integers.
        base: of the geometric frequencies.

    Returns:
        x rotated, in its dtype.

    Raises:
        ValueError: D is odd.

    Source:
        Su et al. 2021, arXiv 2104.09864, section 3.2.

    >>> x = torch.randn(1, 2, 5, 8)
    >>> torch.allclose(apply_rotary(x, torch.arange(5)).norm(dim=-1), x.norm(dim=-1), atol=1e-5)
    True
    """
    width = x.shape[-1]
    if width % 2:
        raise ValueError(
            f"rotary positions turn pairs of channels and head_dim is {width}: use an even "
            "head_dim or other positions."
        )
    dtype = torch.promote_types(x.dtype, torch.float32)
    exponents = torch.arange(0, width, 2, device=x.device, dtype=dtype) / width
    angles = positions.to(dtype)[..., None] * base**-exponents
    if positions.dim() == 2:
        angles = angles[:, None]
    cos, sin = angles.cos(), angles.sin()
    first, second = x.to(dtype).chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.to(x.dtype)
