"""Text as numbers: training a tokeniser, or using one there is, and keeping the result.

The tokens of a comparison are made once, written beside its results and read by every run, so that
all runs, also those after an interruption, see the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from neural_attention.tasks.json_files import read_json, set_aside, write_json
from neural_attention.tasks.text import NETWORK_TIMEOUT_S, TextSplits, network_errors
from neural_attention.tasks.wording import legible

END_OF_TEXT = "<|endoftext|>"
PARTS = ("train", "validation", "test")
_CHUNK = 1 << 20
_LONGEST_WORD = 1000
_LONG_RUN = re.compile(rf"\S{{{_LONGEST_WORD}}}|\s{{{_LONGEST_WORD}}}")
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf"}
_FORM = {
    "tokenizer": str,
    "vocab_size": int,
    "start_token": int,
    "counts": dict.fromkeys(PARTS, int),
    "sha256": str,
    "tokenizer_files": {str: str},
    "digest": str,
}


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

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> TokenFiles:
        """From a description that has these fields, and perhaps others."""
        return cls(**{field.name: description[field.name] for field in fields(cls)})

    def load(self, part: str) -> np.ndarray:
        """The tokens of ``"train"``, ``"validation"`` or ``"test"``, mapped from disk."""
        return np.load(Path(self.folder) / f"{part}.npy", mmap_mode="r", allow_pickle=False)


def tokenise(
    text: TextSplits,
    folder: Path,
    *,
    tokenizer: str | None = None,
    vocab_size: int = 2048,
    say: Callable[[str], None] | None = None,
) -> TokenFiles:
    """Turn a text into token files, or read those that an earlier call left.

    Args:
        text: the text.
        folder: where the files go; made if it is not there.
        tokenizer: ``None`` trains a byte-level BPE on the training part alone; otherwise the name
            or folder of a tokeniser that ``AutoTokenizer`` can load without code of its own.
        vocab_size: entries of the trained tokeniser; a short text may give fewer. Unused with
            ``tokenizer``.
        say: called with a line when earlier files are damaged, set aside and made again.

    Returns:
        A :class:`TokenFiles`. With a trained tokeniser ``folder/tokenizer`` can be loaded with
        ``AutoTokenizer.from_pretrained``.

    Raises:
        ValueError: ``tokenizer`` is empty or cannot be loaded.
        ImportError: a package is missing.

    Source:
        Byte-level BPE: Radford et al. 2019, "Language models are unsupervised multitask learners".
    """
    tokenizer = None if tokenizer is None else os.path.expanduser(tokenizer)
    what = [text.sha256, *tokenizer_identity(tokenizer, vocab_size)]
    key = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    folder = folder / key[:12]
    description = folder / "tokens.json"
    sizes = {part: len(getattr(text, part).encode()) for part in PARTS}
    found = _read_description(description, {"key": key, "bytes": sizes})
    if found is not None:
        return found
    if description.exists():
        aside = set_aside(folder, folder.name + ".unreadable")
        if say is not None:
            say(f"the tokens in {folder} are damaged: set aside as {aside.name}, and made again")
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is None:
        encoder = _train_bpe(text.train, vocab_size, folder / "tokenizer")
        size, start = encoder.get_vocab_size(), encoder.token_to_id(END_OF_TEXT)
        name = f"byte-level BPE, {size:,} entries, trained on the training part"
        arrays = {part: _encode_bpe(encoder, getattr(text, part)) for part in PARTS}
    else:
        auto = load_tokenizer(tokenizer)
        size, start = len(auto), _start_token(auto)
        name = f"{legible(tokenizer)}, {size:,} entries"
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
        bytes=sizes,
        sha256=digest.hexdigest(),
    )
    content = {
        **{name: value for name, value in asdict(files).items() if name != "folder"},
        "key": key,
        "tokenizer_files": _tokenizer_files(folder),
    }
    write_json(description, {**content, "digest": digest_of(content)})
    return files


def _tokenizer_files(folder: Path) -> dict[str, str]:
    """Hashes of the files of a trained tokeniser."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / "tokenizer").glob("*.json"))
    }


def digest_of(content: dict[str, Any]) -> str:
    """Of a description without its digest."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def tokenizer_identity(tokenizer: str | None, vocab_size: int) -> list[str]:
    """What tells one tokeniser from another: of a folder its files, wherever it lies."""
    if tokenizer is None:
        return [f"bpe {vocab_size}"]
    if not tokenizer.strip():
        raise ValueError("the tokeniser has an empty name: give a folder or a name of the hub.")
    folder = Path(tokenizer)
    if not folder.is_dir():
        return [tokenizer]
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    return [
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        for path in files
        if path.suffix not in _WEIGHTS
    ]


def _read_description(path: Path, known: dict[str, object]) -> TokenFiles | None:
    """The files of an earlier call, if they are whole; ``None`` has them made anew."""
    content = read_json(path, {**_FORM, **known}) if path.is_file() else None
    if content is None or content.pop("digest") != digest_of(content):
        return None
    tokenizer_files = content.pop("tokenizer_files")
    del content["key"]
    files = TokenFiles(folder=str(path.parent), **content)
    digest = hashlib.sha256()
    try:
        if tokenizer_files != _tokenizer_files(path.parent):
            return None
        for part in PARTS:
            array = files.load(part)
            digest.update(array.tobytes())
            if array.size != files.counts[part]:
                return None
    except (ValueError, EOFError, OSError):
        return None
    return files if digest.hexdigest() == files.sha256 else None


def _pieces(text: str) -> Iterator[str]:
    """Pieces of at most some megabytes that end with a line, or else with a word."""
    start = 0
    while start < len(text):
        end = start + _CHUNK
        for ends in ("\n", " "):
            found = text.find(ends, end, end + _CHUNK)
            if found >= 0:
                end = found + 1
                break
        yield text[start:end]
        start = end


def _short_words(text: str) -> Iterator[str]:
    """Pieces without endless words: the time of training grows with the square of a word."""
    for piece in _pieces(text):
        start = 0
        for run in _LONG_RUN.finditer(piece):
            yield piece[start : run.end()]
            start = run.end()
        yield piece[start:]


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
    encoder.train_from_iterator(_short_words(text), trainer)
    # What reads like a special token in a text is text.
    encoder.encode_special_tokens = True
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(encoder.to_str(pretty=True), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return encoder


def _encode_bpe(encoder: Any, text: str) -> np.ndarray:
    pieces = [np.asarray(encoder.encode(piece).ids, dtype=np.uint32) for piece in _pieces(text)]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.uint32)


def load_tokenizer(name: str) -> Any:
    """A tokeniser of a folder or of the hub, without code of its own.

    Raises:
        ValueError: it cannot be loaded.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            name, trust_remote_code=False, local_files_only=not hub_has(name)
        )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ValueError(
            f"the tokeniser {name!r} cannot be loaded ({reason}). Give a folder with a tokeniser "
            "or a name on the Hugging Face hub, with a network; one is trained where none is named."
        ) from error


def hub_has(name: str) -> bool:
    """Whether the hub answers for this name, asked once and shortly.

    Without a network transformers itself retries for a minute.
    """
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
            tokenizer(piece, add_special_tokens=False, split_special_tokens=True, verbose=False)[
                "input_ids"
            ],
            dtype=np.uint32,
        )
        for piece in _pieces(text)
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
