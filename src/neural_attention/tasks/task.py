"""What a comparison needs to know of a task: its data, its models, its scores.

A task is stateless. The comparison's own process reads and prepares the data; every run has a
process of its own, which gets a :class:`RunSpec` and nothing else.
"""

from __future__ import annotations

import abc
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from neural_attention.tasks.json_files import NUMBER, has_form, is_amount

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

FORMAT = 3
"""Raised when results of an earlier version must not be mixed with new ones."""

LONGEST_NAME = 100
"""Characters of an arm's name in the name of its folder; file systems take 255 in all."""

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The training that every arm of a comparison gets; a task's own presets add model and data.

    Attributes:
        purpose: what the preset is for, in a few words.
        batch_size: examples of an optimiser step.
        steps: optimiser steps of a run.
        warmup_steps: steps in which the learning rate rises; then it falls along a cosine to zero.
        learning_rates: the sweep, the same for every arm.
        seeds: number of seeds at the chosen learning rate, the sweep's own included.
        evaluations: points of the learning curve.
        weight_decay: of weight matrices; not of biases, norms, slopes and ALiBi's slopes.
        betas: of AdamW.
        max_grad_norm: the gradient is clipped to this norm.
        accumulation: parts into which a step's examples are cut, one after the other.
        bf16: whether training computes in bfloat16 where torch's autocast does; parameters stay in
            float32, and scores are taken in float32.
        patience: stop after so many points of the curve without a better one, and keep the best
            weights; None to do all steps and keep the last.
    """

    purpose: str
    batch_size: int
    steps: int
    warmup_steps: int
    learning_rates: tuple[float, ...]
    seeds: int
    evaluations: int
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    accumulation: int = 1
    bf16: bool = False
    patience: int | None = None


@dataclass(frozen=True)
class Measure:
    """A number of a score: what it is called, and how two arms are compared by it.

    Attributes:
        field: its name in a score.
        name: its name for people, such as ``"perplexity"``.
        is_better_lower: whether less is better.
        comparison: ``"ratio"``: means over seeds are geometric and arms are compared by ratios
            (perplexity); ``"difference"``: arithmetic means and differences (accuracy, BLEU).
        short: heading of a narrow column.
        unit: behind the number, such as ``"%"``.
        digits: behind the decimal point.
    """

    field: str
    name: str
    is_better_lower: bool
    comparison: Literal["ratio", "difference"]
    short: str
    unit: str = ""
    digits: int = 2


@dataclass(frozen=True)
class RunSpec:
    """Everything that determines the numbers of a run.

    Attributes:
        task: name of the task.
        arm: name of the arm.
        attention: keywords of the arm's attention.
        layers: which layers have it.
        overrides: in what else the arm differs: ``feed_forward``, the width of those layers,
            ``kv_heads``, the heads of keys and values, and where models are converted ``roles`` and
            ``start``.
        sizes: sizes that all arms share, keywords of the model's configuration.
        training: the fields of the preset that training and scoring read.
        learning_rate: peak of the schedule.
        seed: of initial values, data order and dropout.
        data: the description of the prepared data.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``.
        environment: versions, and how many threads and processes work at the run.
    """

    task: str
    arm: str
    attention: dict[str, Any]
    layers: str | list[int]
    overrides: dict[str, Any]
    sizes: dict[str, Any]
    training: dict[str, Any]
    learning_rate: float
    seed: int
    data: dict[str, Any]
    device: str
    environment: dict[str, Any]

    @property
    def content(self) -> dict[str, Any]:
        """What determines the run, as JSON gives it back; where the data lay does not."""
        content = {**asdict(self), "format": FORMAT}
        for name in ("folder", "source"):
            content["data"].pop(name, None)
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


@dataclass(frozen=True)
class BuiltModel:
    """A model and where its initial values come from.

    Attributes:
        model: the model; ``model(**batch).loss`` is what training minimises.
        shared: names of parameters that start as those of the dot-product model of the same seed.
        own: names of the others: parameters that the dot-product model lacks or has in another
            shape.
    """

    model: PreTrainedModel
    shared: tuple[str, ...]
    own: tuple[str, ...]


class TrainingSet(abc.ABC):
    """The examples of a run in the order in which it reads them, each once; see ``collate``.

    Its order depends on the data and on the seed alone, whatever model is trained.
    """

    @property
    @abc.abstractmethod
    def sha256(self) -> str:
        """Hash of the order in which the examples are read."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Steps times batch size."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> dict[str, Any]:
        """One example; random choices in it depend on the seed and on ``index`` alone."""


