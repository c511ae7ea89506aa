"""Jobs in processes of their own, so that memory is theirs alone and a crash ends only one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from typing import Any, cast

_MODULE = "neural_attention.compare.jobs"


class JobFailed(Exception):
    """A job ended without a result.

    Attributes:
        why: how, in one line.
        details: the same at length, such as a traceback.
    """

    def __init__(self, why: str, details: str = "") -> None:
        super().__init__(why)
        self.why, self.details = why, details or why


class JobMistake(ValueError):
    """A job found a mistake in the command."""


class Workers:
    """Starts jobs one after the other, each in a fresh process.

    On Unix a fork server imports torch and transformers once and each job is a fork of it; on
    Windows, and for CUDA, which does not survive a fork, each job imports them anew.

    Args:
        device: where the jobs will work.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        is_forking = "forkserver" in multiprocessing.get_all_start_methods() and device == "cpu"
        self._context: BaseContext = multiprocessing.get_context(
            "forkserver" if is_forking else "spawn"
        )
        # Threads that wait by spinning make a run many times slower when others use the cores too.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        if is_forking:
            cast(Any, self._context).set_forkserver_preload([_MODULE])

    def start_server(self) -> None:
        """Have the fork server import its modules while the caller does something else."""
        if self._context.get_start_method() == "forkserver":
            from multiprocessing import forkserver

            # The server has the mask of its start for good, and so has what it forks.
            with _interrupts_held_back():
                forkserver.ensure_running()

    def run(
        self, kind: str, payload: dict[str, Any], on_progress: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any]:
        """Do a job of :mod:`neural_attention.compare.jobs` and wait for its result.

        Raises:
            JobMistake: the job found a mistake of the user's.
            JobFailed: it raised, or its process died.
        """
        receiver, sender = self._context.Pipe(duplex=False)
        process = cast(Any, self._context).Process(
            target=_enter, args=(kind, payload, sender), daemon=True
        )
        try:
            self._start(process)
            sender.close()
            while True:
                try:
                    what, content = receiver.recv()
                except EOFError:
                    process.join()
                    raise JobFailed(_how_it_ended(process.exitcode)) from None
                if what == "progress":
                    on_progress(content)
                elif what == "result":
                    process.join()
                    return cast(dict[str, Any], content)
                elif what == "mistake":
                    raise JobMistake(content)
                else:
                    raise JobFailed(*content)
        finally:
            receiver.close()
            if process.is_alive():
                process.terminate()
            if process.pid is not None:
                process.join()

    def _start(self, process: Any) -> None:
        if self._context.get_start_method() == "forkserver":
            # This waits until the server has imported torch; Ctrl-C ends the waiting.
            self.start_server()
            process.start()
        else:
            with _interrupts_held_back():
                process.start()


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold Ctrl-C back while a process starts, which then never gets it.

    Ctrl-C reaches the whole group of processes; those that are still importing would show where.
    The caller gets it afterwards and decides.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # otherwise the start would do it, and let signals in
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _enter(kind: str, payload: dict[str, Any], sender: Any) -> None:
    from neural_attention.compare.jobs import run_job

    run_job(kind, payload, sender)


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}"
    return f"its process ended with code {code} and no result"
