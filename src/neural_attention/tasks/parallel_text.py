"""Parallel text: pairs of a sentence and its translation, from files, the hub or made here."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neural_attention.tasks.number_words import number_words
from neural_attention.tasks.task import PARTS
from neural_attention.tasks.text import (
    BUILT_IN,
    HUB_NAME,
    HUB_SPLITS,
    TEST_SHARE,
    VALIDATION_SHARE,
    load_hub_sets,
    read_utf8,
)
from neural_attention.tasks.wording import counted, legible

_FILE_STEMS = {
    "train": ("train",),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test",),
}
_TABLES = (".tsv", ".parquet")
_LINES_TOLD = 3

Pair = tuple[str, str]
Numbered = Iterator[tuple[int, Pair]]


@dataclass(frozen=True)
class ParallelText:
    """Sentences and their translations in three parts.

    Attributes:
        source: where they come from, in words.
        languages: that which is translated, and the one into which it is.
        parts: by part, pairs of a sentence and its translation.
        notes: what was left out or is to be minded, in words.
    """

    source: str
    languages: tuple[str, str]
    parts: Mapping[str, Sequence[Pair]]
    notes: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """Hash of the pairs, part by part."""
        digest = hashlib.sha256()
        for part in PARTS:
            content = json.dumps(list(self.parts[part]), ensure_ascii=False)
            digest.update(content.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def load_parallel(
    source: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> ParallelText:
    """Pairs of sentences in three parts.

    Args:
        source: ``None`` or ``"built-in"`` for German number words and their English translation; a
            folder with aligned files, a line a sentence, such as ``train.de`` and ``train.en``,
            and the same for ``valid`` or ``validation`` and ``test``; a folder with ``train.tsv``
            or ``train.parquet`` and so on; one such file; or a data set of the Hugging Face hub,
            ``owner/name`` or ``owner/name:configuration``, such as
            ``IWSLT/iwslt2017:iwslt2017-de-en``. Tables have a column of that name for each
            language, or one named ``translation`` that holds both; a table of tabs with two columns
            needs no names. A missing validation or test part is taken from the end of the training
            part.
        source_language: ending of the files, or name of the column, of what is translated; None
            where there are two, of which the first by the alphabet is taken.
        target_language: likewise, of the translations.

    Returns:
        The pairs; those of which a side is empty are left out, and this is noted.

    Raises:
        FileNotFoundError: there is no such file, folder or data set, or no training part in it.
        ValueError: files with different numbers of lines, text that is not UTF-8, a missing column,
            a part without pairs, or languages that there are not.
        ConnectionError: a hub name without a network and without a copy on this machine.
        ImportError: a package is missing.
    """
    if source is not None and not source.strip():
        raise ValueError("the data have an empty name: give a file, a folder or a name of the hub.")
    wanted = source_language, target_language
    if source is None or source == BUILT_IN:
        if any(one not in (None, own) for one, own in zip(wanted, ("de", "en"), strict=True)):
            raise ValueError("the built-in number words go from de to en: name data for others.")
        languages, raw = ("de", "en"), {p: enumerate(n, 1) for p, n in number_words().items()}
        return _complete("German number words and their English translation", languages, raw)
    path, name = Path(os.path.expanduser(source)), legible(source)
    if path.is_dir():
        return _from_folder(path, name, wanted)
    if path.is_file():
        if path.suffix not in _TABLES:
            raise ValueError(
                f"{name} is one file, and no .tsv or .parquet: give the folder that holds the "
                "aligned files of both languages, such as train.de and train.en."
            )
        languages, pairs = _read_table(path, wanted)
        return _complete(name, languages, {"train": pairs})
    if HUB_NAME.match(source) and path.suffix not in _TABLES:
        return _from_hub(source, wanted)
    raise FileNotFoundError(
        f"no file or folder {source!r}. Give a folder of aligned files, a .tsv or .parquet file, a "
        "data set of the Hugging Face hub as owner/name or owner/name:configuration, or nothing "
        "for built-in number words."
    )


def overlaps(text: ParallelText) -> list[str]:
    """Whether sentences of the held-out parts stand in the training part, in words."""
    seen, told = {sentence for sentence, _ in text.parts["train"]}, []
    for part in ("validation", "test"):
        pairs = text.parts[part]
        known = sum(sentence in seen for sentence, _ in pairs)
        if known:
            count = counted(len(pairs), f"{part} sentence")
            told.append(
                f"{known:,} of {count} ({known / len(pairs):.1%}) "
                f"stand{'s' if known == 1 else ''} in the training part too."
            )
    return told


def _complete(source: str, languages: Pair, raw: Mapping[str, Numbered]) -> ParallelText:
    """Without empty pairs, and with a validation and a test part."""
    parts: dict[str, list[Pair]] = {}
    notes = []
    for part, numbered in raw.items():
        parts[part], empty = [], []
        for number, pair in numbered:
            if all(side.strip() for side in pair):
                parts[part].append(pair)
            else:
                empty.append(number)
        if empty:
            lines = ", ".join(f"{number:,}" for number in empty[:_LINES_TOLD])
            more = ", …" if len(empty) > _LINES_TOLD else ""
            notes.append(
                f"{counted(len(empty), 'pair')} of the {part} part with an empty side left out "
                f"(line{'' if len(empty) == 1 else 's'} {lines}{more})."
            )
    missing = [part for part in PARTS if part not in parts]
    shares = {"validation": VALIDATION_SHARE, "test": TEST_SHARE}
    pairs = parts["train"]
    held_out = {part: max(1, int(len(pairs) * shares[part])) for part in missing}
    for part, count in reversed(held_out.items()):
        parts["train"], parts[part] = parts["train"][:-count], parts["train"][-count:]
    if missing:
        source += f", {' and '.join(missing)} from the end of its training part"
    for part in PARTS:
        if not parts[part]:
            raise ValueError(f"the {part} part of {source} has no pairs of sentences.")
    return ParallelText(source, languages, {part: parts[part] for part in PARTS}, tuple(notes))


# Aligned files.


def _from_folder(folder: Path, name: str, wanted: tuple[str | None, str | None]) -> ParallelText:
    tables = {
        part: table
        for part, stems in _FILE_STEMS.items()
        if (table := _first(folder, [stem + end for stem in stems for end in _TABLES]))
    }
    if "train" in tables:
        read = {part: _read_table(table, wanted) for part, table in tables.items()}
        languages = read["train"][0]
        return _complete(name, languages, {part: pairs for part, (_, pairs) in read.items()})
    endings = sorted({path.suffix[1:] for path in folder.glob("train.*") if path.is_file()})
    languages = _choose(endings, wanted, f"the files train.* in {name} end in")
    raw = {}
    for part, stems in _FILE_STEMS.items():
        for stem in stems:
            files = [folder / f"{stem}.{language}" for language in languages]
            if all(file.is_file() for file in files):
                raw[part] = _aligned(*files)
                break
            if any(file.is_file() for file in files):
                there, absent = sorted(files, key=lambda file: not file.is_file())
                raise FileNotFoundError(
                    f"{legible(there)} has no {absent.name} beside it: parallel text needs both."
                )
    return _complete(name, languages, raw)


def _first(folder: Path, names: list[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _choose(known: Sequence[str], wanted: tuple[str | None, str | None], where: str) -> Pair:
    """Source and target among the languages there are."""
    for one in wanted:
        if one is not None and one not in known:
            raise ValueError(f"{where} {', '.join(known) or 'nothing'}: there is no {one!r}.")
    rest = [one for one in known if one not in wanted]
    if len(rest) != wanted.count(None) or wanted[0] == wanted[1] is not None:
        raise ValueError(
            f"{where} {', '.join(known) or 'nothing'}: two languages are needed, named with "
            "--source-language and --target-language where there are more."
        )
    source, target = (one if one is not None else rest.pop(0) for one in wanted)
    return source, target


def _lines(path: Path) -> list[str]:
    """Lines that end in a newline alone: a text may hold other separators within a sentence."""
    lines = read_utf8(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _aligned(source: Path, target: Path) -> Numbered:
    sides = _lines(source), _lines(target)
    if len(sides[0]) != len(sides[1]):
        lone = [
            number
            for number, (one, other) in enumerate(zip(*sides, strict=False), 1)
            if bool(one.strip()) != bool(other.strip())
        ]
        hint = f" The first line that is empty on one side alone is {lone[0]:,}." if lone else ""
        raise ValueError(
            f"{legible(source)} has {counted(len(sides[0]), 'line')} and {target.name} "
            f"{len(sides[1]):,}: parallel files need one line for each sentence pair.{hint}"
        )
    return enumerate(zip(*sides, strict=True), 1)


# Tables.


def _read_table(path: Path, wanted: tuple[str | None, str | None]) -> tuple[Pair, Numbered]:
    return _read_tsv(path, wanted) if path.suffix == ".tsv" else _read_parquet(path, wanted)


def _read_tsv(path: Path, wanted: tuple[str | None, str | None]) -> tuple[Pair, Numbered]:
    rows = [line.split("\t") for line in _lines(path)]
    head, name = [field.strip() for field in rows[0]], legible(path)
    if None not in wanted and set(wanted) <= set(head):
        languages: Pair = (str(wanted[0]), str(wanted[1]))
    elif len(head) != 2:
        raise ValueError(
            f"{name} has {counted(len(head), 'column')} ({', '.join(head)[:80]}): name two of them "
            "with --source-language and --target-language, or give a table of two."
        )
    elif all(2 <= len(field) <= 3 and field.isalpha() for field in head) and head[0] != head[1]:
        # Such as "de" and "en": names of the columns, and no sentences.
        languages = _choose(head, wanted, f"the columns of {name} are")
    else:
        columns = wanted[0] or "source", wanted[1] or "target"
        return columns, _tsv_pairs(name, rows, 1, 2, (0, 1))
    places = head.index(languages[0]), head.index(languages[1])
    return languages, _tsv_pairs(name, rows[1:], 2, len(head), places)


def _tsv_pairs(
    name: str, rows: list[list[str]], first: int, width: int, places: tuple[int, int]
) -> Numbered:
    for number, row in enumerate(rows, first):
        if len(row) != width:
            raise ValueError(
                f"line {number:,} of {name} has {counted(len(row), 'column')}, and {width} are "
                "needed, with one tab between them."
            )
        yield number, (row[places[0]], row[places[1]])


def _read_parquet(path: Path, wanted: tuple[str | None, str | None]) -> tuple[Pair, Numbered]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ImportError(
            f'{legible(path)} is read with pyarrow: pip install "neural-attention[translation]"'
        ) from error
    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{legible(path)} is not a parquet file: {reason}") from None
    return _of_columns({name: table[name].to_pylist() for name in table.column_names}, wanted,
                       legible(path))  # fmt: skip


def _of_columns(
    columns: Mapping[str, Sequence[Any]], wanted: tuple[str | None, str | None], name: str
) -> tuple[Pair, Numbered]:
    """Pairs of a column ``translation``, or of two columns of text."""
    if columns.get("translation"):
        rows = columns["translation"]
        if not all(isinstance(row, Mapping) for row in rows):
            raise ValueError(f"the column translation of {name} does not hold both languages.")
        known = sorted({language for row in rows[:1] for language in row})
        languages = _choose(known, wanted, f"the translations of {name} have the languages")
        sides: Iterable[Any] = ((row.get(one) for one in languages) for row in rows)
    else:
        known = [
            column
            for column, rows in columns.items()
            if all(isinstance(row, str) or row is None for row in rows)
        ]
        languages = _choose(known, wanted, f"the columns of text in {name} are")
        sides = zip(columns[languages[0]], columns[languages[1]], strict=True)
    pairs = (tuple("" if text is None else str(text) for text in row) for row in sides)
    return languages, enumerate(pairs, 1)  # type: ignore[arg-type]


def _from_hub(source: str, wanted: tuple[str | None, str | None]) -> ParallelText:
    sets, raw = load_hub_sets(source), {}
    languages: Pair | None = None
    for part, names in HUB_SPLITS.items():
        found = [split for split in names if split in sets]
        if not found:
            continue
        rows = sets[found[0]]
        columns = {column: list(rows[column]) for column in rows.column_names}
        languages, raw[part] = _of_columns(columns, languages or wanted, f"{source}, {found[0]}")
    if languages is None or "train" not in raw:
        raise ValueError(f"{source} has no training part.")
    return _complete(source, languages, raw)
