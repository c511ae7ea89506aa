"""Decoding with a cache gives what one full pass gives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from neural_attention.testing import OperatorInputs, operator_inputs

OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {},
    "slopes": {"slopes": True},
    "alibi-hybrid-grouped": {"alibi": True, "dot_width": 4, "key_heads": 2},
    "window": {"window": (5, None), "slopes": True},
    "two-layers": {"hidden_width": 3, "slopes": True},
}
LENGTH = 23


def part(inputs: OperatorInputs, queries: slice, keys: slice, **options: Any) -> OperatorInputs:
    tensors = {name: inputs[name][:, :, queries] for name in ("a", "q") if name in inputs.tensors}
    tensors |= {name: inputs[name][:, :, keys] for name in "bvk" if name in inputs.tensors}
    return inputs.with_tensors(**tensors).with_options(**options)


@pytest.fixture(params=OPTIONS.values(), ids=OPTIONS.keys())
def inputs(request: pytest.FixtureRequest) -> OperatorInputs:
    return operator_inputs(
        queries=LENGTH, is_causal=True, requires_grad=False, seed=1, **request.param
    )


@pytest.mark.parametrize("chunk", [1, 4, LENGTH])
def test_decoding_with_a_growing_cache_equals_one_pass(
    chunk: int, inputs: OperatorInputs, backend: str
) -> None:
    whole, whole_lse = inputs.run(backend)
    for start in range(0, LENGTH, chunk):
        rows = slice(start, min(start + chunk, LENGTH))
        out, lse = part(inputs, rows, slice(0, rows.stop)).run(backend)
        torch.testing.assert_close(out, whole[:, :, rows], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(lse, whole_lse[:, :, rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("per_batch", [False, True], ids=["int", "tensor"])
def test_decoding_with_a_preallocated_cache_equals_one_pass(
    per_batch: bool, inputs: OperatorInputs, backend: str
) -> None:
    whole, _ = inputs.run(backend)
    for start in range(LENGTH):
        # What lies beyond the filled part of the cache is garbage.
        cache = {}
        for name in ("b", "v", "k"):
            if name in inputs.tensors:
                cache[name] = inputs[name].clone()
                cache[name][:, :, start + 1 :] = math.nan
        offset: Any = torch.full((2,), start) if per_batch else start
        step = part(inputs, slice(start, start + 1), slice(None), query_offset=offset)
        out, _ = step.with_tensors(**cache).run(backend)
        torch.testing.assert_close(out, whole[:, :, start : start + 1], rtol=1e-5, atol=1e-5)
