"""``transformers.Trainer`` as a comparison needs it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import SequentialSampler
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from neural_attention.compare.checkpoints import mark_complete
from neural_attention.compare.divergence import unfit_module, unfit_parameter
from neural_attention.compare.execution import launched
from neural_attention.tasks.task import RunSpec, Task, TrainingSet

Report = Callable[[dict[str, Any]], None]

MOST_STEPS_BETWEEN_CHECKPOINTS = 1000
_POSITION_SLOPES = ("slopes", "alibi")


def training_arguments(spec: RunSpec, folder: Path, logger: str) -> TrainingArguments:
    """The arguments of ``Trainer`` for a run whose checkpoints lie in ``folder``."""
    settings, environment = spec.training, spec.environment
    every = max(1, settings["steps"] // settings["evaluations"])
    _, world = launched()
    stops_early = settings["patience"] is not None
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=settings["steps"],
        per_device_train_batch_size=settings["batch_size"] // (world * settings["accumulation"]),
        gradient_accumulation_steps=settings["accumulation"],
        learning_rate=spec.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings["warmup_steps"],
        weight_decay=settings["weight_decay"],
        adam_beta1=settings["betas"][0],
        adam_beta2=settings["betas"][1],
        max_grad_norm=settings["max_grad_norm"],
        optim="adamw_torch",
        bf16=settings["bf16"],
        seed=spec.seed,
        data_seed=spec.seed,
        use_cpu=spec.device == "cpu",
        ddp_backend="gloo" if spec.device == "cpu" and world > 1 else None,
        ddp_find_unused_parameters=False,
        fsdp="full_shard" if environment.get("sharding") == "fsdp" else None,
        fsdp_config={"version": 2} if environment.get("sharding") == "fsdp" else None,
        logging_strategy="steps",
        logging_steps=every,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        # The best weights are among those that were saved.
        save_steps=every if stops_early else min(every, MOST_STEPS_BETWEEN_CHECKPOINTS),
        save_total_limit=2,
        eval_strategy="steps",
        eval_steps=every,
        load_best_model_at_end=stops_early,
        metric_for_best_model="loss" if stops_early else None,
        greater_is_better=False if stops_early else None,
        report_to=logger,
        project="neural-attention",
        run_name=spec.label,
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )


class RunTrainer(Trainer):  # type: ignore[misc]
    """Reads the examples in their order, spares vectors from weight decay, and measures its steps.

    A step's loss is the mean over all its labels, however they are spread over processes and over
    parts that are accumulated.

    Args:
        task: of the run.
        spec: the run.
        model: its model.
        examples: what it learns from.
        args: see :func:`training_arguments`.
        report: called with progress.

    Attributes:
        divergence: ``{"step", "where"}`` once a number was not finite, else None.
    """

    def __init__(
        self,
        task: Task,
        spec: RunSpec,
        model: torch.nn.Module,
        examples: TrainingSet,
        args: TrainingArguments,
        report: Report,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            train_dataset=examples,
            eval_dataset=examples,  # asked for; what is evaluated says ``evaluate``
            data_collator=task.collate,
            callbacks=[],
        )
        self.task, self.spec = task, spec
        self.divergence: dict[str, Any] | None = None
        self.step_seconds: list[float] = []
        # The loss is divided by the number of labels in compute_loss, and by nothing else.
        self.model_accepts_loss_kwargs = True
        self.remove_callback(PrinterCallback)
        self.add_callback(_RunCallback(self, report))
        if spec.training["patience"] is not None:
            self.add_callback(EarlyStoppingCallback(spec.training["patience"]))

    def _get_train_sampler(self, *_: Any, **__: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """Matrices; not biases, norms and slopes."""
        return [
            name
            for name, parameter in model.named_parameters()
            if parameter.dim() >= 2
            and not name.endswith("bias")
            and name.rpartition(".")[2] not in _POSITION_SLOPES
        ]

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: Any = None
    ) -> tuple[list[Any], torch.Tensor]:
        """The parts of a step, and how many labels they have in all processes together."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        labels = torch.stack([_labels(batch) for batch in batches]).sum().to(self.args.device)
        return batches, self.accelerator.gather(labels).sum()

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """This part's share of the mean over the step's labels."""
        # The model gives the mean over this part; processes average their gradients.
        share = _labels(inputs) * self.args.world_size / num_items_in_batch
        outputs = model(**inputs)
        loss = outputs.loss * share
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """One part of a step; whether its loss is finite is looked at."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._in_any_process(not torch.isfinite(loss)) and self.divergence is None:
            parameter = unfit_parameter(self.model)
            where = f"parameter {parameter}" if parameter is not None else "the loss"
            # A sharded model runs in all processes together, or not at all.
            if parameter is None and self.args.world_size == 1:
                module = unfit_module(self.model, self._prepare_inputs(inputs))
                where = f"the output of {module}" if module else where
            self.divergence = {"step": self.state.global_step + 1, "where": where}
        return loss

    def check_parameters(self) -> None:
        """Note a divergence where a parameter is not finite, before it is saved."""
        parameter = unfit_parameter(self.model)
        if self._in_any_process(parameter is not None) and self.divergence is None:
            where = f"parameter {parameter}" if parameter else "a parameter in another process"
            self.divergence = {"step": self.state.global_step, "where": where}

    def _in_any_process(self, happened: bool) -> bool:
        """Whether it happened in one of the processes, which must all stop together."""
        if self.args.world_size == 1:
            return happened
        flag = torch.tensor([int(happened)], device=self.args.device)
        return bool(self.accelerator.gather(flag).any())

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """A point of the learning curve."""
        metrics = {"eval_loss": self.task.curve_point(self.model, self.spec)}
        if math.isfinite(metrics["eval_loss"]):
            self.log(metrics)
        self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Keep and write numbers; with a loss, also the time of the steps since the last."""
        if "loss" in logs:
            # Kept in the trainer's state, so that a resumed run knows the time of all its steps.
            logs["seconds"] = sum(self.step_seconds)
            logs["median_step_seconds"] = statistics.median(self.step_seconds)
            self.step_seconds = []
        super().log(logs, *args, **kwargs)

    def training_seconds(self) -> float:
        """Of all steps, those before an interruption too."""
        logged = sum(log.get("seconds", 0.0) for log in self.state.log_history)
        return logged + sum(self.step_seconds)

    def speed(self) -> float | None:
        """Units a second of all processes together, at the median of what the steps took."""
        medians = [
            log["median_step_seconds"]
            for log in self.state.log_history
            if "median_step_seconds" in log
        ]
        if not medians:
            return None
        return self.units_per_step() / float(statistics.median(medians))

    def units_per_step(self) -> int:
        """Tokens or images of the first step."""
        size = self.spec.training["batch_size"]
        batch = self.task.collate([self.train_dataset[index] for index in range(size)])
        return self.task.units(batch)


def _labels(batch: Any) -> torch.Tensor:
    """How many labels of a batch count."""
    return batch["labels"].ne(-100).sum()


class _RunCallback(TrainerCallback):  # type: ignore[misc]
    """Times steps, marks checkpoints, ends what diverges, and sends progress."""

    def __init__(self, trainer: RunTrainer, report: Report) -> None:
        self.trainer, self.report = trainer, report
        self.started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.device.type == "cuda":
            torch.cuda.synchronize()
        self.trainer.step_seconds.append(time.perf_counter() - self.started)
        self.report({"step": state.global_step, "steps": state.max_steps})
        if control.should_save:
            self.trainer.check_parameters()
        if self.trainer.divergence is not None:
            control.should_training_stop = True
            control.should_save = control.should_log = control.should_evaluate = False

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "loss" in (logs or {}):
            message = {"step": state.global_step, "steps": state.max_steps, "loss": logs["loss"]}
            self.report(message)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")
