"""Which keys a query sees."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from neural_attention.testing import (
    BACKENDS,
    OperatorInputs,
    assert_close_to_float64,
    gradients,
    operator_inputs,
    output_gradients,
)


def assert_same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def weights_of(inputs: OperatorInputs, backend: str) -> Tensor:
    """The attention weights: the output for values that are unit vectors."""
    batch, key_heads, keys, _ = inputs["b"].shape
    return inputs.with_tensors(v=torch.eye(keys).expand(batch, key_heads, -1, -1)).run(backend)[0]


def visible_pairs(backend: str, **options: Any) -> list[str]:
    """One string for each query: # where it sees the key."""
    weights = weights_of(operator_inputs(batch=1, heads=1, **options), backend)[0, 0]
    return ["".join("#" if weight > 0 else "." for weight in row) for row in weights]


def test_causality_is_aligned_to_the_bottom_right(backend: str) -> None:
    assert visible_pairs(backend, queries=2, keys=4, is_causal=True) == ["###.", "####"]
    assert visible_pairs(backend, queries=4, keys=2, is_causal=True) == ["..", "..", "#.", "##"]


def test_query_offset_moves_the_queries(backend: str) -> None:
    pairs = visible_pairs(backend, queries=3, keys=4, is_causal=True, query_offset=0)
    assert pairs == ["#...", "##..", "###."]
    pairs = visible_pairs(backend, queries=3, keys=4, is_causal=True, query_offset=-2)
    assert pairs == ["....", "....", "#..."]


def test_windows_count_from_the_query_position(backend: str) -> None:
    assert visible_pairs(backend, queries=4, window=(1, 0)) == ["#...", "##..", ".##.", "..##"]
    assert visible_pairs(backend, queries=3, keys=4, window=(0, 1)) == [".##.", "..##", "...#"]
    assert visible_pairs(backend, queries=3, window=(None, 0)) == ["#..", "##.", "###"]
    assert visible_pairs(backend, queries=3, window=(0, None)) == ["###", ".##", "..#"]
    pairs = visible_pairs(backend, queries=3, window=(1, 5), is_causal=True)
    assert pairs == ["#..", "##.", ".##"]


def test_key_lengths_do_not_move_the_queries(backend: str) -> None:
    lengths = torch.tensor([2])
    pairs = visible_pairs(backend, queries=2, keys=4, is_causal=True, key_lengths=lengths)
    assert pairs == ["##..", "##.."]


def test_documents_see_themselves(backend: str) -> None:
    bounds = torch.tensor([0, 0, 2, 2, 5, 5], dtype=torch.int32)
    pairs = visible_pairs(backend, queries=5, cu_seqlens=bounds, is_causal=True)
    assert pairs == ["#....", "##...", "..#..", "..##.", "..###"]


@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (9, 5), (6, 6)])
def test_query_offset_zero_is_the_causality_of_scaled_dot_product_attention(
    queries: int, keys: int, backend: str
) -> None:
    inputs = operator_inputs(queries=queries, keys=keys, channels=0, dot_width=8, is_causal=True)
    theirs = F.scaled_dot_product_attention(*(inputs[name] for name in "qkv"), is_causal=True)
    assert_same(inputs.with_options(query_offset=0).run(backend)[0], theirs)
    ours = inputs.run(backend)[0]
    if queries == keys:
        assert_same(ours, theirs)
    else:
        assert (ours - theirs).abs().max() > 0.1


@pytest.mark.parametrize("offset", [-9, -1, 0, 4, 40])
@pytest.mark.parametrize("window", [None, (3, 1)])
def test_query_offsets_as_int_and_as_tensor(
    offset: int, window: tuple[int, int] | None, backend: str
) -> None:
    inputs = operator_inputs(
        queries=7, keys=9, slopes=True, alibi=True, is_causal=window is None, window=window,
        query_offset=offset, seed=offset + 100,
    )  # fmt: skip
    assert_close_to_float64(inputs, backend)
    for dtype in (torch.int32, torch.int64):
        as_tensor = inputs.with_options(query_offset=torch.tensor([offset, offset], dtype=dtype))
        assert all(map(torch.equal, as_tensor.run(backend), inputs.run(backend)))


def test_query_offsets_differ_between_batch_entries(backend: str) -> None:
    inputs = operator_inputs(
        batch=5, queries=7, keys=9, slopes=True, alibi=True, is_causal=True, window=(4, None),
        query_offset=torch.tensor([-8, -3, 0, 2, 30]), seed=1,
    )  # fmt: skip
    assert_close_to_float64(inputs, backend)


