"""Dropout: Philox by its published vectors, its counters, its rate, its gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from neural_attention.philox import philox_4x32_10
from neural_attention.testing import (
    BACKENDS,
    OperatorInputs,
    assert_close_to_float64,
    operator_inputs,
)

# Random123 (Salmon et al. 2011), kat_vectors: philox4x32 10.
PUBLISHED = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def philox_in_plain_integers(counter: list[int], key: list[int]) -> list[int]:
    """The algorithm once more, with Python's unbounded integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(c[0] * 0xD2511F53, 2**32)
        high2, low2 = divmod(c[2] * 0xCD9E8D57, 2**32)
        c = [high2 ^ c[1] ^ k[0], low2, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def expected_keep(seed: int, p: float, sizes: tuple[int, int, int, int]) -> Tensor:
    """The contract, entry by entry: counter (j div 4, i, h, b), word j mod 4."""
    unsigned = seed % 2**64
    key = [unsigned % 2**32, unsigned >> 32]
    batch, heads, queries, keys = sizes
    keep = torch.empty(sizes, dtype=torch.bool)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                for j in range(keys):
                    if j % 4 == 0:
                        words = philox_in_plain_integers([j // 4, i, h, b], key)
                    keep[b, h, i, j] = words[j % 4] >= math.floor(p * 2**32)
    return keep


def seed_drawn_after(torch_seed: int) -> int:
    torch.manual_seed(torch_seed)
    return int(torch.randint(-(2**63), 2**63 - 1, (1,)))


def dropped_weights(inputs: OperatorInputs, backend: str) -> Tensor:
    """P · keep / (1 − p): the output for values that are unit vectors."""
    batch, key_heads, keys, _ = inputs["b"].shape
    return inputs.with_tensors(v=torch.eye(keys).expand(batch, key_heads, -1, -1)).run(backend)[0]


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_philox_gives_the_published_words(
    counter: list[int], key: list[int], words: list[int]
) -> None:
    assert philox_in_plain_integers(counter, key) == words
    found = philox_4x32_10(
        tuple(torch.tensor(word) for word in counter), tuple(torch.tensor(word) for word in key)
    )
    assert [int(word) for word in found] == words


@pytest.mark.parametrize("torch_seed", [0, 1, 2, 3])
def test_a_weight_survives_by_the_word_of_its_indices(torch_seed: int, backend: str) -> None:
    seed = seed_drawn_after(torch_seed)
    sizes = (2, 4, 3, 11)
    inputs = operator_inputs(
        heads=4, key_heads=2, queries=3, keys=11, dropout_p=0.3, seed=torch_seed
    )
    keep = dropped_weights(inputs, backend) > 0
    assert torch.equal(keep, expected_keep(seed, 0.3, sizes)), f"seed {seed}"


def test_seeds_of_both_signs_are_drawn() -> None:
    assert {seed_drawn_after(torch_seed) < 0 for torch_seed in range(4)} == {True, False}


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (9, 9)}], ids=str)
def test_the_mask_depends_on_the_indices_alone(options: dict[str, Any], backend: str) -> None:
    # 64 channels split these lengths into several tiles; a window starts them anywhere.
    inputs = operator_inputs(
        heads=8, queries=75, keys=90, channels=64, dropout_p=0.4, seed=5, **options
    )
    seed = seed_drawn_after(5)
    undropped = dropped_weights(inputs.with_options(dropout_p=0.0), "reference")
    found = dropped_weights(inputs, backend)
    some = (slice(None), slice(5, 7), slice(60, 63))
    keep = expected_keep(seed, 0.4, (2, 8, 75, 90))[some] if not options else None
    if keep is not None:
        assert torch.equal(found[some] > 0, keep & (undropped[some] > 0))
    reference = dropped_weights(inputs, "reference")
    assert torch.equal(found > 0, reference > 0)
    torch.testing.assert_close(found[found > 0], undropped[found > 0] / 0.6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_kept_share_is_one_minus_p(p: float, backend: str) -> None:
    inputs = operator_inputs(queries=150, channels=1, dropout_p=p, seed=6)
    keep = dropped_weights(inputs, backend) > 0
    deviation = math.sqrt(p * (1 - p) / keep.numel())
    assert abs(keep.float().mean().item() - (1 - p)) < 4 * deviation
    # Neighbours in every direction are independent.
    for dim in range(4):
        size = keep.shape[dim]
        both = keep.narrow(dim, 0, size - 1) & keep.narrow(dim, 1, size - 1)
        spread = math.sqrt(3 * (1 - p) ** 2 / both.numel())
        assert abs(both.float().mean().item() - (1 - p) ** 2) < 4 * spread


@pytest.mark.parametrize("p", [0.1, 0.75])
def test_gradients_with_dropout(p: float, backend: str, dtype: torch.dtype) -> None:
    inputs = operator_inputs(
        heads=8, queries=75, keys=90, channels=64, hidden_width=3, dropout_p=p, slopes=True,
        is_causal=True, dtype=dtype, batch=1, seed=7,
    )  # fmt: skip
    assert_close_to_float64(inputs, backend)


def test_lse_is_that_of_the_undropped_weights(backend: str) -> None:
    inputs = operator_inputs(dropout_p=0.5, seed=8)
    assert torch.equal(inputs.run(backend)[1], inputs.with_options(dropout_p=0.0).run(backend)[1])


def test_the_mask_follows_torchs_generator(backend: str) -> None:
    inputs = operator_inputs(dropout_p=0.5, seed=9, requires_grad=False)
    first, again = inputs.run(backend)[0], inputs.run(backend)[0]
    assert torch.equal(first, again)
    same_values = OperatorInputs(inputs.tensors, inputs.options, seed=10)
    assert not torch.equal(first, same_values.run(backend)[0])


def test_without_dropout_the_generator_is_left_alone(backend: str) -> None:
    inputs = operator_inputs(seed=11)
    inputs.run(backend)
    expected = torch.manual_seed(11).get_state()
    inputs.run(backend)
    assert torch.equal(torch.get_rng_state(), expected)


def test_all_backends_drop_the_same_weights() -> None:
    inputs = operator_inputs(queries=70, channels=64, heads=8, dropout_p=0.5, seed=12)
    masks = [dropped_weights(inputs, name) > 0 for name in BACKENDS]
    assert all(torch.equal(mask, masks[0]) for mask in masks)
