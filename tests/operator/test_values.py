"""Outputs, lse and gradients against float64, over options, shapes and dtypes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import neural_attention as na
from neural_attention import activations
from neural_attention.testing import ACTIVATIONS, assert_close_to_float64, operator_inputs

OPTIONS: dict[str, dict[str, Any]] = {
    "one-layer": {},
    "two-layers": {"hidden_width": 3},
    "shared-heads": {"share_heads": True},
    "two-layers-shared": {"hidden_width": 3, "share_heads": True, "activation": "gelu"},
    "hybrid": {"dot_width": 8},
    "hybrid-two-layers-narrow-dot": {"dot_width": 1, "hidden_width": 4},
    "scaled-hybrid": {"dot_width": 8, "scale": 0.3},
    "dot": {"dot_width": 8, "channels": 0},
    "dot-alibi-causal": {"dot_width": 8, "channels": 0, "alibi": True, "is_causal": True},
    "slopes": {"slopes": True},
    "slopes-shared": {"slopes": True, "share_heads": True},
    "slopes-two-layers-causal": {"slopes": True, "hidden_width": 3, "is_causal": True},
    "alibi": {"alibi": True},
    "everything": {
        "slopes": True, "alibi": True, "dot_width": 3, "hidden_width": 4, "mask": "float",
        "is_causal": True, "window": (9, None), "key_heads": 2, "activation": "silu",
        "dropout_p": 0.3,
    },
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_option_is_as_close_to_float64_as_eager_torch(
    options: dict[str, Any], backend: str, dtype: torch.dtype
) -> None:
    assert_close_to_float64(operator_inputs(dtype=dtype, seed=1, **options), backend)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_float64_inputs_compute_in_float64(options: dict[str, Any], float64_backend: str) -> None:
    inputs = operator_inputs(dtype=torch.float64, seed=2, **options)
    assert_close_to_float64(inputs, float64_backend)


@pytest.mark.parametrize("hidden_width", [None, 3], ids=["one-layer", "two-layers"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(
    activation: str, hidden_width: int | None, backend: str, dtype: torch.dtype
) -> None:
    inputs = operator_inputs(
        activation=activation, hidden_width=hidden_width, dtype=dtype, seed=3, slopes=True
    )
    assert_close_to_float64(inputs, backend)


def test_activations_are_the_functions_of_their_names() -> None:
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    sigmoid = 1 / (1 + torch.exp(-x))
    cubic = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    formulas = {
        "relu": x * (x > 0),
        "leaky_relu": torch.where(x > 0, x, 0.01 * x),
        "leaky_relu:0.2": torch.where(x > 0, x, 0.2 * x),
        "hardswish": x * (x + 3).clamp(0, 6) / 6,
        "gelu": x * (1 + torch.erf(x / math.sqrt(2))) / 2,
        "gelu_tanh": x * (1 + torch.tanh(cubic)) / 2,
        "silu": x * sigmoid,
        "tanh": 1 - 2 / (torch.exp(2 * x) + 1),
    }
    assert set(activations.NAMES) <= set(formulas) == set(ACTIVATIONS)
    for name, expected in formulas.items():
        torch.testing.assert_close(activations.resolve(name)(x), expected)


@pytest.mark.parametrize("group", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_groups_of_query_heads_share_keys(group: int, key_heads: int, backend: str) -> None:
    inputs = operator_inputs(
        heads=group * key_heads, key_heads=key_heads, dot_width=4, slopes=True, alibi=True,
        hidden_width=3, mask="float", seed=4,
    )  # fmt: skip
    assert_close_to_float64(inputs, backend)


LENGTHS = [(1, 1), (1, 63), (63, 1), (2, 5), (5, 2), (63, 63), (63, 111), (111, 63), (111, 111)]


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_odd_and_unequal_lengths(queries: int, keys: int, is_causal: bool, backend: str) -> None:
    inputs = operator_inputs(
        heads=2, queries=queries, keys=keys, is_causal=is_causal, slopes=True, dot_width=4, seed=5
    )
    assert_close_to_float64(inputs, backend)


@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16"])
def test_length_1025_over_many_tiles(dtype_name: str, backend: str) -> None:
    inputs = operator_inputs(
        batch=1, heads=2, key_heads=1, queries=1025, channels=2, slopes=True, is_causal=True,
        dtype=getattr(torch, dtype_name), seed=6,
    )  # fmt: skip
    assert_close_to_float64(inputs, backend)


@pytest.mark.parametrize("width", [1, 3, 24, 65, 256])
def test_any_head_dim_and_value_width(width: int, backend: str, dtype: torch.dtype) -> None:
    inputs = operator_inputs(
        batch=1, heads=2, queries=19, keys=23, value_width=width, dot_width=width, dtype=dtype,
        seed=7,
    )  # fmt: skip
    assert_close_to_float64(inputs, backend)


@pytest.mark.parametrize("channels", [1, 2, 16, 33, 128])
def test_any_number_of_channels(channels: int, backend: str) -> None:
    inputs = operator_inputs(batch=1, heads=2, channels=channels, slopes=True, seed=8)
    assert_close_to_float64(inputs, backend)


@pytest.mark.parametrize(
    "sizes",
    [{"queries": 0, "keys": 7}, {"queries": 7, "keys": 0}, {"batch": 0}, {"value_width": 0}],
    ids=str,
)
@pytest.mark.parametrize("channels", [0, 5])
def test_empty_dimensions(sizes: dict[str, int], channels: int, backend: str) -> None:
    inputs = operator_inputs(
        channels=channels, dot_width=4, alibi=True, mask="float", is_causal=True, seed=9, **sizes
    )
    assert_close_to_float64(inputs, backend)


def test_large_scores_do_not_overflow(backend: str) -> None:
    inputs = operator_inputs(dot_width=8, scale=300.0, seed=10)
    assert_close_to_float64(inputs, backend)


def test_c_zero_is_scaled_dot_product_attention(backend: str) -> None:
    inputs = operator_inputs(channels=0, dot_width=8, seed=11)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(inputs[name].double() for name in "qkv")
    )
    torch.testing.assert_close(inputs.run(backend)[0].double(), expected, rtol=1e-5, atol=1e-6)


def test_tanh_with_one_layer_is_bahdanau_attention(backend: str) -> None:
    # v · tanh(W s + U h), by a linear layer on the concatenation of query and key.
    inputs = operator_inputs(batch=1, heads=1, queries=4, keys=6, channels=3, activation="tanh")
    torch.manual_seed(12)
    query, key = torch.randn(4, 2).double(), torch.randn(6, 2).double()
    first = torch.nn.Linear(4, 3).double()
    pairs = torch.cat([query[:, None].expand(4, 6, 2), key[None].expand(4, 6, 2)], -1)
    scores = torch.tanh(first(pairs)) @ inputs["output"][0].double()
    expected = scores.softmax(-1) @ inputs["v"][0, 0].double()
    a = query @ first.weight[:, :2].T + first.bias
    b = key @ first.weight[:, 2:].T
    out = na.neural_attention(
        a.float()[None, None], b.float()[None, None], inputs["v"],
        na.ScoreWeights(inputs["output"]), activation="tanh", backend=backend,
    )  # fmt: skip
    torch.testing.assert_close(out[0, 0].double(), expected, rtol=1e-5, atol=1e-6)


def test_repeated_runs_agree_bit_for_bit(backend: str) -> None:
    inputs = operator_inputs(
        queries=111, key_heads=2, hidden_width=3, dot_width=4, slopes=True, alibi=True,
        mask="float", mask_shape=(4, 1, 111), is_causal=True, dropout_p=0.2, seed=13,
    )  # fmt: skip

    def run() -> list[torch.Tensor]:
        out, lse = inputs.run(backend)
        leaves = list(inputs.leaves().values())
        return [out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), leaves)]

    first = run()
    for _ in range(3):
        assert all(torch.equal(*pair) for pair in zip(first, run(), strict=True))


def test_gradients_do_not_share_memory(backend: str) -> None:
    # With one query and one key nothing broadcasts, and the gradients of a and b are equal.
    inputs = operator_inputs(heads=2, queries=1, alibi=True, seed=14)
    out, lse = inputs.run(backend)
    found = torch.autograd.grad(out.sum() + lse.sum(), list(inputs.leaves().values()))
    storages = [gradient.untyped_storage().data_ptr() for gradient in found]
    assert len(set(storages)) == len(storages)


def test_auto_is_one_of_the_backends_and_equals_the_reference() -> None:
    assert_close_to_float64(operator_inputs(seed=15), "auto")
