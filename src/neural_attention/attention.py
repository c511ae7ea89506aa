"""The layer: projection × score × positions, with masks and a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import validation
from .attention_base import AttentionBase
from .cache import Cache
from .folding import fold_layer


class NeuralAttention(AttentionBase):
    r"""Multi-head attention with a choice of score, projections and positions.

    .. math:: y = \mathrm{out}\Big(\operatorname{concat}_h \sum_j
              \operatorname{softmax}_j\big(s_h(q_i, k_j)\big)\, v_j\Big)

    Args:
        embed_dim: width of the input x and of the output.
        num_heads: H.
        num_kv_heads: Hkv, a divisor of num_heads (grouped-query attention); num_heads if None.
        head_dim: width of a head; embed_dim / num_heads if None.
        key_dim: width of ``key``, if not embed_dim.
        value_dim: width of ``value``, if not embed_dim.
        score: ``neural``, a score network; ``dot``, the dot product; ``hybrid``, their sum;
            ``additive``, Bahdanau's network (tanh, one hidden layer).
        projection: ``linear``, ``mlp`` (queries and keys), ``residual`` (the same), ``karbevski``
            (queries); or a dict from some of ``q``, ``k``, ``v``, ``o`` to a kind. See
            :func:`neural_attention.projection.build_projection`.
        projection_options: ``width_factor`` (2) and ``layer_norm`` (True) of ``mlp`` and
            ``residual``.
        positions: ``slopes``, learned, on the network's channels; ``alibi``, learned, on the score;
            ``rotary``, on q and k, in a hybrid score on its dot product alone; ``none``. None
            means ``slopes`` where there is a network and ``rotary`` for the dot product.
        grid: rows and columns, for tokens that are the patches of an image, row by row, with a
            class token in front if there is one more: positions are then two-dimensional, see
            :class:`neural_attention.grid_positions.GridPositions`. None for a sequence.
        score_network: keywords of :class:`neural_attention.ScoreNetwork`, the name of a preset, or
            keywords with ``preset`` among them.
        init: ``random``, or ``preserve``: the network of a hybrid score and of residual
            projections starts at zero, so that the layer starts as dot product or linear map.
        dropout: probability of dropping an attention weight in training.
        bias: whether projections have biases.
        rotary_base: base of the rotary frequencies; 10000 if None, 100 on a grid.
        backend: see :func:`neural_attention.neural_attention`; also ``sdpa``, torch's own kernel,
            for ``score="dot"``.
        device: of the parameters.
        dtype: of the parameters.

    Attributes:
        q_proj, k_proj, v_proj, out_proj: the projections.
        score_network: the :class:`neural_attention.ScoreNetwork`, or None.
        slopes: ``(H, C)``, or None.
        alibi: ``(H,)``, or None.
        grid: the :class:`neural_attention.grid_positions.GridPositions`, with slopes and alibi of
            its own, or None.

    Raises:
        ValueError: options that do not go together; the message says what would.
        TypeError: an option of another type.

    Source:
        Scores: DiGiugno & Mahmood 2025, arXiv 2502.17206. Projections: Zhang 2023, arXiv
        2310.11398, and Karbevski 2026, arXiv 2603.13381. Slopes move ALiBi (Press et al. 2021,
        arXiv 2108.12409) into the network.

    >>> layer = NeuralAttention(512, 8)
    >>> x = torch.randn(2, 10, 512)
    >>> layer(x, is_causal=True).shape, layer.attention_weights(x).shape
    (torch.Size([2, 10, 512]), torch.Size([2, 8, 10, 10]))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        score: str = "neural",
        projection: str | Mapping[str, str] = "linear",
        projection_options: Mapping[str, Any] | None = None,
        positions: str | None = None,
        grid: Sequence[int] | None = None,
        score_network: str | Mapping[str, Any] | None = None,
        init: str = "random",
        dropout: float = 0.0,
        bias: bool = True,
        rotary_base: float | None = None,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            key_dim=key_dim,
            value_dim=value_dim,
            score=score,
            projection=projection,
            projection_options=projection_options,
            positions=positions,
            grid=grid,
            score_network=score_network,
            init=init,
            dropout=dropout,
            bias=bias,
            rotary_base=rotary_base,
            backend=backend,
            device=device,
            dtype=dtype,
        )

    def forward(
        self,
        x: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        window: tuple[int | None, int | None] | None = None,
        query_offset: int | Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Attend from x to key, or to x itself.

        Args:
            x: ``(B, Lq, embed_dim)``.
            key: ``(B, Lk, key_dim)``; x if None.
            value: ``(B, Lk, value_dim)``; key if None.
            attn_mask: broadcastable to ``(B, H, Lq, Lk)``; bool, True attends, or floating, added.
            key_padding_mask: bool ``(B, Lk)``, True **ignores** that key, as in torch.nn.
            is_causal: hide keys after the query; aligned to the bottom right, as in decoding.
            window: ``(left, right)``, distances still attended to; None leaves a side open.
            query_offset: position of the first query among the keys, an int or ``(B,)``;
                Lk − Lq if None.
            cu_seqlens: bounds of packed documents, see :func:`neural_attention.neural_attention`.
            cache: keys and values of earlier calls, to which this call's are appended; Lk counts
                all of them. Any object with ``length`` and ``update``, such as
                :class:`neural_attention.KeyValueCache`.

        Returns:
            ``(B, Lq, embed_dim)``. A query with nothing to attend to contributes zeros to the
            output projection.

        Raises:
            ValueError: shapes that do not fit, or a cache together with ``key`` or a grid.
            TypeError: an input of another dtype than the weights, outside of autocast, or an
                argument of another type.
        """
        q, positions, keys, values, masks = self._prepare(
            x,
            key,
            value,
            attn_mask,
            key_padding_mask,
            is_causal,
            window,
            query_offset,
            cu_seqlens,
            cache,
        )
        out = self._attend(q, positions, keys, values, backend=self.backend, **masks)
        return self._merge_heads(out)

    def attention_weights(
        self,
        x: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        window: tuple[int | None, int | None] | None = None,
        query_offset: int | Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The weights that :meth:`forward` gives the values, materialised: ``(B, H, Lq, Lk)``.

        Arguments as in :meth:`forward`; a cache is appended to, as there. In training the weights
        are dropped at random.
        """
        q, positions, keys, values, masks = self._prepare(
            x,
            key,
            value,
            attn_mask,
            key_padding_mask,
            is_causal,
            window,
            query_offset,
            cu_seqlens,
            cache,
        )
        identity = self._identity_values(values)
        return self._attend(q, positions, keys, identity, backend="reference", **masks)

    def fold(self) -> NeuralAttention:
        """A copy for inference in which adjacent linear maps are merged: equal to about 1e-5.

        In a neural or additive score the first layer of the network follows the last linear map of
        the query and key projections and merges with it, and a bottleneck merges with the first
        layer. The copy projects straight to C channels for each head, and has fewer parameters.

        Raises:
            ValueError: nothing folds, because a rotation, a norm or an activation stands between,
                or the dot product needs the queries and keys themselves.

        >>> layer = NeuralAttention(64, 4).eval()
        >>> x = torch.randn(1, 9, 64)
        >>> torch.allclose(layer(x), layer.fold()(x), atol=1e-5)
        True
        """
        return fold_layer(self)

    def _prepare(
        self,
        x: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool,
        window: tuple[int | None, int | None] | None,
        query_offset: int | Tensor | None,
        cu_seqlens: Tensor | None,
        cache: Cache | None,
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor, dict[str, Any]]:
        """Queries, their positions (rotary), all stored keys, all values, and the masks."""
        if cache is not None and not (hasattr(cache, "length") and hasattr(cache, "update")):
            raise TypeError(
                f"cache is a {type(cache).__name__}: expected an object with length and update, "
                "such as KeyValueCache()."
            )
        if cache is not None and key is not None:
            raise ValueError(
                "cache and key are both given: a cache holds the keys of self-attention, to which "
                "each call adds its own. Leave key out, or call without a cache."
            )
        if cache is not None and self.grid is not None:
            raise ValueError(
                "cache is given and the layer's tokens lie on a grid, which is seen whole: call it "
                "without a cache."
            )
        if key is None:
            if value is not None:
                raise ValueError("value is given without key: pass both for cross-attention.")
            key = x
        value = key if value is None else value
        self._check_inputs(x, key, value)
        past = 0 if cache is None else cache.length
        # Before anything enters the cache: a call that is refused here leaves it as it was.
        shape = (x.shape[0], self.num_heads, x.shape[1], past + key.shape[1])
        validation.check_masks(shape, x, attn_mask, window, query_offset, None, cu_seqlens)
        validation.check_flag("is_causal", is_causal)
        if key_padding_mask is not None:
            attn_mask = _with_padding(attn_mask, key_padding_mask, (shape[0], shape[3]), x)
        q, k, values = self._project(x, key, value)
        query_positions = key_positions = None
        if self.positions == "rotary" and self.grid is not None:
            query_positions = self.grid.coordinates(x.shape[1], x.device)
            key_positions = self.grid.coordinates(key.shape[1], x.device)
        elif self.positions == "rotary":
            key_positions = torch.arange(past, past + key.shape[1], device=x.device)
            if cu_seqlens is not None:
                key_positions = _positions_in_documents(key_positions, cu_seqlens)
                query_positions = key_positions
            else:
                offset = past + key.shape[1] - x.shape[1] if query_offset is None else query_offset
                if isinstance(offset, Tensor):
                    offset = offset[:, None]
                query_positions = torch.arange(x.shape[1], device=x.device) + offset
        keys = self._stored_keys(k, key_positions)
        if cache is not None:
            keys, values = cache.update(keys, values)
        masks = {
            "attn_mask": attn_mask,
            "is_causal": is_causal,
            "window": window,
            "query_offset": query_offset,
            "cu_seqlens": cu_seqlens,
        }
        return q, query_positions, keys, values, masks

    def _check_inputs(self, x: Tensor, key: Tensor, value: Tensor) -> None:
        self._check_tensors(x=x, key=key, value=value)
        named = {"x": (x, self.embed_dim), "key": (key, self.key_dim)}
        named["value"] = (value, self.value_dim)
        for name, (tensor, width) in named.items():
            if tensor.dim() != 3 or tensor.shape[-1] != width:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}: expected (batch, length, {width})."
                )
            if tensor.shape[0] != x.shape[0]:
                raise ValueError(
                    f"{name} has batch size {tensor.shape[0]} and x has {x.shape[0]}: they must "
                    "agree."
                )
        if key.shape[1] != value.shape[1]:
            raise ValueError(
                f"key has length {key.shape[1]} and value {value.shape[1]}: they must agree."
            )


def _positions_in_documents(positions: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Positions counted from the start of each document."""
    document = torch.searchsorted(cu_seqlens.to(positions.dtype), positions, right=True) - 1
    return positions - cu_seqlens[document]


def _with_padding(
    attn_mask: Tensor | None, key_padding_mask: Tensor, shape: tuple[int, int], like: Tensor
) -> Tensor:
    """One mask, True attends, of an attention mask and a padding mask (True ignores)."""
    validation.check_tensor("key_padding_mask", key_padding_mask, like)
    if key_padding_mask.dtype != torch.bool:
        raise TypeError(
            f"key_padding_mask is {key_padding_mask.dtype}: expected bool, True where a key is to "
            "be ignored. Additive masks go into attn_mask."
        )
    if tuple(key_padding_mask.shape) != shape:
        raise ValueError(
            f"key_padding_mask has shape {tuple(key_padding_mask.shape)}: expected (batch, keys) = "
            f"{shape}, where keys counts those in the cache too."
        )
    keep = ~key_padding_mask[:, None, None, :]
    if attn_mask is None:
        return keep
    if attn_mask.dtype == torch.bool:
        return attn_mask & keep
    return torch.where(keep, attn_mask, -torch.inf)
