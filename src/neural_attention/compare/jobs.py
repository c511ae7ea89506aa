"""What is done in a process of its own: counting, training, testing and timing.

The module is preloaded by the fork server, so that each job starts with torch and transformers
already imported.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import shutil
import signal
import statistics
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers

from neural_attention.compare.building import (
    build_model,
    control_feed_forward,
    count_parameters,
    model_config,
)
from neural_attention.compare.locking import locked
from neural_attention.compare.runs import RunSpec
from neural_attention.compare.training import evaluate, train_run, work_device
from neural_attention.models.language import NeuralAttentionForCausalLM
from neural_attention.tasks.tokens import TokenFiles

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
    _silence()
    _show_one_gpu(payload)
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
        line = traceback.format_exception_only(error)[-1].strip().splitlines()[0]
        connection.send(("crash", (line, traceback.format_exc())))
    finally:
        connection.close()


def _silence() -> None:
    """No noise of other libraries: the parent tells what there is to tell."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _show_one_gpu(payload: dict[str, Any]) -> None:
    """Hide the GPUs that were not chosen, all of which ``Trainer`` would use."""
    device = payload.get("spec", {}).get("device", "cpu")
    if device.startswith("cuda"):
        index = int(device.partition(":")[2] or 0)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[index] if visible else str(index)


def _count(payload: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Parameters of each arm, which shows arms that cannot be built; and the control's width."""
    counts, notes = {}, []
    for content in payload["specs"]:
        spec = RunSpec(**content)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                config = model_config(spec.sizes, spec.attention, spec.layers, **spec.overrides)
                counts[spec.arm] = count_parameters(config)
            except (ValueError, TypeError) as error:
                raise UserError(f"arm {spec.arm!r}: {error}") from error
        notes += sorted({f"{spec.arm}: {warning.message}" for warning in caught})
    base = model_config(RunSpec(**payload["specs"][0]).sizes, {"score": "dot"}, "all")
    most = max(counts.values())
    return {
        "parameters": counts,
        "control_feed_forward": control_feed_forward(base, most),
        "notes": notes,
    }


def _train(payload: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    folder = Path(payload["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        spec, started = RunSpec(**payload["spec"]), payload["command_started"]
        result = train_run(spec, folder, started, report)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return result


def _test(payload: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The score of a finished run on the test part."""
    spec = RunSpec(**payload["spec"])
    model = NeuralAttentionForCausalLM.from_pretrained(Path(payload["folder"]) / "model")
    model.to(work_device(spec))
    score = evaluate(model, TokenFiles(**spec.tokens), "test", spec.training)
    if not math.isfinite(score.perplexity):
        raise ValueError("the loss on the test part is not finite")
    return asdict(score)


def _time_sdpa(payload: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Tokens a second of the same dot-product model on our kernel and on torch's, interleaved."""
    spec = RunSpec(**payload["spec"])
    rates: dict[str, list[float]] = {"ours": [], "sdpa": []}
    steps = {}
    for name, backend in (("ours", "auto"), ("sdpa", "sdpa")):
        attention = {**spec.attention, "backend": backend}
        config = model_config(spec.sizes, attention, spec.layers, **spec.overrides)
        model = build_model(config, spec.sizes, spec.seed).model.to(work_device(spec))
        steps[name] = _step_of(model, spec)
    for _ in range(TIMING_ROUNDS):
        for name, step in steps.items():
            rates[name] += [step() for _ in range(TIMED_STEPS)][1:]
    return {name: statistics.median(values) for name, values in rates.items()}


def _step_of(model: NeuralAttentionForCausalLM, spec: RunSpec) -> Callable[[], float]:
    """A training step on one batch that returns its tokens a second."""
    length, batch_size = spec.training["length"], spec.training["batch_size"]
    tokens = torch.from_numpy(
        TokenFiles(**spec.tokens).load("train")[: length + 1].astype("int64")
    ).to(model.device)
    batch = tokens[None].expand(batch_size, -1).contiguous()
    optimizer = torch.optim.AdamW(model.parameters(), lr=spec.learning_rate)
    model.train()

    def step() -> float:
        started = time.perf_counter()
        loss = model(input_ids=batch[:, :-1], shift_labels=batch[:, 1:], use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.training["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad()
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        return batch_size * length / (time.perf_counter() - started)

    return step


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "count": _count,
    "train": _train,
    "test": _test,
    "time_sdpa": _time_sdpa,
}
