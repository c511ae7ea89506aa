"""Pretrained models of transformers: found, identified and loaded, without code of their own."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Literal

from neural_attention.tasks.tokens import hub_has

_WEIGHTS = ("*.safetensors", "*.bin")


def named_model(value: str) -> str | None:
    """The pretrained model that an option names; None for ``"scratch"``."""
    return None if value == "scratch" else os.path.expanduser(value)


def load_pretrained(what: Literal["config", "masked-lm", "seq2seq"], name: str) -> Any:
    """The configuration of a pretrained model, or the model.

    On the meta device a model has its configuration's parameters, and its weights are not read.

    Args:
        what: which of them.
        name: a folder, or a name on the hub.

    Raises:
        ValueError: it cannot be loaded.
    """
    import torch
    import transformers
    from safetensors import SafetensorError

    # Bars and advice of its own would stand between the lines of a command.
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kinds: dict[str, Any] = {
        "config": transformers.AutoConfig,
        "masked-lm": transformers.AutoModelForMaskedLM,
        "seq2seq": transformers.AutoModelForSeq2SeqLM,
    }
    if what != "config" and torch.get_default_device().type == "meta":
        return kinds[what].from_config(load_pretrained("config", name))
    try:
        if not name.strip():
            raise ValueError("its name is empty")
        return kinds[what].from_pretrained(
            name, trust_remote_code=False, local_files_only=not hub_has(name)
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ValueError(
            f"the model {name!r} cannot be loaded ({reason}). Give a folder that save_pretrained "
            "wrote, or a name on the Hugging Face hub with a network."
        ) from error


def model_sha256(name: str) -> str | None:
    """Hash of the files of a model's weights, wherever they lie; None for a name on the hub."""
    folder = Path(name)
    if not folder.is_dir():
        return None
    found = hashlib.sha256()
    for file in sorted(path for form in _WEIGHTS for path in folder.glob(form)):
        with file.open("rb") as opened:
            found.update(hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest()
