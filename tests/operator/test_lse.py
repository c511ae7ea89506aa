"""The log-sum-exp merges partial results, with gradients."""

from __future__ import annotations

import pytest
import torch

from neural_attention import ScoreWeights, neural_attention
from neural_attention.testing import (
    OperatorInputs,
    gradients,
    operator_inputs,
    output_gradients,
)


def keys_of(inputs: OperatorInputs, keys: slice, offset: int) -> OperatorInputs:
    parts = {name: inputs[name][:, :, keys] for name in ("b", "k", "v")}
    return inputs.with_tensors(**parts).with_options(query_offset=offset)


def test_two_halves_of_the_keys_merge_by_lse_with_gradients(backend: str) -> None:
    # Causal, so that the first queries see nothing of the second half.
    inputs = operator_inputs(
        queries=21, key_heads=2, dot_width=3, slopes=True, alibi=True, hidden_width=3,
        is_causal=True, seed=1,
    )  # fmt: skip
    grad_out, grad_lse = output_gradients(inputs)
    out, lse = inputs.run(backend)
    expected = gradients(inputs, out, lse, grad_out, grad_lse)

    first_out, first_lse = keys_of(inputs, slice(0, 12), 0).run(backend)
    second_out, second_lse = keys_of(inputs, slice(12, 21), -12).run(backend)
    merged_lse = torch.logaddexp(first_lse, second_lse)
    merged = first_out * (first_lse - merged_lse).exp()[..., None]
    merged = merged + second_out * (second_lse - merged_lse).exp()[..., None]
    torch.testing.assert_close(merged, out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(merged_lse, lse, rtol=1e-5, atol=1e-5)
    found = gradients(inputs, merged, merged_lse, grad_out, grad_lse)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4, msg=name)


def test_lse_is_float32_or_float64_with_float64(backend: str, dtype: torch.dtype) -> None:
    out, lse = operator_inputs(dtype=dtype).run(backend)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)


def test_lse_of_float64_is_float64(float64_backend: str) -> None:
    out, lse = operator_inputs(dtype=torch.float64).run(float64_backend)
    assert (out.dtype, lse.dtype) == (torch.float64, torch.float64)


@pytest.mark.parametrize("offset", [torch.finfo(torch.float32).min, -1e7, -1e5, 1e6])
def test_weights_sum_to_1_beside_a_large_number_in_the_mask(backend: str, offset: float) -> None:
    # transformers writes a row in which nothing is to be seen so.
    mask = torch.zeros(5, 4)
    mask[0] = offset
    a, b = torch.zeros(1, 1, 5, 2), torch.zeros(1, 1, 4, 2)
    v = torch.ones(1, 1, 4, 3, requires_grad=True)
    out = neural_attention(
        a, b, v, ScoreWeights(torch.ones(1, 2)), activation="relu", attn_mask=mask, backend=backend
    )
    torch.testing.assert_close(out, torch.ones(1, 1, 5, 3))
    out[:, :, 0].sum().backward()
    torch.testing.assert_close(v.grad, torch.full_like(v, 0.25))
