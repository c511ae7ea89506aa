"""Strided perplexity against a computation token by token, and the order of training data."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from neural_attention.tasks.language import LanguageModelling
from neural_attention.tasks.language_modelling import TrainingBlocks, strided_score

VOCABULARY = 11


class Recency(torch.nn.Module):
    """Logits that depend on every token of the context and on how far back it stands."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=generator))

    def forward(self, input_ids, use_cache=None):
        length = input_ids.shape[1]
        distance = torch.arange(length)[:, None] - torch.arange(length)
        weights = (0.7 ** distance.clamp(min=0)) * (distance >= 0)
        return SimpleNamespace(logits=weights @ self.table[input_ids])


def brute_force(model, tokens, length, stride, start):
    """The loss of each token from the window that scores it first, one token at a time."""
    stream = [start, *tokens]
    losses, counted = [], 0
    window = 0
    while counted < len(tokens):
        end = min(window + length, len(tokens))
        for position in range(counted, end):
            context = torch.tensor([stream[window : position + 1]])
            logits = model(context).logits[0, -1]
            losses.append(-torch.log_softmax(logits, -1)[tokens[position]].item())
        counted = end
        window = max(0, min(window + stride, len(tokens) - length))
    return losses


@pytest.mark.parametrize("count", [1, 5, 8, 9, 20, 37])
@pytest.mark.parametrize(("length", "stride"), [(8, 8), (8, 4), (8, 3), (8, 1), (7, 5)])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_every_token_is_scored_once_with_its_context(count, length, stride, batch_size):
    model = Recency()
    tokens = np.random.default_rng(count).integers(0, VOCABULARY, count).astype(np.uint16)
    score = strided_score(
        model,
        tokens,
        length=length,
        stride=stride,
        start_token=3,
        num_bytes=2 * count,
        batch_size=batch_size,
    )
    losses = brute_force(model, tokens.tolist(), length, stride, 3)
    assert len(losses) == score.tokens == count
    assert score.loss == pytest.approx(sum(losses) / count, rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(score.loss))
    assert score.bits_per_byte == pytest.approx(sum(losses) / math.log(2) / (2 * count), rel=1e-5)


def test_counting_the_overlap_twice_would_be_noticed():
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, 40)
    keywords = {"length": 8, "start_token": 0, "num_bytes": 40}
    scores = [strided_score(Recency(), tokens, stride=s, **keywords).loss for s in (8, 4)]
    assert scores[0] != pytest.approx(scores[1], abs=1e-6)


def test_scoring_leaves_the_model_in_training_mode():
    model = Recency().train()
    strided_score(model, np.arange(5), length=4, stride=2, start_token=0, num_bytes=5)
    assert model.training


def test_losses_leave_the_device_before_they_become_float64():
    # Apple's GPU has no float64.
    called = []

    class Order(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            called.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    with Order():
        strided_score(Recency(), np.arange(5), length=4, stride=2, start_token=0, num_bytes=5)
    assert called.index("cpu") < called.index("double")


@pytest.mark.parametrize("stride", [0, 9])
def test_a_stride_outside_the_window_is_refused(stride):
    with pytest.raises(ValueError, match="between 1 and the length, 8"):
        strided_score(Recency(), np.arange(9), length=8, stride=stride, start_token=0, num_bytes=9)


def test_an_empty_text_is_refused():
    with pytest.raises(ValueError, match="no tokens"):
        strided_score(Recency(), np.arange(0), length=8, stride=8, start_token=0, num_bytes=1)


def test_the_order_of_blocks_depends_on_the_seed_alone():
    tokens = np.arange(1000)
    first, same, other = (TrainingBlocks(tokens, 16, 100, seed) for seed in (0, 0, 1))
    assert first.sha256 == same.sha256 != other.sha256
    np.testing.assert_array_equal(first.starts, same.starts)


def test_a_longer_run_begins_like_a_shorter_one():
    tokens = np.arange(1000)
    short, long = (TrainingBlocks(tokens, 16, samples, 0) for samples in (50, 300))
    np.testing.assert_array_equal(long.starts[:50], short.starts)


def test_each_pass_reads_every_block_once_and_starts_elsewhere():
    blocks = TrainingBlocks(np.arange(1000), 16, 10_000, 0)
    first = blocks.starts[:61]
    assert len(np.unique(first)) == 61
    assert len(np.unique(first % 16)) == 1
    assert len(np.unique(blocks.starts % 16)) > 10


def test_a_block_is_followed_by_its_shifted_self():
    blocks = TrainingBlocks(np.arange(100), 8, 20, 0)
    batch = LanguageModelling().collate([blocks[0], blocks[19]])
    assert batch["input_ids"].shape == (2, 8)
    assert batch["input_ids"].dtype == torch.int64
    torch.testing.assert_close(batch["shift_labels"], batch["input_ids"] + 1)


def test_the_shortest_text_has_one_block_and_a_shorter_one_is_refused():
    assert len(TrainingBlocks(np.arange(9), 8, 3, 0)) == 3
    with pytest.raises(ValueError, match="8 tokens and one sequence needs 9"):
        TrainingBlocks(np.arange(8), 8, 3, 0)
