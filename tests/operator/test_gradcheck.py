"""Finite differences in float64, for every option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neural_attention.testing import ACTIVATIONS, OperatorInputs, operator_inputs

SMALL: dict[str, Any] = {
    "batch": 1, "heads": 2, "queries": 3, "keys": 4, "channels": 3, "value_width": 2,
    "activation": "tanh", "dtype": torch.float64,
}  # fmt: skip

OPTIONS: dict[str, dict[str, Any]] = {
    "one-layer": {},
    "two-layers": {"hidden_width": 2},
    "shared-heads": {"share_heads": True, "hidden_width": 2, "slopes": True},
    "grouped": {"heads": 3, "key_heads": 1, "dot_width": 2, "hidden_width": 2},
    "hybrid": {"dot_width": 2, "scale": 0.7},
    "dot": {"dot_width": 2, "channels": 0},
    "slopes": {"slopes": True, "query_offset": -1},
    "alibi": {"alibi": True, "query_offset": 5},
    "additive-mask": {"mask": "float"},
    "broadcast-additive-mask": {"mask": "float", "mask_shape": (2, 1, 4)},
    "boolean-mask": {"mask": "bool"},
    "causal-with-empty-rows": {"is_causal": True, "query_offset": -2},
    "window": {"window": (1, 0)},
    "key-lengths": {"batch": 2, "key_lengths": torch.tensor([3, 0])},
    "documents": {"keys": 3, "cu_seqlens": torch.tensor([0, 1, 1, 3], dtype=torch.int32)},
    "dropout": {"dropout_p": 0.4, "hidden_width": 2},
    "everything": {
        "dot_width": 2, "hidden_width": 2, "slopes": True, "alibi": True, "mask": "float",
        "is_causal": True, "window": (2, None), "dropout_p": 0.2,
    },
}  # fmt: skip


def check(inputs: OperatorInputs, backend: str, fast_mode: bool = False) -> None:
    names = list(inputs.leaves())

    def outputs(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = inputs.with_tensors(**dict(zip(names, tensors, strict=True))).run(backend)
        # gradcheck compares finite numbers: the lse of an empty row is a constant.
        return out, lse.masked_fill(lse.isinf(), 0)

    assert torch.autograd.gradcheck(outputs, list(inputs.leaves().values()), fast_mode=fast_mode)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_option(options: dict[str, Any], float64_backend: str) -> None:
    inputs = operator_inputs(**SMALL | {"seed": 1} | options)
    # A hidden entry's −inf has no finite difference.
    if "attn_mask" in inputs.tensors and inputs["attn_mask"].is_floating_point():
        mask = inputs["attn_mask"].detach().nan_to_num(neginf=-0.5).requires_grad_()
        inputs = inputs.with_tensors(attn_mask=mask)
    check(inputs, float64_backend)


@pytest.mark.parametrize("hidden_width", [None, 2], ids=["one-layer", "two-layers"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation: str, hidden_width: int | None, float64_backend: str) -> None:
    # Seeds for which no hidden unit lies within a finite difference of a kink.
    inputs = operator_inputs(
        **SMALL | {"activation": activation, "hidden_width": hidden_width, "seed": 2}
    )
    check(inputs, float64_backend, fast_mode=True)


def test_over_several_tiles(float64_backend: str) -> None:
    inputs = operator_inputs(
        batch=1, heads=2, key_heads=1, queries=70, channels=2, value_width=2, slopes=True,
        activation="gelu", is_causal=True, dtype=torch.float64, seed=3,
    )  # fmt: skip
    check(inputs, float64_backend, fast_mode=True)
