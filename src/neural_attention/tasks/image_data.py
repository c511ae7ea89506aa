"""Labelled images: where they come from.

Five sources: the handwritten digits of scikit-learn, folders of image files, NumPy archives,
Parquet files, and data sets of the Hugging Face hub.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from neural_attention.tasks.image_files import (
    EXTRA,
    PART_NAMES,
    from_folder,
    from_hub,
    from_parquet,
)
from neural_attention.tasks.labelled_images import Found, ImageSplits, LabelledImages, complete
from neural_attention.tasks.task import Part
from neural_attention.tasks.text import BUILT_IN, HUB_NAME
from neural_attention.tasks.wording import counted, legible


def load_images(source: str | None = None, size: int = 32) -> ImageSplits:
    """Labelled images in three parts.

    Args:
        source: ``None`` or ``"built-in"`` for scikit-learn's 1,797 handwritten digits of 8 × 8; a
            folder of ``train``, ``validation`` and ``test`` with a folder of image files for each
            class, or of such class folders alone; an ``.npz`` file of ``images`` (uint8,
            ``(N, height, width)`` or ``(N, height, width, channels)``), ``labels`` and perhaps
            ``class_names``, or a folder with ``train.npz``, ``validation.npz`` and ``test.npz``; a
            ``.parquet`` file or a folder of those, named ``train…``, ``validation…`` and ``test…``;
            or a data set of the hub, ``owner/name`` or ``owner/name:configuration``. Validation and
            test are taken from the training part where they are missing.
        size: side to which image files are resized if their sizes differ, or are more than twice
            that.

    Raises:
        FileNotFoundError: there is no such file, folder or data set.
        ValueError: what is there cannot be read, or labels, channels or parts do not fit together;
            the message says where.
        ConnectionError: a hub name without a network and without a copy on this machine.
        ImportError: a package is missing.

    >>> digits = load_images()
    >>> len(digits.classes), {part: len(one.labels) for part, one in digits.parts.items()}
    (10, {'train': 1259, 'validation': 179, 'test': 359})
    """
    if source is not None and not source.strip():
        raise ValueError("the data have an empty name: give a file, a folder or a name of the hub.")
    return complete(_find(source, size))


def _find(source: str | None, size: int) -> Found:
    if source is None or source == BUILT_IN:
        return _digits()
    # Not Path.expanduser, which raises for a user that there is not.
    path = Path(os.path.expanduser(source))
    if path.is_file():
        if path.suffix == ".npz":
            return _from_npz({"train": path}, legible(path))
        if path.suffix == ".parquet":
            return from_parquet({"train": [path]}, legible(path), size)
        raise ValueError(
            f"{legible(path)} is neither .npz nor .parquet: give such a file, or a folder with a "
            "folder of images for each class."
        )
    if path.is_dir():
        if archives := _parts_in(path, ".npz"):
            return _from_npz({part: files[0] for part, files in archives.items()}, legible(path))
        # Copies of hub data sets keep them in data/.
        for folder in (path, path / "data"):
            if tables := _parts_in(folder, ".parquet"):
                return from_parquet(tables, legible(path), size)
        return from_folder(path, size)
    if HUB_NAME.match(source):
        return from_hub(source, size)
    raise FileNotFoundError(
        f"no file or folder {source!r}. Give a folder of images, an .npz or .parquet file, a data "
        "set of the Hugging Face hub as owner/name, or nothing for the built-in digits."
    )


def _parts_in(folder: Path, suffix: str) -> dict[Part, list[Path]]:
    """Files of each part: train.npz, or the pieces train-00000-of-00002.parquet."""
    files = sorted(folder.glob(f"*{suffix}"))
    found: dict[Part, list[Path]] = {}
    for part, names in PART_NAMES.items():
        mine = [file for file in files if file.stem.partition("-")[0].lower() in names]
        if mine:
            found[part] = mine
    if files and "train" not in found:
        raise ValueError(
            f"{legible(folder)} has {counted(len(files), suffix + ' file')} and none is called "
            f"train{suffix}: name them train, validation and test."
        )
    return found


def _digits() -> Found:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(f"the built-in digits come with scikit-learn: {EXTRA}") from error
    digits = load_digits()
    # Counts of 0 to 16 dark pixels.
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    whole = LabelledImages(images, digits.target.astype(np.int64))
    names = [str(name) for name in digits.target_names]
    return Found("the handwritten digits of scikit-learn", {"train": whole}, names)


def _from_npz(files: Mapping[Part, Path], source: str) -> Found:
    found = Found(source, {})
    for part, path in files.items():
        name = legible(path)
        try:
            with np.load(path, allow_pickle=False) as archive:
                missing = {"images", "labels"} - set(archive.files)
                if missing:
                    raise ValueError(
                        f"it has no {' and no '.join(sorted(missing))}, only "
                        f"{', '.join(archive.files) or 'nothing'}"
                    )
                images, labels = archive["images"], archive["labels"]
                if "class_names" in archive.files and found.classes is None:
                    found.classes = [str(one) for one in archive["class_names"]]
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{name} cannot be read as images and labels: {error}. Expected what "
                "numpy.savez(file, images=…, labels=…) writes."
            ) from error
        found.parts[part] = LabelledImages(_as_pixels(images, name), labels)
    return found


def _as_pixels(images: np.ndarray, name: str) -> np.ndarray:
    expected = "(N, height, width), or (N, height, width, channels) with 1 or 3 channels"
    if images.dtype != np.uint8:
        raise ValueError(f"the images of {name} are {images.dtype}: expected uint8, 0 to 255.")
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        hint = ""
        if images.ndim == 4 and images.shape[1] in (1, 3):
            hint = ". Channels seem to come first: images.transpose(0, 2, 3, 1) puts them last"
        raise ValueError(
            f"the images of {name} have shape {images.shape}: expected {expected}{hint}."
        )
    return images
