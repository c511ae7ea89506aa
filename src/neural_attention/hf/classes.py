"""Configuration and model classes of converted models, made from the stock ones.

``NeuralAttentionLlamaConfig`` has the model type ``neural_attention_llama``, so that a checkpoint
is never mistaken for a stock one: without ``import neural_attention.hf`` transformers stops and
names that type. The classes are found in this module by name, which is what pickling needs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel

from .attention import NAME
from .conversion import CHILD, install, make_parts, make_plan
from .discovery import find_attentions, roles
from .score import AttentionScore
from .settings import Settings

TYPE_PREFIX, CLASS_PREFIX = "neural_attention_", "NeuralAttention"
# Model types whose converted checkpoints the Auto classes open once this package is imported.
TYPES = (
    "marian", "bart", "roberta", "bert", "distilbert", "gpt2", "vit", "deit", "llama", "qwen3",
    "mistral", "gemma", "gemma3_text", "gemma3",
)  # fmt: skip


class ConvertedConfig:
    """Mixed into a stock configuration: its models are registered before the first is needed."""

    models_are_registered = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Called before any configuration is filled, from a file or by keywords."""
        kind: Any = cls
        if not kind.models_are_registered:  # once: torch.compile traces copies of a configuration
            register_models(kind)
            kind.models_are_registered = True
        return super().__new__(cls)


class ConvertedModel:
    """Mixed into a stock model: converted as ``config.neural_attention`` says.

    Raises:
        ValueError: the configuration has no conversion, or one that this version does not know.
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        stored = getattr(config, CHILD, None)
        if stored is None:
            raise ValueError(
                f"the configuration of a {type(self).__name__} has no neural_attention: convert a "
                "stock model with neural_attention.hf.convert."
            )
        settings = Settings.from_dict(stored)
        if config._attn_implementation == NAME:
            config._attn_implementation = None  # the stock class chooses what is behind ours
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        model: Any = self
        attentions = roles(find_attentions(model))
        unknown = {
            role: sorted(set(indices) - attentions.get(role, set()))
            for role, indices in settings.layers.items()
        }
        if any(unknown.values()):
            raise ValueError(
                f"the configuration's neural_attention names layers that this "
                f"{type(self).__name__} does not have: {unknown}."
            )
        install(model, make_parts(model, settings, make_plan(model, settings)))

    def _get_name(self) -> str:
        """The stock class's: the Trainer looks it up to know whether it has to shift labels."""
        order = type(self).__mro__
        return order[order.index(ConvertedModel) + 1].__name__

    def initialize_weights(self) -> None:
        """As the stock model, and scores that a checkpoint does not have."""
        model: Any = self
        for module in model.modules():
            if isinstance(module, AttentionScore) and not any(
                getattr(parameter, "_is_hf_initialized", False) for parameter in module.parameters()
            ):
                module.reset_parameters()
        super().initialize_weights()  # type: ignore[misc]


@cache
def config_class(stock: Any) -> Any:
    """The configuration class of models converted from those of a stock one."""
    model_type = TYPE_PREFIX + stock.model_type
    made = type(
        CLASS_PREFIX + stock.__name__,
        (ConvertedConfig, stock),
        {
            "model_type": model_type,
            "__module__": __name__,
            "__doc__": f"Converted {stock.__name__}.",
        },
    )
    globals()[made.__name__] = made
    AutoConfig.register(model_type, made, exist_ok=True)
    return made


@cache
def model_class(stock: Any, config: Any) -> Any:
    """The class of models converted from a stock one, whose configurations have a stock class."""
    made = type(
        CLASS_PREFIX + stock.__name__,
        (ConvertedModel, stock),
        {
            "config_class": config_class(config),
            "__module__": __name__,
            "__doc__": f"Converted {stock.__name__}.",
        },
    )
    globals()[made.__name__] = made
    return made


def register_models(config: Any) -> None:
    """Tell every Auto class that opens the stock models of the converted ones."""
    stock = config.__mro__[2]
    for name in dir(transformers):
        auto = getattr(transformers, name) if name.startswith("AutoModel") else None
        mapping = getattr(auto, "_model_mapping", None)
        found = None if mapping is None else mapping.get(stock, None)
        if auto is None or found is None:
            continue
        kinds = found if isinstance(found, tuple) else (found,)
        made = tuple(model_class(kind, stock) for kind in kinds if kind is not None)
        auto.register(config, made if isinstance(found, tuple) else made[0], exist_ok=True)


def __getattr__(name: str) -> Any:
    """A class by its name, made if need be."""
    stock: Any = getattr(transformers, name.removeprefix(CLASS_PREFIX), None)
    if name.startswith(CLASS_PREFIX) and isinstance(stock, type):
        if issubclass(stock, PreTrainedConfig):
            return config_class(stock)
        if issubclass(stock, PreTrainedModel):
            return model_class(stock, stock.config_class)  # type: ignore[attr-defined]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register_configs() -> None:
    """Register the configurations of :data:`TYPES`; models follow when one is first made."""
    for model_type in TYPES:
        config_class(CONFIG_MAPPING[model_type])
