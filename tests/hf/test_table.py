"""The table of models and features in the documentation is what the tests of this run say."""

from __future__ import annotations

import os
from pathlib import Path

from .conftest import FEATURES
from .families import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "hugging-face.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


def test_the_table_is_what_the_tests_say(found):
    lines = [f"| | {' | '.join(FEATURES)} |", "|---" * (len(FEATURES) + 1) + "|"]
    words = {True: "yes", False: "no", None: "–"}
    for name in FAMILIES:
        cells = [words[found.get((name, feature))] for feature in FEATURES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    table = "\n".join(lines) + "\n"
    before, rest = PAGE.read_text().split(BEGIN)
    written, after = rest.split(END)
    if os.environ.get("NEURAL_ATTENTION_WRITE_TABLE"):
        PAGE.write_text(before + BEGIN + table + END + after)
    else:
        assert written == table
