"""The configuration of the language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neural_attention import validation
from neural_attention.models.attention_config import AttentionConfig

try:
    from transformers.modeling_outputs import CausalLMOutputWithPast
except ImportError as error:
    raise ImportError(
        'the language model needs transformers 5: pip install "neural-attention[compare]"'
    ) from error

# transformers 5.2x calls the cache `cache`, earlier releases `past_key_values`.
CACHE_FIELD = (
    "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
)


class NeuralAttentionLMConfig(AttentionConfig):
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
        validation.check_size("vocab_size", vocab_size)
        self.vocab_size = vocab_size
        self.use_cache = use_cache
        self.bos_token_id, self.eos_token_id = bos_token_id, eos_token_id
        self.pad_token_id = pad_token_id
        if tie_word_embeddings is None:
            tie_word_embeddings = architecture != "paper"
        self.tie_word_embeddings = tie_word_embeddings
        super().__init__(
            architecture=architecture,
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            num_hidden_layers=num_hidden_layers,
            num_attention_heads=num_attention_heads,
            num_key_value_heads=num_key_value_heads,
            head_dim=head_dim,
            attention=attention,
            attention_layers=attention_layers,
            dropout=dropout,
            tie_word_embeddings=tie_word_embeddings,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            pad_token_id=pad_token_id,
            **kwargs,
        )