@pytest.mark.parametrize("lengths", [[0, 0], [0, 17], [5, 1], [17, 16]])
@pytest.mark.parametrize("is_causal", [False, True])
def test_key_lengths(lengths: list[int], is_causal: bool, backend: str) -> None:
    for dtype in (torch.int32, torch.int64):
        key_lengths = torch.tensor(lengths, dtype=dtype)
        inputs = operator_inputs(key_lengths=key_lengths, is_causal=is_causal, slopes=True, seed=2)
        assert_close_to_float64(inputs, backend)


BOUNDS = [[0, 17], [0, 0, 17, 17], [0, 5, 5, 5, 11, 17], [0, *range(1, 18)], [0, 40, 41, 90, 111]]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_documents_equal_separate_calls(bounds: list[int], backend: str) -> None:
    cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
    inputs = operator_inputs(
        batch=1, key_heads=2, queries=bounds[-1], slopes=True, dot_width=3, is_causal=True,
        cu_seqlens=cu_seqlens, seed=3,
    )  # fmt: skip
    assert_close_to_float64(inputs, backend)
    out, lse = inputs.run(backend)
    grad_out, grad_lse = output_gradients(inputs)
    found = gradients(inputs, out, lse, grad_out, grad_lse)
    alone = inputs.with_options(cu_seqlens=None)
    for start, stop in pairwise(bounds):
        document = alone.with_tensors(
            **{
                name: alone[name][:, :, start:stop].detach().requires_grad_()
                for name in ("a", "b", "v", "q", "k")
            }
        )
        out_d, lse_d = document.run(backend)
        assert_same(out_d, out[:, :, start:stop])
        assert_same(lse_d, lse[:, :, start:stop])
        expected = gradients(
            document, out_d, lse_d, grad_out[:, :, start:stop], grad_lse[:, :, start:stop]
        )
        for name in ("a", "b", "v", "q", "k"):
            assert_same(found[name][:, :, start:stop], expected[name])


