"""Training one run with ``transformers.Trainer``, from the start or from where it stopped."""

from __future__ import annotations

import math
import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from neural_attention.compare.checkpoints import last_complete, mark_complete
from neural_attention.compare.dead import dead_score_networks
from neural_attention.compare.memory import PeakMemory
from neural_attention.tasks.json_files import write_json
from neural_attention.tasks.registry import load_task
from neural_attention.tasks.task import RunSpec, Task

Report = Callable[[dict[str, Any]], None]

MOST_STEPS_BETWEEN_CHECKPOINTS = 1000
_POSITION_SLOPES = ("slopes", "alibi")


def work_device(spec: RunSpec) -> torch.device:
    """The device of a run in its own process, where the chosen GPU is the only one."""
    return torch.device(spec.device.partition(":")[0])


def train_run(spec: RunSpec, folder: Path, command_started: str, report: Report) -> dict[str, Any]:
    """Train, score on the validation part, and keep the weights.

    Args:
        spec: the run.
        folder: its folder; checkpoints, then ``model`` and ``result.json``.
        command_started: when the comparison began that has its speed measured.
        report: called with progress: ``{"step", "steps", "loss"}`` and ``{"note": text}``.

    Returns:
        The content of ``result.json``.
    """
    task, device = load_task(spec.task), work_device(spec)
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
    trainer = _RunTrainer(
        model=model,
        args=_arguments(spec, folder / "checkpoints"),
        train_dataset=examples,
        data_collator=task.collate,
        callbacks=[],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(_RunCallback(spec, task, trainer, report))
    # Dropout draws from here on; the arms' constructors have drawn different amounts.
    torch.manual_seed(spec.seed)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    validation = None if trainer.diverged else task.score(model, spec, "validation")
    if validation is not None and not is_finite(validation):
        validation = None
    peak = memory.peak()
    result = {
        "key": spec.key,
        "arm": spec.arm,
        "learning_rate": spec.learning_rate,
        "seed": spec.seed,
        "diverged": validation is None,
        "validation": validation,
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "speed": trainer.speed(task),
        "training_seconds": trainer.training_seconds(),
        "peak_memory_bytes": peak,
        "dead_heads": {
            "at_start": dead_at_start,
            "after_training": dead_score_networks(model, probe),
        },
        "curve": [
            {"step": log["step"], "validation_loss": log["validation_loss"]}
            for log in trainer.state.log_history
            if "validation_loss" in log
        ],
        "training_curve": [
            {"step": log["step"], "loss": log["loss"]}
            for log in trainer.state.log_history
            if math.isfinite(log.get("loss", math.nan))
        ],
        "data_order_sha256": examples.sha256,
        "initial_values": {"shared": len(built.shared), "own": list(built.own)},
        "resumed_from": checkpoint.name if checkpoint else None,
        "broken_checkpoints": broken,
        "command_started": command_started,
    }
    _keep(model, folder)
    write_json(folder / "result.json", result)
    return result


def is_finite(score: dict[str, Any]) -> bool:
    """Whether every number of a score is."""
    return all(math.isfinite(value) for value in score.values() if not isinstance(value, str))


def _arguments(spec: RunSpec, folder: Path) -> TrainingArguments:
    settings = spec.training
    every = max(1, settings["steps"] // settings["evaluations"])
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=settings["steps"],
        per_device_train_batch_size=settings["batch_size"],
        learning_rate=spec.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings["warmup_steps"],
        weight_decay=settings["weight_decay"],
        adam_beta1=settings["betas"][0],
        adam_beta2=settings["betas"][1],
        max_grad_norm=settings["max_grad_norm"],
        optim="adamw_torch",
        seed=spec.seed,
        data_seed=spec.seed,
        use_cpu=spec.device == "cpu",
        logging_strategy="steps",
        logging_steps=every,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=min(every, MOST_STEPS_BETWEEN_CHECKPOINTS),
        save_total_limit=2,
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )


class _RunTrainer(Trainer):  # type: ignore[misc]
    """Reads the blocks in their order, spares vectors from weight decay, and measures its steps."""

    diverged = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.step_seconds: list[float] = []

    def _get_train_sampler(self, *_: Any, **__: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        return [
            name
            for name, parameter in model.named_parameters()
            if parameter.dim() >= 2
            and not name.endswith("bias")
            and name.rpartition(".")[2] not in _POSITION_SLOPES
        ]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            # Kept in the trainer's state, so that a resumed run knows the time of all its steps.
            logs["seconds"] = sum(self.step_seconds)
            logs["median_step_seconds"] = statistics.median(self.step_seconds)
            self.step_seconds = []
        super().log(logs, *args, **kwargs)

    def training_seconds(self) -> float:
        logged = sum(log.get("seconds", 0.0) for log in self.state.log_history)
        return logged + sum(self.step_seconds)

    def speed(self, task: Task) -> float | None:
        """Units a second, at the median of what the steps took."""
        medians = [
            log["median_step_seconds"]
            for log in self.state.log_history
            if "median_step_seconds" in log
        ]
        if not medians:
            return None
        size = self.args.per_device_train_batch_size
        batch = task.collate([self.train_dataset[index] for index in range(size)])
        return task.units(batch) / float(statistics.median(medians))


class _RunCallback(TrainerCallback):  # type: ignore[misc]
    """Times steps, scores the curve, marks checkpoints and sends progress."""

    def __init__(self, spec: RunSpec, task: Task, trainer: _RunTrainer, report: Report) -> None:
        self.spec, self.task, self.trainer, self.report = spec, task, trainer, report
        self.started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.spec.device.startswith("cuda"):
            torch.cuda.synchronize()
        self.trainer.step_seconds.append(time.perf_counter() - self.started)
        self.report({"step": state.global_step, "steps": state.max_steps})

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        loss = (logs or {}).get("loss")
        if loss is None:
            return
        self.report({"step": state.global_step, "steps": state.max_steps, "loss": loss})
        if not math.isfinite(loss):
            self.trainer.diverged = True
            control.should_training_stop = True
            control.should_save = False
        else:
            self._score_curve()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")

    def _score_curve(self) -> None:
        loss = self.task.curve_point(self.trainer.model, self.spec)
        if math.isfinite(loss):
            self.trainer.log({"validation_loss": loss})
            self.report({"validation_loss": loss})


def _warm_up(device: torch.device) -> None:
    """Load the libraries that a first product and its gradient load, before memory is measured."""
    x = torch.ones(8, 8, device=device, requires_grad=True)
    torch.nn.functional.cross_entropy(
        x @ x, torch.zeros(8, dtype=torch.long, device=device)
    ).backward()


def _keep(model: Any, folder: Path) -> None:
    temporary, final = folder / "model.tmp", folder / "model"
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary)
    mark_complete(temporary)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(temporary, final)
