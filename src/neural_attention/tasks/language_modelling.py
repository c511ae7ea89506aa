"""Language modelling: the order of the training data, and perplexity with a strided window."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from neural_attention.tasks.task import TrainingSet
from neural_attention.tasks.wording import counted

_LARGEST_EXPONENT = 700


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text.

    Attributes:
        tokens: number of tokens scored, each once.
        bytes: length of the scored text in UTF-8 bytes.
        loss: mean negative log-likelihood of a token, in nats.
        perplexity: exp(loss); comparable between models of one tokeniser only.
        bits_per_byte: total negative log-likelihood in bits over ``bytes``; comparable between
            tokenisers.
    """

    tokens: int
    bytes: int
    loss: float
    perplexity: float
    bits_per_byte: float


def perplexity(loss: float) -> float:
    """``exp`` of a mean loss in nats; infinite where a float cannot hold it.

    >>> perplexity(0.0), perplexity(1e4)
    (1.0, inf)
    """
    return math.exp(loss) if loss < _LARGEST_EXPONENT else math.inf


def has_its_perplexity(score: Mapping[str, float]) -> bool:
    """Whether the perplexity of a score that was read from a file is that of its loss."""
    return math.isclose(perplexity(score["loss"]), score["perplexity"], rel_tol=1e-9)


@torch.no_grad()
def strided_score(
    model: torch.nn.Module,
    tokens: np.ndarray,
    *,
    length: int,
    stride: int,
    start_token: int,
    num_bytes: int,
    batch_size: int = 16,
) -> Score:
    r"""Perplexity with a sliding window whose overlap is not counted twice.

    .. math:: \exp\Big(-\frac1N \sum_{t=1}^{N} \log p(x_t \mid x_{s(t)}, \dots, x_{t-1})\Big)

    A window of ``length`` tokens moves on by ``stride`` tokens; each window scores only the tokens
    that no earlier one has scored. So each token is scored exactly once, and all but those of the
    first window have at least ``length - stride`` tokens of context. ``start_token`` stands before
    the first token.

    Args:
        model: a causal language model: ``model(input_ids=...).logits``.
        tokens: the text, one-dimensional.
        length: tokens the model sees at once.
        stride: how far the window moves, 1 to ``length``.
        start_token: id before the first token.
        num_bytes: length of the text in bytes, for bits per byte.
        batch_size: windows scored at once.

    Raises:
        ValueError: no tokens, or a stride outside 1 to ``length``.

    Source:
        The strided evaluation of the transformers documentation ("Perplexity of fixed-length
        models"), with the overlap masked.
    """
    if not 1 <= stride <= length:
        raise ValueError(f"stride is {stride}: it must lie between 1 and the length, {length}.")
    if len(tokens) == 0:
        raise ValueError("the text to score has no tokens.")
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    total = 0.0
    for inputs, targets, scored in _window_batches(tokens, length, stride, start_token, batch_size):
        logits = model(input_ids=inputs.to(device), use_cache=False).logits
        losses = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), targets.to(device).flatten(), reduction="none"
        )
        # In this order: Apple's GPU has no float64.
        total += losses.cpu().double()[scored.flatten()].sum().item()
    model.train(was_training)
    loss = total / len(tokens)
    return Score(
        tokens=len(tokens),
        bytes=num_bytes,
        loss=loss,
        perplexity=perplexity(loss),
        bits_per_byte=total / math.log(2) / num_bytes,
    )


def _windows(num_tokens: int, length: int, stride: int) -> Iterator[tuple[int, int]]:
    """Start of each window, and the first position in it that no earlier window has scored."""
    start, scored = 0, 0
    while scored < num_tokens:
        yield start, scored - start
        scored = min(start + length, num_tokens)
        # The last window ends with the text instead of being padded.
        start = max(0, min(start + stride, num_tokens - length))


def _window_batches(
    tokens: np.ndarray, length: int, stride: int, start_token: int, batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Inputs, targets and which targets to score, each (windows, length)."""
    length = min(length, len(tokens))
    stride = min(stride, length)
    windows = list(_windows(len(tokens), length, stride))
    for first in range(0, len(windows), batch_size):
        inputs, targets, scored = [], [], []
        for start, new in windows[first : first + batch_size]:
            window = np.asarray(tokens[max(0, start - 1) : start + length], dtype=np.int64)
            if start == 0:
                window = np.concatenate([[start_token], window])
            inputs.append(window[:-1])
            targets.append(window[1:])
            scored.append(np.arange(length) >= new)
        yield tuple(torch.from_numpy(np.stack(part)) for part in (inputs, targets, scored))  # type: ignore[misc]


class TrainingBlocks(TrainingSet):
    """The training blocks of a run in the order in which it reads them.

    The text is cut into blocks of ``length`` tokens, from another offset in each pass over it; a
    pass reads its blocks in random order. The order depends on ``seed`` alone, so that runs of one
    seed read the same blocks in the same order, whatever model they train. Read it sequentially.

    Args:
        tokens: the training text.
        length: tokens of a block.
        samples: number of blocks in the whole run.
        seed: seed of offsets and order.

    Raises:
        ValueError: the text is shorter than one block and the token after it.
    """

    def __init__(self, tokens: np.ndarray, length: int, samples: int, seed: int) -> None:
        if len(tokens) < length + 1:
            raise ValueError(
                f"the training text has {counted(len(tokens), 'token')} and one sequence needs "
                f"{length + 1:,}: give a longer text or shorter sequences."
            )
        self.tokens, self.length = tokens, length
        generator = np.random.Generator(np.random.PCG64(seed))
        passes, drawn = [], 0
        while drawn < samples:
            slack = min(length, len(tokens) - length)
            offset = int(generator.integers(slack))
            starts = np.arange(offset, len(tokens) - length, length)
            passes.append(generator.permutation(starts))
            drawn += len(starts)
        self.starts = np.concatenate(passes)[:samples]

    @property
    def sha256(self) -> str:
        """Hash of the order in which the blocks are read."""
        return hashlib.sha256(self.starts.astype("<i8").tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = int(self.starts[index])
        block = torch.from_numpy(
            np.asarray(self.tokens[start : start + self.length + 1], dtype=np.int64)
        )
        return {"input_ids": block[:-1], "labels": block[:-1], "shift_labels": block[1:]}
