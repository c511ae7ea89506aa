"""Parallel text as numbers: a vocabulary that both languages share, and pairs of sequences.

As for language modelling, the numbers of a comparison are made once, written beside its results and
read by every run.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from neural_attention.tasks.json_files import read_json, set_aside, write_json
from neural_attention.tasks.parallel_text import Pair, ParallelText
from neural_attention.tasks.task import PARTS
from neural_attention.tasks.tokens import digest_of, load_tokenizer, tokenizer_identity
from neural_attention.tasks.wording import legible

END, PAD = "</s>", "<pad>"
TOKENIZER = "tokenizer"
_FORMAT = 1
_MOST_SENTENCES = 1_000_000
_ENCODED_AT_ONCE = 4096
_BY_PART = dict.fromkeys(PARTS, int)
_FORM = {
    "tokenizer": str,
    "vocab_size": int,
    "end": int,
    "pad": int,
    "counts": _BY_PART,
    "target_tokens": _BY_PART,
    "left_out": int,
    "cut": int,
    "sha256": str,
    "files": {str: str},
    "digest": str,
}


@dataclass(frozen=True)
class PairFiles:
    """Where encoded pairs lie, and what is needed to read them.

    Attributes:
        folder: holds for each part ``train.npy`` (all sequences, end to end), ``train.offsets.npy``
            (where each ends) and ``train.references.json`` (the translations as text), and
            ``tokenizer``, which ``AutoTokenizer`` opens.
        tokenizer: the vocabulary in words.
        vocab_size: number of entries, special ones included.
        end: id at the end of every sequence.
        pad: id with which a decoder starts, and which fills up what is shorter.
        counts: pairs of each part.
        target_tokens: of each part, in the translations, with the ends.
        left_out: training pairs that were too long.
        cut: validation and test sequences that were cut, for they were too long for the model.
        sha256: hash of sequences and references.
    """

    folder: str
    tokenizer: str
    vocab_size: int
    end: int
    pad: int
    counts: dict[str, int]
    target_tokens: dict[str, int]
    left_out: int
    cut: int
    sha256: str

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> PairFiles:
        """From a description that has these fields, and perhaps others."""
        return cls(**{field.name: description[field.name] for field in fields(cls)})

    @property
    def tokenizer_folder(self) -> str:
        """Where the tokeniser lies."""
        return str(Path(self.folder) / TOKENIZER)

    def load(self, part: str) -> EncodedPairs:
        """The pairs of a part, mapped from disk."""
        return EncodedPairs(
            *(
                np.load(Path(self.folder) / f"{part}{name}.npy", mmap_mode="r", allow_pickle=False)
                for name in ("", ".offsets")
            )
        )

    def references(self, part: str) -> list[str]:
        """The translations of a part as text, which translations are measured against."""
        path = Path(self.folder) / f"{part}.references.json"
        content: list[str] = json.loads(path.read_text(encoding="utf-8"))
        return content


class EncodedPairs(Sequence[tuple[np.ndarray, np.ndarray]]):
    """Pairs of sequences of ids, each with its end.

    Args:
        ids: all sequences end to end: a source, its target, the next source, ….
        offsets: where each sequence ends.
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids, self.offsets = ids, offsets

    def __len__(self) -> int:
        return len(self.offsets) // 2

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = 0 if index == 0 else self.offsets[2 * index - 1]
        middle, end = self.offsets[2 * index], self.offsets[2 * index + 1]
        return self.ids[start:middle], self.ids[middle:end]


def encode_pairs(
    text: ParallelText,
    folder: Path,
    *,
    tokenizer: str | None = None,
    vocab_size: int = 4096,
    length: int = 128,
    limit: int = 512,
    say: Callable[[str], None] | None = None,
) -> PairFiles:
    """Turn parallel text into files, or read those that an earlier call left.

    Args:
        text: the text.
        folder: where the files go; made if it is not there.
        tokenizer: the folder of a model with its tokeniser, or its name on the hub; None trains a
            vocabulary for both languages on the training part alone: a unigram model of
            sentencepiece, with a byte for what it has not seen.
        vocab_size: entries of the trained vocabulary; a short text may give fewer. Unused with
            ``tokenizer``.
        length: tokens of a training sequence; pairs with a longer one are left out.
        limit: tokens that the model takes; longer validation and test sequences are cut.
        say: called with a line when earlier files are damaged, set aside and made again.

    Raises:
        ValueError: no training pair is short enough, or the vocabulary is too small for the text.
        ImportError: a package is missing.

    Source:
        Unigram vocabularies: Kudo 2018, arXiv 1804.10959. One for both languages: Sennrich, Haddow
        & Birch 2016, arXiv 1508.07909.
    """
    which = tokenizer_identity(tokenizer, vocab_size)
    what = [_FORMAT, text.sha256, which, length, limit]
    key = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    folder = folder / key[:12]
    description = folder / "pairs.json"
    found = _read_description(description, key)
    if found is not None:
        return found
    if description.exists():
        aside = set_aside(folder, folder.name + ".unreadable")
        if say is not None:
            say(f"the pairs in {folder} are damaged: set aside as {aside.name}, and made again")
    folder.mkdir(parents=True, exist_ok=True)
    name = _make_tokenizer(text, folder / TOKENIZER, tokenizer, vocab_size)
    encoder = load_pair_tokenizer(str(folder / TOKENIZER))
    counts: dict[str, int] = {}
    target_tokens: dict[str, int] = {}
    left_out = too_long = 0
    for part in PARTS:
        encoded = list(_encode(encoder, text.parts[part]))
        references = [target for _, target in text.parts[part]]
        if part == "train":
            kept = [pair for pair in encoded if max(map(len, pair)) <= length]
            left_out, encoded, references = len(encoded) - len(kept), kept, []
        else:
            too_long += sum(len(ids) > limit for pair in encoded for ids in pair)
            encoded = [(cut(source, limit), cut(target, limit)) for source, target in encoded]
        if not encoded:
            raise ValueError(
                f"no pair of the {part} part has at most {length} tokens on both sides: give "
                "shorter sentences, or a larger --vocab-size."
            )
        counts[part] = len(encoded)
        target_tokens[part] = sum(len(target) for _, target in encoded)
        _write(folder, part, encoded, references)
    files = PairFiles(
        folder=str(folder),
        tokenizer=name,
        vocab_size=len(encoder),
        end=encoder.eos_token_id,
        pad=encoder.pad_token_id,
        counts=counts,
        target_tokens=target_tokens,
        left_out=left_out,
        cut=too_long,
        sha256=digest_of(_hashes(folder, "*.*")),
    )
    content = {
        **{name: value for name, value in asdict(files).items() if name != "folder"},
        "key": key,
        "files": _hashes(folder / TOKENIZER, "*"),
    }
    write_json(description, {**content, "digest": digest_of(content)})
    return files


