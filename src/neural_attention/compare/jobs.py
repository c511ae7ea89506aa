"""What is done in a process of its own: counting, training, testing and timing.

The module is preloaded by the fork server, so that each job starts with torch and transformers
already imported.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shutil
import signal
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers

from neural_attention.compare.execution import launched
from neural_attention.compare.locking import locked
from neural_attention.compare.training import is_finite, train_run, work_device
from neural_attention.tasks.registry import load_task
from neural_attention.tasks.task import RunSpec, Task

TIMED_STEPS = 5
TIMING_ROUNDS = 3


class UserError(Exception):
    """A mistake in the command that only building the model shows."""


def run_job(kind: str, payload: dict[str, Any], connection: Connection) -> None:
    """Do a job and send what comes of it.

    Messages are pairs: ``("progress", dict)`` any number of times, then one of ``("result",
    value)``, ``("mistake", text)`` for what the user can mend, and ``("crash", (line,
    traceback))``.
    """
    # Ctrl-C reaches the whole group of processes: the parent decides and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What the fork server imported is never garbage: looking through it takes half a second.
    gc.freeze()
    silence_others()
    _take_place(payload)
    try:
        result = JOBS[kind](payload, lambda message: connection.send(("progress", message)))
        connection.send(("result", result))
    except UserError as error:
        connection.send(("mistake", str(error)))
    except BrokenPipeError:
        # The parent is gone: nobody wants the result, and what is on disk is whole.
        os._exit(1)
    except Exception as error:  # noqa: BLE001 (the parent is told, whatever it is)
        # The first line alone: torch's errors may go on with a dump of its C++ stack.
        connection.send(("crash", (first_line(error), traceback.format_exc())))
    finally:
        connection.close()
    if "world" in payload:
        # Threads of torch's process groups now and then abort a process that takes itself apart.
        os._exit(0)


def first_line(error: Exception) -> str:
    """What an exception says; torch's errors may go on with a dump of its C++ stack."""
    return traceback.format_exception_only(error)[-1].strip().splitlines()[0]


def silence_others() -> None:
    """No noise of other libraries: the command tells what there is to tell."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _take_place(payload: dict[str, Any]) -> None:
    """Threads, GPU and rank of this process."""
    spec = payload.get("spec", {})
    if "threads" in spec.get("environment", {}):
        torch.set_num_threads(spec["environment"]["threads"])
    if "world" in payload:
        rank, world = str(payload["rank"]), str(payload["world"])
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
        os.environ |= {"LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1"}
        os.environ["MASTER_PORT"] = str(payload["port"])
        return
    device = spec.get("device", "cpu")
    if device.startswith("cuda"):
        # The others are hidden: ``Trainer`` would use them all.
        index = int(device.partition(":")[2] or 0)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[index] if visible else str(index)


def _count(payload: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Parameters of each arm, which shows arms that cannot be built; and the control's width."""
    counts, notes = {}, []
    specs = [RunSpec(**content) for content in payload["specs"]]
    task = load_task(specs[0].task)
    for spec in specs:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                counts[spec.arm] = count_parameters(task, spec)
            except (ValueError, TypeError) as error:
                raise UserError(f"arm {spec.arm!r}: {error}") from error
        notes += sorted({f"{spec.arm}: {warning.message}" for warning in caught})
    control = None
    if payload["control"]:
        try:
            control = control_feed_forward(task, specs[0], max(counts.values()))
        except ValueError as error:
            raise UserError(f"there can be no control: {error}") from error
    return {"parameters": counts, "control_feed_forward": control, "notes": notes}


def count_parameters(task: Task, spec: RunSpec) -> int:
    """Number of trainable values, tied ones once, without allocating them."""
    with torch.device("meta"):
        model: Any = task.build(spec).model
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def control_feed_forward(task: Task, spec: RunSpec, target: int) -> int:
    """Width of the feed-forward layers that gives the dot-product model ``target`` parameters.

    The least width that reaches it, so that the control is never the smaller one.
    """
    width = spec.sizes["intermediate_size"]
    plain = replace(spec, attention={"score": "dot", "projection": "linear"}, layers="all")
    have, more = (
        count_parameters(task, replace(plain, overrides={"feed_forward": wide}))
        for wide in (width, width + 1)
    )
    return width + max(0, -(-(target - have) // (more - have)))


def _train(payload: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    return train_in(
        RunSpec(**payload["spec"]),
        Path(payload["folder"]),
        payload["command_started"],
        payload["logger"],
        report,
    )


def train_in(
    spec: RunSpec,
    folder: Path,
    command_started: str,
    logger: str,
    report: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Train a run in its folder, which the first of its processes locks; see ``train_run``."""
    rank, _ = launched()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock") if rank == 0 else contextlib.nullcontext():
        result = train_run(spec, folder, command_started, logger, report)
        # One that diverged keeps its last good checkpoint, to be looked at.
        if rank == 0 and not result["diverged"]:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def _test(payload: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The score of a finished run on the test part."""
    spec = RunSpec(**payload["spec"])
    task = load_task(spec.task)
    model: Any = task.load(Path(payload["folder"]) / "model", spec)
    score = task.score(model.to(work_device(spec)), spec, "test")
    if not is_finite(score):
        raise ValueError("the loss on the test part is not finite")
    return score


def _time_sdpa(payload: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Units a second of the same dot-product model on our kernel and on torch's, interleaved."""
    spec = RunSpec(**payload["spec"])
    task = load_task(spec.task)
    rates: dict[str, list[float]] = {"ours": [], "sdpa": []}
    steps = {
        name: _step_of(task, task.build(spec, backend).model, spec)
        for name, backend in (("ours", None), ("sdpa", "sdpa"))
    }
    for _ in range(TIMING_ROUNDS):
        for name, step in steps.items():
            rates[name] += [step() for _ in range(TIMED_STEPS)][1:]
    return {name: statistics.median(values) for name, values in rates.items()}


def _step_of(task: Task, model: Any, spec: RunSpec) -> Callable[[], float]:
    """A training step on one batch that returns its units a second."""
    device = work_device(spec)
    examples = task.training_set(spec)
    size = min(spec.training["batch_size"], len(examples))
    batch = task.collate([examples[index] for index in range(size)])
    units = task.units(batch)
    batch = {name: value.to(device) for name, value in batch.items()}
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.learning_rate)

    def step() -> float:
        started = time.perf_counter()
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.training["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return units / (time.perf_counter() - started)

    return step


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "count": _count,
    "train": _train,
    "test": _test,
    "time_sdpa": _time_sdpa,
}
