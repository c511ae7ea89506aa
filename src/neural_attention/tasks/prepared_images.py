"""Labelled images as files: written once beside a comparison's results, and read by every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from neural_attention.tasks.json_files import read_json, set_aside, write_json
from neural_attention.tasks.labelled_images import ImageSplits, LabelledImages, digest
from neural_attention.tasks.task import PARTS, Part

_FORM = {"classes": [str], "shape": [int], "counts": dict.fromkeys(PARTS, int), "sha256": str}


@dataclass(frozen=True)
class PreparedImages:
    """Where labelled images lie, and what is needed to build a model for them.

    Attributes:
        folder: folder with ``train-images.npy``, ``train-labels.npy``, and so on.
        classes: names of the classes.
        shape: height, width and channels of an image.
        counts: number of images of each part.
        sha256: hash of them all.
    """

    folder: str
    classes: list[str]
    shape: list[int]
    counts: dict[str, int]
    sha256: str

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> PreparedImages:
        """From a description that has these fields, and perhaps others."""
        return cls(**{field.name: description[field.name] for field in fields(cls)})

    def load(self, part: Part) -> LabelledImages:
        """The images of a part, mapped from disk, and their labels."""
        images, labels = (Path(self.folder) / f"{part}-{what}.npy" for what in ("images", "labels"))
        return LabelledImages(
            np.load(images, mmap_mode="r", allow_pickle=False), np.load(labels, allow_pickle=False)
        )


def prepare_images(splits: ImageSplits, folder: Path, say: Callable[[str], None]) -> PreparedImages:
    """Write images as files, or find those that an earlier call left.

    Args:
        splits: the images.
        folder: where the files go; made if it is not there.
        say: called with a line when earlier files are damaged, set aside and made again.
    """
    sha256 = splits.sha256
    folder = folder / sha256[:12]
    description = folder / "images.json"
    if description.exists():
        found = _read(description, sha256)
        if found is not None:
            return found
        aside = set_aside(folder, folder.name + ".unreadable")
        say(f"the images in {folder} are damaged: set aside as {aside.name}, and made again")
    folder.mkdir(parents=True, exist_ok=True)
    for part, one in splits.parts.items():
        np.save(folder / f"{part}-images.npy", one.images, allow_pickle=False)
        np.save(folder / f"{part}-labels.npy", one.labels, allow_pickle=False)
    content: dict[str, Any] = {
        "classes": list(splits.classes),
        "shape": list(splits.parts["train"].images.shape[1:]),
        "counts": {part: len(one.labels) for part, one in splits.parts.items()},
        "sha256": sha256,
    }
    write_json(description, content)
    return PreparedImages(folder=str(folder), **content)


def _read(description: Path, sha256: str) -> PreparedImages | None:
    """The files of an earlier call, if they are whole."""
    content = read_json(description, {**_FORM, "sha256": sha256})
    if content is None:
        return None
    found = PreparedImages(folder=str(description.parent), **content)
    try:
        parts = {part: found.load(part) for part in PARTS}
        is_whole = digest(found.classes, parts) == sha256
    except (ValueError, EOFError, OSError, TypeError):
        return None
    counts = {part: len(one.labels) for part, one in parts.items()}
    is_whole &= found.counts == counts and [*parts["train"].images.shape[1:]] == found.shape
    return found if is_whole else None