def cut(ids: list[int], limit: int) -> list[int]:
    """At most so many, with the end at the end."""
    return ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]


def load_pair_tokenizer(name: str) -> Any:
    """A tokeniser of a folder or of the hub that can end and pad a sequence.

    Raises:
        ValueError: it cannot be loaded, or lacks one of both.
    """
    with warnings.catch_warnings():
        # Marian's advises a package that is not needed.
        warnings.simplefilter("ignore", UserWarning)
        found = load_tokenizer(name)
    if found.eos_token_id is None or found.pad_token_id is None:
        raise ValueError(
            f"the tokeniser of {legible(name)} has no end of a sequence or no padding token."
        )
    return found


def _encode(encoder: Any, pairs: Sequence[Pair]) -> Iterator[tuple[list[int], list[int]]]:
    for start in range(0, len(pairs), _ENCODED_AT_ONCE):
        sources, targets = zip(*pairs[start : start + _ENCODED_AT_ONCE], strict=True)
        options = {"verbose": False, "split_special_tokens": True}
        yield from zip(
            encoder(list(sources), **options)["input_ids"],
            encoder(text_target=list(targets), **options)["input_ids"],
            strict=True,
        )


def _write(
    folder: Path, part: str, pairs: Iterable[Iterable[list[int]]], references: list[str]
) -> None:
    sequences = [ids for pair in pairs for ids in pair]
    ids = np.concatenate([np.asarray(one, dtype=np.uint32) for one in sequences])
    offsets = np.cumsum([len(one) for one in sequences], dtype=np.int64)
    np.save(folder / f"{part}.npy", ids, allow_pickle=False)
    np.save(folder / f"{part}.offsets.npy", offsets, allow_pickle=False)
    write_json(folder / f"{part}.references.json", references)


def _hashes(folder: Path, pattern: str) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob(pattern))
        if path.is_file() and path.name != "pairs.json"
    }


def _read_description(path: Path, key: str) -> PairFiles | None:
    """The files of an earlier call, if they are whole; ``None`` has them made anew."""
    content = read_json(path, {**_FORM, "key": key}) if path.is_file() else None
    if content is None or content.pop("digest") != digest_of(content):
        return None
    if content.pop("files") != _hashes(path.parent / TOKENIZER, "*"):
        return None
    if content["sha256"] != digest_of(_hashes(path.parent, "*.*")):
        return None
    del content["key"]
    return PairFiles(folder=str(path.parent), **content)


def _make_tokenizer(
    text: ParallelText, folder: Path, tokenizer: str | None, vocab_size: int
) -> str:
    """Write a tokeniser into a folder, and say what it is."""
    if tokenizer is not None:
        found = load_pair_tokenizer(tokenizer)
        found.save_pretrained(folder)
        return f"the model's own, {len(found):,} entries"
    pieces = _train_pieces(text.parts["train"], vocab_size)
    encoder = _fast_tokenizer(pieces)
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(encoder.to_str(pretty=True), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": pieces[0][0],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    size = encoder.get_vocab_size()
    return f"unigram pieces, {size:,} entries for both languages, trained on the training part"


def _train_pieces(pairs: Sequence[Pair], vocab_size: int) -> list[tuple[str, float]]:
    """Pieces with their log-probabilities; the first stands for what is unknown."""
    try:
        import sentencepiece
    except ImportError as error:
        raise ImportError(
            "a vocabulary for both languages is trained with the package `sentencepiece`: "
            'pip install "neural-attention[translation]"'
        ) from error
    every = -(-2 * len(pairs) // _MOST_SENTENCES)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(side for pair in pairs[::every] for side in pair),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size - 2,  # the end and the padding come on top
            hard_vocab_limit=False,
            byte_fallback=True,
            normalization_rule_name="identity",
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,  # with more, sums depend on the order in which they end
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(
            f"no vocabulary of {vocab_size:,} entries can be made of this text (sentencepiece: "
            f"{reason}): try another --vocab-size."
        ) from None
    made = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [(made.id_to_piece(i), made.get_score(i)) for i in range(made.get_piece_size())]


def _fast_tokenizer(pieces: list[tuple[str, float]]) -> Any:
    """The same pieces for the `tokenizers` package, which cuts text as sentencepiece does."""
    from tokenizers import (
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    made = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens([END, PAD])
    # What reads like a special token in a text is text.
    made.encode_special_tokens = True
    made.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, made.token_to_id(END))]
    )
    return made
