"""A stock checkpoint in, a converted one out, and a summary of what changed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import transformers
from safetensors import SafetensorError

from .conversion import CHILD
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
    model = _load_stock(source)
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


def _load_stock(source: str) -> Any:
    """A stock model with every weight that it needs.

    Raises:
        ValueError, OSError: it cannot be loaded, or lacks some.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(source)
        if getattr(config, CHILD, None) is not None:
            raise ValueError("it is converted already: give the stock model")
        (architecture, *_) = config.architectures or ["AutoModel"]
        kind: Any = getattr(transformers, str(architecture), None)
        is_model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
        if not is_model and kind is not transformers.AutoModel:
            raise ValueError(f"its class, {architecture!r}, is no model of transformers")
        model, info = kind.from_pretrained(source, dtype="auto", output_loading_info=True)
    except OSError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, ArithmeticError,
            SafetensorError) as error:  # fmt: skip
        # Of configurations and weights that are damaged, each library has an error of its own.
        reason = str(error).strip().splitlines()
        why = reason[0] if reason else type(error).__name__
        raise ValueError(
            f"{source} cannot be loaded ({why}): expected a stock model of transformers, as "
            "save_pretrained writes it."
        ) from error
    if missing := sorted(info["missing_keys"]):
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if missing[3:] else "")
        raise ValueError(
            f"{source} lacks weights of its {type(model).__name__} ({shown}): nothing is converted "
            "that would start at random."
        )
    return model


def _copy_processor(source: str, out: Path) -> bool:
    try:
        processor = transformers.AutoProcessor.from_pretrained(source)
    except (OSError, ValueError, ImportError):  # there is none, or what it needs is missing
        return False
    processor.save_pretrained(out)
    return True
