"""How the runs of a comparison are carried out: what changes their numbers by rounding alone."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from typing import Any

from neural_attention.compare.devices import thread_count
from neural_attention.tasks.task import Preset

SHARDINGS = ("ddp", "fsdp")
LOGGERS = {"tensorboard": "tensorboard", "trackio": "trackio", "wandb": "wandb", "none": None}
"""Where curves are written while training, and the package that does it."""


@dataclass(frozen=True)
class Execution:
    """How runs are carried out.

    Attributes:
        jobs: runs at once on this machine.
        processes: processes that share a run's batch.
        sharding: what processes share: ``"ddp"``, gradients; ``"fsdp"`` (FSDP2), also parameters
            and the optimiser's state.
        log_to: a name of :data:`LOGGERS`; None for TensorBoard's files where that is installed.

    Raises:
        ValueError: a number below 1, or an unknown name.
        ImportError: the package of ``log_to`` is missing.
    """

    jobs: int = 1
    processes: int = 1
    sharding: str = "ddp"
    log_to: str | None = None

    def __post_init__(self) -> None:
        for name in ("jobs", "processes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: at least 1 is needed.")
        if self.sharding not in SHARDINGS:
            raise ValueError(
                f"unknown sharding {self.sharding!r}; known are {', '.join(SHARDINGS)}."
            )
        if self.log_to is not None and self.log_to not in LOGGERS:
            raise ValueError(f"cannot log to {self.log_to!r}; known are {', '.join(LOGGERS)}.")
        package = LOGGERS[self.log_to] if self.log_to is not None else None
        if package is not None and importlib.util.find_spec(package) is None:
            raise ImportError(f"{package} is not installed: pip install {package}")

    @property
    def logger(self) -> str:
        """Where curves are written: ``log_to``, or what there is."""
        if self.log_to is not None:
            return self.log_to
        return "tensorboard" if importlib.util.find_spec("tensorboard") is not None else "none"

    def environment(self) -> dict[str, Any]:
        """Versions, threads and processes of a run, which are part of what determines it."""
        # The processes of a launcher have been given their threads.
        sharing = 1 if launched()[1] > 1 else self.jobs * self.processes
        threads = max(1, thread_count() // sharing)
        found = {
            name: importlib.metadata.version(name.replace("_", "-"))
            for name in ("neural_attention", "torch", "transformers")
        }
        environment = {**found, "threads": threads}
        if self.processes > 1:
            environment |= {"processes": self.processes, "sharding": self.sharding}
        return environment

    def check(self, preset: Preset, device: str) -> None:
        """Whether a step's examples can be shared, on this device.

        Raises:
            ValueError: they cannot.
        """
        parts = self.processes * preset.accumulation
        if preset.batch_size % parts:
            raise ValueError(
                f"a step's {preset.batch_size} examples cannot be shared by {self.processes} "
                f"processes in {preset.accumulation} equal parts each."
            )
        if self.processes > 1 and device.startswith("cuda"):
            import torch

            if device != "cuda" or torch.cuda.device_count() < self.processes:
                raise ValueError(
                    f"{self.processes} processes need as many GPUs, and there are "
                    f"{torch.cuda.device_count()}; name no single one (--device cuda)."
                )
        if self.processes > 1 and device == "mps":
            raise ValueError("Apple's GPU takes one process.")


def launched() -> tuple[int, int]:
    """Rank and number of the processes that torchrun, or what sets the same variables, started."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
