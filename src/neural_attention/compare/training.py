"""Training one run with ``transformers.Trainer``, from the start or from where it stopped."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from neural_attention.compare.checkpoints import last_complete, mark_complete
from neural_attention.compare.dead import dead_score_networks
from neural_attention.compare.execution import launched
from neural_attention.compare.memory import PeakMemory
from neural_attention.compare.trainer import Report, RunTrainer, training_arguments
from neural_attention.tasks.json_files import write_json
from neural_attention.tasks.registry import load_task
from neural_attention.tasks.task import RunSpec, Task


def work_device(spec: RunSpec) -> torch.device:
    """The device of a run in its own process, where the chosen GPU is the only one."""
    return torch.device(spec.device.partition(":")[0])


def train_run(
    spec: RunSpec, folder: Path, command_started: str, logger: str, report: Report
) -> dict[str, Any]:
    """Train, score on the validation part, and keep the weights.

    Where several processes are launched, each calls it; the first writes.

    Args:
        spec: the run.
        folder: its folder; checkpoints, ``logs``, then ``model`` and ``result.json``.
        command_started: when the comparison began that has its speed measured.
        logger: where ``Trainer`` writes its curves, such as ``"tensorboard"`` or ``"none"``.
        report: called with progress: ``{"step", "steps", "loss"}`` and ``{"note": text}``.

    Returns:
        The content of ``result.json``; in the other processes nothing.
    """
    rank, _ = launched()
    # Before the model: this joins the processes, and says which device is this one's.
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(folder / "logs")
    arguments = training_arguments(spec, folder / "checkpoints", logger if rank == 0 else "none")
    task, device = load_task(spec.task), arguments.device
    examples = task.training_set(spec)
    _warm_up(device)
    memory = PeakMemory(device)
    built = task.build(spec)
    model: Any = built.model.to(device)
    probe = {name: value.to(device) for name, value in task.probe(spec).items()}
    dead_at_start = dead_score_networks(model, probe)

    checkpoint, broken = last_complete(folder / "checkpoints")
    for name in broken:
        report({"note": f"{name} was incomplete or damaged and is passed over"})
    trainer = RunTrainer(task, spec, model, examples, arguments, report)
    # Dropout draws from here on; the arms' constructors have drawn different amounts.
    torch.manual_seed(spec.seed + rank)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    model = _unwrapped(trainer, task, spec)
    if rank > 0:
        return {}
    validation = None if trainer.divergence else task.score(model, spec, "validation")
    if validation is not None and not is_finite(validation):
        validation = None
    peak = memory.peak()
    history = trainer.state.log_history
    result = {
        "key": spec.key,
        "arm": spec.arm,
        "learning_rate": spec.learning_rate,
        "seed": spec.seed,
        "diverged": validation is None,
        "divergence": _divergence(trainer.divergence, folder / "checkpoints"),
        "validation": validation,
        "steps": trainer.state.global_step,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "speed": trainer.speed(),
        "training_seconds": trainer.training_seconds(),
        "peak_memory_bytes": peak,
        "dead_heads": {
            "at_start": dead_at_start,
            "after_training": dead_score_networks(model, probe),
        },
        "units_per_step": trainer.units_per_step(),
        "curve": _curve(history),
        "training_curve": [
            {"step": log["step"], "loss": log["loss"]}
            for log in history
            if math.isfinite(log.get("loss", math.nan))
        ],
        "data_order_sha256": examples.sha256,
        "initial_values": {"shared": len(built.shared), "own": list(built.own)},
        "resumed_from": checkpoint.name if checkpoint else None,
        "broken_checkpoints": broken,
        "command_started": command_started,
    }
    _keep(task, model, spec, folder)
    write_json(folder / "result.json", result)
    return result


def is_finite(score: dict[str, Any]) -> bool:
    """Whether every number of a score is."""
    return all(math.isfinite(value) for value in score.values() if not isinstance(value, str))


def _unwrapped(trainer: RunTrainer, task: Task, spec: RunSpec) -> Any:
    """The model as it was before ``accelerate`` wrapped it: float32, whole in the first process."""
    if not trainer.is_fsdp_enabled:
        return trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    values = trainer.accelerator.get_state_dict(trainer.model)
    model: Any = task.build(spec).model
    if values:
        model.load_state_dict(values)
    return model.to(trainer.args.device)


def _curve(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Points of the validation loss, each with the seconds of training before it."""
    seconds, points = 0.0, []
    for log in history:
        seconds += log.get("seconds", 0.0)
        if "eval_loss" in log:
            point = {"step": log["step"], "validation_loss": log["eval_loss"], "seconds": seconds}
            points.append(point)
    return points


def _divergence(found: dict[str, Any] | None, checkpoints: Path) -> dict[str, Any] | None:
    if found is None:
        return None
    checkpoint, _ = last_complete(checkpoints)
    return {**found, "last_checkpoint": checkpoint.name if checkpoint else None}


def _warm_up(device: torch.device) -> None:
    """Load the libraries that a first product and its gradient load, before memory is measured."""
    x = torch.ones(8, 8, device=device, requires_grad=True)
    torch.nn.functional.cross_entropy(
        x @ x, torch.zeros(8, dtype=torch.long, device=device)
    ).backward()


def _keep(task: Task, model: Any, spec: RunSpec, folder: Path) -> None:
    temporary, final = folder / "model.tmp", folder / "model"
    shutil.rmtree(temporary, ignore_errors=True)
    task.save(model, temporary, spec)
    mark_complete(temporary)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(temporary, final)
