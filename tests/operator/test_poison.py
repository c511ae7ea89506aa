"""NaN, Inf and huge values in masked entries reach nothing; visible ones show."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from neural_attention.testing import (
    ACTIVATIONS,
    OperatorInputs,
    gradients,
    operator_inputs,
    output_gradients,
)

POISONS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
FULL: dict[str, Any] = {"dot_width": 3, "hidden_width": 3, "slopes": True, "alibi": True}


def run(inputs: OperatorInputs, backend: str) -> dict[str, Tensor]:
    out, lse = inputs.run(backend)
    return {"out": out, "lse": lse} | gradients(inputs, out, lse, *output_gradients(inputs))


def poisoned(inputs: OperatorInputs, keys: Tensor, value: float, *names: str) -> OperatorInputs:
    """The same call with a value in b, k and v (or those named) where ``keys`` (B, Lk) is True."""
    hidden = keys[:, None, :, None]
    return inputs.with_tensors(
        **{
            name: inputs[name].detach().masked_fill(hidden, value).requires_grad_()
            for name in names or ("b", "k", "v")
        }
    )


def assert_unchanged(clean: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    for name, expected in clean.items():
        eps = torch.finfo(expected.dtype).eps
        scale = expected.masked_fill(expected.isinf(), 0).abs().max().item()
        torch.testing.assert_close(
            found[name],
            expected,
            rtol=0,
            atol=16 * eps * max(scale, 1),
            msg=f"{name} differs",
        )


def last_three_keys(inputs: OperatorInputs) -> Tensor:
    keys = torch.zeros(inputs["b"].shape[0], inputs["b"].shape[2], dtype=torch.bool)
    keys[:, -3:] = True
    return keys


def boolean_mask(shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(shape, generator=generator) < 0.7
    mask[..., -3:] = False
    return mask


# Each hides the last three of 17 keys from every query.
HIDING: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True, "query_offset": -3},
    "causal-per-batch": {"is_causal": True, "query_offset": torch.tensor([-3, -7])},
    "window": {"window": (None, 2), "query_offset": -5},
    "key-lengths": {"key_lengths": torch.tensor([14, 9])},
}


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS.keys())
@pytest.mark.parametrize("options", HIDING.values(), ids=HIDING.keys())
def test_poison_behind_a_mask_changes_nothing(
    options: dict[str, Any], poison: float, backend: str, dtype: torch.dtype
) -> None:
    inputs = operator_inputs(key_heads=2, dtype=dtype, seed=1, **FULL, **options)
    keys = last_three_keys(inputs)
    found = run(poisoned(inputs, keys, poison), backend)
    assert_unchanged(run(inputs, backend), found)
    for name in ("b", "k", "v"):
        assert (found[name][:, :, -3:] == 0).all()


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS.keys())
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", [(2, 4, 17, 17), (17,)], ids=str)
def test_poison_behind_an_explicit_mask_changes_nothing(
    shape: tuple[int, ...], kind: str, poison: float, backend: str
) -> None:
    mask = boolean_mask(shape)
    if kind == "float":
        mask = torch.zeros(shape).masked_fill(~mask, -math.inf).requires_grad_()
    inputs = operator_inputs(seed=2, dropout_p=0.2, **FULL).with_tensors(attn_mask=mask)
    found = run(poisoned(inputs, last_three_keys(inputs), poison), backend)
    assert_unchanged(run(inputs, backend), found)


@pytest.mark.parametrize("poison", [9e9, -9e9, 1e15, -1e30, 3e38], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_huge_values_behind_a_mask_change_nothing(
    activation: str, poison: float, backend: str
) -> None:
    inputs = operator_inputs(
        key_heads=2, activation=activation, key_lengths=torch.tensor([14, 9]), mask="bool", seed=3,
        **FULL,
    )  # fmt: skip
    found = run(poisoned(inputs, last_three_keys(inputs), poison), backend)
    assert_unchanged(run(inputs, backend), found)


@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS.keys())
@pytest.mark.parametrize("name", ["b", "k", "v"])
@pytest.mark.parametrize("kind", ["bool", "float", "documents"])
def test_poison_shows_in_the_pair_that_sees_it_and_nowhere_else(
    kind: str, name: str, poison: float, backend: str
) -> None:
    # Query 6 sees key 6 alone, and no other query sees key 6.
    inputs = operator_inputs(batch=1, queries=12, seed=4, **FULL)
    if kind == "documents":
        inputs = inputs.with_options(cu_seqlens=torch.tensor([0, 6, 7, 12], dtype=torch.int32))
    else:
        mask = boolean_mask((1, 1, 12, 12))
        mask[..., 0] = True
        mask[:, :, 6] = mask[..., 6] = False
        mask[:, :, 6, 6] = True
        if kind == "float":
            mask = torch.zeros(mask.shape).masked_fill(~mask, -math.inf).requires_grad_()
        inputs = inputs.with_tensors(attn_mask=mask)
    key_6 = torch.arange(12)[None] == 6
    clean = run(inputs, backend)
    found = run(poisoned(inputs, key_6, poison, name), backend)
    others = torch.arange(12) != 6
    for entries in ("out", "lse", "a", "b", "v", "q", "k"):
        assert_unchanged(
            {entries: clean[entries][:, :, others]}, {entries: found[entries][:, :, others]}
        )
    if math.isnan(poison):
        assert found["out"][:, :, 6].isnan().all()


def test_documents_and_causality_hide_the_future_of_other_documents(backend: str) -> None:
    # Document 2 is poisoned as a whole: document 1 does not notice.
    bounds = torch.tensor([0, 50, 111], dtype=torch.int32)
    inputs = operator_inputs(
        batch=1, queries=111, channels=64, cu_seqlens=bounds, is_causal=True, seed=5, dot_width=3
    )
    clean = run(inputs, backend)
    second = torch.arange(111)[None] >= 50
    found = run(poisoned(inputs, second, math.nan, "a", "b", "v", "q", "k"), backend)
    for name in ("out", "lse", "a", "b", "v", "q", "k"):
        assert_unchanged({name: clean[name][:, :, :50]}, {name: found[name][:, :, :50]})
    assert found["out"][:, :, 50:].isnan().all()


@pytest.mark.parametrize("name", ["b", "k", "v"])
def test_a_nan_that_is_seen_shows(name: str, backend: str, dtype: torch.dtype) -> None:
    inputs = operator_inputs(batch=1, dtype=dtype, is_causal=True, dot_width=3, seed=6)
    key_9 = torch.arange(17)[None] == 9
    out, lse = poisoned(inputs, key_9, math.nan, name).run(backend)
    assert out[:, :, :9].isfinite().all()
    assert out[:, :, 9:].isnan().all()
    if name != "v":
        assert lse[:, :, 9:].isnan().all()


def test_nan_in_a_query_that_sees_nothing_changes_nothing(backend: str) -> None:
    inputs = operator_inputs(queries=9, keys=5, is_causal=True, seed=7, **FULL)
    first_four = (torch.arange(9) < 4).expand(2, -1)
    found = run(poisoned(inputs, first_four, math.nan, "a", "q"), backend)
    assert_unchanged(run(inputs, backend), found)
