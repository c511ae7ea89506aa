"""Translating: sequences and lines by beam search, and how the result is measured."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import torch

from neural_attention.observation import evaluating
from neural_attention.tasks.parallel_tokens import cut, load_pair_tokenizer
from neural_attention.tasks.pretrained import load_pretrained

NO_LABEL = -100
MOST_NEW_TOKENS = 256
"""Of a translation, where a model's own settings have no limit."""

_UNSET_LENGTH = 20  # what transformers takes for a length that nobody has set


def pad_batch(sequences: Sequence[Any], value: int) -> torch.Tensor:
    """Sequences of ids as one tensor ``(batch, longest)``, int64, filled up with ``value``."""
    tensors = [torch.from_numpy(np.asarray(one, dtype=np.int64)) for one in sequences]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)


def batch_of(pairs: Sequence[tuple[Any, Any]]) -> dict[str, torch.Tensor]:
    """Keyword arguments of a translation model for pairs of sequences of ids.

    What stands in padding of the source is masked: any id will do.
    """
    sources, targets = zip(*pairs, strict=True)
    return {**_inputs(sources), "labels": pad_batch(targets, NO_LABEL)}


def _inputs(sources: Sequence[Any]) -> dict[str, torch.Tensor]:
    attention_mask = pad_batch([np.ones(len(source)) for source in sources], 0)
    return {"input_ids": pad_batch(sources, 0), "attention_mask": attention_mask}


def _by_length(sequences: Sequence[Any], size: int) -> Iterator[list[int]]:
    """Batches of indices of sequences of like lengths, the longest first."""
    order = sorted(range(len(sequences)), key=lambda index: -len(sequences[index]))
    for start in range(0, len(order), size):
        yield order[start : start + size]


@torch.no_grad()
def token_loss(model: Any, pairs: Sequence[tuple[Any, Any]], batch_size: int) -> float:
    """Mean negative log-likelihood of a target token given source and earlier ones, in nats.

    Neither smoothed nor weighted by sentence; the end of a sentence is a token.

    Args:
        model: ``model(**batch).logits``; see :func:`batch_of`.
        pairs: sequences of ids, source and target.
        batch_size: pairs at once.
    """
    device, total, count = next(model.parameters()).device, 0.0, 0
    with evaluating(model):
        for chosen in _by_length([target for _, target in pairs], batch_size):
            batch = batch_of([pairs[index] for index in chosen])
            labels = batch["labels"]
            moved = {name: value.to(device) for name, value in batch.items()}
            logits = model(**moved, use_cache=False).logits
            losses = torch.nn.functional.cross_entropy(
                logits.float().flatten(0, 1),
                moved["labels"].flatten(),
                ignore_index=NO_LABEL,
                reduction="none",
            )
            # In this order: Apple's GPU has no float64.
            total += losses.cpu().double().sum().item()
            count += int(labels.ne(NO_LABEL).sum())
    return total / count


@torch.no_grad()
def translate_ids(
    model: Any, sources: Sequence[Any], *, batch_size: int, **generation: Any
) -> list[list[int]]:
    """Translations of encoded sentences, in their order.

    Args:
        model: a sequence-to-sequence model of transformers.
        sources: sequences of ids, each with its end.
        batch_size: sentences at once; those of like lengths go together.
        generation: of ``generate``, such as ``num_beams`` and ``max_new_tokens``.
    """
    found: list[list[int]] = [[] for _ in sources]
    device = next(model.parameters()).device
    with evaluating(model):
        for chosen in _by_length(sources, batch_size):
            batch = _inputs([sources[index] for index in chosen])
            moved = {name: value.to(device) for name, value in batch.items()}
            made = model.generate(**moved, do_sample=False, **generation)
            for index, ids in zip(chosen, made.tolist(), strict=True):
                found[index] = ids
    return found


@dataclass(frozen=True)
class Translator:
    """A saved model with its tokeniser.

    Attributes:
        model: a sequence-to-sequence model of transformers, stock or converted.
        tokenizer: its own.
        most_tokens: that the model takes of a sentence.
        generation: keywords of ``generate``.
    """

    model: Any
    tokenizer: Any
    most_tokens: int
    generation: Mapping[str, Any]

    @classmethod
    def load(cls, name: str, device: str, num_beams: int | None = None) -> Translator:
        """From a folder, or a name on the hub.

        Args:
            name: such as the ``model`` folder of a run.
            device: where it works.
            num_beams: of the beam search; None for what the model's generation settings say.

        Raises:
            ValueError: it cannot be loaded, is no sequence-to-sequence model, or has no tokeniser.
        """
        import neural_attention.hf  # noqa: F401 (its classes)

        name = os.path.expanduser(name)
        model = load_pretrained("seq2seq", name)
        tokenizer = load_pair_tokenizer(name)
        known = getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length
        most_tokens = min(limit for limit in known if limit is not None)
        own = model.generation_config
        generation = {} if num_beams is None else {"num_beams": num_beams}
        if own.max_new_tokens is None and own.max_length in (None, _UNSET_LENGTH):
            generation["max_new_tokens"] = min(most_tokens, MOST_NEW_TOKENS)
        return cls(model.to(device), tokenizer, most_tokens, generation)

    def lines(self, lines: Sequence[str], batch_size: int) -> tuple[list[str], list[int]]:
        """Translations of lines, in their order, and the indices of those that were too long.

        An empty line gives an empty line; one that is too long is cut.
        """
        filled = [index for index, line in enumerate(lines) if line.strip()]
        translations = [""] * len(lines)
        if not filled:
            return translations, []
        texts = [lines[index] for index in filled]
        encoded = self.tokenizer(texts, split_special_tokens=True, verbose=False)["input_ids"]
        made = translate_ids(
            self.model,
            [cut(ids, self.most_tokens) for ids in encoded],
            batch_size=batch_size,
            **self.generation,
        )
        decoded = self.tokenizer.batch_decode(made, skip_special_tokens=True)
        for index, translation in zip(filled, decoded, strict=True):
            # A line in, a line out.
            translations[index] = " ".join(translation.split("\n"))
        are_too_long = [len(ids) > self.most_tokens for ids in encoded]
        return translations, list(compress(filled, are_too_long))


def measure(translations: Sequence[str], references: Sequence[str]) -> dict[str, float | str]:
    """BLEU and chrF of translations, with the signatures that say how they were computed.

    Args:
        translations: plain text, one a sentence.
        references: one for each.

    Raises:
        ImportError: sacreBLEU is missing.

    Source:
        BLEU: Papineni et al. 2002; chrF: Popović 2015; signatures: Post 2018, arXiv 1804.08771.

    >>> found = measure(["the cat sat on the mat"], ["the cat sat on the mat"])
    >>> round(found["bleu"], 6), round(found["chrf"], 6)
    (100.0, 100.0)
    """
    bleu, chrf = _metrics()
    return {
        "bleu": float(bleu.corpus_score(list(translations), [list(references)]).score),
        "chrf": float(chrf.corpus_score(list(translations), [list(references)]).score),
        "bleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }


def signatures() -> Mapping[str, str]:
    """Those of :func:`measure`, by the measure's name."""
    found = measure(["a"], ["a"])
    return {"BLEU": str(found["bleu_signature"]), "chrF": str(found["chrf_signature"])}


def _metrics() -> tuple[Any, Any]:
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise ImportError(
            "translations are measured with the package `sacrebleu`: "
            'pip install "neural-attention[translation]"'
        ) from error
    return BLEU(), CHRF()
