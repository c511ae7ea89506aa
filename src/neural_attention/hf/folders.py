"""A stock checkpoint in, a converted one out, and a summary of what changed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import transformers

from .converting import convert
from .report import CacheReport, cache_report


@dataclass(frozen=True)
class Conversion:
    """What :func:`convert_folder` did.

    Attributes:
        model_class: of the converted model.
        layers: the converted layers of each role.
        parameters: of the stock and of the converted model.
        cache: bytes a token.
        has_processor: whether a tokenizer or image processor was there to go along.
    """

    model_class: str
    layers: dict[str, list[int]]
    parameters: tuple[int, int]
    cache: CacheReport
    has_processor: bool


def convert_folder(source: str, out: str | Path, **options: Any) -> Conversion:
    """Load a stock model, convert it and save it, with its tokenizer or image processor.

    Args:
        source: a folder, or a name on the hub.
        out: a folder that does not exist yet.
        options: of :func:`convert`.

    Raises:
        FileExistsError: ``out`` exists.
        ValueError, OSError: the model cannot be loaded or converted; nothing is written.
    """
    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} exists: name a folder that does not, nothing is overwritten.")
    config = transformers.AutoConfig.from_pretrained(source)
    (architecture, *_) = config.architectures or ["AutoModel"]
    kind = getattr(transformers, architecture, None)
    if kind is None:
        raise ValueError(
            f"{source} holds a {architecture}, a class that transformers does not have: expected a "
            "stock model."
        )
    model = kind.from_pretrained(source, dtype="auto")
    before = model.num_parameters()
    convert(model, **options)
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        model.save_pretrained(unfinished)
        has_processor = _copy_processor(source, unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(out)
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    return Conversion(
        model_class=type(model).__name__,
        layers=dict(model.config.neural_attention["layers"]),
        parameters=(before, model.num_parameters()),
        cache=cache_report(model),
        has_processor=has_processor,
    )


def _copy_processor(source: str, out: Path) -> bool:
    try:
        processor = transformers.AutoProcessor.from_pretrained(source)
    except (OSError, ValueError, ImportError):  # there is none, or what it needs is missing
        return False
    processor.save_pretrained(out)
    return True
