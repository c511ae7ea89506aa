"""One call of a method in a process of its own: how long it takes, and its peak memory.

The process has a limit of memory and one of time, so that a method that needs too much of either
ends there and not the benchmark.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch

from ..compare.memory import PeakMemory
from .cases import Case, Inputs, Shape
from .methods import METHODS

MEMORY_SHARE = 0.6
"""Of the memory that is available, what one method may take."""
HOW = (
    "peak memory beyond the inputs during one call, output and gradients included, in a process of "
    "its own: resident set on the CPU, torch's allocations on a GPU"
)
# Beyond the budget: to start, to compile, and to end.
_START_S, _COMPILE_S, _END_S = 30.0, 300.0, 10.0
_MODULE = __name__


@dataclass(frozen=True)
class Cost:
    """What one call takes.

    Attributes:
        seconds: its time.
        peak_bytes: memory that it needs at most beyond its inputs.
    """

    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class _Task:
    case: Case
    method: str
    shape: Shape
    modes: list[str]
    device: str
    threads: int
    memory_limit: int | None


def modes_of(method: str, shape: Shape, device: str) -> list[str]:
    """``forward``, and ``training`` (forward and backward) where that is to be measured."""
    trains = shape.training and device in METHODS[method].trains_on
    return ["forward", "training"] if trains else ["forward"]


def run_once(inputs: Inputs, call: Any, leaves: list[torch.Tensor], mode: str) -> None:
    """One call, without gradients or with a backward pass behind it."""
    if mode == "forward":
        with torch.no_grad():
            call()
    else:
        torch.autograd.grad(call(), leaves, inputs.grad)


def synchronise(device: str) -> None:
    """Wait for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def probe(
    case: Case,
    method: str,
    shape: Shape,
    modes: list[str],
    device: str,
    threads: int,
    budget_s: float,
) -> dict[str, Cost | str]:
    """The cost of one call in each mode, or why there is none.

    A mode that comes after one that failed is not tried.
    """
    context = cast(Any, multiprocessing.get_context(_start_method(device)))
    receiver, sender = context.Pipe(duplex=False)
    memory_limit = _memory_limit() if device == "cpu" else None
    task = _Task(case, method, shape, modes, device, threads, memory_limit)
    process = context.Process(target=_measure, args=(task, sender), daemon=True)
    with _large_blocks_go_back_at_once():
        process.start()
    sender.close()
    allowed = budget_s + (_COMPILE_S if METHODS[method].is_compiled else _START_S)
    found: dict[str, Cost | str] = {}
    try:
        for mode in modes:
            try:
                is_told = receiver.poll(allowed)
                found[mode] = receiver.recv() if is_told else f"two calls take over {allowed:.0f} s"
            except EOFError:
                found[mode] = "its process was ended (out of memory?)"
            if isinstance(found[mode], str):
                break
    finally:
        receiver.close()
        if len(found) == len(modes):
            process.join(_END_S)
        process.kill()
        process.join()
    return found


def _start_method(device: str) -> str:
    # A fork server imports torch once. CUDA does not survive a fork.
    if device == "cpu" and sys.platform == "linux":
        multiprocessing.get_context("forkserver").set_forkserver_preload([_MODULE])
        return "forkserver"
    return "spawn"


@contextlib.contextmanager
def _large_blocks_go_back_at_once() -> Iterator[None]:
    """Processes started within give freed memory back, so that the next peak is seen whole."""
    name = "MALLOC_MMAP_THRESHOLD_"
    before = os.environ.get(name)
    os.environ[name] = str(2**16)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _memory_limit() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable"):
                    return int(MEMORY_SHARE * 1024 * int(line.split()[1]))
    except OSError:
        pass
    return None


def _limit_memory(more: int) -> None:
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (held + more, hard))


def _measure(task: _Task, sender: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, who ends this process
    torch.set_num_threads(task.threads)
    inputs = Inputs(task.case, task.shape, task.device, {})
    try:
        call, leaves = METHODS[task.method].prepare(inputs)
        for mode in task.modes:
            if task.memory_limit is not None:
                _limit_memory(task.memory_limit)
            run_once(inputs, call, leaves, mode)  # loads and compiles what it needs
            synchronise(task.device)
            _give_memory_back()
            meter = PeakMemory(torch.device(task.device))
            started = time.perf_counter()
            run_once(inputs, call, leaves, mode)
            synchronise(task.device)
            sender.send(Cost(time.perf_counter() - started, meter.peak()))
    except Exception as error:  # noqa: BLE001 (the parent is told, whatever it is)
        sender.send(_told(error, task.memory_limit))


def _told(error: Exception, memory_limit: int | None) -> str:
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate" in str(error):
        limit = "the GPU's" if memory_limit is None else f"{memory_limit / 2**30:.1f} GiB of"
        return f"needs more than {limit} memory"
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0].strip().rstrip('.')[:160]}"


def _give_memory_back() -> None:
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)
