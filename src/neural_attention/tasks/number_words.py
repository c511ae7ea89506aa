"""German number words and their English translation, generated: parallel data without files."""

from __future__ import annotations

import numpy as np

LARGEST = 10**9
HELD_OUT = 300
TRAINING = 6_000
_SEED = 2017


def number_words() -> dict[str, list[tuple[str, str]]]:
    """Pairs of number words by part, the same at every call; no number is in two parts.

    The numbers run to 10⁹. Their magnitudes are uniform, so that short words occur as well as
    long ones.

    Raises:
        ImportError: ``num2words`` is missing.
    """
    try:
        from num2words import num2words
    except ImportError as error:
        raise ImportError(
            "the built-in translations are number words, which the package `num2words` makes: "
            'pip install "neural-attention[translation]"'
        ) from error
    pairs = [(num2words(n, lang="de"), num2words(n, lang="en")) for n in _numbers()]
    return {
        "train": pairs[2 * HELD_OUT :],
        "validation": pairs[:HELD_OUT],
        "test": pairs[HELD_OUT : 2 * HELD_OUT],
    }


def _numbers() -> list[int]:
    """Different numbers in random order, about as many of each magnitude as there are."""
    generator = np.random.Generator(np.random.PCG64(_SEED))
    wanted = TRAINING + 2 * HELD_OUT
    found: set[int] = set()
    while len(found) < wanted:
        drawn = np.exp(generator.uniform(0, np.log(LARGEST), wanted))
        found.update(int(number) for number in drawn)
    # Sorted first: the order of a set is not to be relied on.
    numbers = np.sort(np.fromiter(found, dtype=np.int64))
    return [int(number) for number in generator.permutation(numbers)[:wanted]]
