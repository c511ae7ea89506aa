"""Image files as arrays: folders, Parquet and the Hugging Face hub, read by Pillow and datasets."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neural_attention.tasks.labelled_images import Found, LabelledImages
from neural_attention.tasks.task import Part
from neural_attention.tasks.text import load_hub_sets
from neural_attention.tasks.wording import counted, legible

EXTRA = 'pip install "neural-attention[images]"'

PART_NAMES: Mapping[Part, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
_IMAGE_COLUMNS = ("image", "img")
# The last two as in CIFAR-100, whose coarse_label has another name.
_LABEL_COLUMNS = ("label", "labels", "fine_label", "class")
# Modes of Pillow with one value for each pixel, 8 bits wide at most; an alpha channel is dropped.
_GREY = {"1", "L", "LA", "La"}
_DEEP = ("I", "F")
_TURNED_ASIDE = (5, 6, 7, 8)
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class _File:
    """An image file: what to call it, and its path or a function that gives its bytes."""

    name: str
    content: Path | Callable[[], Any]

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """The image; whatever goes wrong with it inside is told with its name."""
        image_module = _pillow()
        try:
            place = self.content if isinstance(self.content, Path) else io.BytesIO(self.content())
            with image_module.open(place) as image:
                yield image
        # Pillow raises the others for some damaged files, and for some that are too large.
        except (OSError, SyntaxError, ValueError, image_module.DecompressionBombError) as error:
            raise ValueError(f"{self.name} is not an image that can be read: {error}.") from error


def from_folder(folder: Path, size: int) -> Found:
    """Images from class folders, in folders of parts or at once.

    Args:
        folder: the folder.
        size: see :func:`neural_attention.tasks.image_data.load_images`.

    Raises:
        FileNotFoundError: no class folders, or no images in one.
        ValueError: an image that cannot be read, or channels that differ.
    """
    source, notes = legible(folder), []
    inside = {path.name.lower(): path for path in _folders(folder)}
    parts = {
        part: next(inside[name] for name in names if name in inside)
        for part, names in PART_NAMES.items()
        if any(name in inside for name in names)
    }
    if "train" not in parts:
        parts = {"train": folder}
    classes = [path.name for path in _folders(parts["train"])]
    if not classes:
        raise FileNotFoundError(
            f"{legible(parts['train'])} has no folders: expected one for each class, with its "
            "images, such as train/cat/1.png and train/dog/1.png."
        )
    files: dict[Part, list[_File]] = {}
    labels: dict[Part, list[int]] = {}
    left_out: list[str] = []
    for part, place in parts.items():
        files[part], labels[part] = [], []
        for one in _folders(place):
            if one.name not in classes:
                raise ValueError(
                    f"the {part} part of {source} has the class {legible(one.name)}, and the "
                    "training part has not: a model cannot learn a class that it never sees."
                )
            found, others = _images_in(one)
            left_out += others
            if not found and part == "train":
                raise FileNotFoundError(f"the class folder {legible(one)} has no image.")
            files[part] += [_File(legible(path), path) for path in found]
            labels[part] += [classes.index(one.name)] * len(found)
    if left_out:
        notes.append(
            f"{counted(len(left_out), 'file')} in {source} are no images by their names and were "
            f"left out, such as {left_out[0]}."
        )
    arrays = _decode(files, source, size, notes)
    found_parts = {
        part: LabelledImages(arrays[part], np.array(labels[part], dtype=np.int64)) for part in parts
    }
    return Found(source, found_parts, [legible(name) for name in classes], notes)


def from_parquet(files: Mapping[Part, Sequence[Path]], source: str, size: int) -> Found:
    """Images from Parquet files, as the hub has them: encoded images and labels in columns.

    Raises:
        ValueError: a file that cannot be read, or columns that are missing.
        ImportError: ``datasets`` is missing.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"Parquet files are read by the package `datasets`: {EXTRA}") from error
    datasets.disable_progress_bars()
    names = {part: [str(path) for path in paths] for part, paths in files.items()}
    with tempfile.TemporaryDirectory() as folder:
        try:
            sets = datasets.load_dataset("parquet", data_files=names, cache_dir=folder)
        except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
            why = error.__cause__ or error
            raise ValueError(f"{source} cannot be read as Parquet: {why}.") from error
        return _from_sets(sets, source, size)


def from_hub(source: str, size: int) -> Found:
    """Images from a data set of the hub; errors as :func:`load_hub_sets` and for Parquet."""
    return _from_sets(load_hub_sets(source), source, size)


