"""Masked tokens: which they are, and how well a model fills them in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from neural_attention.observation import evaluating
from neural_attention.tasks.language_modelling import TrainingBlocks
from neural_attention.tasks.task import TrainingSet

SHARE = 0.15
_MASKED, _OTHER = 0.8, 0.1
_IGNORED = -100
_EVALUATION_SEED = 0


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """The numbers of a tokeniser's special tokens, and of its entries.

    Raises:
        ValueError: it has no token for a mask, or none for the ends of a text.
    """
    start = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    end = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    found = {"start": start, "end": end, "mask": tokenizer.mask_token_id}
    if missing := [name for name, value in found.items() if value is None]:
        raise ValueError(
            f"the tokeniser of {tokenizer.name_or_path!r} has no token for {', '.join(missing)}: "
            "masked language modelling needs a model that was made for it, such as RoBERTa or BERT."
        )
    return {**found, "entries": len(tokenizer)}


def masked(
    tokens: np.ndarray, entries: int, mask: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A text with some tokens hidden.

    15% are to be found; of these 80% become the mask, 10% another token, 10% stay.

    Args:
        tokens: one-dimensional.
        entries: other tokens are drawn from so many.
        mask: the token of the mask.
        generator: where chance comes from.

    Returns:
        The tokens with masks, and which are to be found, both as long as ``tokens``.

    Source:
        Devlin et al. 2018, arXiv 1810.04805, section 3.1.
    """
    chosen, what = generator.random(len(tokens)) < SHARE, generator.random(len(tokens))
    others = generator.integers(entries, size=len(tokens))
    hidden = tokens.astype(np.int64)
    hidden[chosen & (what < _MASKED)] = mask
    replaced = chosen & (what >= _MASKED) & (what < _MASKED + _OTHER)
    hidden[replaced] = others[replaced]
    return hidden, chosen


class MaskedBlocks(TrainingSet):
    """The blocks of :class:`TrainingBlocks` with masks, drawn anew for each.

    Args:
        tokens: the training text.
        length: tokens of a block, without the two around it.
        samples: number of blocks in the whole run.
        seed: of the order and of the masks.
        special: numbers of ``start``, ``end`` and ``mask``, and the number of ``entries``.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        *,
        length: int,
        samples: int,
        seed: int,
        special: Mapping[str, int],
    ) -> None:
        self._blocks = TrainingBlocks(tokens, length, samples, seed)
        self._seed, self._special = seed, special

    @property
    def sha256(self) -> str:
        """Hash of the order in which the blocks are read."""
        return self._blocks.sha256

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        block = self._blocks[index]["input_ids"].numpy()
        generator = np.random.default_rng([self._seed, index])
        hidden, chosen = masked(block, self._special["entries"], self._special["mask"], generator)
        labels = np.where(chosen, block, _IGNORED)
        ends = self._special["start"], self._special["end"]
        return {
            "input_ids": _between(hidden, *ends),
            "labels": _between(labels, _IGNORED, _IGNORED),
        }


@torch.no_grad()
def masked_loss(
    model: torch.nn.Module,
    tokens: np.ndarray,
    *,
    length: int,
    special: Mapping[str, int],
    batch_size: int,
) -> tuple[float, int]:
    """Mean loss of masked tokens, in nats, and their number.

    Which tokens are masked depends on the text alone. It is read in blocks of ``length``; the last
    one ends with the text, and what it repeats is not counted twice.

    Args:
        model: ``model(input_ids=...).logits``.
        tokens: the text.
        length: tokens of a block, without the two around it.
        special: as in :class:`MaskedBlocks`.
        batch_size: blocks scored at once.
    """
    device = next(model.parameters()).device
    total, count = 0.0, 0
    with evaluating(model):
        for inputs, targets in scored_blocks(tokens, length, special, batch_size):
            found = targets != _IGNORED
            logits = model(input_ids=inputs.to(device)).logits[found.to(device)]
            losses = torch.nn.functional.cross_entropy(
                logits.float(), targets[found].to(device), reduction="none"
            )
            # In this order: Apple's GPU has no float64.
            total += losses.cpu().double().sum().item()
            count += int(found.sum())
    return total / count, count


def scored_blocks(
    tokens: np.ndarray, length: int, special: Mapping[str, int], batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets, each (blocks, length + 2); −100 is not scored."""
    tokens = np.asarray(tokens, dtype=np.int64)
    length = min(length, len(tokens))
    generator = np.random.default_rng(_EVALUATION_SEED)
    hidden, chosen = masked(tokens, special["entries"], special["mask"], generator)
    if not chosen.any():
        chosen[0] = True  # a text of a few tokens
    starts = [*range(0, len(tokens) - length, length), len(tokens) - length]
    blocks, done = [], 0
    for start in starts:
        end = start + length
        counts = chosen[start:end] & (np.arange(start, end) >= done)
        targets = np.where(counts, tokens[start:end], _IGNORED)
        inputs = _between(hidden[start:end], special["start"], special["end"])
        blocks.append((inputs, _between(targets, _IGNORED, _IGNORED)))
        done = end
    for first in range(0, len(blocks), batch_size):
        batch = blocks[first : first + batch_size]
        yield torch.stack([one for one, _ in batch]), torch.stack([one for _, one in batch])


def _between(block: np.ndarray, start: int, end: int) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([[start], block, [end]]).astype(np.int64))
