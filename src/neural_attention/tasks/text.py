"""Text for language modelling: where it comes from and how it is split.

Three sources: the text every Python carries, files of your own, and data sets of the Hugging Face
hub. A text without splits of its own is split by position, never at random, so that no sentence of
the test part stands next to one of the training part.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neural_attention.tasks.wording import counted, legible

BUILT_IN = "built-in"
"""Name of the text that needs neither files nor a network."""

VALIDATION_SHARE = 0.05
TEST_SHARE = 0.05
NETWORK_TIMEOUT_S = 10.0
REPEATED_SHARE = 0.5
LONG_LINE = 40
_PIECE = 1 << 20

_FILE_NAMES = {
    "train": ("train.txt",),
    "validation": ("validation.txt", "valid.txt", "dev.txt"),
    "test": ("test.txt",),
}
CONVERTED = "refs/convert/parquet"
"""Where the hub keeps its own conversion of a data set to parquet files."""

HUB_SPLITS = {
    "train": ("train",),
    "validation": ("validation", "valid", "dev"),
    "test": ("test",),
}
HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+(:[\w.-]+)?$")


@dataclass(frozen=True)
class TextSplits:
    """A text in three parts.

    Attributes:
        source: where it comes from, in words, with how it was split.
        train: training part.
        validation: part on which choices are made.
        test: part that is read once, at the end.
    """

    source: str
    train: str
    validation: str
    test: str

    @property
    def sha256(self) -> str:
        """Hash of the three parts, in order, in UTF-8."""
        digest = hashlib.sha256()
        for part in (self.train, self.validation, self.test):
            digest.update(hashlib.sha256(part.encode()).digest())
        return digest.hexdigest()


def overlaps(text: TextSplits) -> list[str]:
    """What of the held-out parts the model has already seen, in words; nothing where all is well.

    A part is named when it stands whole in another, or when most of its longer lines do.
    """
    words, told = {"train": "training"}, []
    for held_out, seen in (("validation", "train"), ("test", "train"), ("test", "validation")):
        part, other = getattr(text, held_out).strip(), getattr(text, seen).strip()
        if min(len(part), len(other)) < LONG_LINE:
            continue
        if part == other:
            how = "is the same text as"
        elif part in other:
            how = "stands whole in"
        elif other in part:
            how = "holds the whole of"
        elif (share := _share_of_lines(part, other)) >= REPEATED_SHARE:
            how = f"has {share:.0%} of its longer lines from"
        else:
            continue
        told.append(
            f"the {held_out} part {how} the {words.get(seen, seen)} part: scores on it do not show "
            "what a model makes of a new text."
        )
    return told


def _share_of_lines(part: str, other: str) -> float:
    """The share of the longer lines of a text that another has too."""
    lines = {line for raw in part.splitlines() if len(line := raw.strip()) >= LONG_LINE}
    if not lines:
        return 0.0
    common, start = set(), 0
    while start < len(other):
        # By pieces, so that a large text is not held twice.
        end = other.find("\n", start + _PIECE) + 1 or len(other)
        common |= lines.intersection(map(str.strip, other[start:end].splitlines()))
        start = end
    return len(common) / len(lines)


def load_text(source: str | None = None) -> TextSplits:
    """Text in three parts from a file, a folder, the hub or Python itself.

    Args:
        source: ``None`` or ``"built-in"`` for the text every Python carries; a UTF-8 text file; a
            folder of ``.txt`` files (``train.txt``, ``validation.txt`` or ``valid.txt``, and
            ``test.txt`` are taken as the splits when they are there; otherwise all files in the
            order of their names are one text); or a data set of the Hugging Face hub,
            ``owner/name`` or ``owner/name:configuration``, such as
            ``Salesforce/wikitext:wikitext-103-raw-v1``. Hub sets keep their own splits; a missing
            validation or test part is taken from the end of the training part.

    Returns:
        A :class:`TextSplits`.

    Raises:
        FileNotFoundError: there is no such file, folder or data set.
        ValueError: an empty name, an empty text or one that is not UTF-8, or a hub set without a
            column of text.
        ConnectionError: a hub name without a network and without a copy on this machine.
        ImportError: a hub name without the ``datasets`` package.

    >>> text = load_text()
    >>> len(text.train) > 10 * len(text.test) > 0
    True
    """
    if source is not None and not source.strip():
        raise ValueError("the data have an empty name: give a file, a folder or a name of the hub.")
    if source is None or source == BUILT_IN:
        return _split_by_position(
            _python_documentation(), "the documentation of Python's own language"
        )
    # Not Path.expanduser, which raises for a user that there is not.
    path, name = Path(os.path.expanduser(source)), legible(source)
    if path.is_file():
        return _split_by_position(read_utf8(path), name)
    if path.is_dir():
        return _from_folder(path, name)
    if HUB_NAME.match(source) and path.suffix != ".txt":
        return _from_hub(source)
    raise FileNotFoundError(
        f"no file or folder {source!r}. Give a text file, a folder of .txt files, a data set of "
        "the Hugging Face hub as owner/name or owner/name:configuration, or nothing for the "
        "built-in text."
    )


def _python_documentation() -> str:
    """The reference of the language as ``help()`` shows it, without the passages it repeats."""
    from pydoc_data.topics import topics

    seen: set[str] = set()
    paragraphs = []
    for name in sorted(topics):
        for paragraph in re.split(r"\n\s*\n", topics[name]):
            words = " ".join(paragraph.split())
            # The same sections stand under several names: a repeated paragraph would put
            # sentences of the test part into the training part.
            if words and words not in seen:
                seen.add(words)
                paragraphs.append(paragraph.rstrip())
    return "\n\n".join(paragraphs) + "\n"


def read_utf8(path: Path) -> str:
    """The text of a file, without a byte order mark.

    Raises:
        ValueError: it is empty, or not UTF-8; the message names the line.
    """
    data, name = path.read_bytes(), legible(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        encoding = "UTF-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "LATIN1"
        raise ValueError(
            f"{name} is not UTF-8 text: byte 0x{data[error.start]:02x} at position "
            f"{error.start:,} (line {line:,}). If it is text in another encoding, such as "
            f"{encoding}, convert it: iconv -f {encoding} -t UTF-8 {shlex.quote(name)} > "
            "converted.txt"
        ) from None
    if "\0" in text:
        raise ValueError(
            f"{name} is not text: it has a zero byte at position {text.index(chr(0)):,}."
        )
    if not text.strip():
        raise ValueError(f"{name} is empty: text is needed.")
    return text


def _from_folder(folder: Path, source: str) -> TextSplits:
    parts: dict[str, str | None] = {}
    for part, names in _FILE_NAMES.items():
        found = [folder / name for name in names if (folder / name).is_file()]
        parts[part] = read_utf8(found[0]) if found else None
    if parts["train"] is not None:
        return _complete(parts, source)
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise FileNotFoundError(f"no .txt file in the folder {legible(folder)}.")
    return _split_by_position(
        "\n".join(read_utf8(file) for file in files), f"{source}, {counted(len(files), 'file')}"
    )


def _complete(parts: dict[str, str | None], source: str) -> TextSplits:
    """Fill a missing validation or test part from the end of the training part."""
    train, missing = parts["train"], [p for p in ("validation", "test") if parts[p] is None]
    if train is None:
        raise ValueError(f"{source} has no training part.")
    for part in reversed(missing):
        share = VALIDATION_SHARE if part == "validation" else TEST_SHARE
        cut = _line_start(train, int(len(train) * (1 - share)))
        train, parts[part] = train[:cut], train[cut:]
    how = f", {' and '.join(missing)} from the end of its training part" if missing else ""
    return TextSplits(source + how, train, parts["validation"] or "", parts["test"] or "")


def _split_by_position(text: str, source: str) -> TextSplits:
    first = _line_start(text, int(len(text) * (1 - VALIDATION_SHARE - TEST_SHARE)))
    second = _line_start(text, int(len(text) * (1 - TEST_SHARE)))
    how = f"split by position, last {VALIDATION_SHARE:.0%} and {TEST_SHARE:.0%} held out"
    return TextSplits(f"{source} ({how})", text[:first], text[first:second], text[second:])


def _line_start(text: str, position: int) -> int:
    """The start of the first line after ``position``, or ``position`` in a text of one line."""
    newline = text.find("\n", position)
    is_near = 0 <= newline < len(text) - 1 and newline - position <= len(text) // 50
    return newline + 1 if is_near else position


def _from_hub(source: str) -> TextSplits:
    sets = load_hub_sets(source)
    parts: dict[str, str | None] = {}
    for part, names in HUB_SPLITS.items():
        found = [split for split in names if split in sets]
        parts[part] = _join(_text_column(sets[found[0]], source)) if found else None
    return _complete(parts, source)


def load_hub_sets(source: str) -> Any:
    """The splits of a data set of the hub, ``owner/name`` or ``owner/name:configuration``.

    Raises:
        FileNotFoundError: there is no such data set.
        ValueError: an unknown configuration, or none where one is needed.
        ConnectionError: no network, and no copy on this machine.
        ImportError: ``datasets`` is missing.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            f"{source!r} is a data set of the Hugging Face hub, which the package `datasets` "
            'reads: pip install "neural-attention[compare]"'
        ) from error
    name, _, configuration = source.partition(":")
    _require_hub(name, source)
    datasets.disable_progress_bars()
    try:
        return _load_dataset(name, configuration or None)
    except ValueError as error:
        # An unknown or missing configuration; the message of `datasets` lists those there are.
        raise ValueError(f"{source!r}: {error}") from error
    except (datasets.exceptions.DatasetNotFoundError, FileNotFoundError) as error:
        raise FileNotFoundError(f"no data set {source!r} on the hub: {error}") from error
    except network_errors() as error:
        raise _unreachable(source, error) from error


