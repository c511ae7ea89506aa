"""Jobs in processes of their own, so that memory is theirs alone and a crash ends only one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
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


class Stopped(Exception):
    """All jobs were ended, by :meth:`Workers.stop`."""


class Workers:
    """Does each job in a fresh process, or in several that work at it together.

    On Unix a fork server imports torch and transformers once and each job is a fork of it; on
    Windows, and for CUDA, which does not survive a fork, each job imports them anew. Several
    threads may have jobs done at once.

    Args:
        device: where the jobs will work.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        is_forking = "forkserver" in multiprocessing.get_all_start_methods() and device == "cpu"
        self._context: BaseContext = multiprocessing.get_context(
            "forkserver" if is_forking else "spawn"
        )
        self._processes: set[Any] = set()
        self._lock = threading.Lock()
        self._is_stopped = False
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

    def stop(self) -> None:
        """End all jobs, and begin no more."""
        with self._lock:
            self._is_stopped = True
            for process in self._processes:
                process.terminate()

    def run(
        self,
        kind: str,
        payload: dict[str, Any],
        on_progress: Callable[[dict[str, Any]], None],
        processes: int = 1,
    ) -> dict[str, Any]:
        """Do a job of :mod:`neural_attention.compare.jobs` and wait for its result.

        Args:
            kind: of the job.
            payload: what it gets.
            on_progress: called with what it tells meanwhile.
            processes: how many do it together, as ranks of ``torch.distributed``; what the first
                of them tells and returns counts.

        Raises:
            JobMistake: the job found a mistake of the user's.
            JobFailed: it raised, or a process of it died.
            Stopped: :meth:`stop` was called.
        """
        payloads = [payload]
        if processes > 1:
            port = _free_port()
            payloads = [
                {**payload, "rank": rank, "world": processes, "port": port}
                for rank in range(processes)
            ]
        receivers: dict[Any, Any] = {}
        results: dict[Any, Any] = {}
        try:
            for one in payloads:
                receiver, sender = self._context.Pipe(duplex=False)
                process = cast(Any, self._context).Process(
                    target=_enter, args=(kind, one, sender), daemon=True
                )
                receivers[receiver] = process
                self._start(process)
                sender.close()
            first, *_ = receivers
            while len(results) < len(receivers):
                waiting: list[Any] = [one for one in receivers if one not in results]
                for receiver in cast(list[Any], wait(waiting)):
                    content = self._message(receiver, receivers[receiver])
                    if "result" in content:
                        results[receiver] = content["result"]
                    elif receiver is first:
                        on_progress(content["progress"])
            return cast(dict[str, Any], results[first])
        finally:
            for receiver, process in receivers.items():
                receiver.close()
                if receiver not in results and process.is_alive():
                    process.terminate()
            for process in receivers.values():
                if process.pid is not None:
                    process.join()
            with self._lock:
                self._processes -= set(receivers.values())

    def _message(self, receiver: Any, process: Any) -> dict[str, Any]:
        """The next message of a process, which is its result or its progress."""
        try:
            what, content = receiver.recv()
        except EOFError:
            process.join()
            if self._is_stopped:
                raise Stopped from None
            raise JobFailed(_how_it_ended(process.exitcode)) from None
        if what == "mistake":
            raise JobMistake(content)
        if what == "crash":
            raise JobFailed(*content)
        return {what: content}

    def _start(self, process: Any) -> None:
        is_forking = self._context.get_start_method() == "forkserver"
        if is_forking:
            # This waits until the server has imported torch; Ctrl-C ends the waiting.
            self.start_server()
        with self._lock:
            if self._is_stopped:
                raise Stopped
            with contextlib.nullcontext() if is_forking else _interrupts_held_back():
                process.start()
            self._processes.add(process)


class InThisProcess:
    """Does a job here, in one of the processes that something else has started.

    Args:
        device: where the job works.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    def run(
        self,
        kind: str,
        payload: dict[str, Any],
        on_progress: Callable[[dict[str, Any]], None],
        processes: int = 1,
    ) -> dict[str, Any]:
        """Do a job, as :meth:`Workers.run`; the number of processes is the launcher's.

        Raises:
            JobMistake: the job found a mistake of the user's.
            JobFailed: it raised.
        """
        from neural_attention.compare.jobs import JOBS, UserError, first_line, silence_others

        silence_others()
        try:
            return JOBS[kind](payload, on_progress)
        except UserError as error:
            raise JobMistake(str(error)) from error
        except Exception as error:  # the caller is told, whatever it is
            raise JobFailed(first_line(error), traceback.format_exc()) from error

    def stop(self) -> None:
        """There is nothing to end."""


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


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"its process was ended by {name}{hint}"
    return f"its process ended with code {code} and no result"
