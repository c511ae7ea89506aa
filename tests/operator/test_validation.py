"""Every message of the operator says what was expected and what came."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import neural_attention as na
from neural_attention.testing import OperatorInputs, operator_inputs

BASE: dict[str, Any] = {
    "batch": 2, "heads": 4, "key_heads": 2, "queries": 5, "keys": 7, "channels": 3,
    "value_width": 6, "hidden_width": 2, "dot_width": 8, "requires_grad": False,
}  # fmt: skip


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def integers(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


# Argument, value, error, parts of the message.
ARGUMENTS: list[tuple[str, Any, type[Exception], list[str]]] = [
    ("k", None, ValueError, ["q is given without k"]),
    ("q", None, ValueError, ["k is given without q"]),
    ("a", [1.0], TypeError, ["a is a list", "torch.Tensor"]),
    ("a", ones(5, 3), ValueError, ["a has shape (5, 3)", "four dimensions"]),
    ("b", ones(2, 2, 7, 3, dtype=torch.bfloat16), TypeError, ["torch.bfloat16", "torch.float32"]),
    ("v", ones(2, 2, 7, 6).to("meta"), ValueError, ["is on cpu", "v on meta"]),
    ("b", ones(3, 2, 7, 3), ValueError, ["batch size 3", "a has 2"]),
    ("b", ones(2, 3, 7, 3), ValueError, ["b has 3 heads", "a has 4", "divide"]),
    ("b", ones(2, 0, 7, 3), ValueError, ["b has 0 heads", "a has 4"]),
    ("a", ones(2, 0, 5, 3), ValueError, ["a has 0 heads", "at least one"]),
    ("b", ones(2, 2, 7, 4), ValueError, ["a has 3 channels", "b has 4"]),
    ("v", ones(2, 1, 7, 6), ValueError, ["v has 1 heads", "b has 2"]),
    ("v", ones(2, 2, 6, 6), ValueError, ["v has 6 positions", "b has 7"]),
    ("q", ones(2, 2, 5, 8), ValueError, ["q has 2 heads", "a has 4"]),
    ("q", ones(2, 4, 7, 8), ValueError, ["q has 7 positions", "a has 5"]),
    ("k", ones(2, 4, 7, 8), ValueError, ["k has 4 heads", "b has 2"]),
    ("k", ones(2, 2, 5, 8), ValueError, ["k has 5 positions", "b has 7"]),
    ("k", ones(2, 2, 7, 9), ValueError, ["q has width 8", "k has 9"]),
    ("weights", ones(4, 2), TypeError, ["weights is a Tensor", "ScoreWeights"]),
    ("weights", (ones(4, 2), ()), TypeError, ["weights is a tuple", "ScoreWeights"]),
    ("slopes", ones(4, 2), ValueError, ["slopes has shape (4, 2)", "(4 or 1, 3)"]),
    ("slopes", ones(3), ValueError, ["slopes has shape (3,)", "(4 or 1, 3)"]),
    ("slopes", 0.5, TypeError, ["slopes is a float", "torch.Tensor"]),
    ("slopes", ones(4, 3, dtype=torch.float64), TypeError, ["torch.float64", "torch.float32"]),
    ("slopes", ones(4, 3).to("meta"), ValueError, ["slopes is on meta", "the inputs on cpu"]),
    ("alibi", ones(2), ValueError, ["alibi has shape (2,)", "(4,)"]),
    ("alibi", ones(4, dtype=torch.int64), TypeError, ["torch.int64", "torch.float32"]),
    ("attn_mask", [[True]], TypeError, ["attn_mask is a list", "torch.Tensor"]),
    ("attn_mask", ones(5, 7, dtype=torch.int64), TypeError, ["torch.int64", "bool"]),
    ("attn_mask", ones(7, 5), ValueError, ["(7, 5)", "(2, 4, 5, 7)"]),
    ("attn_mask", ones(2, 1, 1, 5, 7), ValueError, ["(2, 1, 1, 5, 7)", "(2, 4, 5, 7)"]),
    ("attn_mask", ones(2, 2, 5, 7), ValueError, ["(2, 2, 5, 7)", "(2, 4, 5, 7)"]),
    ("attn_mask", ones(5, 7).to("meta"), ValueError, ["attn_mask is on meta", "the inputs on cpu"]),
    ("window", 3, TypeError, ["window is 3", "(left, right)"]),
    ("window", (1, 2, 3), TypeError, ["window is (1, 2, 3)", "(left, right)"]),
    ("window", (1.5, None), TypeError, ["window is (1.5, None)", "integers"]),
    ("window", (True, None), TypeError, ["window is (True, None)", "integers"]),
    ("window", (-1, 2), ValueError, ["window is (-1, 2)", "not negative"]),
    ("query_offset", 1.0, TypeError, ["query_offset is 1.0", "int"]),
    ("query_offset", True, TypeError, ["query_offset is True", "int"]),
    ("query_offset", integers(1, 2, 3), ValueError, ["shape (3,)", "shape (2,)"]),
    ("query_offset", ones(2), ValueError, ["torch.float32", "int64 or int32"]),
    ("key_lengths", [7, 7], TypeError, ["key_lengths is a list", "torch.Tensor"]),
    ("key_lengths", integers(7), ValueError, ["shape (1,)", "shape (2,)"]),
    ("key_lengths", ones(2), ValueError, ["torch.float32", "int64 or int32"]),
    ("key_lengths", integers(7, 8), ValueError, ["[7, 8]", "0 to 7"]),
    ("key_lengths", integers(-1, 7), ValueError, ["[-1, 7]", "0 to 7"]),
    ("cu_seqlens", integers(0, 5), ValueError, ["torch.int64", "int32"]),
    ("cu_seqlens", integers(0, 5, dtype=torch.int32), ValueError, ["batch 2", "5 queries, 7 keys"]),
    ("v", "x", TypeError, ["v is a str", "torch.Tensor"]),
    ("q", [1.0], TypeError, ["q is a list", "torch.Tensor"]),
    ("alibi", [1.0], TypeError, ["alibi is a list", "torch.Tensor"]),
    ("cu_seqlens", [0, 5], TypeError, ["cu_seqlens is a list", "torch.Tensor"]),
    ("a", ones(2, 4, 5, 3).to_sparse(), TypeError, ["a is sparse or nested", "dense"]),
    ("attn_mask", ones(5, 7).to_sparse(), TypeError, ["attn_mask is sparse or nested", "dense"]),
    ("window", (2**63, None), ValueError, ["window is (9223372036854775808, None)", "2**31"]),
    ("window", (0, 2**62), ValueError, ["2**31", "None means no limit"]),
    ("window", (2**31, 0), ValueError, ["2**31", "None means no limit"]),
    ("query_offset", 2**63, ValueError, ["query_offset is 9223372036854775808", "2**31"]),
    ("query_offset", -(2**63), ValueError, ["query_offset is -9223372036854775808", "2**31"]),
    ("query_offset", integers(0, 2**62), ValueError, ["[0, 4611686018427387904]", "2**31"]),
    ("query_offset", integers(-(2**63), 0), ValueError, ["[-9223372036854775808, 0]", "2**31"]),
    ("query_offset", "x", TypeError, ["query_offset is 'x'", "int"]),
    ("query_offset", [1, 2], TypeError, ["query_offset is [1, 2]", "integer tensor (2,)"]),
    ("scale", "a", TypeError, ["scale is 'a'", "number"]),
    ("scale", True, TypeError, ["scale is True", "number"]),
    ("scale", 1j, TypeError, ["scale is 1j", "number"]),
    ("scale", ones(1), TypeError, ["scale is tensor([1.])", "multiplies q"]),
    ("scale", float("nan"), ValueError, ["scale is nan", "finite"]),
    ("scale", -float("inf"), ValueError, ["scale is -inf", "finite"]),
    ("scale", 1e39, ValueError, ["scale is 1e+39", "finite number in float32"]),
    ("scale", 10**400, ValueError, ["finite number in float32"]),
    ("is_causal", "no", TypeError, ["is_causal is 'no'", "True or False"]),
    ("is_causal", None, TypeError, ["is_causal is None", "True or False"]),
    ("is_causal", 1, TypeError, ["is_causal is 1", "True or False"]),
    ("return_lse", "x", TypeError, ["return_lse is 'x'", "True or False"]),
    ("activation", "swish", ValueError, ["'swish'", "relu", "leaky_relu:SLOPE"]),
    ("activation", "leaky_relu:steep", ValueError, ["'leaky_relu:steep'", "number"]),
    ("activation", "leaky_relu:nan", ValueError, ["'leaky_relu:nan'", "finite number"]),
    ("activation", "leaky_relu:-inf", ValueError, ["'leaky_relu:-inf'", "finite number"]),
    ("activation", "leaky_relu:1e39", ValueError, ["'leaky_relu:1e39'", "finite number"]),
    ("activation", torch.relu, TypeError, ["expected a name, one of", "relu"]),
    ("activation", ["relu"], TypeError, ["['relu']", "expected a name"]),
    ("dropout_p", "x", TypeError, ["dropout_p is 'x'", "number"]),
    ("dropout_p", None, TypeError, ["dropout_p is None", "number"]),
    ("dropout_p", False, TypeError, ["dropout_p is False", "number"]),
    ("dropout_p", ones(), TypeError, ["dropout_p is tensor(1.)", "number"]),
    ("dropout_p", float("nan"), ValueError, ["dropout_p is nan", "[0, 1)"]),
    ("dropout_p", 1.0, ValueError, ["dropout_p is 1.0", "[0, 1)"]),
    ("dropout_p", -0.1, ValueError, ["dropout_p is -0.1", "[0, 1)"]),
    ("backend", None, TypeError, ["backend is None", "name"]),
    ("backend", ["auto"], TypeError, ["backend is ['auto']", "name"]),
    ("backend", "cudnn", ValueError, ["backend is 'cudnn'", "auto", "reference", "blocked"]),
]


@pytest.mark.parametrize(
    ("name", "value", "error", "parts"),
    ARGUMENTS,
    ids=[f"{a[0]}-{i}" for i, a in enumerate(ARGUMENTS)],
)
def test_an_argument_that_does_not_fit_is_refused_with_both_sides(
    name: str, value: Any, error: type[Exception], parts: list[str]
) -> None:
    arguments = operator_inputs(**BASE).arguments() | {name: value}
    with pytest.raises(error) as raised:
        na.neural_attention(**arguments)
    for part in parts:
        assert part in str(raised.value)


WEIGHTS: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"output": ones(3, 2)}, ValueError, ["weights.output has shape (3, 2)", "(4 or 1, 2)"]),
    ({"output": ones(4, 3)}, ValueError, ["weights.output has shape (4, 3)", "(4 or 1, 2)"]),
    ({"output": ones(2)}, ValueError, ["weights.output has shape (2,)", "(4 or 1, 2)"]),
    ({"output": None}, TypeError, ["weights.output is a NoneType", "torch.Tensor"]),
    ({"output": ones(4, 2).bfloat16()}, TypeError, ["torch.bfloat16", "torch.float32"]),
    ({"W2": ones(4, 2, 4)}, ValueError, ["W2 has shape (4, 2, 4)", "(4 or 1, C2, 3)"]),
    ({"W2": None}, TypeError, ["W2 is a NoneType", "torch.Tensor"]),
    ({"c2": [1.0]}, TypeError, ["c2 is a list", "torch.Tensor"]),
    (
        {"output": ones(4, 0), "W2": ones(4, 0, 3), "c2": ones(4, 0)},
        ValueError,
        ["W2 has shape (4, 0, 3)", "C2 >= 1"],
    ),
    ({"W2": ones(2, 3)}, ValueError, ["W2 has shape (2, 3)", "(4 or 1, C2, 3)"]),
    ({"W2": ones(2, 2, 3)}, ValueError, ["W2 has shape (2, 2, 3)", "(4 or 1, C2, 3)"]),
    ({"c2": ones(4, 3)}, ValueError, ["c2 has shape (4, 3)", "(4 or 1, 2)"]),
    ({"c2": ones(2)}, ValueError, ["c2 has shape (2,)", "(4 or 1, 2)"]),
    ({"c2": ones(4, 2, dtype=torch.float64)}, TypeError, ["c2 is torch.float64", "torch.float32"]),
]


@pytest.mark.parametrize(("changes", "error", "parts"), WEIGHTS)
def test_weights_that_do_not_fit_are_refused_with_both_sides(
    changes: dict[str, Any], error: type[Exception], parts: list[str]
) -> None:
    tensors = {"output": ones(4, 2), "W2": ones(4, 2, 3), "c2": ones(4, 2)} | changes
    weights = na.ScoreWeights(tensors["output"], ((tensors["W2"], tensors["c2"]),))
    with pytest.raises(error) as raised:
        na.neural_attention(**operator_inputs(**BASE).arguments() | {"weights": weights})
    for part in parts:
        assert part in str(raised.value)


def refused(inputs: OperatorInputs, **changes: Any) -> str:
    with pytest.raises((ValueError, TypeError)) as raised:
        na.neural_attention(**inputs.arguments() | changes)
    return str(raised.value)


def test_more_than_two_hidden_layers_are_refused() -> None:
    pair = (ones(4, 2, 3), ones(4, 2))
    weights = na.ScoreWeights(ones(4, 2), (pair, pair))
    message = refused(operator_inputs(**BASE), weights=weights)
    assert "weights.hidden has 2 entries" in message
    assert "More layers are not supported" in message


@pytest.mark.parametrize(
    "hidden", [None, 5, "ab", ones(4, 2), {"W2": ones(4, 2, 3)}], ids=lambda x: type(x).__name__
)
def test_hidden_layers_that_are_no_tuple_are_refused(hidden: Any) -> None:
    message = refused(operator_inputs(**BASE), weights=na.ScoreWeights(ones(4, 2), hidden))
    assert f"weights.hidden is a {type(hidden).__name__}" in message
    assert "((W2, c2),)" in message


@pytest.mark.parametrize(
    "pair", [None, 5, (ones(4, 2, 3),), ones(4, 2, 3), "ab"], ids=lambda x: type(x).__name__
)
def test_a_hidden_layer_that_is_no_pair_is_refused(pair: Any) -> None:
    message = refused(operator_inputs(**BASE), weights=na.ScoreWeights(ones(4, 2), (pair,)))
    assert f"weights.hidden holds a {type(pair).__name__}" in message
    assert "expected a pair of two tensors" in message


def test_a_pair_that_is_not_wrapped_is_refused_with_how_to_wrap_it() -> None:
    weights = na.ScoreWeights(ones(4, 2), (ones(4, 2, 3), ones(4, 2)))  # type: ignore[arg-type]
    message = refused(operator_inputs(**BASE), weights=weights)
    assert "one pair, ((W2, c2),)" in message


def test_the_farthest_offsets_and_windows_still_attend() -> None:
    inputs = operator_inputs(**BASE | {"slopes": True})
    for options in (
        {"window": (2**31 - 1, 2**31 - 1)},
        {"query_offset": 2**31 - 1, "is_causal": True},
        {"query_offset": integers(2**31 - 1, 1 - 2**31)},
    ):
        assert na.neural_attention(**inputs.arguments() | options).isfinite().all()


def test_nothing_to_score_with_is_refused() -> None:
    without = operator_inputs(**BASE | {"channels": 0, "hidden_width": None, "dot_width": None})
    message = refused(without)
    assert "no channels" in message
    assert "q and k" in message


def test_channels_are_needed_by_slopes_and_by_a_second_layer() -> None:
    dot = operator_inputs(**BASE | {"channels": 0, "hidden_width": None})
    assert "a has none (C = 0): use alibi" in refused(dot, slopes=ones(4, 0))
    weights = na.ScoreWeights(ones(4, 2), ((ones(4, 2, 0), ones(4, 2)),))
    assert "a has no channels (C = 0)" in refused(dot, weights=weights)


def test_a_scale_without_a_dot_product_is_refused() -> None:
    network = operator_inputs(**BASE | {"dot_width": None})
    assert "scale multiplies q · k, and there is no q and k" in refused(network, scale=0.5)


def test_integer_and_complex_features_are_refused() -> None:
    inputs = operator_inputs(**BASE)
    for dtype in (torch.int64, torch.complex64):
        cast = {name: inputs[name].to(dtype) for name in ("a", "b", "v", "q", "k")}
        message = refused(inputs, **cast)
        assert str(dtype) in message
        assert "float32, bfloat16, float16 or float64" in message


@pytest.mark.parametrize(
    ("bounds", "shown"),
    [
        ([1, 5], "[1, 5]"),
        ([0, 4], "[0, 4]"),
        ([0, 3, 2, 5], "[0, 3, 2, 5]"),
        ([0, 6], "[0, 6]"),
        ([*range(14), 99], "[0, 1, 2, 3, 4, 5, '…', 9, 10, 11, 12, 13, 99]"),
    ],
)
def test_documents_must_cover_the_row(bounds: list[int], shown: str) -> None:
    packed = operator_inputs(**BASE | {"batch": 1, "keys": 5})
    message = refused(packed, cu_seqlens=torch.tensor(bounds, dtype=torch.int32))
    assert f"cu_seqlens is {shown}" in message
    assert "length, 5" in message


@pytest.mark.parametrize("offset", [0, integers(0)])
def test_documents_exclude_a_query_offset(offset: Any) -> None:
    packed = operator_inputs(**BASE | {"batch": 1, "keys": 5})
    bounds = torch.tensor([0, 5], dtype=torch.int32)
    message = refused(packed, cu_seqlens=bounds, query_offset=offset)
    assert "query_offset and cu_seqlens exclude each other" in message


def test_values_are_checked_under_compilation_too() -> None:
    torch.compiler.reset()
    compiled = torch.compile(na.neural_attention, fullgraph=True, backend="aot_eager")
    arguments = operator_inputs(**BASE).arguments()
    with pytest.raises(ValueError, match="expected 0 to 7, the number of keys"):
        compiled(**arguments | {"key_lengths": integers(7, 8)})
    with pytest.raises(ValueError, match="positions between"):
        compiled(**arguments | {"query_offset": integers(0, 2**62)})
