"""Progress of a comparison: bars on a terminal, lines elsewhere, or nothing."""

from __future__ import annotations

import time
from typing import IO, Any

SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """What a comparison tells while it runs; this one tells nothing."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def expect(self, steps: int) -> None:
        """So many more training steps are to be done."""

    def begin(self, run: str, steps: int) -> None:
        """A run of so many steps begins."""

    def advance(self, step: int, loss: float | None) -> None:
        """The run has done ``step`` steps; ``loss`` is its latest, if known."""

    def end(self, outcome: str) -> None:
        """The run has ended."""

    def close(self) -> None:
        """Nothing more will be told."""


def progress_on(file: IO[str]) -> Progress:
    """Bars with the time left where ``file`` is a terminal, plain lines where it is not."""
    return _Bars(file) if file.isatty() else _Lines(file)


class _Lines(Progress):
    """Plain lines for logs and pipes: a run's start and end, and its loss now and then."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._run, self._steps, self._told = "", 0, 0.0
        self._loss: float | None = None

    def say(self, text: str) -> None:
        print(text, file=self._file, flush=True)

    def begin(self, run: str, steps: int) -> None:
        self._run, self._steps, self._told = run, steps, time.monotonic()
        self._loss = None

    def advance(self, step: int, loss: float | None) -> None:
        self._loss = loss if loss is not None else self._loss
        if time.monotonic() - self._told >= SECONDS_BETWEEN_LINES:
            self._told = time.monotonic()
            shown = f", loss {self._loss:.3f}" if self._loss is not None else ""
            self.say(f"{self._run}: step {step} of {self._steps}{shown}")

    def end(self, outcome: str) -> None:
        self.say(f"{self._run}: {outcome}")


class _Bars(Progress):
    """Two bars on a terminal: the whole comparison and the run at work, with the time left."""

    def __init__(self, file: IO[str]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=Console(file=file, highlight=False, markup=False, emoji=False),
            transient=True,
            expand=True,
        )
        self._progress.start()
        self._whole = self._progress.add_task("all runs", total=0, loss="")
        self._task: Any = None
        self._total, self._steps, self._seen, self._run = 0, 0, 0, ""

    def say(self, text: str) -> None:
        self._progress.console.print(text)

    def expect(self, steps: int) -> None:
        self._total += steps
        self._progress.update(self._whole, total=self._total)

    def begin(self, run: str, steps: int) -> None:
        self._run, self._steps, self._seen = run, steps, 0
        self._task = self._progress.add_task(run, total=steps, loss="")

    def advance(self, step: int, loss: float | None) -> None:
        self._progress.update(self._task, completed=step)
        if loss is not None:
            self._progress.update(self._task, loss=f"loss {loss:.3f}")
        self._progress.advance(self._whole, step - self._seen)
        self._seen = step

    def end(self, outcome: str) -> None:
        self._progress.advance(self._whole, self._steps - self._seen)
        self._progress.remove_task(self._task)
        self.say(f"{self._run}: {outcome}")

    def close(self) -> None:
        self._progress.stop()
