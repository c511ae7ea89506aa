"""Labelled images in three parts: how they are split, and what is wrong with them.

What has no validation or test part of its own gets one from its training part: of each class the
same share, drawn with a fixed seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neural_attention.tasks.task import PARTS, Part
from neural_attention.tasks.wording import counted

VALIDATION_SHARE = 0.1
TEST_SHARE = 0.2
SPLIT_SEED = 0
REPEATED_SHARE = 0.01

_CHANNELS = {1: "grey", 3: "colour"}


@dataclass(frozen=True)
class LabelledImages:
    """Images with their classes.

    Attributes:
        images: ``(N, height, width, channels)`` uint8, 1 channel or 3.
        labels: ``(N,)`` whole numbers, those of the classes from 0.
    """

    images: np.ndarray
    labels: np.ndarray

    def take(self, indices: np.ndarray) -> LabelledImages:
        """Some of them."""
        return LabelledImages(self.images[indices], self.labels[indices])


@dataclass(frozen=True)
class ImageSplits:
    """Labelled images in three parts.

    Attributes:
        source: where they come from, in words, with how they were split.
        classes: names of the classes.
        parts: ``train``, ``validation`` and ``test``.
        notes: what is to be minded, in words.
    """

    source: str
    classes: tuple[str, ...]
    parts: Mapping[Part, LabelledImages]
    notes: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Hash of classes, images and labels."""
        return digest(self.classes, self.parts)


def digest(classes: Sequence[str], parts: Mapping[Part, LabelledImages]) -> str:
    """SHA-256 of names of classes, and of the shapes, images and labels of the parts, in order."""
    sha256 = hashlib.sha256(repr(list(classes)).encode())
    for part in PARTS:
        one = parts[part]
        sha256.update(repr(one.images.shape).encode())
        sha256.update(one.images.tobytes())
        sha256.update(one.labels.astype("<i8").tobytes())
    return sha256.hexdigest()


@dataclass
class Found:
    """What a source holds, before it is checked and split.

    Attributes:
        source: in words.
        parts: those that are there.
        classes: their names, or None where labels are all there is.
        notes: what is to be minded.
    """

    source: str
    parts: dict[Part, LabelledImages]
    classes: Sequence[str] | None = None
    notes: list[str] = field(default_factory=list)


def complete(found: Found) -> ImageSplits:
    """What a source holds, checked, with parts that are missing taken from the training part.

    Raises:
        ValueError: labels, channels, sizes or parts that do not fit together.
    """
    parts, source = dict(found.parts), found.source
    if "train" not in parts:
        raise ValueError(f"{source} has no training part.")
    # Without names, more classes than images can only be a mistake.
    images = len(parts["train"].images)
    end = len(found.classes) if found.classes is not None else max(2, images)
    for part, one in parts.items():
        which = f"one for each of the {end:,} classes"
        if found.classes is None:
            which = f"with as many classes as the {counted(images, 'training image')} at most"
        _check_labels(one, f"the {part} part of {source}", end, f"0 to {end - 1:,}, {which}")
    _check_shapes(parts, source)
    missing: list[Part] = [part for part in PARTS if part not in parts]
    shares = {"validation": VALIDATION_SHARE, "test": TEST_SHARE}
    left = 1.0
    for part in reversed(missing):
        share = shares[part] / left
        left -= shares[part]
        kept, taken = _split_classes(parts["train"].labels, share)
        if not len(taken):
            raise ValueError(
                f"{source} has no {part} part, and its classes have too few images to take one "
                f"from ({share:.0%} of each class): give that part, or more images of a class."
            )
        parts["train"], parts[part] = parts["train"].take(kept), parts["train"].take(taken)
    if missing:
        drawn = " and ".join(f"{shares[part]:.0%} for {part}" for part in missing)
        source += f" ({drawn}, drawn from each class with seed {SPLIT_SEED})"
    largest = max(int(one.labels.max()) for one in parts.values())
    classes = tuple(found.classes or map(str, range(largest + 1)))
    _check_classes(parts, classes, found.source)
    ordered = {
        part: LabelledImages(parts[part].images, parts[part].labels.astype(np.int64))
        for part in PARTS
    }
    return ImageSplits(source, classes, ordered, (*found.notes, *_repeated(ordered)))


def _check_labels(one: LabelledImages, where: str, end: int, expected: str) -> None:
    images, labels = len(one.images), one.labels
    if not images:
        raise ValueError(f"{where} is empty: at least one image is needed.")
    if labels.shape != (images,):
        raise ValueError(
            f"{where} has {counted(images, 'image')} and labels of shape {labels.shape}: expected "
            "one label for each image."
        )
    if labels.dtype.kind not in "iu":
        raise ValueError(
            f"the labels of {where} are {labels.dtype}: expected whole numbers from 0."
        )
    outside = labels[(labels < 0) | (labels >= end)]
    if len(outside):
        hidden = " (a test part of the hub often hides its labels so)" if outside[0] < 0 else ""
        raise ValueError(f"{where} has the label {outside[0]}{hidden}: expected {expected}.")


def _check_shapes(parts: Mapping[Part, LabelledImages], source: str) -> None:
    shapes = {part: one.images.shape[1:] for part, one in parts.items()}
    for part, (height, width, channels) in shapes.items():
        of_train = shapes["train"]
        if channels != of_train[2]:
            raise ValueError(
                f"{source} has {_CHANNELS[of_train[2]]} images for training and "
                f"{_CHANNELS[channels]} ones for {part}: all must have the same channels."
            )
        if (height, width) != of_train[:2]:
            raise ValueError(
                f"{source} has images of {of_train[0]} × {of_train[1]} for training and of "
                f"{height} × {width} for {part}: all must have the same size."
            )


def _check_classes(
    parts: Mapping[Part, LabelledImages], classes: Sequence[str], source: str
) -> None:
    known = set(np.unique(parts["train"].labels).tolist())
    for part in ("validation", "test"):
        unknown = sorted(set(np.unique(parts[part].labels).tolist()) - known)
        if unknown:
            names = ", ".join(classes[label] for label in unknown[:5])
            raise ValueError(
                f"the {part} part of {source} has images of {names}, and the training part "
                "has none: a model cannot learn a class that it never sees."
            )
    if len(known) < 2:
        raise ValueError(f"{source} has images of one class alone: at least two are needed.")


def _split_classes(labels: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices that stay and those that are taken: the same share of each class, never all."""
    generator = np.random.Generator(np.random.PCG64(SPLIT_SEED))
    taken = []
    for label in np.unique(labels):
        mine = generator.permutation(np.flatnonzero(labels == label))
        taken.append(mine[: min(round(share * len(mine)), len(mine) - 1)])
    chosen = np.sort(np.concatenate(taken))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen


def _repeated(parts: Mapping[Part, LabelledImages]) -> list[str]:
    """What of the held-out parts the model has already seen, in words."""
    seen: set[bytes] = set()
    notes = []
    for part in PARTS:
        hashes = [hashlib.sha256(one.tobytes()).digest() for one in parts[part].images]
        share = sum(one in seen for one in hashes) / len(hashes)
        if share >= REPEATED_SHARE:
            notes.append(
                f"{share:.0%} of the {part} part's images stand in an earlier part too: scores on "
                "it do not show what a model makes of new images."
            )
        seen.update(hashes)
    return notes
