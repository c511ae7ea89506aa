"""What stands at the sides of a map: the text of tokens, or the patches of an image."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .page import legible

_LARGEST_SIDE = 640
_IDS = {"input": "input_ids", "source": "input_ids", "target": "decoder_input_ids"}


def side_labels(
    model: nn.Module, inputs: Mapping[str, Any], lengths: Mapping[str, int], tokens: Any
) -> dict[str, list[str]]:
    """What to call each position of each side.

    Args:
        model: whose maps they are.
        inputs: keywords of its forward.
        lengths: positions of ``input``, or of ``source`` and ``target``.
        tokens: a tokenizer; texts; a pair of texts for source and target; None for numbers.

    Raises:
        ValueError: another number of texts than of positions.
    """
    if hasattr(tokens, "convert_ids_to_tokens"):
        labels = {}
        for side in lengths:
            ids = inputs.get(_IDS[side])
            if ids is None:
                raise ValueError(
                    f"tokens is a tokenizer and the inputs have no {_IDS[side]}: give the texts of "
                    "the positions instead."
                )
            labels[side] = _token_labels(tokens, ids[0].tolist())
    elif tokens is None:
        labels = {side: _numbers(model, inputs, length) for side, length in lengths.items()}
    else:
        texts = [tokens] if "input" in lengths else list(tokens)
        sides = ["input"] if "input" in lengths else ["source", "target"]
        if len(texts) != len(sides):
            raise ValueError(
                f"tokens has {len(texts)} parts: expected a pair, of source and of target."
            )
        labels = {
            side: [legible(str(text)) for text in part]
            for side, part in zip(sides, texts, strict=True)
            if side in lengths
        }
    for side, length in lengths.items():
        if len(labels[side]) != length:
            raise ValueError(
                f"tokens has {len(labels[side])} entries for the {side} and its maps have "
                f"{length}: one text for each position is needed."
            )
    return labels


def image_of(
    model: nn.Module, inputs: Mapping[str, Any], lengths: Mapping[str, int]
) -> dict[str, Any] | None:
    """The image that a model of patches sees, for the page; None for other models."""
    grid = _patch_grid(model, inputs, lengths.get("input", 0))
    if grid is None:
        return None
    rows, columns, first = grid
    source = _picture(inputs["pixel_values"][0])
    return {"rows": rows, "columns": columns, "first": first, "source": source}


def _numbers(model: nn.Module, inputs: Mapping[str, Any], length: int) -> list[str]:
    grid = _patch_grid(model, inputs, length)
    if grid is None:
        return [str(number) for number in range(1, length + 1)]
    rows, columns, first = grid
    special = ["[class]", *(f"[{number}]" for number in range(2, first + 1))][:first]
    return special + [f"{row + 1},{column + 1}" for row in range(rows) for column in range(columns)]


def _token_labels(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token, with the space before it, safe to show."""
    labels = []
    for number, raw in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        text = tokenizer.decode([number])
        # A part of a letter in a byte-level vocabulary has a name, but no text.
        if not text or "\ufffd" in text:
            text = str(raw)
        # Sentencepiece's mark of a space, which decoding one token drops.
        if str(raw).startswith("\u2581") and not text.startswith((" ", "\u2581")):
            text = " " + text
        labels.append(legible(text))
    return labels


def _patch_grid(
    model: nn.Module, inputs: Mapping[str, Any], length: int
) -> tuple[int, int, int] | None:
    """Rows and columns of an image's patches, and how many other tokens stand before them."""
    pixels = inputs.get("pixel_values")
    size = getattr(getattr(model, "config", None), "patch_size", None)
    if not isinstance(pixels, Tensor) or size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    rows, columns = pixels.shape[-2] // height, pixels.shape[-1] // width
    first = length - rows * columns
    return (rows, columns, first) if first >= 0 else None


def _picture(pixels: Tensor) -> str:
    """An image that a model sees, ``(1 or 3, height, width)``, as the URL of a PNG.

    Its range is stretched to black and white: a processor's own scaling is not known here.
    """
    image_module = import_pillow()
    pixels = pixels.detach().float().cpu()
    low, high = pixels.min(), pixels.max()
    levels = ((pixels - low) / (high - low).clamp_min(1e-30) * 255).round().to(torch.uint8)
    if levels.shape[0] == 1:
        levels = levels.expand(3, -1, -1)
    image = image_module.fromarray(levels[:3].permute(1, 2, 0).contiguous().numpy())
    image.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
    file = io.BytesIO()
    image.save(file, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def import_pillow() -> Any:
    """Its module Image.

    Raises:
        ImportError: it is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('images need Pillow: pip install "neural-attention[report]"') from error
    return Image
