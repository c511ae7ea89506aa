"""Words that follow from numbers and paths."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "run"), counted(1200, "token")
    ('1 run', '1,200 tokens')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def magnitude(value: float, digits: int) -> str:
    """A number with so many decimals, or as a power of ten where these would not show it.

    >>> magnitude(1234.5, 2), magnitude(1.2e141, 2), magnitude(2e-9, 3)
    ('1,234.50', '1.2e+141', '2.0e-09')
    """
    if value >= 1e6 or 0 < value < 0.1**digits / 2:
        return f"{value:.1e}"
    return f"{value:,.{digits}f}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that is most like a mistyped one, to stand behind it; or nothing.

    >>> did_you_mean("nueral", ["dot", "neural"]), did_you_mean("xyz", ["dot", "neural"])
    (' (did you mean neural?)', '')
    """
    close = get_close_matches(word, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def legible(path: str | Path) -> str:
    r"""A path as text that every file, font and terminal takes.

    Bytes of a name that are no UTF-8 reach Python as lone surrogates, which cannot be encoded.

    >>> legible("bad\udcff.txt")
    'bad\\udcff.txt'
    """
    return str(path).encode("utf-8", "backslashreplace").decode()
