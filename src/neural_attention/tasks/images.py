"""Image classification as a task of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from neural_attention.models.vision import (
    NeuralAttentionForImageClassification,
    NeuralAttentionVisionConfig,
)
from neural_attention.tasks import image_classification as scoring
from neural_attention.tasks.image_data import load_images
from neural_attention.tasks.json_files import has_form, is_amount, is_count
from neural_attention.tasks.labelled_images import ImageSplits
from neural_attention.tasks.prepared_images import PreparedImages, prepare_images
from neural_attention.tasks.sharing import share_values
from neural_attention.tasks.task import (
    PARTS,
    BuiltModel,
    Measure,
    Part,
    Preset,
    RunSpec,
    Say,
    Task,
    TrainingSet,
)
from neural_attention.tasks.text import BUILT_IN
from neural_attention.tasks.wording import counted

MOST_PASSES = 20
FEW_TEST_IMAGES = 1000


@dataclass(frozen=True, kw_only=True)
class ImagePreset(Preset):
    """A vision transformer, its training and its evaluation.

    Attributes:
        architecture: ``"current"`` or ``"paper"``, see
            :class:`neural_attention.models.vision.NeuralAttentionVisionConfig`.
        hidden_size, intermediate_size, num_layers, num_heads: sizes of the model.
        image_size: side to which images are resized.
        patch_size: side of a patch.
        augmentation: a name of :data:`neural_attention.tasks.image_classification.AUGMENTATIONS`.
        curve_images: validation images of a point of the curve.
        data: used when the command names none; None for the built-in digits.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    image_size: int
    patch_size: int
    augmentation: str
    curve_images: int
    data: str | None = None

    @property
    def tokens(self) -> int:
        """Of an image, the class token included."""
        return 1 + (self.image_size // self.patch_size) ** 2


PRESETS: Mapping[str, ImagePreset] = MappingProxyType(
    {
        "smoke": ImagePreset(
            purpose="does everything once, in seconds; the numbers mean nothing",
            architecture="current",
            hidden_size=32,
            intermediate_size=64,
            num_layers=2,
            num_heads=2,
            image_size=8,
            patch_size=2,
            augmentation="none",
            batch_size=4,
            steps=12,
            warmup_steps=2,
            learning_rates=(3e-3,),
            seeds=1,
            evaluations=3,
            curve_images=32,
        ),
        "quick": ImagePreset(
            purpose="a first look, minutes on two cores",
            architecture="current",
            hidden_size=64,
            intermediate_size=172,
            num_layers=3,
            num_heads=2,
            image_size=8,
            patch_size=2,
            augmentation="none",
            batch_size=32,
            steps=400,
            warmup_steps=40,
            learning_rates=(2e-3, 4e-3, 8e-3),
            seeds=1,
            evaluations=10,
            curve_images=512,
        ),
        "laptop": ImagePreset(
            purpose="about 15 minutes a run on one core; CIFAR-10, or images of your own",
            architecture="current",
            hidden_size=128,
            intermediate_size=344,
            num_layers=4,
            num_heads=4,
            image_size=32,
            patch_size=4,
            augmentation="crop_flip",
            batch_size=64,
            steps=2000,
            warmup_steps=100,
            learning_rates=(5e-4, 1e-3, 2e-3),
            seeds=3,
            evaluations=20,
            curve_images=512,
            data="uoft-cs/cifar10",
        ),
        "paper": ImagePreset(
            purpose="the sizes of arXiv 2502.17206: days on a GPU",
            architecture="paper",
            hidden_size=768,
            intermediate_size=1024,
            num_layers=12,
            num_heads=8,
            image_size=224,
            patch_size=8,
            augmentation="paper",
            batch_size=64,
            # 350 passes over 45,000 images.
            steps=246_000,
            warmup_steps=2_000,
            learning_rates=(5e-5, 1.5e-4, 5e-4),
            seeds=3,
            evaluations=100,
            curve_images=5000,
            data="uoft-cs/cifar10",
        ),
    }
)

OWN_IMAGE_SIZE, OWN_PATCH_SIZE = 32, 4
"""For images that are given to a preset whose own are the digits."""

DEFAULT_ARMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "current": ("dot", "dot+alibi", "neural", "hybrid"),
        "paper": ("dot", "neural:release+layers=first"),
    }
)
"""The arms of each architecture that are compared where none are named."""

