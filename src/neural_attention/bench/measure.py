"""Times of a group's methods, taken in turns."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .cases import BASELINE, CASES, Inputs, Shape
from .methods import METHODS
from .presets import Group
from .probe import Cost, modes_of, probe, run_once, synchronise

_LEAST_SAMPLE_S = 0.005
"""Shorter calls are timed several at once: the clock and the scheduler would be seen otherwise."""


@dataclass(frozen=True)
class Conditions:
    """What is the same for all that is measured.

    Attributes:
        device: ``cpu`` or ``cuda``.
        threads: of torch and of the kernels.
        repeats: samples of each time.
        budget_s: seconds that all samples of one method may take at one shape.
    """

    device: str
    threads: int
    repeats: int
    budget_s: float


@dataclass
class _Timer:
    """A call, and where its samples go."""

    run: Callable[[], None]
    samples: list[float] = field(default_factory=list)
    calls: int = 1

    def calibrate(self, device: str) -> None:
        """Warm up, and find how many calls make a sample long enough."""
        self.sample(device)
        while True:
            self.sample(device)
            if self.samples[-1] * self.calls >= _LEAST_SAMPLE_S:
                break
            self.calls *= 2
        self.samples.clear()

    def sample(self, device: str) -> None:
        synchronise(device)
        started = time.perf_counter()
        for _ in range(self.calls):
            self.run()
        synchronise(device)
        self.samples.append((time.perf_counter() - started) / self.calls)


class Stopped:
    """Which methods could not do a length, so that longer ones are not tried."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[Any, ...], str] = {}

    def reason(self, case: str, method: str, mode: str, shape: Shape) -> str | None:
        """Why a method stopped before this length, or None."""
        return self._reasons.get(self._line(case, method, mode, shape))

    def add(self, case: str, method: str, mode: str, shape: Shape, reason: str) -> None:
        """A method cannot do this length."""
        told = f"stopped at n = {shape.keys:,}: {reason}"
        self._reasons.setdefault(self._line(case, method, mode, shape), told)

    @staticmethod
    def _line(case: str, method: str, mode: str, shape: Shape) -> tuple[Any, ...]:
        return case, method, mode, shape.batch, shape.heads, shape.causal, shape.dtype


def measure_group(
    group: Group,
    conditions: Conditions,
    stopped: Stopped,
    say: Callable[[str], None],
    save: Callable[[list[dict[str, Any]]], None],
) -> list[dict[str, Any]]:
    """Probe every method, then time those that can, in turns.

    Args:
        group: cases, methods and their shape.
        conditions: of the measurement.
        stopped: what could not do a shorter length; added to.
        say: told what goes on.
        save: called with the entries after each round.

    Returns:
        An entry for each case and method: ``case``, ``method`` and, for each mode, either
        ``skipped``, the reason, or ``seconds`` (all samples), ``calls_per_sample`` and
        ``peak_bytes``.
    """
    device, shape = conditions.device, group.shape
    drawn: dict[tuple[Any, ...], Tensor] = {}
    entries: list[dict[str, Any]] = []
    timers: list[_Timer] = []
    # Methods compile one function for every case; what other shapes needed is forgotten.
    torch.compiler.reset()
    torch._dynamo.config.recompile_limit = 4 * len(group.cases)
    for case, method in _pairs(group, device):
        say(f"  {CASES[case].label}, {METHODS[method].label}")
        entry: dict[str, Any] = {"case": case, "method": method}
        entries.append(entry)
        costs = _costs(case, method, shape, conditions, stopped)
        if not all(isinstance(cost, str) for cost in costs.values()):
            inputs = Inputs(CASES[case], shape, device, drawn)
            call, leaves = METHODS[method].prepare(inputs)
        for mode, cost in costs.items():
            if isinstance(cost, str):
                say(f"    {mode}: {cost}")
                entry[mode] = {"skipped": cost}
                continue
            timer = _Timer(
                lambda i=inputs, c=call, x=leaves, m=mode: run_once(i, c, x, m),  # type: ignore[misc]
            )
            timer.calibrate(device)
            timers.append(timer)
            entry[mode] = {
                "seconds": timer.samples,
                "calls_per_sample": timer.calls,
                "peak_bytes": cost.peak_bytes,
            }
    order = random.Random(0)
    for number in range(conditions.repeats):
        say(f"  round {number + 1} of {conditions.repeats}")
        # Another order each time, so that nothing always follows the same neighbour.
        for timer in order.sample(timers, len(timers)):
            timer.sample(device)
        save(entries)
    return entries


def _pairs(group: Group, device: str) -> list[tuple[str, str]]:
    """Cases and methods that go together, the baseline first."""
    pairs = [
        (case, method)
        for case in group.cases
        for method in group.methods
        if device in METHODS[method].devices and METHODS[method].covers(CASES[case])
    ]
    return sorted(pairs, key=lambda pair: pair != BASELINE)


def _costs(
    case: str, method: str, shape: Shape, conditions: Conditions, stopped: Stopped
) -> dict[str, Cost | str]:
    """For each mode, the cost of one call, or why it is not measured."""
    device = conditions.device
    reason = METHODS[method].unavailable_reason()
    if reason is not None:
        return {"forward": reason}
    stops = {mode: stopped.reason(case, method, mode, shape) for mode in ("forward", "training")}
    modes = []
    for mode in modes_of(method, shape, device):
        if stops[mode] is not None:
            break
        modes.append(mode)
    found: dict[str, Cost | str] = {}
    if modes:
        found |= probe(
            CASES[case], method, shape, modes, device, conditions.threads, conditions.budget_s
        )
    for mode, cost in found.items():
        if not isinstance(cost, str):
            needed = cost.seconds * conditions.repeats
            if needed <= conditions.budget_s:
                continue
            found[mode] = cost = (
                f"{conditions.repeats} repetitions would take {needed:.0f} s, more than the "
                f"{conditions.budget_s:g} s allowed"
            )
        stopped.add(case, method, mode, shape, cost)
    return found | {mode: why for mode, why in stops.items() if why is not None}
