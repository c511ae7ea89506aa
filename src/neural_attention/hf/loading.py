"""Loading converted models of any type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from . import classes


def from_pretrained(path: str | Path, **options: Any) -> Any:
    """Load a converted model, of any type that transformers knows.

    The ``Auto`` classes open those that the documentation lists; this opens the others too.

    Args:
        path: a folder that ``save_pretrained`` wrote, or a name on the hub.
        options: of the class's ``from_pretrained``.

    Raises:
        ValueError: the checkpoint is not of a converted model, or of a class that is not known.

    >>> from transformers import BertConfig, BertModel
    >>> from neural_attention.hf import convert
    >>> model = BertModel(BertConfig(vocab_size=99, hidden_size=32, intermediate_size=64,
    ...                              num_hidden_layers=1, num_attention_heads=4))
    >>> convert(model).save_pretrained("converted")
    >>> type(from_pretrained("converted")).__name__
    'NeuralAttentionBertModel'
    """
    config, _ = PreTrainedConfig.get_config_dict(path)
    model_type = str(config.get("model_type"))
    stock_type = model_type.removeprefix(classes.TYPE_PREFIX)
    if stock_type == model_type or stock_type not in CONFIG_MAPPING:
        raise ValueError(
            f"{path} holds a model of type {model_type!r}: expected "
            f"{classes.TYPE_PREFIX!r} before a type that transformers knows, as convert and "
            "save_pretrained write it."
        )
    classes.config_class(CONFIG_MAPPING[stock_type])
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    is_ours = str(name).startswith(classes.CLASS_PREFIX)
    kind: Any = getattr(classes, str(name), None) if is_ours else None
    if classes.ConvertedModel not in getattr(kind, "__mro__", ()):
        raise ValueError(
            f"{path} holds a {name!r}: expected the name of one class, {classes.CLASS_PREFIX!r} "
            "before a model of transformers."
        )
    return kind.from_pretrained(path, **options)
