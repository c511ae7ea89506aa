"""Words that follow from numbers."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "run"), counted(1200, "token")
    ('1 run', '1,200 tokens')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
