"""Plain torch in tiles: memory linear in length, forward and backward, on any device.

Forward keeps a running maximum and sum for each query (online softmax, Milakov & Gimelshein 2018,
arXiv 1805.02867); backward recomputes each tile's scores and takes their gradients by autograd over
that tile alone (Dao et al. 2022, arXiv 2205.14135, without the fused kernel).

Heads are split as (key heads, group): queries of a group share their keys, and broadcasting sums
their gradients. Shapes in names: B batch, K key heads, G group, C channels, I queries, J keys,
D width of values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..activations import resolve
from ..philox import dropout_keep
from .problem import DIFFERENTIABLE, Problem, log_sum_exp, records_gradients

# Elements of the largest temporary, (tile of pairs) x (channels): small enough for a CPU's cache
# to hold, large enough for a GPU to be busy.
_TILE_ELEMENTS = {"cpu": 2**20}
_TILE_ELEMENTS_ELSEWHERE = 2**26
_SMALLEST_SIDE = 32


@dataclass(frozen=True)
class _Tile:
    """One batch chunk, block of queries and block of keys."""

    batch: slice
    rows: slice
    columns: slice


class _Grouped:
    """The problem's tensors in the accumulation dtype, heads split into (key heads, group)."""

    def __init__(self, problem: Problem) -> None:
        batch, heads, key_heads, _, _ = problem.sizes
        self.problem = problem
        self.heads, self.key_heads, self.group = heads, key_heads, heads // key_heads
        self.device = problem.v.device
        self.strict = problem.needs_strict_masking
        split = (key_heads, self.group)

        def cast(tensor: Tensor) -> Tensor:
            return tensor.detach().to(problem.accumulate_dtype)

        def per_head(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            return cast(tensor).expand(heads, *tensor.shape[1:]).unflatten(0, split)

        self.a_BKGCI = cast(problem.a).transpose(2, 3).contiguous().unflatten(1, split)
        self.b_BK1CJ = cast(problem.b).transpose(2, 3).contiguous().unsqueeze(2)
        self.v_BK1JD = cast(problem.v).unsqueeze(2)
        self.q_BKGID = self.k_BK1JD = None
        if problem.q is not None and problem.k is not None:
            self.q_BKGID = cast(problem.q).unflatten(1, split)
            self.k_BK1JD = cast(problem.k).unsqueeze(2)
        # Per-head parameters, with the dimensions of a tile (channels, queries, keys) behind.
        self.output_KGC = per_head(problem.output_weight)
        self.hidden_weight_KGEC = per_head(problem.hidden_weight)
        self.hidden_bias_KGE = per_head(problem.hidden_bias)
        self.slopes_KGC = per_head(problem.slopes)
        self.alibi_KG = per_head(problem.alibi)

    def leaves(self, tile: _Tile) -> dict[str, Tensor]:
        """The parts of the tensors that a tile's scores depend on."""
        parts: dict[str, Tensor | None] = {"alibi": self.alibi_KG}
        if self.problem.a.shape[-1]:
            parts |= {
                "a": self.a_BKGCI[tile.batch, ..., tile.rows],
                "b": self.b_BK1CJ[tile.batch, ..., tile.columns],
                "output_weight": self.output_KGC,
                "hidden_weight": self.hidden_weight_KGEC,
                "hidden_bias": self.hidden_bias_KGE,
                "slopes": self.slopes_KGC,
            }
        if self.q_BKGID is not None and self.k_BK1JD is not None:
            parts["q"] = self.q_BKGID[tile.batch, :, :, tile.rows]
            parts["k"] = self.k_BK1JD[tile.batch, :, :, tile.columns]
        return {name: part for name, part in parts.items() if part is not None}

    def masks(self, tile: _Tile) -> tuple[Tensor | None, Tensor | None]:
        """``visible`` and ``additive`` as BKGIJ."""
        masks = self.problem.masks.tile(
            tile.batch, slice(0, self.heads), tile.rows, tile.columns, self.device
        )
        visible, additive = (None if mask is None else self.split_heads(mask) for mask in masks)
        if additive is not None:
            additive = additive.to(self.problem.accumulate_dtype)
        return visible, additive

    def split_heads(self, tile: Tensor) -> Tensor:
        """(B, H or 1, I, J) to (B, K or 1, G or 1, I, J)."""
        split = (self.key_heads, self.group) if tile.shape[1] == self.heads else (1, 1)
        return tile.unflatten(1, split)

    def values(self, tile: _Tile) -> Tensor:
        return self.v_BK1JD[tile.batch, :, :, tile.columns]

    def keep(self, tile: _Tile) -> Tensor:
        """Which weights survive dropout, scaled by 1/(1 - p)."""
        assert self.problem.seed is not None
        kept = dropout_keep(
            self.problem.seed,
            self.problem.dropout_p,
            tile.batch,
            slice(0, self.heads),
            tile.rows,
            tile.columns,
        )
        return self.split_heads(kept).to(self.problem.accumulate_dtype) / (
            1 - self.problem.dropout_p
        )

    def scores(self, tile: _Tile, leaves: dict[str, Tensor], visible: Tensor | None) -> Tensor:
        """The scores of a tile before its masks, BKGIJ."""
        p = self.problem
        scores: Tensor | None = None
        relative = None
        if p.slopes is not None or p.alibi is not None:
            relative_BIJ = p.masks.relative_positions(
                tile.batch, tile.rows, tile.columns, self.device
            )[:, 0]
            relative = relative_BIJ.to(p.accumulate_dtype)[:, None, None]
        if "a" in leaves:
            scores = self._network(leaves, visible, relative)
        if "q" in leaves:
            dots = p.scale * self._dots(leaves["q"], leaves["k"], visible)
            scores = dots if scores is None else scores + dots
        assert scores is not None
        if "alibi" in leaves and relative is not None:
            scores = scores + leaves["alibi"][:, :, None, None] * relative
        return scores

    def _network(
        self, leaves: dict[str, Tensor], visible: Tensor | None, relative: Tensor | None
    ) -> Tensor:
        activation = resolve(self.problem.activation)
        hidden = leaves["a"][..., :, None] + leaves["b"][..., None, :]  # BKGCIJ
        if "slopes" in leaves and relative is not None:
            hidden = hidden + leaves["slopes"][..., None, None] * relative.unsqueeze(3)
        if self.strict and visible is not None:
            hidden = hidden.masked_fill(~visible.unsqueeze(3), 0)
        shape = hidden.shape[-2:]
        hidden = activation(hidden).flatten(-2)
        if "hidden_weight" in leaves:
            mixed = leaves["hidden_weight"] @ hidden
            hidden = activation(mixed + leaves["hidden_bias"][..., None])
        return (leaves["output_weight"].unsqueeze(-2) @ hidden).squeeze(-2).unflatten(-1, shape)

    def _dots(self, q: Tensor, k: Tensor, visible: Tensor | None) -> Tensor:
        if self.strict and visible is not None:
            # The keys, not the products: q's gradient is a multiple of what q was multiplied by.
            keys = k.unsqueeze(-3).masked_fill(~visible.unsqueeze(-1), 0)
            return (q.unsqueeze(-2) * keys).sum(-1)
        return _times_shared(q, k.transpose(-1, -2))

    def weighted_values(self, weights: Tensor, tile: _Tile, visible: Tensor | None) -> Tensor:
        """Weights · values, BKGID; values that are masked reach nothing, whatever they hold."""
        values = self.values(tile)
        if self.strict and visible is not None:
            pairs = values.unsqueeze(-3).masked_fill(~visible[..., None], 0)
            return (weights[..., None] * pairs).sum(-2)
        return _times_shared(weights, values)

    def tiles(self) -> Iterator[tuple[slice, slice, list[_Tile]]]:
        """Batch chunks and query blocks, each with the key tiles that any of its queries sees."""
        p = self.problem
        batch, heads, _, queries, keys = p.sizes
        channels = max(p.a.shape[-1], p.output_weight.shape[-1], 1)
        budget = _TILE_ELEMENTS.get(self.device.type, _TILE_ELEMENTS_ELSEWHERE)
        pairs = max(budget // (heads * channels), 1)
        rows_side = min(queries, max(_SMALLEST_SIDE, math.isqrt(pairs // 2)))
        columns_side = min(keys, max(_SMALLEST_SIDE, pairs // max(rows_side, 1)))
        batch_side = max(pairs // max(rows_side * columns_side, 1), 1)
        for b in _blocks(0, batch, batch_side):
            for rows in _blocks(0, queries, rows_side):
                columns = _blocks(*p.masks.key_range(b, rows), columns_side)
                yield b, rows, [_Tile(b, rows, block) for block in columns]


def forward(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Output in the values' dtype; lse, and the rest of it, in the accumulation dtype."""
    g = _Grouped(problem)
    batch, heads, _, queries, _ = problem.sizes
    width = problem.v.shape[-1]
    out = problem.v.new_zeros(batch, heads, queries, width)
    lse = problem.v.new_full((batch, heads, queries), -math.inf, dtype=problem.accumulate_dtype)
    rest = torch.zeros_like(lse)
    out_BKGID, lse_BKGI, rest_BKGI = (
        t.unflatten(1, (g.key_heads, g.group)) for t in (out, lse, rest)
    )
    for b, rows, tiles in g.tiles():
        # Running maximum, sum of exponentials and weighted values of this block of queries.
        peak = lse_BKGI[b, ..., rows].clone()
        total = torch.zeros_like(peak)
        sums = torch.zeros(*peak.shape, width, dtype=peak.dtype, device=peak.device)
        for tile in tiles:
            visible, additive = g.masks(tile)
            scores = _masked(g.scores(tile, g.leaves(tile), visible), visible, additive)
            new_peak = torch.maximum(peak, scores.amax(-1))
            # Subtracting 0 where a row has seen nothing keeps exp(-inf) = 0.
            shift = new_peak.masked_fill(new_peak == -math.inf, 0)
            rescale = torch.exp(peak - shift)
            weights = torch.exp(scores.sub_(shift[..., None]))
            total = total * rescale + weights.sum(-1)
            if problem.dropout_p:
                weights = weights * g.keep(tile)
            sums = sums * rescale[..., None] + g.weighted_values(weights, tile, visible)
            peak = new_peak
        nothing = (total == 0)[..., None]
        out_BKGID[b, ..., rows, :] = (sums / total[..., None]).masked_fill(nothing, 0)
        lse_BKGI[b, ..., rows], rest_BKGI[b, ..., rows] = log_sum_exp(peak, total)
    return out, lse, rest


def backward(
    problem: Problem,
    out: Tensor,
    lse: Tensor,
    rest: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    needs: dict[str, bool],
) -> dict[str, Tensor]:
    """Gradients of the tensors that need one, tile by tile."""
    g = _Grouped(problem)
    dtype = problem.accumulate_dtype
    split = partial(torch.unflatten, dim=1, sizes=(g.key_heads, g.group))
    # A row with nothing to attend to is a constant, whatever comes back to it.
    nothing = lse == -math.inf
    grad_out = grad_out.to(dtype).masked_fill(nothing[..., None], 0)
    delta = (grad_out * out.to(dtype)).sum(-1) - grad_lse.to(dtype).masked_fill(nothing, 0)
    shift = lse.masked_fill(nothing, 0)
    grad_BKGID, delta_BKGI = split(grad_out), split(delta)
    shift_BKGI, rest_BKGI = split(shift), split(rest)

    sums = _GradientSums(g, needs)
    for b, rows, tiles in g.tiles():
        row_grad = grad_BKGID[b, ..., rows, :]
        row_delta, row_shift = delta_BKGI[b, ..., rows], shift_BKGI[b, ..., rows]
        row_rest = rest_BKGI[b, ..., rows]
        for tile in tiles:
            visible, additive = g.masks(tile)
            leaves = g.leaves(tile)
            wanted = [name for name in leaves if needs[name]]
            for name in wanted:
                leaves[name] = leaves[name].detach().requires_grad_()
            with records_gradients():
                scores = g.scores(tile, leaves, visible)
            weights = _masked(scores.detach(), visible, additive)
            weights = weights.sub(row_shift[..., None]).sub_(row_rest[..., None]).exp_()
            if visible is not None:
                # The lse of a row that sees NaN is NaN; what the row does not see stays clean.
                weights.masked_fill_(~visible, 0)
            grad_weights = _times_shared(row_grad, g.values(tile).transpose(-1, -2))
            dropped = weights
            if problem.dropout_p:
                keep = g.keep(tile)
                grad_weights, dropped = grad_weights * keep, weights * keep
            if needs["v"]:
                grad_v = _shared_gradient(dropped, row_grad)
                sums.add("v", tile, grad_v)
            grad_scores = weights * (grad_weights - row_delta[..., None])
            if visible is not None:
                grad_scores = grad_scores.masked_fill(~visible, 0)
            if needs["attn_mask"]:
                sums.add_to_mask(tile, grad_scores)
            if wanted:
                gradients = torch.autograd.grad(
                    scores, [leaves[name] for name in wanted], grad_scores
                )
                for name, gradient in zip(wanted, gradients, strict=True):
                    sums.add(name, tile, gradient)
    return sums.result()


class _GradientSums:
    """Gradients in the accumulation dtype, summed over tiles in a fixed order."""

    def __init__(self, grouped: _Grouped, needs: dict[str, bool]) -> None:
        self.grouped = grouped
        p = grouped.problem
        self.names = [name for name in DIFFERENTIABLE if needs[name]]
        self.sums: dict[str, Tensor] = {}
        sources: dict[str, Tensor | None] = {
            "a": grouped.a_BKGCI,
            "b": grouped.b_BK1CJ,
            "v": grouped.v_BK1JD,
            "q": grouped.q_BKGID,
            "k": grouped.k_BK1JD,
            "output_weight": grouped.output_KGC,
            "hidden_weight": grouped.hidden_weight_KGEC,
            "hidden_bias": grouped.hidden_bias_KGE,
            "slopes": grouped.slopes_KGC,
            "alibi": grouped.alibi_KG,
            "attn_mask": p.attn_mask,
        }
        for name in self.names:
            source = sources[name]
            assert source is not None
            self.sums[name] = torch.zeros(
                source.shape, dtype=p.accumulate_dtype, device=grouped.device
            )

    def add(self, name: str, tile: _Tile, gradient: Tensor) -> None:
        total = self.sums[name]
        if name in ("a", "b"):
            total[tile.batch, ..., tile.rows if name == "a" else tile.columns] += gradient
        elif name == "q":
            total[tile.batch, :, :, tile.rows] += gradient
        elif name in ("k", "v"):
            total[tile.batch, :, :, tile.columns] += gradient
        else:
            total += gradient

    def add_to_mask(self, tile: _Tile, gradient: Tensor) -> None:
        total = self.sums["attn_mask"]
        total = total[(None,) * (4 - total.dim())]
        gradient = gradient.flatten(1, 2)
        for dim, part in enumerate((tile.batch, None, tile.rows, tile.columns)):
            if total.shape[dim] == 1:
                gradient = gradient.sum(dim, keepdim=True)
            elif part is not None:
                total = total.narrow(dim, part.start, part.stop - part.start)
        total += gradient

    def result(self) -> dict[str, Tensor]:
        """The sums in the shapes of the operator's arguments."""
        gradients = {}
        for name, total in self.sums.items():
            argument = getattr(self.grouped.problem, name)
            if name == "attn_mask":
                gradients[name] = total
                continue
            if name in ("a", "b"):
                total = total.transpose(-1, -2)
            if name in ("a", "b", "v", "q", "k"):
                gradients[name] = total.flatten(1, 2)
                continue
            total = total.flatten(0, 1)
            shared = argument.shape[0] == 1 and total.shape[0] > 1
            gradients[name] = total.sum(0, keepdim=True) if shared else total
        return gradients


def _blocks(start: int, stop: int, side: int) -> list[slice]:
    return [slice(i, min(i + side, stop)) for i in range(start, stop, max(side, 1))]


def _masked(scores: Tensor, visible: Tensor | None, additive: Tensor | None) -> Tensor:
    if additive is not None:
        scores = scores + additive
    return scores if visible is None else scores.masked_fill(~visible, -math.inf)


def _times_shared(per_query: Tensor, shared: Tensor) -> Tensor:
    """BKGIx @ BK1xy: one product for all queries that share keys."""
    batch, key_heads, group, rows, _ = per_query.shape
    product = per_query.reshape(batch, key_heads, group * rows, -1) @ shared.squeeze(2)
    return product.unflatten(2, (group, rows))


def _shared_gradient(weights: Tensor, row_grad: Tensor) -> Tensor:
    """Σ over the group and its queries of weightsᵀ · row_grad, BK1JD."""
    return (weights.flatten(2, 3).transpose(-1, -2) @ row_grad.flatten(2, 3)).unsqueeze(2)
