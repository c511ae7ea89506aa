"""Commands on a terminal of 80 columns, as a person sees them."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
pty = pytest.importorskip("pty", reason="a system without pseudo-terminals")
fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")

COLUMNS = 80
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def seen(*arguments: str, timeout: float = 240) -> tuple[int, str]:
    """The exit status of a command, and all that a terminal was given."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    path = os.pathsep.join(one for one in sys.path if one)
    process = subprocess.Popen(
        [sys.executable, "-m", "neural_attention", *arguments],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "PYTHONPATH": path, "TERM": "xterm-256color", "COLUMNS": ""},
    )
    os.close(child)
    found = b""
    while True:
        try:
            some = os.read(parent, 65536)
        except OSError:  # the other end is closed
            break
        if not some:
            break
        found += some
    os.close(parent)
    return process.wait(timeout), found.decode()


def lines(output: str) -> list[str]:
    """What stood on the terminal line by line, bars that were drawn over left out."""
    plain = _ESCAPE.sub("", output).replace("\r\n", "\n")
    return [line.rpartition("\r")[2] for line in plain.split("\n")]


def test_a_comparison_shows_bars_and_a_table_that_fit(tmp_path):
    status, output = seen(
        "compare", "lm", "--preset", "smoke", "--steps", "60", "--device", "cpu", "--out",
        str(tmp_path / "out"), "--arms", "dot", "neural",
    )  # fmt: skip
    assert status == 0
    assert "all runs" in output  # a bar
    assert "\x1b[" in output
    told = lines(output)
    # Paths are as long as they are.
    wide = [line for line in told if len(line) > COLUMNS and "/" not in line]
    assert not wide, wide
    text = "\n".join(told)
    assert "Traceback" not in text
    assert "Warning" not in text
    assert re.search(r"^dot .* 0\.003$", text, re.MULTILINE)


@pytest.mark.parametrize(
    "command",
    [[], ["--help"], ["doctor"], ["compare", "--help"], ["compare", "lm", "--help"],
     ["train", "lm", "--help"], ["report", "--help"], ["convert", "--help"]],
    ids=" ".join,
)  # fmt: skip
def test_texts_fit_and_end_with_0(command):
    status, output = seen(*command)
    assert status == 0
    wide = [line for line in lines(output) if len(line) > COLUMNS and "/" not in line]
    assert not wide, wide


def test_a_mistake_is_one_message_and_no_usage():
    status, output = seen("compare", "lm", "--steps", "many")
    assert status == 2
    assert output.startswith("neural-attention: ")
    assert len(output.splitlines()) == 1
