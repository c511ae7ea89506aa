"""The way into the command ``neural-attention``.

It lies beside the package and not inside, because importing anything inside imports torch first.
That takes seconds, in which Ctrl-C would show a traceback, or be lost in a library's C code.
"""

from __future__ import annotations

import os
import signal


def main() -> int:
    """Run the command; from its first moment on, Ctrl-C ends it with one line and 130."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    from neural_attention.cli import main as command

    signal.signal(signal.SIGINT, handler)
    return command()


def _stop(*_: object) -> None:
    os.write(2, b"\nneural-attention: stopped before it began.\n")
    os._exit(130)
