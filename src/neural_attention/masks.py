"""What a query may attend to: causal order, window, lengths, documents and explicit masks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(slots=True)
class Masks:
    """All masks of one call; boolean ones compose by AND, additive ones add.

    Query i stands at key position ``p = i + offset``. Causal: ``j <= p``. Window:
    ``p - left <= j <= p + right``. ``key_lengths``: ``j < key_lengths[b]``. ``cu_seqlens``: query
    and key lie in the same document. ``attn_mask``: True, or anything but −inf.

    Attributes:
        query_length, key_length: Lq and Lk.
        is_causal: whether later keys are hidden.
        window: (left, right); None leaves a side open.
        offset: p − i, used where ``offsets`` is None.
        offsets: int64 ``(B,)``, an offset for each batch entry.
        key_lengths: int ``(B,)``.
        cu_seqlens: int32 ``(documents + 1,)``, the documents' bounds.
        attn_mask: up to four dimensions, broadcastable to ``(B, H, Lq, Lk)``.
    """

    query_length: int
    key_length: int
    is_causal: bool = False
    window: tuple[int | None, int | None] = (None, None)
    offset: int = 0
    offsets: Tensor | None = None
    key_lengths: Tensor | None = None
    cu_seqlens: Tensor | None = None
    attn_mask: Tensor | None = None
    _right: float = field(init=False, repr=False)
    _left: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        left, right = self.window
        causal_right = 0 if self.is_causal else math.inf
        self._left = math.inf if left is None else left
        self._right = min(math.inf if right is None else right, causal_right)

    def relative_positions(
        self, batch: slice, rows: slice, columns: slice, device: torch.device
    ) -> Tensor:
        """``j - p`` of a tile: int64 ``(B or 1, 1, rows, columns)``."""
        i = torch.arange(rows.start, rows.stop, device=device)
        j = torch.arange(columns.start, columns.stop, device=device)
        relative = (j - i[:, None])[None, None]
        if self.offsets is None:
            return relative - self.offset
        return relative - self.offsets[batch].view(-1, 1, 1, 1)

    def key_range(self, batch: slice, rows: slice) -> tuple[int, int]:
        """First and one-past-last key that any of these queries may see, cheaply over-estimated."""
        if self.offsets is None:
            lowest = highest = self.offset
        else:
            offsets = self.offsets[batch].tolist()
            lowest, highest = min(offsets), max(offsets)
        start, stop = 0, self.key_length
        if self._left < math.inf:
            start = max(start, rows.start + lowest - int(self._left))
        if self._right < math.inf:
            stop = min(stop, rows.stop + highest + int(self._right))
        if self.key_lengths is not None:
            stop = min(stop, max(self.key_lengths[batch].tolist()))
        if self.cu_seqlens is not None:
            edges = torch.tensor([rows.start, rows.stop - 1], device=self.cu_seqlens.device)
            first, last = self._documents(edges).tolist()
            start = max(start, int(self.cu_seqlens[first]))
            stop = min(stop, int(self.cu_seqlens[last + 1]))
        return start, max(start, stop)

    def tile(
        self, batch: slice, heads: slice, rows: slice, columns: slice, device: torch.device
    ) -> tuple[Tensor | None, Tensor | None]:
        """The masks over a tile.

        Returns:
            ``(visible, additive)``: bool and float tensors of four dimensions that broadcast to the
            tile, each None where it would change nothing.
        """
        conditions: list[Tensor] = []
        if not self._all_within_reach(rows, columns):
            relative = self.relative_positions(batch, rows, columns, device)
            if self._left < math.inf:
                conditions.append(relative >= -int(self._left))
            if self._right < math.inf:
                conditions.append(relative <= int(self._right))
        if self.key_lengths is not None:
            j = torch.arange(columns.start, columns.stop, device=device)
            conditions.append(j < self.key_lengths[batch].view(-1, 1, 1, 1))
        if self.cu_seqlens is not None:
            i = torch.arange(rows.start, rows.stop, device=device)
            j = torch.arange(columns.start, columns.stop, device=device)
            same = self._documents(i)[:, None] == self._documents(j)
            conditions.append(same[None, None])
        additive = None
        if self.attn_mask is not None:
            mask = self.attn_mask[(None,) * (4 - self.attn_mask.dim())]
            for dim, part in enumerate((batch, heads, rows, columns)):
                if mask.shape[dim] > 1:
                    mask = mask.narrow(dim, part.start, part.stop - part.start)
            if mask.dtype == torch.bool:
                conditions.append(mask)
            else:
                additive = mask
                conditions.append(mask != -math.inf)
        visible = None
        for condition in conditions:
            visible = condition if visible is None else visible & condition
        return visible, additive

    def _all_within_reach(self, rows: slice, columns: slice) -> bool:
        """Whether causality and window hide nothing of a tile, as far as plain integers tell."""
        if self._left == self._right == math.inf:
            return True
        if self.offsets is not None:
            return False
        lowest = columns.start - (rows.stop - 1 + self.offset)
        highest = columns.stop - 1 - (rows.start + self.offset)
        return lowest >= -self._left and highest <= self._right

    def _documents(self, positions: Tensor) -> Tensor:
        """The index of the document that holds each position."""
        assert self.cu_seqlens is not None
        # With empty documents a boundary repeats: the last of the equal ones owns the position.
        return torch.searchsorted(self.cu_seqlens.long(), positions, right=True) - 1
