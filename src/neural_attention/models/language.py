"""A decoder language model with any attention of this library, as a transformers model.

Importing this module registers ``model_type`` ``"neural_attention_lm"`` with ``AutoConfig`` and
``AutoModelForCausalLM``.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

try:
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin
    from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
    from transformers.modeling_outputs import CausalLMOutputWithPast
except ImportError as error:
    raise ImportError(
        'the language model needs transformers 5: pip install "neural-attention[compare]"'
    ) from error

from neural_attention.models.block import TransformerBlock, sinusoidal_positions
from neural_attention.models.language_config import CACHE_FIELD, NeuralAttentionLMConfig
from neural_attention.models.layer_cache import LayerCache, ReadOnlyLayerCache
from neural_attention.models.self_starting import SelfStartingModel, choose

__all__ = ["NeuralAttentionForCausalLM", "NeuralAttentionLMConfig"]


class NeuralAttentionForCausalLM(SelfStartingModel, GenerationMixin):  # type: ignore[misc]
    """A causal language model in which layers of your choice have a neural attention score.

    Works with ``save_pretrained`` and ``from_pretrained``, ``AutoModelForCausalLM`` (once this
    module is imported), ``generate`` and ``Trainer``. Caches are transformers' ``DynamicCache``; a
    layer with a pure neural score keeps its key features, which are narrower than keys.

    Args:
        config: a :class:`NeuralAttentionLMConfig`.

    Source:
        DiGiugno & Mahmood 2025, arXiv 2502.17206 (architecture ``"paper"``).

    >>> config = NeuralAttentionLMConfig(attention={"score": "neural"}, num_hidden_layers=1)
    >>> model = NeuralAttentionForCausalLM(config)
    >>> model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 2048])
    """

    config_class = NeuralAttentionLMConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["TransformerBlock"]
    _tied_weights_keys = {"head.weight": "embedding.weight"}

    def __init__(self, config: NeuralAttentionLMConfig) -> None:
        super().__init__(config)
        width, is_paper = config.hidden_size, config.architecture == "paper"
        self.embedding: nn.Module = nn.Embedding(config.vocab_size, width)
        # The paper's model multiplies embeddings by the root of the width.
        self.embedding_scale = math.sqrt(width) if is_paper else 1.0
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.norm = nn.LayerNorm(width) if is_paper else nn.RMSNorm(width, eps=1e-6)
        self.head: nn.Module = nn.Linear(width, config.vocab_size, bias=is_paper)
        self.gradient_checkpointing = False
        self._start(self.embedding)
        self._start(self.head)
        self.finish()

    def _start(self, module: nn.Module) -> None:
        """Starting values of embeddings and head; attention layers set their own."""
        if not isinstance(module, (nn.Embedding, nn.Linear)):
            return
        # Unit logits from a normalised state; a smaller start of tied embeddings learns slowly.
        nn.init.normal_(module.weight, std=self.config.hidden_size**-0.5)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def _init_weights(self, module: nn.Module) -> None:
        """Starting values of new embeddings; ``resize_token_embeddings`` asks for them."""
        self._start(module)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of tokens."""
        return self.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding of tokens."""
        self.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the head."""
        self.head = new_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        past_key_values: Cache | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits of the next token, and the loss when there are labels.

        Args:
            input_ids: tokens, ``(B, L)`` int64.
            attention_mask: ``(B, cached + L)``, 0 or False where a position is padding (on either
                side); or ``(B, 1 or heads, L, cached + L)``, bool (True = attend) or additive,
                which then holds causality as well.
            position_ids: ``(B, L)`` or ``(1, L)``, read by the sinusoidal positions of the paper's
                model; the other positions are relative and need none.
            cache: a ``DynamicCache``; its length says how many tokens came before.
            inputs_embeds: ``(B, L, hidden_size)`` in place of ``input_ids``, before any scale.
            labels: ``(B, L)``; position t is predicted from those before it, −100 is left out.
            shift_labels: ``(B, L)``: what follows each position, in place of ``labels``.
            use_cache: return the cache; made if none is given.
            logits_to_keep: logits of the last so many positions only (0: all), or of these
                positions.
            output_attentions: also the attention map of each layer, computed beside it.
            output_hidden_states: also the embedding and the output of each block.
            return_dict: ``False`` for a tuple.
            past_key_values: the name of ``cache`` in earlier transformers.
            num_items_in_batch: the loss is the sum over this number, as ``Trainer`` wants it.
            **kwargs: nothing else is taken; ``Trainer`` looks for their place in the signature.

        Raises:
            ValueError: both or neither of ``input_ids`` and ``inputs_embeds``, a cache that is not
                a ``DynamicCache``, or a mask of another shape.
            TypeError: a keyword that this model does not compute.
        """
        # Earlier transformers repeat here what the cache's length says.
        kwargs.pop("cache_position", None)
        # Not a parameter: Trainer takes each whose name says "label" for one that every batch has.
        shift_labels = kwargs.pop("shift_labels", None)
        if kwargs:
            raise TypeError(f"the model does not take {', '.join(sorted(kwargs))}.")
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give one of input_ids and inputs_embeds.")
        x = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        cache = self._usable_cache(cache if cache is not None else past_key_values, use_cache)
        seen = cache.get_seq_length() if cache is not None else 0
        attention = self._attention_arguments(attention_mask, x, seen)
        x = x * self.embedding_scale
        if self.config.architecture == "paper":
            positions = _positions(position_ids, attention_mask, x, seen)
            x = x + sinusoidal_positions(positions, self.config.hidden_size).to(x.dtype)
        x = self.dropout(x)

        want_maps = choose(output_attentions, self.config, "output_attentions")
        want_states = choose(output_hidden_states, self.config, "output_hidden_states")
        states, maps = [x], []
        for number, block in enumerate(self.blocks):
            if want_maps:
                peek = ReadOnlyLayerCache(cache, number) if cache is not None else None
                maps.append(cast(Any, block).attention_weights(x, **attention, cache=peek))
            layer_cache = LayerCache(cache, number) if cache is not None else None
            x = block(x, **attention, cache=layer_cache)
            states.append(x)
        x = self.norm(x)
        states[-1] = x

        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.head(x[:, kept])
        loss = None
        if labels is not None or shift_labels is not None:
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                vocab_size=self.config.vocab_size,
                num_items_in_batch=num_items_in_batch,
                shift_labels=None if shift_labels is None else shift_labels.contiguous(),
            )
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=tuple(states) if want_states else None,
            attentions=tuple(maps) if want_maps else None,
            **{CACHE_FIELD: cache},
        )
        as_tuple = choose(return_dict, self.config, "return_dict") is False
        return output.to_tuple() if as_tuple else output

    def _usable_cache(self, cache: Cache | None, use_cache: bool | None) -> DynamicCache | None:
        use_cache = choose(use_cache, self.config, "use_cache")
        is_checkpointing = any(block.gradient_checkpointing for block in self.blocks)
        if is_checkpointing and self.training and torch.is_grad_enabled():
            # The backward pass runs each block again, which would fill the cache twice.
            return None
        if cache is None:
            return DynamicCache() if use_cache and not self.training else None
        is_dynamic = isinstance(cache, DynamicCache) and all(
            type(layer) is DynamicLayer for layer in cache.layers
        )
        if not is_dynamic:
            raise ValueError(
                f"the cache is a {type(cache).__name__}: this model keeps key features of another "
                "width than its heads, so it needs a plain DynamicCache (generate's default; leave "
                "cache_implementation out)."
            )
        return cache

    def _attention_arguments(self, mask: Tensor | None, x: Tensor, seen: int) -> dict[str, Any]:
        if mask is None:
            return {"is_causal": True}
        if mask.dim() == 4:
            return {"attn_mask": mask, "is_causal": False}
        expected = (x.shape[0], seen + x.shape[1])
        if tuple(mask.shape) != expected:
            raise ValueError(
                f"attention_mask has shape {tuple(mask.shape)}: {expected} is needed, one entry "
                "for each cached and each new position."
            )
        return {"is_causal": True, "key_padding_mask": mask == 0}


def _positions(ids: Tensor | None, mask: Tensor | None, x: Tensor, seen: int) -> Tensor:
    """Absolute positions, (B or 1, L): padding on the left does not count."""
    if ids is not None:
        return ids
    if mask is not None and mask.dim() == 2:
        return ((mask != 0).long().cumsum(-1) - 1).clamp(min=0)[:, -x.shape[1] :]
    return torch.arange(seen, seen + x.shape[1], device=x.device)[None]


AutoConfig.register(NeuralAttentionLMConfig.model_type, NeuralAttentionLMConfig, exist_ok=True)
AutoModelForCausalLM.register(NeuralAttentionLMConfig, NeuralAttentionForCausalLM, exist_ok=True)
