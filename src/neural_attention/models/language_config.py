"""The configuration of the language model."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

try:
    from transformers import PretrainedConfig
    from transformers.modeling_outputs import CausalLMOutputWithPast
except ImportError as error:
    raise ImportError(
        'the language model needs transformers 5: pip install "neural-attention[compare]"'
    ) from error

from neural_attention import validation
from neural_attention.attention import NeuralAttention

ARCHITECTURES = ("current", "paper")

# What the model hands to its layers itself.
_OF_THE_MODEL = {"embed_dim", "num_heads", "device", "dtype"}
_ATTENTION_KEYWORDS = [
    name for name in inspect.signature(NeuralAttention).parameters if name not in _OF_THE_MODEL
]

# transformers 5.2x calls the cache `cache`, earlier releases `past_key_values`.
CACHE_FIELD = (
    "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
)


class NeuralAttentionLMConfig(PretrainedConfig):  # type: ignore[misc]
    r"""Configuration of :class:`NeuralAttentionForCausalLM`.

    Args:
        architecture: ``"current"``: pre-norm, RMSNorm, SwiGLU, no biases, tied embeddings, and
            positions in the attention layers. ``"paper"``: the decoder of DiGiugno & Mahmood:
            post-norm, ReLU, sinusoidal positions added once to the scaled embedding, LayerNorm
            before an untied head with bias, attention without biases.
        vocab_size: entries of the vocabulary.
        hidden_size: width of the model.
        intermediate_size: width of the feed-forward layers.
        num_hidden_layers: number of blocks.
        num_attention_heads: heads; they divide ``hidden_size`` unless ``head_dim`` is given.
        num_key_value_heads: heads of keys and values; ``None`` for as many as query heads.
        head_dim: width of a head; ``None`` for ``hidden_size // num_attention_heads``.
        attention: keywords of :class:`neural_attention.NeuralAttention` for the layers named by
            ``attention_layers``, such as ``{"score": "neural", "positions": "slopes"}``.
        attention_layers: ``"all"``, ``"first"`` or a list of layer numbers. The other layers are
            dot products: with rotary positions in the current model, without positions of their own
            in the paper's.
        dropout: probability behind the embedding and behind each sublayer; ``None`` for 0.0
            (current) and 0.1 (paper).
        tie_word_embeddings: ``None`` for ``True`` (current) and ``False`` (paper).
        use_cache: whether generation keeps keys and values.

    Raises:
        ValueError: an unknown architecture, a layer that is not there, heads that do not divide
            the width, or an attention that :class:`neural_attention.NeuralAttention` refuses.
        TypeError: a value of another type.

    >>> NeuralAttentionLMConfig(num_hidden_layers=2, attention_layers="first").arm_layers
    (0,)
    """

    model_type = "neural_attention_lm"
    keys_to_ignore_at_inference = [CACHE_FIELD]

    def __init__(
        self,
        architecture: str = "current",
        vocab_size: int = 2048,
        hidden_size: int = 256,
        intermediate_size: int = 688,
        num_hidden_layers: int = 4,
        num_attention_heads: int = 4,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        attention: dict[str, Any] | None = None,
        attention_layers: str | Sequence[int] = "all",
        dropout: float | None = None,
        tie_word_embeddings: bool | None = None,
        use_cache: bool = True,
        bos_token_id: int | None = None,
        eos_token_id: int | list[int] | None = None,
        pad_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        if architecture not in ARCHITECTURES:
            raise ValueError(
                f"architecture is {architecture!r}: it must be one of {', '.join(ARCHITECTURES)}."
            )
        for name, size in {
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
            "intermediate_size": intermediate_size,
            "num_hidden_layers": num_hidden_layers,
            "num_attention_heads": num_attention_heads,
        }.items():
            validation.check_size(name, size)
        if dropout is not None:
            validation.check_probability("dropout", dropout)
        is_paper = architecture == "paper"
        self.architecture = architecture
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        if attention is not None and not isinstance(attention, Mapping):
            raise TypeError(
                f"attention is {attention!r}: expected a dict of keywords of NeuralAttention, such "
                'as {"score": "neural"}.'
            )
        self.attention = dict(attention) if attention is not None else {"score": "dot"}
        if not isinstance(attention_layers, (str, Sequence)):
            raise TypeError(
                f"attention_layers is {attention_layers!r}: expected 'all', 'first' or a list of "
                "layer numbers."
            )
        self.attention_layers = (
            attention_layers if isinstance(attention_layers, str) else list(attention_layers)
        )
        self.dropout = (0.1 if is_paper else 0.0) if dropout is None else dropout
        self.use_cache = use_cache
        self.tie_word_embeddings = (
            not is_paper if tie_word_embeddings is None else tie_word_embeddings
        )
        self.bos_token_id, self.eos_token_id = bos_token_id, eos_token_id
        self.pad_token_id = pad_token_id
        if head_dim is None and hidden_size % num_attention_heads:
            raise ValueError(
                f"hidden_size {hidden_size} is not a multiple of num_attention_heads "
                f"{num_attention_heads}: change one of them or give head_dim."
            )
        self._check_attention()
        super().__init__(
            tie_word_embeddings=self.tie_word_embeddings,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
            **kwargs,
        )

    @property
    def arm_layers(self) -> tuple[int, ...]:
        """Numbers of the layers with the attention of ``attention``."""
        named = {"all": range(self.num_hidden_layers), "first": range(1)}
        layers = self.attention_layers
        if isinstance(layers, str):
            if layers not in named:
                raise ValueError(
                    f"attention_layers is {layers!r}: 'all', 'first' or a list is needed."
                )
            return tuple(named[layers])
        for layer in layers:
            if isinstance(layer, bool) or not isinstance(layer, int):
                raise TypeError(f"attention_layers has {layer!r}: expected numbers of layers.")
        outside = [layer for layer in layers if not 0 <= layer < self.num_hidden_layers]
        if outside:
            raise ValueError(
                f"attention_layers names {outside} and the model has layers 0 to "
                f"{self.num_hidden_layers - 1}."
            )
        return tuple(sorted(set(layers)))

    def attention_of_layer(self, layer: int) -> dict[str, Any]:
        """All keywords of the :class:`neural_attention.NeuralAttention` of a layer."""
        no_positions = self.architecture == "paper"
        keywords = dict(self.attention if layer in self.arm_layers else {"score": "dot"})
        if no_positions:
            keywords.setdefault("positions", "none")
        return {
            "num_kv_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "bias": False,
            **keywords,
        }

    def _check_attention(self) -> None:
        """Build each kind of attention layer once, without its weights: it knows what it takes."""
        unknown = sorted(map(str, self.attention.keys() - set(_ATTENTION_KEYWORDS)))
        if unknown:
            raise ValueError(
                f"attention has {', '.join(unknown)}: expected keywords of NeuralAttention, "
                f"{', '.join(_ATTENTION_KEYWORDS)}."
            )
        arms = self.arm_layers
        others = [layer for layer in range(self.num_hidden_layers) if layer not in arms]
        with warnings.catch_warnings(), torch.device("meta"):
            # The model warns, when it is built.
            warnings.simplefilter("ignore")
            for layer in (*arms[:1], *others[:1]):
                NeuralAttention(
                    self.hidden_size, self.num_attention_heads, **self.attention_of_layer(layer)
                )