_ACCURACY = Measure("accuracy", "accuracy", False, "difference", "acc.\n%", "%")
_SCORE: dict[str, object] = {"images": is_count, "loss": is_amount, "accuracy": is_amount}
_OVERRIDES = {"feed_forward": "intermediate_size", "kv_heads": "num_key_value_heads"}


class ImageClassification(Task):
    """Top-1 accuracy of small vision transformers; see :class:`ImagePreset`."""

    name = "images"
    title = "vision transformers"
    presets = PRESETS
    measures = (_ACCURACY, Measure("loss", "loss", True, "difference", "loss", " nats", 3))
    choice = _ACCURACY
    unit = "images"
    data_noun = "set of images"

    def choose(self, preset: ImagePreset, options: Mapping[str, Any]) -> ImagePreset:
        """The preset with what the options change in its model and data."""
        data, model = options.get("data"), options.get("model")
        if model is not None and model not in DEFAULT_ARMS:
            raise ValueError(f"unknown model {model!r}; known are {', '.join(DEFAULT_ARMS)}.")
        if model is not None:
            preset = replace(preset, architecture=model)
        if data is not None and data != BUILT_IN and preset.data is None:
            preset = replace(preset, image_size=OWN_IMAGE_SIZE, patch_size=OWN_PATCH_SIZE)
        return preset if data is None else replace(preset, data=data)

    def default_arms(self, preset: ImagePreset) -> tuple[str, ...]:
        """Those of the architecture."""
        return DEFAULT_ARMS[preset.architecture]

    def read(self, preset: ImagePreset, say: Say) -> tuple[ImageSplits, list[str]]:
        """The images, and what is to be minded in them."""
        # Needed by every run, and better missed now.
        scoring.import_transforms()
        images = load_images(preset.data, preset.image_size)
        say(f"data: {images.source}; sha256 {images.sha256[:16]}")
        return images, list(images.notes)

    def prepare(
        self, source: ImageSplits, preset: ImagePreset, folder: Path, say: Say
    ) -> dict[str, Any]:
        """The images, written into ``folder``."""
        files = prepare_images(source, folder, say)
        return {**asdict(files), "source": source.source, "counted": "images"}

    def describe(self, data: Mapping[str, Any]) -> str:
        """Images of each part, classes and shape."""
        counts = ", ".join(f"{data['counts'][part]:,} {part}" for part in PARTS)
        shape = " × ".join(map(str, data["shape"]))
        return f"images: {counts} ({len(data['classes']):,} classes, {shape})"

    def notes(self, preset: ImagePreset, data: Mapping[str, Any]) -> list[str]:
        """Whether images are read too often, or too few to tell arms apart."""
        notes = []
        passes = preset.steps * preset.batch_size / data["counts"]["train"]
        if passes > MOST_PASSES and preset.augmentation == "none":
            notes.append(
                f"the training images are read {passes:.0f} times over without augmentation, which "
                "models of this size learn by heart: give more images with --data."
            )
        tested = data["counts"]["test"]
        if tested < FEW_TEST_IMAGES:
            notes.append(
                f"the test part has {counted(tested, 'image')}, one of which is "
                f"{100 / tested:.2f} percentage points of accuracy."
            )
        return notes

    def evaluation(self, preset: ImagePreset, data: Mapping[str, Any]) -> dict[str, str]:
        """How scores and curves are taken."""
        images = min(preset.curve_images, data["counts"]["validation"])
        when = "after the last step" if preset.patience is None else "of the best weights"
        return {
            "evaluation": (
                f"top-1 accuracy {when}, every image once, as it is, at {preset.image_size} × "
                f"{preset.image_size}"
            ),
            "curves": f"validation loss over {counted(images, 'image')} of that part",
        }

    def sizes(self, preset: ImagePreset, data: Mapping[str, Any] | None) -> dict[str, Any]:
        """Keywords of the model's configuration; any classes where there are no data yet."""
        return {
            "architecture": preset.architecture,
            "image_size": preset.image_size,
            "patch_size": preset.patch_size,
            "num_channels": data["shape"][2] if data is not None else 3,
            "num_labels": len(data["classes"]) if data is not None else 10,
            "hidden_size": preset.hidden_size,
            "intermediate_size": preset.intermediate_size,
            "num_hidden_layers": preset.num_layers,
            "num_attention_heads": preset.num_heads,
        }

    def head_dim(self, preset: ImagePreset) -> int:
        """Width of a head."""
        return preset.hidden_size // preset.num_heads

    def training(self, preset: ImagePreset) -> dict[str, Any]:
        """What training and scoring read of the preset."""
        names = ("image_size", "tokens", "augmentation", "curve_images")
        return {name: getattr(preset, name) for name in names}

    def build(self, spec: RunSpec, backend: str | None = None) -> BuiltModel:
        """Each parameter of the dot-product model's name and shape is copied from that."""
        torch.manual_seed(spec.seed)
        plain = replace(spec, attention={"score": "dot"}, layers="all", overrides={})
        base = NeuralAttentionForImageClassification(_config(plain))
        torch.manual_seed(spec.seed)
        model = NeuralAttentionForImageClassification(_config(spec, backend))
        shared, own = share_values(base, model)
        return BuiltModel(model, shared, own)

    def load(self, folder: Path, spec: RunSpec) -> NeuralAttentionForImageClassification:
        """The weights of a run."""
        return NeuralAttentionForImageClassification.from_pretrained(folder)

    def training_set(self, spec: RunSpec) -> TrainingSet:
        """The training images."""
        settings = spec.training
        return scoring.TrainingImages(
            PreparedImages.of(spec.data).load("train"),
            settings["image_size"],
            settings["augmentation"],
            settings["steps"] * settings["batch_size"],
            spec.seed,
        )

    def units(self, batch: Mapping[str, torch.Tensor]) -> int:
        """Images."""
        return len(batch["labels"])

    def curve_point(self, model: Any, spec: RunSpec) -> float:
        """Loss over some validation images from all over that part."""
        return self._score(model, spec, "validation", spec.training["curve_images"])["loss"]

    def score(self, model: Any, spec: RunSpec, part: Part) -> dict[str, Any]:
        """Loss and accuracy over a part."""
        return self._score(model, spec, part)

    def _score(self, model: Any, spec: RunSpec, part: Part, most: int | None = None) -> Any:
        images, settings = PreparedImages.of(spec.data).load(part), spec.training
        if most is not None:
            # Those of a folder come class by class.
            images = images.take(_spread(len(images.labels), most))
        return scoring.score_images(model, images, settings["image_size"], settings["tokens"])

    def is_score(self, score: object, part: Part) -> bool:
        """Whether it has the fields of a score, and its accuracy is a share of its images."""
        if not has_form(score, _SCORE):
            return False
        right = score["accuracy"] / 100 * score["images"]  # type: ignore[index]
        return right <= score["images"] and math.isclose(  # type: ignore[index]
            right, round(right), abs_tol=1e-6
        )

    def probe(self, spec: RunSpec) -> dict[str, torch.Tensor]:
        """Two images of the validation part."""
        images = PreparedImages.of(spec.data).load("validation").images
        images = images[_spread(len(images), 2)]
        pixels = scoring.resized(images, spec.training["image_size"])
        return {"pixel_values": scoring.normalised(pixels)}


def _config(spec: RunSpec, backend: str | None = None) -> NeuralAttentionVisionConfig:
    attention = dict(spec.attention) | ({} if backend is None else {"backend": backend})
    overrides = {_OVERRIDES[name]: value for name, value in spec.overrides.items()}
    return NeuralAttentionVisionConfig(
        attention=attention, attention_layers=spec.layers, **{**spec.sizes, **overrides}
    )


def _spread(count: int, most: int) -> np.ndarray:
    """At most so many indices, evenly over a part."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).round().astype(int)
