"""``neural-attention translate``: a file or standard input, line by line."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from neural_attention.tasks.wording import counted, legible

BATCHES_AT_ONCE = 16


def add_translate(commands: Any) -> None:
    """Add the command to the command line."""
    translate = commands.add_parser(
        "translate",
        help="translate a file, or what comes on standard input, line by line",
        description=(
            "Translate with a saved model: the `model` folder of a run of `compare translation`, "
            "or any other sequence-to-sequence model of transformers, stock or converted, with "
            "its tokenizer. A line in gives a line out, in the same order; empty lines stay empty."
        ),
    )
    translate.add_argument("model", metavar="MODEL", help="a folder, or a name on the hub")
    translate.add_argument(
        "file", metavar="FILE", nargs="?", help="UTF-8 text (default: standard input)"
    )
    translate.add_argument("--out", metavar="FILE", help="default: standard output")
    translate.add_argument("--beams", type=int, metavar="N", help="default: the model's own")
    translate.add_argument(
        "--batch-size", type=int, default=32, metavar="N", help="lines at once (default: 32)"
    )
    translate.add_argument(
        "--device", default="auto", help="auto (default), cpu, cuda, cuda:N, mps"
    )
    translate.set_defaults(run=_translate)


def _translate(options: argparse.Namespace) -> int:
    for name, value in (("--beams", options.beams), ("--batch-size", options.batch_size)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}: at least 1 is needed.")
    if options.out is not None and (not options.out.strip() or Path(options.out).is_dir()):
        raise ValueError(f"--out {options.out!r} names no file.")
    source = None if options.file is None else Path(os.path.expanduser(options.file))
    if source is not None and not source.is_file():
        raise FileNotFoundError(f"there is no file {legible(options.file)} to translate.")

    from neural_attention.compare.devices import resolve_device
    from neural_attention.tasks.translating import Translator

    translator = Translator.load(options.model, resolve_device(options.device), options.beams)
    with contextlib.ExitStack() as stack:
        text: IO[bytes] = (
            sys.stdin.buffer if source is None else stack.enter_context(source.open("rb"))
        )
        out = stack.enter_context(_written_whole(options.out)) if options.out else sys.stdout
        lines = _decoded(text, "standard input" if source is None else legible(options.file))
        # Somebody who types wants each line at once.
        size = 1 if text.isatty() else options.batch_size * BATCHES_AT_ONCE
        shows_progress = sys.stderr.isatty() and not out.isatty()
        done = 0
        while chunk := list(islice(lines, size)):
            translations, cut = translator.lines(chunk, options.batch_size)
            for index in cut:
                print(
                    f"neural-attention: line {done + index + 1:,} was cut to the "
                    f"{translator.most_tokens:,} tokens that the model takes.",
                    file=sys.stderr,
                )
            try:
                out.writelines(f"{line}\n" for line in translations)
                out.flush()
            except BrokenPipeError:
                # Whoever read has enough; Python itself would complain when it ends.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return 0
            done += len(chunk)
            if shows_progress:
                print(f"\r{counted(done, 'line')}", end="", file=sys.stderr, flush=True)
        if shows_progress and done:
            print(file=sys.stderr)
    return 0


def _decoded(text: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines without their ends.

    Raises:
        ValueError: a line is not UTF-8.
    """
    for number, line in enumerate(text, 1):
        try:
            decoded = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"line {number:,} of {name} is not UTF-8: byte 0x{line[error.start]:02x}."
            ) from None
        yield decoded.removesuffix("\n").removesuffix("\r")


@contextlib.contextmanager
def _written_whole(name: str) -> Iterator[IO[str]]:
    """A file that takes its name when everything is in it."""
    path = Path(os.path.expanduser(name))
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
