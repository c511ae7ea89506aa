"""Each test that asks for a backend runs on all of them."""

from __future__ import annotations

import pytest
import torch

from neural_attention.testing import BACKENDS, FLOAT64_BACKENDS


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=FLOAT64_BACKENDS)
def float64_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["float32", "bfloat16", "float16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return getattr(torch, request.param)