class Task(abc.ABC):
    """A task of ``neural-attention compare``.

    Attributes:
        name: its word on the command line.
        title: what is compared, such as ``"language models"``.
        presets: sizes and schedules by name; every task has ``smoke``, ``quick``, ``laptop`` and
            ``paper``.
        measures: what a score tells, the headline first.
        choice: the measure of the validation score by which an arm's learning rate is chosen.
        unit: what the speed counts, such as ``"tokens"``.
        data_noun: what the data are, such as ``"text"``.
        converts: whether its models are those of transformers, converted, so that an arm may say
            which attention is meant and how it starts.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    presets: ClassVar[Mapping[str, Any]]
    measures: ClassVar[tuple[Measure, ...]]
    choice: ClassVar[Measure]
    unit: ClassVar[str]
    data_noun: ClassVar[str]
    converts: ClassVar[bool] = False

    # In the comparison's own process.

    @abc.abstractmethod
    def choose(self, preset: Any, options: Mapping[str, Any]) -> Any:
        """The preset with what the task's own options change in it; None means not given.

        Raises:
            ValueError: an option's value that is none.
        """

    @abc.abstractmethod
    def default_arms(self, preset: Any) -> tuple[str, ...]:
        """The arms that are compared where none are named."""

    @abc.abstractmethod
    def read(self, preset: Any, say: Say) -> tuple[Any, list[str]]:
        """Find the data and check what can be checked before anything is built.

        Returns:
            The data, for :meth:`prepare`, and what is to be minded in them, in words.

        Raises:
            ValueError, FileNotFoundError, ConnectionError: with what was expected, what came, and
                what to do.
        """

    @abc.abstractmethod
    def prepare(self, source: Any, preset: Any, folder: Path, say: Say) -> dict[str, Any]:
        """Write what the runs read into ``folder``, or find it there, and describe it.

        Returns:
            Plain values, among them ``folder``, ``source`` (in words), ``sha256`` (of what was
            read), ``counts`` (by part) and ``counted`` (of what, such as ``"tokens"``).
        """

    @abc.abstractmethod
    def describe(self, data: Mapping[str, Any]) -> str:
        """The prepared data in one line, such as the number of tokens of each part."""

    @abc.abstractmethod
    def notes(self, preset: Any, data: Mapping[str, Any]) -> list[str]:
        """What to mind about the data beside this training, such as too few of them."""

    @abc.abstractmethod
    def evaluation(self, preset: Any, data: Mapping[str, Any]) -> dict[str, str]:
        """In words, how scores (``evaluation``) and points of the curve (``curves``) are taken."""

    @abc.abstractmethod
    def head_dim(self, preset: Any) -> int:
        """Width of a head, by which published score networks are sized."""

    @abc.abstractmethod
    def sizes(self, preset: Any, data: Mapping[str, Any] | None) -> dict[str, Any]:
        """Sizes that all arms share, ``intermediate_size`` and ``num_hidden_layers`` among them.

        Before there are data, with any that are like them.
        """

    @abc.abstractmethod
    def training(self, preset: Any) -> dict[str, Any]:
        """The task's own fields of the preset that a run reads."""

    # In a run's process.

    @abc.abstractmethod
    def build(self, spec: RunSpec, backend: str | None = None) -> BuiltModel:
        """The model of a run.

        Every parameter that the dot-product model of the same seed has starts as it does there.

        Args:
            spec: the run.
            backend: the attention's backend, to time a dot product on torch's own (``"sdpa"``).

        Raises:
            ValueError, TypeError: the arm does not fit the model.
        """

    def save(self, model: PreTrainedModel, folder: Path, spec: RunSpec) -> None:
        """Write a trained model, and what belongs to it, into a folder."""
        model.save_pretrained(folder)

    @abc.abstractmethod
    def load(self, folder: Path, spec: RunSpec) -> PreTrainedModel:
        """A model that :meth:`save` wrote."""

    @abc.abstractmethod
    def training_set(self, spec: RunSpec) -> TrainingSet:
        """The examples that a run learns from."""

    def collate(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """A batch: keyword arguments of the model, labels among them.

        Tensors of one shape are stacked; a task whose examples differ in length pads them.
        """
        import torch

        return {name: torch.stack([one[name] for one in examples]) for name in examples[0]}

    @abc.abstractmethod
    def units(self, batch: Mapping[str, torch.Tensor]) -> int:
        """How many tokens or images a batch has."""

    @abc.abstractmethod
    def curve_point(self, model: PreTrainedModel, spec: RunSpec) -> float:
        """A cheap validation loss, for the learning curve."""

    @abc.abstractmethod
    def score(self, model: PreTrainedModel, spec: RunSpec, part: Part) -> dict[str, Any]:
        """The score of a part: plain values; ``loss`` and the fields of the measures are numbers.

        Measures that are too dear for the validation part may be missing there.
        """

    def is_score(self, score: object, part: Part) -> bool:
        """Whether a score that was read from a file can be one of this task's.

        On the validation part only the measure by which rates are chosen must be there.
        """
        if not has_form(score, {str: (str, NUMBER)}):
            return False
        found = cast(dict[str, Any], score)
        needed = {self.choice} if part == "validation" else {self.choice, *self.measures}
        return is_amount(found.get("loss")) and all(
            has_form(found.get(measure.field), NUMBER) for measure in needed
        )

    @abc.abstractmethod
    def probe(self, spec: RunSpec) -> dict[str, torch.Tensor]:
        """Inputs of the model on which dead score networks are looked for."""
