"""Relative positions in two dimensions: the patches of an image, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .position_slopes import alibi_slopes, grid_slopes
from .rotary import apply_rotary


class GridPositions(nn.Module):
    r"""Positions of tokens that lie on a grid of rows and columns, as a layer's scores see them.

    Token i lies at (row_i, col_i), counted from the middle of the grid. A token more than the grid
    has patches is a class token, which stands in front and lies in the middle, at (0, 0); its own
    features can move that point, since a constant in them is one in its terms below.

    ``slopes``
        :math:`u_{ijc} = a_{ic} + b_{jc} + m_c\,(row_j - row_i) + n_c\,(col_j - col_i)` in the score
        network. Grids are small, so each side gets its part, :math:`m_c\,row + n_c\,col`, in
        float32 (float64 for such parameters) before it is rounded to the features' dtype.
    ``alibi``
        :math:`-m_h\,|row_j - row_i| - n_h\,|col_j - col_i|` on the score. Without absolute values
        and a causal mask, the query's part would drop out of the softmax. It is added to the mask,
        a value for each head, query and key.
    ``rotary``
        the first half of a head's channels turns with the row, the second with the column.

    Args:
        shape: rows and columns.
        positions: ``slopes``, ``alibi`` or ``rotary``.
        num_heads: H.
        num_kv_heads: Hkv; the query heads of a key head share its slopes.
        width: C, channels of the score network; unused without slopes.
        rotary_base: of the rotary frequencies.
        device, dtype: of the parameters.

    Attributes:
        slopes: m and n, ``(2, Hkv, C)``, or None.
        alibi: m and n, ``(2, H)``, or None.

    Source:
        Rotation by rows and columns: Heo et al. 2024, arXiv 2403.13298, section 3.2.

    >>> GridPositions((2, 2), "rotary", 1, 1, 0, 100.0).coordinates(5)
    tensor([[ 0.0000,  0.0000],
            [-0.5000, -0.5000],
            [-0.5000,  0.5000],
            [ 0.5000, -0.5000],
            [ 0.5000,  0.5000]])
    """

    slopes: nn.Parameter | None
    alibi: nn.Parameter | None

    def __init__(
        self,
        shape: Sequence[int],
        positions: str,
        num_heads: int,
        num_kv_heads: int,
        width: int,
        rotary_base: float,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        rows, columns = shape
        self.shape, self.rotary_base = (rows, columns), rotary_base
        self.group = num_heads // num_kv_heads
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.slopes = self.alibi = None
        if positions == "slopes":
            self.slopes = nn.Parameter(torch.empty(2, num_kv_heads, width, **factory))
        if positions == "alibi":
            self.alibi = nn.Parameter(torch.empty(2, num_heads, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the starting values, which are not random."""
        with torch.device("cpu"):
            if self.slopes is not None and not self.slopes.is_meta:
                self.slopes.copy_(grid_slopes(*self.slopes.shape[1:]))
            if self.alibi is not None and not self.alibi.is_meta:
                self.alibi.copy_(alibi_slopes(self.alibi.shape[1]).expand(2, -1))

    def coordinates(self, length: int, device: torch.device | str | None = None) -> Tensor:
        """Row and column of each token, ``(L, 2)`` float32.

        Raises:
            ValueError: the grid has neither as many patches nor one less.
        """
        rows, columns = self.shape
        if length - rows * columns not in (0, 1):
            raise ValueError(
                f"there are {length} tokens and a grid of {rows} × {columns}: expected "
                f"{rows * columns}, or {rows * columns + 1} with a class token in front."
            )
        row = torch.arange(rows, device=device) - (rows - 1) / 2
        column = torch.arange(columns, device=device) - (columns - 1) / 2
        places = torch.stack(torch.meshgrid(row, column, indexing="ij"), -1).flatten(0, 1)
        return nn.functional.pad(places, (0, 0, length - rows * columns, 0))

    def shift_queries(self, a: Tensor) -> Tensor:
        """Query features ``(B, H, Lq, C)`` less their part of the slopes' terms, if any."""
        if self.slopes is None:
            return a
        return (a - self._ramps(a, self.slopes).repeat_interleave(self.group, 0)).to(a.dtype)

    def shift_keys(self, b: Tensor) -> Tensor:
        """Key features ``(B, Hkv, Lk, C)`` with their part of the slopes' terms, if any."""
        return b if self.slopes is None else (b + self._ramps(b, self.slopes)).to(b.dtype)

    def rotate(self, x: Tensor, coordinates: Tensor) -> Tensor:
        """Turn queries or keys ``(B, H, L, D)``, D a multiple of 4, by their coordinates."""
        by_row, by_column = x.chunk(2, dim=-1)
        turned = [
            apply_rotary(half, coordinates[:, axis], self.rotary_base)
            for axis, half in enumerate((by_row, by_column))
        ]
        return torch.cat(turned, dim=-1)

    def mask_with_distances(self, attn_mask: Tensor | None, q: Tensor, keys: int) -> Tensor | None:
        """The mask with ALiBi's terms, if any: broadcastable to ``(B, H, Lq, Lk)``.

        Args:
            attn_mask: True attends, or floating.
            q: the queries, ``(B, H, Lq, D)``.
            keys: Lk.
        """
        if self.alibi is None:
            return attn_mask
        queries = self.coordinates(q.shape[2], q.device)
        relative = self.coordinates(keys, q.device) - queries[:, None]
        # Without a matrix product, which autocast would round.
        bias = -(self.alibi[:, :, None, None] * relative.abs().movedim(-1, 0)[:, None]).sum(0)
        if attn_mask is None:
            return bias
        if attn_mask.dtype == torch.bool:
            return torch.where(attn_mask, bias, -torch.inf)
        return attn_mask + bias

    def extra_repr(self) -> str:
        """The settings, as ``print`` shows them."""
        return f"{self.shape[0]} × {self.shape[1]}"

    def _ramps(self, features: Tensor, slopes: Tensor) -> Tensor:
        """m_c row + n_c col of each token: ``(Hkv, L, C)``, in float32 at least."""
        places = self.coordinates(features.shape[2], features.device)
        ramps = places.T[:, None, :, None] * slopes[:, :, None]
        return ramps.sum(0)
