"""Text as numbers: training a tokeniser, or using one there is, and keeping the result.

The tokens of a comparison are made once, written beside its results and read by every run, so that
all runs, also those after an interruption, see the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neural_attention.tasks.text import NETWORK_TIMEOUT_S, TextSplits, network_errors

END_OF_TEXT = "<|endoftext|>"
PARTS = ("train", "validation", "test")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class TokenFiles:
    """Where the tokens of a text lie, and what is needed to read and to score them.

    Attributes:
        folder: folder with ``train.npy``, ``validation.npy``, ``test.npy``.
        tokenizer: name of the tokeniser in words.
        vocab_size: number of entries, special ones included.
        start_token: id that stands before the first token of a text, so that this one has a
            context too.
        counts: number of tokens of each part.
        bytes: length of each part in UTF-8 bytes.
        sha256: hash of the three arrays.
    """

    folder: str
    tokenizer: str
    vocab_size: int
    start_token: int
    counts: dict[str, int]
    bytes: dict[str, int]
    sha256: str

    def load(self, part: str) -> np.ndarray:
        """The tokens of ``"train"``, ``"validation"`` or ``"test"``, mapped from disk."""
        return np.load(Path(self.folder) / f"{part}.npy", mmap_mode="r", allow_pickle=False)


def tokenise(
    text: TextSplits, folder: Path, *, tokenizer: str | None = None, vocab_size: int = 2048
) -> TokenFiles:
    """Turn a text into token files, or read those that an earlier call left.

    Args:
        text: the text.
        folder: where the files go; made if it is not there.
        tokenizer: ``None`` trains a byte-level BPE on the training part alone; otherwise the name
            or folder of a tokeniser that ``AutoTokenizer`` can load without code of its own.
        vocab_size: entries of the trained tokeniser; a short text may give fewer. Unused with
            ``tokenizer``.

    Returns:
        A :class:`TokenFiles`. With a trained tokeniser ``folder/tokenizer`` can be loaded with
        ``AutoTokenizer.from_pretrained``.

    Raises:
        ValueError: ``tokenizer`` cannot be loaded.
        ImportError: a package is missing.

    Source:
        Byte-level BPE: Radford et al. 2019, "Language models are unsupervised multitask learners".
    """
    what = [text.sha256, tokenizer or f"bpe {vocab_size}"]
    key = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    folder = folder / key[:12]
    description = folder / "tokens.json"
    if description.is_file():
        found = _read_description(description, key)
        if found is not None:
            return found
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is None:
        encoder = _train_bpe(text.train, vocab_size, folder / "tokenizer")
        size, start = encoder.get_vocab_size(), encoder.token_to_id(END_OF_TEXT)
        name = f"byte-level BPE, {size:,} entries, trained on the training part"
        arrays = {part: _encode_bpe(encoder, getattr(text, part)) for part in PARTS}
    else:
        auto = _load_auto_tokenizer(tokenizer)
        size, start = len(auto), _start_token(auto)
        name = f"{tokenizer}, {size:,} entries"
        arrays = {part: _encode_auto(auto, getattr(text, part)) for part in PARTS}
    digest = hashlib.sha256()
    for part, array in arrays.items():
        array = array.astype(np.uint16 if size <= 1 << 16 else np.uint32)
        digest.update(array.tobytes())
        np.save(folder / f"{part}.npy", array, allow_pickle=False)
    files = TokenFiles(
        folder=str(folder),
        tokenizer=name,
        vocab_size=size,
        start_token=start,
        counts={part: int(array.size) for part, array in arrays.items()},
        bytes={part: len(getattr(text, part).encode()) for part in PARTS},
        sha256=digest.hexdigest(),
    )
    temporary = description.with_suffix(".tmp")
    temporary.write_text(json.dumps({**asdict(files), "key": key}, indent=1))
    os.replace(temporary, description)
    return files


def _read_description(path: Path, key: str) -> TokenFiles | None:
    """The files of an earlier call, if they are whole; ``None`` has them made anew."""
    try:
        content = json.loads(path.read_text())
        if content.pop("key") != key:
            return None
        files = TokenFiles(**{**content, "folder": str(path.parent)})
        digest = hashlib.sha256()
        for part in PARTS:
            digest.update(files.load(part).tobytes())
    except (ValueError, TypeError, KeyError, OSError):
        return None
    return files if digest.hexdigest() == files.sha256 else None


def _lines(text: str) -> Iterator[str]:
    """Pieces of about a megabyte that end with a line, so that no word is cut."""
    start = 0
    while start < len(text):
        newline = text.find("\n", start + _CHUNK)
        end = len(text) if newline < 0 else newline + 1
        yield text[start:end]
        start = end


def _train_bpe(text: str, vocab_size: int, folder: Path) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    encoder = Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    encoder.train_from_iterator(_lines(text), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    encoder.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return encoder


def _encode_bpe(encoder: Any, text: str) -> np.ndarray:
    pieces = [np.asarray(encoder.encode(piece).ids, dtype=np.uint32) for piece in _lines(text)]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.uint32)


def _load_auto_tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            name, trust_remote_code=False, local_files_only=not _hub_has(name)
        )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ValueError(
            f"the tokeniser {name!r} cannot be loaded ({reason}). Give a folder with a tokeniser, "
            "a name on the Hugging Face hub with a network, or leave --tokenizer out to train one."
        ) from error


def _hub_has(name: str) -> bool:
    """Ask the hub once, shortly: without a network `transformers` itself retries for a minute."""
    import huggingface_hub

    if Path(name).is_dir():
        return False
    # ValueError: a name that no repository can have.
    no_answer: tuple[type[Exception], ...] = (ValueError, *network_errors())
    try:
        huggingface_hub.HfApi().model_info(name, timeout=NETWORK_TIMEOUT_S)
    except no_answer:
        return False
    return True


def _encode_auto(tokenizer: Any, text: str) -> np.ndarray:
    pieces = [
        np.asarray(
            tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.uint32
        )
        for piece in _lines(text)
    ]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.uint32)


def _start_token(tokenizer: Any) -> int:
    for name in ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id"):
        value = getattr(tokenizer, name, None)
        if value is not None:
            return int(value)
    raise ValueError(
        f"{tokenizer.name_or_path!r} has no token that can stand before a text (bos, eos, cls, sep "
        "or pad): choose another tokeniser, or leave --tokenizer out to train one."
    )