def _load_dataset(name: str, configuration: str | None) -> Any:
    import datasets

    try:
        return datasets.load_dataset(name, configuration)
    except RuntimeError as error:
        # A set with a loading script, which `datasets` 4 and later do not run: the hub itself has
        # converted many of them.
        if "scripts are no longer supported" not in str(error):
            raise
        return datasets.load_dataset(name, configuration, revision=CONVERTED)


def _require_hub(name: str, source: str) -> None:
    """Ask the hub once, shortly: `datasets` itself retries for minutes without a network."""
    import datasets
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        huggingface_hub.HfApi().dataset_info(name, timeout=NETWORK_TIMEOUT_S)
    except RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"no data set {name!r} on the Hugging Face hub (nor a file or folder of that name), or "
            "it is private and needs `hf auth login`."
        ) from error
    except network_errors() as error:
        if not (Path(datasets.config.HF_DATASETS_CACHE) / name.replace("/", "___")).is_dir():
            raise _unreachable(source, error) from error
        datasets.config.HF_HUB_OFFLINE = True


def network_errors() -> tuple[type[Exception], ...]:
    """What the hub's client raises without a network; its HTTP library has had three names."""
    from huggingface_hub.errors import HfHubHTTPError

    libraries = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    return (OSError, HfHubHTTPError, *(library.HTTPError for library in libraries))


def _unreachable(source: str, error: Exception) -> ConnectionError:
    return ConnectionError(
        f"the Hugging Face hub does not answer, so {source!r} cannot be fetched ({error}). Connect "
        "to a network, give files of your own with --data, or use --data built-in."
    )


def _text_column(rows: Any, source: str) -> Iterable[str]:
    import datasets

    columns = [
        column
        for column, feature in rows.features.items()
        if isinstance(feature, datasets.Value) and feature.dtype in ("string", "large_string")
    ]
    if "text" in columns:
        return rows["text"]
    if len(columns) == 1:
        return rows[columns[0]]
    raise ValueError(
        f"{source!r} has no column 'text' and {counted(len(columns), 'column')} of strings "
        f"({', '.join(columns) or 'none'}): it is not clear which one to model. Save that column "
        "as a text file and give the file."
    )


def _join(rows: Iterable[str]) -> str:
    """One text: rows that end their lines themselves, as WikiText's do, are put end to end."""
    rows = list(rows)
    have_line_ends = any(row.endswith("\n") for row in rows)
    return ("" if have_line_ends else "\n").join(rows)
