"""Progress of a comparison: bars on a terminal, lines elsewhere, or nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import IO, Any

SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """What a comparison tells while it runs; this one tells nothing.

    Several runs may be at work at once, each told by its name, from a thread of its own.
    """

    def say(self, text: str) -> None:
        """A line that stays."""

    def expect(self, steps: int) -> None:
        """So many more training steps are to be done."""

    def begin(self, run: str, steps: int) -> None:
        """A run of so many steps begins."""

    def advance(self, run: str, step: int, loss: float | None) -> None:
        """The run has done ``step`` steps; ``loss`` is its latest, if known."""

    def end(self, run: str, outcome: str) -> None:
        """The run has ended."""

    def close(self) -> None:
        """Nothing more will be told."""


def progress_on(file: IO[str]) -> Progress:
    """Bars with the time left where ``file`` is a terminal, plain lines where it is not."""
    return _Bars(file) if file.isatty() else _Lines(file)


@dataclass
class _Run:
    """A run at work: its steps, how many are done, and what was told of it last."""

    steps: int
    done: int = 0
    loss: float | None = None
    told: float = 0.0
    bar: Any = None


class _Lines(Progress):
    """Plain lines for logs and pipes: a run's start and end, and its loss now and then."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._runs: dict[str, _Run] = {}

    def say(self, text: str) -> None:
        print(text, file=self._file, flush=True)

    def begin(self, run: str, steps: int) -> None:
        self._runs[run] = _Run(steps, told=time.monotonic())

    def advance(self, run: str, step: int, loss: float | None) -> None:
        at_work = self._runs[run]
        at_work.loss = loss if loss is not None else at_work.loss
        if time.monotonic() - at_work.told >= SECONDS_BETWEEN_LINES:
            at_work.told = time.monotonic()
            shown = f", loss {at_work.loss:.3f}" if at_work.loss is not None else ""
            self.say(f"{run}: step {step} of {at_work.steps}{shown}")

    def end(self, run: str, outcome: str) -> None:
        del self._runs[run]
        self.say(f"{run}: {outcome}")


class _Bars(Progress):
    """Bars on a terminal: the whole comparison and each run at work, with the time left."""

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
        self._total = 0
        self._runs: dict[str, _Run] = {}

    def say(self, text: str) -> None:
        self._progress.console.print(text)

    def expect(self, steps: int) -> None:
        self._total += steps
        self._progress.update(self._whole, total=self._total)

    def begin(self, run: str, steps: int) -> None:
        bar = self._progress.add_task(run, total=steps, loss="")
        self._runs[run] = _Run(steps, bar=bar)

    def advance(self, run: str, step: int, loss: float | None) -> None:
        at_work = self._runs[run]
        self._progress.update(at_work.bar, completed=step)
        if loss is not None:
            self._progress.update(at_work.bar, loss=f"loss {loss:.3f}")
        self._progress.advance(self._whole, step - at_work.done)
        at_work.done = step

    def end(self, run: str, outcome: str) -> None:
        at_work = self._runs.pop(run)
        self._progress.advance(self._whole, at_work.steps - at_work.done)
        self._progress.remove_task(at_work.bar)
        self.say(f"{run}: {outcome}")

    def close(self) -> None:
        self._progress.stop()
