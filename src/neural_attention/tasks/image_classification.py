"""Image classification: the order and the augmentation of the training images, and accuracy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from neural_attention.tasks.image_files import EXTRA
from neural_attention.tasks.labelled_images import LabelledImages
from neural_attention.tasks.task import TrainingSet

AUGMENTATIONS = ("none", "crop_flip", "paper")
_TOKENS_AT_ONCE = 8192
_MIDDLE = _HALF_RANGE = 0.5


def import_transforms() -> Any:
    """Torchvision's transforms.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from torchvision.transforms import v2
    except ImportError as error:
        raise ImportError(f"images are resized and augmented by torchvision: {EXTRA}") from error
    return v2


def augmentation(name: str, size: int) -> Any:
    """Random changes of a training image, uint8 in and out, ``(channels, size, size)``; or None.

    ``crop_flip``: shifted by up to an eighth of the side, mirrored for every other one. ``paper``:
    a random part of 5% to 100% of the area, mirrored, brightness, contrast and saturation by ±20%,
    hue by ±10%, turned by up to 10°, as DiGiugno & Mahmood's code does (arXiv 2502.17206).
    """
    v2 = import_transforms()
    if name == "crop_flip":
        return v2.Compose([v2.RandomCrop(size, padding=size // 8), v2.RandomHorizontalFlip()])
    if name == "paper":
        return v2.Compose(
            [
                v2.RandomResizedCrop(size, scale=(0.05, 1.0), antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ColorJitter(0.2, 0.2, 0.2, 0.1),
                v2.RandomRotation(10),
            ]
        )
    assert name == "none"
    return None


def resized(images: np.ndarray, size: int) -> torch.Tensor:
    """``(..., height, width, channels)`` uint8 as ``(..., channels, size, size)`` uint8."""
    pixels = torch.from_numpy(np.array(images)).movedim(-1, -3)
    if pixels.shape[-2:] == (size, size):
        return pixels
    return import_transforms().functional.resize(pixels, [size, size], antialias=True)


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    """From 0…255 to −1…1, float32."""
    return (pixels.float() / 255 - _MIDDLE) / _HALF_RANGE


class TrainingImages(TrainingSet):
    """The training images of a run in the order in which it reads them.

    Each pass over them has another random order. Order and augmentation depend on ``seed`` and on
    the place in the order alone, so that runs of one seed read the same pixels, whatever model they
    train, and also where they go on after an interruption.

    Args:
        part: the training part.
        size: side of an image of the model.
        augment: a name of :data:`AUGMENTATIONS`.
        samples: number of images in the whole run.
        seed: of order and augmentation.
    """

    def __init__(
        self, part: LabelledImages, size: int, augment: str, samples: int, seed: int
    ) -> None:
        self.part, self.size, self.seed = part, size, seed
        self.augment = augmentation(augment, size)
        # Random parts are cut from the image as it is, not from its enlargement.
        self.is_cut_first = augment == "paper"
        generator = np.random.Generator(np.random.PCG64(seed))
        passes, drawn = [], 0
        while drawn < samples:
            passes.append(generator.permutation(len(part.labels)))
            drawn += len(part.labels)
        self.order = np.concatenate(passes)[:samples]

    @property
    def sha256(self) -> str:
        """Hash of the order in which the images are read."""
        return hashlib.sha256(self.order.astype("<i8").tobytes()).hexdigest()

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        which = int(self.order[index])
        image = self.part.images[which]
        pixels = resized(image, image.shape[0] if self.is_cut_first else self.size)
        if self.augment is not None:
            seed = np.random.SeedSequence([self.seed, index]).generate_state(1, np.uint64)
            with _drawing_from(int(seed[0])):
                pixels = self.augment(pixels)
        return {
            "pixel_values": normalised(pixels),
            "labels": torch.tensor(self.part.labels[which]),
        }


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Start the CPU's generator, which torchvision draws from, at a seed; then go on as before.

    Not torch.manual_seed, which visits the generators of all devices at every image.
    """
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)


@torch.no_grad()
def score_images(model: Any, part: LabelledImages, size: int, tokens: int) -> dict[str, Any]:
    """Mean loss and top-1 accuracy over every image once, as it is.

    Args:
        model: ``model(pixel_values=...).logits``, on any device.
        part: the images.
        size: side of an image of the model.
        tokens: of an image, which sets how many are scored at once.

    Returns:
        ``images``, their number; ``loss``, in nats; ``accuracy``, in per cent.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    count, loss, right = len(part.labels), 0.0, 0
    step = max(1, _TOKENS_AT_ONCE // tokens)
    for start in range(0, count, step):
        pixels = normalised(resized(part.images[start : start + step], size)).to(device)
        labels = torch.from_numpy(part.labels[start : start + step])
        logits = model(pixel_values=pixels).logits.float().cpu()
        losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        loss += losses.double().sum().item()
        right += int((logits.argmax(-1) == labels).sum())
    model.train(was_training)
    return {"images": count, "loss": loss / count, "accuracy": 100 * right / count}