def _from_sets(sets: Any, source: str, size: int) -> Found:
    import datasets

    files: dict[Part, list[_File]] = {}
    labels: dict[Part, np.ndarray] = {}
    classes: Sequence[str] | None = None
    for part, names in PART_NAMES.items():
        name = next((name for name in names if name in sets), None)
        if name is None:
            continue
        rows = sets[name]
        image, label = _columns(rows.features, source)
        if isinstance(rows.features[label], datasets.ClassLabel):
            classes = rows.features[label].names
        values = rows[label][:]
        if values and isinstance(values[0], str):
            # Those of the training part, which comes first.
            classes = sorted(set(values)) if classes is None else classes
            values = _numbered(values, classes, part, source)
        labels[part] = np.array(values)
        pictures = rows.select_columns([image]).cast_column(image, datasets.Image(decode=False))
        files[part] = [
            _File(f"row {index:,} of {source}, {part}", _bytes_of(pictures, index, image))
            for index in range(len(pictures))
        ]
    notes: list[str] = []
    arrays = _decode(files, source, size, notes)
    parts = {part: LabelledImages(arrays[part], labels[part]) for part in files}
    return Found(source, parts, classes, notes)


def _numbered(values: Sequence[str], classes: Sequence[str], part: str, source: str) -> list[int]:
    number = {name: index for index, name in enumerate(classes)}
    unknown = sorted(set(values) - set(number))
    if unknown:
        raise ValueError(
            f"the {part} part of {source} has the class {unknown[0]}, and the training part has "
            "not: a model cannot learn a class that it never sees."
        )
    return [number[value] for value in values]


def _columns(features: Mapping[str, Any], source: str) -> tuple[str, str]:
    """Names of the columns of images and of labels."""
    import datasets

    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    if len(images) != 1:
        images = [name for name in _IMAGE_COLUMNS if name in features]
    labels = [name for name in _LABEL_COLUMNS if name in features]
    if not labels:
        labels = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    for wanted, found in (("images", images), ("labels", labels)):
        if not found:
            expected = " or ".join(_IMAGE_COLUMNS if wanted == "images" else _LABEL_COLUMNS)
            raise ValueError(
                f"{source} has no column of {wanted} (columns: {', '.join(features)}): expected "
                f"one called {expected}."
            )
    return images[0], labels[0]


def _bytes_of(rows: Any, index: int, column: str) -> Callable[[], bytes]:
    def read() -> bytes:
        value = rows[index][column]
        content: bytes | None = value["bytes"]
        return Path(value["path"]).read_bytes() if content is None else content

    return read


def _decode(
    files: Mapping[Part, Sequence[_File]], source: str, size: int, notes: list[str]
) -> dict[Part, np.ndarray]:
    """The images of each part, all of one size and kind."""
    sizes: set[tuple[int, int]] = set()
    kinds: dict[str, str] = {}
    for file in (file for part in files.values() for file in part):
        with file.opened() as image:
            mode, side = image.mode, image.size
            turned = image.getexif().get(_ORIENTATION) in _TURNED_ASIDE
        if mode.startswith(_DEEP):
            raise ValueError(f"{file.name} has more than 8 bits a channel ({mode}): convert it.")
        kinds.setdefault("L" if mode in _GREY else "RGB", file.name)
        sizes.add(side[::-1] if turned else side)
    if len(kinds) > 1:
        raise ValueError(
            f"{source} has grey images and colour images, such as {kinds['L']} and {kinds['RGB']}: "
            "convert them to one kind."
        )
    width, height = next(iter(sizes), (size, size))
    if len(sizes) > 1 or max(width, height) > 2 * size:
        largest = max(sizes, key=lambda one: one[0] * one[1])
        how = (
            f"of {len(sizes):,} sizes, up to {largest[0]} × {largest[1]},"
            if len(sizes) > 1
            else f"of {width} × {height}"
        )
        notes.append(
            f"the images of {source} are {how} and were resized to {size} × {size}, whatever their "
            "proportions."
        )
        width = height = size
    kind, channels = ("L", 1) if "L" in kinds else ("RGB", 3)
    arrays: dict[Part, np.ndarray] = {}
    for part, these in files.items():
        array = np.empty((len(these), height, width, channels), dtype=np.uint8)
        for index, file in enumerate(these):
            array[index] = _pixels(file, kind, (width, height))
        arrays[part] = array
    return arrays


def _pixels(file: _File, kind: str, size: tuple[int, int]) -> np.ndarray:
    """``(height, width, channels)``, upright."""
    from PIL import ImageOps

    with file.opened() as image:
        upright = ImageOps.exif_transpose(image).convert(kind)
        if upright.size != size:
            upright = upright.resize(size, _pillow().Resampling.BICUBIC)
        pixels = np.asarray(upright)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")


def _images_in(folder: Path) -> tuple[list[Path], list[str]]:
    """Image files by their endings, and the names of others; hidden files are neither."""
    endings = _pillow().registered_extensions()
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "."]
    images = [path for path in files if path.suffix.lower() in endings]
    return images, [legible(path) for path in files if path.suffix.lower() not in endings]


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"image files are read by Pillow: {EXTRA}") from error
    return Image
