"""A model from a folder, and a text or an image as its inputs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .tokens import import_pillow

_POSITIONS = ("max_position_embeddings", "n_positions", "max_source_positions")


@dataclass(frozen=True)
class Loaded:
    """A model with its inputs.

    Attributes:
        model: in evaluation mode.
        inputs: keywords of its forward.
        tokenizer: that made them, or None for an image.
    """

    model: Any
    inputs: dict[str, Any]
    tokenizer: Any


def load_model(name: str) -> Any:
    """A transformers model, stock, converted or of this library, from a folder or the hub.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: it holds no model that can be loaded.
    """
    transformers = import_transformers()
    from neural_attention.hf import classes
    from neural_attention.models import language, vision

    path = Path(name).expanduser()
    # A mistyped folder must not be looked for in the network.
    if not path.exists() and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        raise FileNotFoundError(
            f"there is no folder {name}: expected a saved transformers model, or OWNER/NAME of one "
            "on the hub."
        )
    if path.exists() and not (path / "config.json").is_file():
        raise ValueError(
            f"{name} is not a saved transformers model: expected a folder with config.json and the "
            "weights beside it."
        )
    source = str(path) if path.exists() else name
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        architecture = (config.architectures or ["AutoModel"])[0]
        places = (language, vision, transformers)
        found = (getattr(place, architecture, None) for place in places)
        kind = next(filter(None, found), None) or getattr(classes, architecture)
        return kind.from_pretrained(source).eval()
    except (OSError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(f"{name} cannot be loaded as a transformers model: {reason}") from error


def load(
    name: str,
    *,
    text: str | None = None,
    image: str | None = None,
    source: str | None = None,
    target: str | None = None,
    tokenizer: str | None = None,
) -> Loaded:
    """A model and what it is to be shown with: a text, an image, or a source and its target.

    Raises:
        FileNotFoundError: no such folder or file.
        ValueError: another kind of input than the model takes, an empty or a too long one, no
            tokenizer or image processor.
    """
    model = load_model(name)
    takes = _takes(model)
    wanted = {"text": "--text", "pair": "--source and --target", "image": "--image"}[takes]
    given = {"text": text, "image": image, "source": source, "target": target}
    expected = {"text": {"text"}, "pair": {"source", "target"}, "image": {"image"}}[takes]
    if {option for option, value in given.items() if value is not None} != expected:
        what = {"text": "text", "pair": "a source and a target text", "image": "an image"}[takes]
        raise ValueError(f"{type(model).__name__} takes {what}: give {wanted}, and nothing else.")
    if image is not None:
        return Loaded(model, _image_inputs(name, image), None)
    reader = _tokenizer(name, tokenizer)
    inputs = dict(_encode(reader, (text if source is None else source) or "", model))
    if target is not None:
        labels = _encode(reader, target, model, is_target=True)["input_ids"]
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)
    return Loaded(model, inputs, reader)


def _takes(model: Any) -> str:
    if model.config.is_encoder_decoder:
        return "pair"
    return "image" if model.main_input_name == "pixel_values" else "text"


def _tokenizer(name: str, tokenizer: str | None) -> Any:
    transformers = import_transformers()
    place = name if tokenizer is None else tokenizer
    place = str(Path(place).expanduser())
    try:
        return transformers.AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError, KeyError, ImportError) as error:
        advice = "name one with --tokenizer FOLDER" if tokenizer is None else "expected its folder"
        raise ValueError(f"{place} has no tokenizer that can be loaded: {advice}.") from error


def _encode(tokenizer: Any, text: str, model: Any, *, is_target: bool = False) -> Any:
    if not text.strip():
        raise ValueError("the text is empty: give at least one word.")
    # A lone surrogate, as the shell gives a byte that is no UTF-8, cannot be tokenised.
    text = text.encode("utf-8", "replace").decode()
    encoded = tokenizer(**{"text_target" if is_target else "text": text}, return_tensors="pt")
    encoded.pop("token_type_ids", None)
    length = encoded["input_ids"].shape[-1]
    known = [getattr(model.config, name, None) for name in _POSITIONS]
    limits = [limit for limit in (*known, tokenizer.model_max_length) if isinstance(limit, int)]
    if limits and length > min(limits):
        raise ValueError(
            f"the text has {length:,} tokens and {type(model).__name__} takes {min(limits):,}: "
            "give a shorter one."
        )
    vocabulary = model.get_input_embeddings().num_embeddings
    if length == 0 or int(encoded["input_ids"].max()) >= vocabulary:
        raise ValueError(
            f"the tokenizer does not belong to {type(model).__name__}, whose vocabulary has "
            f"{vocabulary:,} entries."
        )
    return encoded


def _image_inputs(name: str, path: str) -> dict[str, Any]:
    transformers = import_transformers()
    image_module = import_pillow()
    try:
        with image_module.open(Path(path).expanduser()) as file:
            picture = file.convert("RGB")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no image {path}.") from None
    except (OSError, image_module.DecompressionBombError) as error:
        raise ValueError(f"{path} is not an image that can be read: {error}") from error
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(
            str(Path(name).expanduser()), backend="pil"
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{name} has no image processor (preprocessor_config.json).") from error
    pixels = processor(images=picture, return_tensors="pt")["pixel_values"]
    return {"pixel_values": torch.as_tensor(pixels)}


def import_transformers() -> Any:
    """The package.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            'viewing a saved model needs transformers: pip install "neural-attention[report]"'
        ) from error
    return transformers