SHAPES = [
    (2, 4, 17, 19), (1, 4, 17, 19), (2, 1, 17, 19), (2, 4, 1, 19), (2, 4, 17, 1), (1, 1, 17, 19),
    (2, 1, 1, 19), (1, 4, 1, 1), (1, 1, 1, 1), (4, 17, 19), (1, 17, 19), (17, 19), (1, 19), (17, 1),
    (19,), (1,), (),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_explicit_masks_of_every_shape_that_broadcasts(
    kind: Any, shape: tuple[int, ...], backend: str
) -> None:
    inputs = operator_inputs(
        queries=17, keys=19, key_heads=2, mask=kind, mask_shape=shape, is_causal=True, seed=4
    )
    # The oracle compares the gradient's shape with the mask's, too.
    assert_close_to_float64(inputs, backend)


@pytest.mark.parametrize("shape", [(2, 4, 80, 90), (4, 1, 90), (2, 1, 80, 1), (80, 90), ()])
def test_explicit_masks_over_several_tiles(shape: tuple[int, ...], backend: str) -> None:
    inputs = operator_inputs(
        queries=80, keys=90, key_heads=2, channels=64, mask="float", mask_shape=shape, seed=5
    )
    assert_close_to_float64(inputs, backend)


def test_mask_of_bools_equals_mask_of_minus_infinities(backend: str) -> None:
    inputs = operator_inputs(mask="bool", seed=6)
    additive = torch.zeros(inputs["attn_mask"].shape).masked_fill(~inputs["attn_mask"], -math.inf)
    assert_same(inputs.with_tensors(attn_mask=additive).run(backend), inputs.run(backend))


@pytest.mark.parametrize("mask_dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_additive_masks_of_another_dtype(mask_dtype: torch.dtype, backend: str) -> None:
    inputs = operator_inputs(mask="float", seed=7)
    mask = inputs["attn_mask"].detach().to(mask_dtype)
    lowest = mask.masked_fill(mask == -math.inf, torch.finfo(mask_dtype).min).requires_grad_()
    for mask_given in (mask.requires_grad_(), lowest):
        other = inputs.with_tensors(attn_mask=mask_given)
        assert_same(
            other.run(backend), inputs.with_tensors(attn_mask=mask_given.float()).run(backend)
        )
        out, lse = other.run(backend)
        (gradient,) = torch.autograd.grad(out.sum() + lse.sum(), mask_given)
        assert gradient.dtype == mask_dtype
        assert gradient.isfinite().all()


EMPTY_ROWS: dict[str, dict[str, Any]] = {
    "causal": {"queries": 9, "keys": 5, "is_causal": True},
    "offset": {"is_causal": True, "query_offset": -4},
    "window": {"query_offset": 30, "window": (15, 0)},
    "key-lengths": {"key_lengths": torch.tensor([0, 3])},
    "all": {"key_lengths": torch.tensor([0, 0])},
    "no-keys": {"queries": 5, "keys": 0},
}


@pytest.mark.parametrize("poisoned", [False, True], ids=["finite", "nan-in-grad-out"])
@pytest.mark.parametrize("options", EMPTY_ROWS.values(), ids=EMPTY_ROWS.keys())
def test_fully_masked_rows_give_zero_output_and_zero_gradients(
    options: dict[str, Any], poisoned: bool, backend: str, dtype: torch.dtype
) -> None:
    inputs = operator_inputs(
        dot_width=3, hidden_width=3, slopes=True, alibi=True, mask="float", dropout_p=0.1,
        dtype=dtype, seed=8, **options,
    )  # fmt: skip
    assert_close_to_float64(inputs, backend)
    out, lse = inputs.run(backend)
    empty = lse == -math.inf
    assert empty.any()
    assert (out[empty] == 0).all()
    grad_out, grad_lse = output_gradients(inputs)
    clean = gradients(inputs, out, lse, grad_out, grad_lse)
    if poisoned:
        grad_out = grad_out.masked_fill(empty[..., None], math.nan)
        grad_lse = grad_lse.masked_fill(empty, math.inf)
    found = gradients(inputs, *inputs.run(backend), grad_out, grad_lse)
    assert (found["a"][empty] == 0).all()
    assert (found["q"][empty] == 0).all()
    assert (found["attn_mask"][empty] == 0).all()
    for name, gradient in found.items():
        assert torch.equal(gradient, clean[name]), name


def test_rows_emptied_by_an_explicit_mask(backend: str) -> None:
    inputs = operator_inputs(mask="bool", seed=9)
    mask = inputs["attn_mask"].clone()
    mask[:, :, 3] = False
    mask[1, 2] = False
    additive = torch.zeros(mask.shape).masked_fill(~mask, -math.inf).requires_grad_()
    for given_mask in (mask, additive):
        masked = inputs.with_tensors(attn_mask=given_mask)
        assert_close_to_float64(masked, backend)
        out, lse = masked.run(backend)
        assert (lse[:, :, 3] == -math.inf).all()
        assert (out[1, 2] == 0).all()


@st.composite
def calls(draw: st.DrawFn) -> OperatorInputs:
    packed = draw(st.booleans())
    batch = 1 if packed else draw(st.integers(1, 3))
    queries = draw(st.integers(1, 12))
    keys = queries if packed else draw(st.integers(1, 12))
    key_heads = draw(st.integers(1, 2))
    heads = key_heads * draw(st.integers(1, 3))
    options: dict[str, Any] = {"is_causal": draw(st.booleans())}
    side = st.none() | st.integers(0, 8)
    options["window"] = draw(st.none() | st.tuples(side, side))
    if packed:
        cuts = draw(st.lists(st.integers(0, queries), max_size=3))
        options["cu_seqlens"] = torch.tensor([0, *sorted(cuts), queries], dtype=torch.int32)
    else:
        offset = st.integers(-15, 15)
        offsets = st.lists(offset, min_size=batch, max_size=batch).map(torch.tensor)
        options["query_offset"] = draw(st.none() | offset | offsets)
    lengths = st.lists(st.integers(0, keys), min_size=batch, max_size=batch).map(torch.tensor)
    options["key_lengths"] = draw(st.none() | lengths)
    full = (batch, heads, queries, keys)
    shape = tuple(draw(st.sampled_from(sorted({1, size}))) for size in full)[
        draw(st.integers(0, 4)) :
    ]
    channels = draw(st.integers(0, 3))
    return operator_inputs(
        batch=batch, heads=heads, key_heads=key_heads, queries=queries, keys=keys, value_width=3,
        channels=channels, dot_width=draw(st.sampled_from([None, 2])) if channels else 2,
        hidden_width=draw(st.sampled_from([None, 2])) if channels else None,
        slopes=channels > 0 and draw(st.booleans()), alibi=draw(st.booleans()),
        share_heads=draw(st.booleans()), mask=draw(st.sampled_from([None, "bool", "float"])),
        mask_shape=shape, activation=draw(st.sampled_from(["relu", "silu", "tanh"])),
        dropout_p=draw(st.sampled_from([0.0, 0.3])), seed=draw(st.integers(0, 99)), **options,
    )  # fmt: skip


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(inputs=calls())
def test_any_combination_of_masks_and_options(inputs: OperatorInputs) -> None:
    for backend in BACKENDS:
        assert_close_to_float64(inputs, backend)
