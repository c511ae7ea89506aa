"""One run of a comparison: what determines it, and where its files lie."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from neural_attention.compare.arms import Arm
from neural_attention.compare.presets import LanguagePreset

FORMAT = 2
"""Raised when results of an earlier version must not be mixed with new ones."""

LONGEST_NAME = 100
"""Characters of an arm's name in the name of its folder; file systems take 255 in all."""


@dataclass(frozen=True)
class RunSpec:
    """Everything that determines the numbers of a run.

    Attributes:
        arm: name of the arm.
        attention: keywords of the arm's attention.
        layers: which layers have it.
        overrides: sizes in which the arm differs: feed-forward width, heads of keys and values.
        sizes: sizes that all arms share, keywords of the model's configuration.
        training: length, batch size, steps and the other fields of the preset that training reads.
        learning_rate: peak of the schedule.
        seed: of initial values, data order and dropout.
        tokens: the description of the token files.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``.
        environment: versions and number of threads.
    """

    arm: str
    attention: dict[str, Any]
    layers: str | list[int]
    overrides: dict[str, int]
    sizes: dict[str, Any]
    training: dict[str, Any]
    learning_rate: float
    seed: int
    tokens: dict[str, Any]
    device: str
    environment: dict[str, Any]

    @property
    def content(self) -> dict[str, Any]:
        """What determines the run, as JSON gives it back; folders do not."""
        content = {**asdict(self), "format": FORMAT}
        content["tokens"].pop("folder", None)
        return cast(dict[str, Any], json.loads(json.dumps(content)))

    @property
    def key(self) -> str:
        """Hash of what determines the run."""
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()

    @property
    def label(self) -> str:
        """Arm, learning rate and seed as the beginning of a file's name."""
        name = re.sub(r"[^\w.=-]+", "_", self.arm)[:LONGEST_NAME]
        return f"{name}_lr{self.learning_rate:g}_seed{self.seed}"

    def folder(self, root: Path) -> Path:
        """Where this run's files lie, legible and unmistakable."""
        return root / f"{self.label}_{self.key[:8]}"

    def at(self, learning_rate: float, seed: int) -> RunSpec:
        """The same arm at another learning rate and seed."""
        return replace(self, learning_rate=learning_rate, seed=seed)


def spec_of(
    arm: Arm,
    preset: LanguagePreset,
    tokens: dict[str, Any],
    device: str,
    environment: dict[str, Any],
) -> RunSpec:
    """The run of an arm at the first learning rate and seed 0."""
    overrides = {"intermediate_size": arm.feed_forward, "num_key_value_heads": arm.kv_heads}
    layers = arm.layers if isinstance(arm.layers, str) else list(arm.layers)
    training = ("length", "stride", "batch_size", "steps", "warmup_steps", "weight_decay", "betas",
                "max_grad_norm", "evaluations", "curve_tokens")  # fmt: skip
    return RunSpec(
        arm=arm.name,
        attention=arm.attention(preset.hidden_size // preset.num_heads),
        layers=layers,
        overrides={name: value for name, value in overrides.items() if value is not None},
        sizes={
            "architecture": preset.architecture,
            "vocab_size": tokens["vocab_size"],
            "hidden_size": preset.hidden_size,
            "intermediate_size": preset.intermediate_size,
            "num_hidden_layers": preset.num_layers,
            "num_attention_heads": preset.num_heads,
            "bos_token_id": tokens["start_token"],
        },
        training={name: getattr(preset, name) for name in training},
        learning_rate=preset.learning_rates[0],
        seed=0,
        tokens=tokens,
        device=device,
        environment=environment,
    )
