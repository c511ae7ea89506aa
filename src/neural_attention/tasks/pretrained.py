"""Pretrained models: a folder, or a name on the hub brought into one."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from neural_attention.tasks.tokens import hub_has
from neural_attention.tasks.wording import legible

_HUB_NAME = re.compile(r"^[\w.-]+(/[\w.-]+)?$")
_WANTED = ["*.json", "*.safetensors", "*.bin", "*.spm", "*.model", "*.txt"]


def model_folder(name: str) -> Path:
    """The folder of a saved model.

    Args:
        name: a folder, or a name on the Hugging Face hub, whose files are fetched once.

    Raises:
        FileNotFoundError: neither is there, or the hub does not answer.
        ImportError: transformers is missing.
    """
    folder = Path(os.path.expanduser(name))
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(
                f"{legible(folder)} has no config.json: give the folder of a saved model, such as "
                "a run's `model`."
            )
        return folder
    if _HUB_NAME.match(name):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            return Path(snapshot_download(name, local_files_only=True, allow_patterns=_WANTED))
        except LocalEntryNotFoundError:
            if hub_has(name):
                return Path(snapshot_download(name, allow_patterns=_WANTED))
    raise FileNotFoundError(
        f"no folder {name!r}, and no model of that name on the Hugging Face hub, or the hub does "
        "not answer."
    )


def folder_sha256(folder: Path) -> str:
    """Hash of a model's files: configuration, vocabulary and weights."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
