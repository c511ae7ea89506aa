"""torch.nn.MultiheadAttention's interface over this library's scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import validation
from .attention_base import AttentionBase
from .projection import ResidualProjection


class MultiheadAttention(AttentionBase):
    r"""``torch.nn.MultiheadAttention`` with a choice of score.

    Takes the place of torch's class, also inside ``torch.nn.TransformerEncoderLayer`` and
    ``TransformerDecoderLayer`` (assign it to ``self_attn`` or ``multihead_attn``). With
    ``score="dot"`` and the same weights it gives the same results. As in torch, True in a mask
    means **ignore**, and causal order is aligned to the top left. Unlike torch:

    - ``is_causal`` hides later keys, beside any ``attn_mask`` and without one; there it is a hint.
    - State dicts of torch's class load here (not strictly, where the score or a projection adds
      parameters); those of this class, whose projections are apart, do not load there.
    - A query with nothing to attend to gives zeros before the output projection, not NaN.

    ``torch.nn.Transformer`` draws every matrix of its layers anew when it is built: call
    :meth:`reset_parameters` on each of these layers afterwards.

    Args:
        embed_dim: E, width of the queries and of the output.
        num_heads: H, a divisor of embed_dim.
        dropout: probability of dropping an attention weight in training.
        bias: whether projections have biases.
        add_bias_kv: attend to one more key and value, learned.
        add_zero_attn: attend to one more key and value, zeros behind the projections.
        kdim: width of the keys; embed_dim if None.
        vdim: width of the values; embed_dim if None.
        batch_first: ``(B, L, E)`` instead of ``(L, B, E)``.
        device: of the parameters.
        dtype: of the parameters.
        score: as in :class:`neural_attention.NeuralAttention`; so are all that follow. The default
            contains torch's score: ``score="hybrid", init="preserve"`` with torch's weights starts
            as what was trained.
        projection: see there.
        projection_options: see there.
        positions: see there. The default is ``none``, as torch's layer knows no positions. The
            learned key and the zero key stand before the first one.
        score_network: see there.
        init: see there.
        rotary_base: see there.
        backend: see there.

    Raises:
        ValueError: options that do not go together.
        TypeError: an option of another type.

    Source:
        Vaswani et al. 2017, arXiv 1706.03762, section 3.2.2, with the scores of
        :class:`neural_attention.NeuralAttention`.

    >>> attention = MultiheadAttention(64, 4, batch_first=True, score="hybrid")
    >>> x = torch.randn(2, 10, 64)
    >>> output, weights = attention(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([2, 10, 64]), torch.Size([2, 10, 10]))
    """

    # torch's encoder layers look at this to decide whether their own fused kernel, which would
    # compute plain attention from in_proj_weight, may stand in. It may not.
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        score: str = "hybrid",
        projection: str | Mapping[str, str] = "linear",
        projection_options: Mapping[str, Any] | None = None,
        positions: str = "none",
        score_network: str | Mapping[str, Any] | None = None,
        init: str = "random",
        rotary_base: float | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            num_kv_heads=None,
            head_dim=None,
            key_dim=kdim,
            value_dim=vdim,
            score=score,
            projection=projection,
            projection_options=projection_options,
            positions=positions,
            grid=None,
            score_network=score_network,
            init=init,
            dropout=dropout,
            bias=bias,
            rotary_base=rotary_base,
            backend=backend,
            device=device,
            dtype=dtype,
        )
        for name, flag in (
            ("add_bias_kv", add_bias_kv),
            ("add_zero_attn", add_zero_attn),
            ("batch_first", batch_first),
        ):
            validation.check_flag(name, flag)
        self.kdim, self.vdim = self.key_dim, self.value_dim
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        self.bias_k = self.bias_v = None
        if add_bias_kv:
            shape = (1, 1, embed_dim)
            self.bias_k = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.bias_v = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self._reset_as_torch()
        self.register_load_state_dict_pre_hook(_split_torch_projections)

    def reset_parameters(self) -> None:
        """Draw all starting values anew from torch's generator."""
        super().reset_parameters()
        self._reset_as_torch()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from query to key.

        Args:
            query: ``(L, B, E)``, ``(B, L, E)`` if batch_first, or ``(L, E)`` without a batch; or a
                strided nested tensor of such sequences, as torch's encoder makes of padded input.
            key: the same with length S and width kdim.
            value: the same with length S and width vdim.
            key_padding_mask: ``(B, S)``, or ``(S,)`` without a batch; bool, True ignores, or
                floating, added to the scores.
            need_weights: also return the attention weights, which materialises them.
            attn_mask: ``(L, S)`` or ``(B * H, L, S)``; bool, True ignores, or floating, added.
            average_attn_weights: return the weights' mean over heads.
            is_causal: hide keys after the query, beside any ``attn_mask``. In torch this is a hint
                that attn_mask is causal; with a right hint the results are the same.

        Returns:
            The output, shaped as query; and the weights ``(B, L, S)``, ``(B, H, L, S)`` if not
            averaged, each without B if query has none, or None. One more column stands for the
            learned key, and then one for the zero key. In training the weights are those after
            dropout.

        Raises:
            ValueError: shapes that do not fit.
            TypeError: an input of another dtype than the weights, outside of autocast, or an
                argument of another type.
        """
        if isinstance(query, Tensor) and query.is_nested:
            return self._forward_nested(
                query,
                key,
                value,
                key_padding_mask,
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
            )
        self._check_tensors(query=query, key=key, value=value)
        validation.check_flag("is_causal", is_causal)
        is_batched = query.dim() == 3
        query, key, value = self._batch_first(query, key, value, is_batched)
        q, k, v = self._project(query, key, value)
        k, v = self._with_extra_keys(k, v)
        extra = k.shape[2] - key.shape[1]
        mask = self._merge_masks(attn_mask, key_padding_mask, is_batched, query, key, extra)

        query_positions = key_positions = None
        if self.positions == "rotary":
            query_positions = torch.arange(extra, extra + q.shape[2], device=q.device)
            key_positions = torch.arange(k.shape[2], device=q.device)
        keys = self._stored_keys(k, key_positions)
        # With the extra keys in front, top-left order leaves them visible to all.
        options = {
            "attn_mask": mask,
            "is_causal": is_causal,
            "query_offset": extra,
            "window": None,
            "cu_seqlens": None,
        }
        weights = None
        if need_weights:
            # One call for both, so that dropout strikes the same weights.
            identity = self._identity_values(v)
            weights = self._attend(
                q, query_positions, keys, identity, backend="reference", **options
            )
            out = weights @ v
            weights = torch.cat([weights[..., extra:], weights[..., :extra]], dim=-1)
            if average_attn_weights:
                weights = weights.mean(dim=1)
        else:
            out = self._attend(q, query_positions, keys, v, backend=self.backend, **options)
        output = self._merge_heads(out)
        if not is_batched:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    @property
    def in_proj_weight(self) -> Tensor:
        """A parameter of the query projection, for ``torch.nn.TransformerEncoder`` to inspect.

        It asks whether the projections need gradients before it converts padded input to a nested
        tensor. There is no fused weight.
        """
        return next(self.q_proj.parameters())

    @property
    def in_proj_bias(self) -> Tensor:
        """As :attr:`in_proj_weight`."""
        return self.in_proj_weight

    def _forward_nested(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        need_weights: bool,
        attn_mask: Tensor | None,
        average_attn_weights: bool,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor | None]:
        if key is not query or value is not query:
            raise ValueError(
                "query is a nested tensor and key or value is another tensor: nested tensors are "
                "for self-attention; pad and pass key_padding_mask instead."
            )
        if query.layout != torch.strided or not self.batch_first:
            raise ValueError(
                f"a nested query needs the strided layout and batch_first=True; got layout "
                f"{query.layout}, batch_first={self.batch_first}."
            )
        if key_padding_mask is not None or attn_mask is not None:
            raise ValueError(
                "a nested query knows its own padding: key_padding_mask and attn_mask must be None."
            )
        padded = query.to_padded_tensor(0.0)
        lengths = torch.tensor([sequence.shape[0] for sequence in query.unbind()])
        valid = torch.arange(padded.shape[1]) < lengths[:, None]
        valid = valid.to(padded.device)
        output, weights = self.forward(
            padded, padded, padded, ~valid, need_weights, None, average_attn_weights, is_causal
        )
        return torch._nested_tensor_from_mask(output, valid, mask_check=False), weights

    def _batch_first(
        self, query: Tensor, key: Tensor, value: Tensor, is_batched: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs as ``(B, L, width)``, checked."""
        named = {"query": (query, self.embed_dim), "key": (key, self.kdim)}
        named["value"] = (value, self.vdim)
        dims = 3 if is_batched else 2
        for name, (tensor, width) in named.items():
            if tensor.dim() != dims or tensor.shape[-1] != width or query.dim() not in (2, 3):
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)} beside a query of {query.dim()} "
                    f"dimensions: expected 3 dimensions, or 2 for all without a batch, the last "
                    f"{width}."
                )
        inputs = (query, key, value)
        if not is_batched:
            query, key, value = (tensor[None] for tensor in inputs)
        elif not self.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in inputs)
        if key.shape[:2] != value.shape[:2] or key.shape[0] != query.shape[0]:
            raise ValueError(
                f"query, key and value have (batch, length) {tuple(query.shape[:2])}, "
                f"{tuple(key.shape[:2])} and {tuple(value.shape[:2])}: the batch must be the same, "
                f"and key and value need one length. batch_first is {self.batch_first}."
            )
        return query, key, value

    def _with_extra_keys(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values with the learned one and the zero one in front."""
        front_k: list[Tensor] = []
        front_v: list[Tensor] = []
        batch, heads, _, width = k.shape
        if self.bias_k is not None and self.bias_v is not None:
            for front, bias in ((front_k, self.bias_k), (front_v, self.bias_v)):
                front.append(bias.to(k.dtype).view(1, heads, 1, width).expand(batch, -1, -1, -1))
        if self.add_zero_attn:
            front_k.append(k.new_zeros(batch, heads, 1, width))
            front_v.append(front_k[-1])
        if not front_k:
            return k, v
        return torch.cat([*front_k, k], dim=2), torch.cat([*front_v, v], dim=2)

    def _merge_masks(
        self,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_batched: bool,
        query: Tensor,
        key: Tensor,
        extra: int,
    ) -> Tensor | None:
        """The operator's mask, where True attends; extra keys in front are never masked."""
        batch, length, key_length = query.shape[0], query.shape[1], key.shape[1]
        masks = []
        if attn_mask is not None:
            _check_mask("attn_mask", attn_mask, query)
            allowed = ((length, key_length), (batch * self.num_heads, length, key_length))
            if tuple(attn_mask.shape) not in allowed:
                raise ValueError(
                    f"attn_mask has shape {tuple(attn_mask.shape)}: expected (queries, keys) = "
                    f"{allowed[0]} or (batch * heads, queries, keys) = {allowed[1]}."
                )
            if attn_mask.dim() == 3:
                attn_mask = attn_mask.unflatten(0, (batch, self.num_heads))
            masks.append(attn_mask)
        if key_padding_mask is not None:
            _check_mask("key_padding_mask", key_padding_mask, query)
            expected = (batch, key_length) if is_batched else (key_length,)
            if tuple(key_padding_mask.shape) != expected:
                raise ValueError(
                    f"key_padding_mask has shape {tuple(key_padding_mask.shape)}: expected "
                    f"{expected}."
                )
            masks.append(key_padding_mask.view(batch, 1, 1, key_length))
        if not masks:
            return None
        if all(mask.dtype == torch.bool for mask in masks):
            merged = ~masks[0] if len(masks) == 1 else ~(masks[0] | masks[1])
            return merged if not extra else nn.functional.pad(merged, (extra, 0), value=True)
        dtype = torch.promote_types(query.dtype, torch.float32)
        added = [
            torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
            if mask.dtype == torch.bool
            else mask.to(dtype)
            for mask in masks
        ]
        total = added[0] if len(added) == 1 else added[0] + added[1]
        return total if not extra else nn.functional.pad(total, (extra, 0))

    @torch.no_grad()
    def _reset_as_torch(self) -> None:
        """Linear input projections as torch starts its fused one, or its separate ones."""
        is_fused = self.kdim == self.embed_dim and self.vdim == self.embed_dim
        for projection in (self.q_proj, self.k_proj, self.v_proj):
            if isinstance(projection, nn.Linear):
                # Xavier's bound for the fused (3 E, E) matrix is 2^-1/2 of that for one (E, E).
                nn.init.xavier_uniform_(projection.weight, gain=0.5**0.5 if is_fused else 1.0)
                if projection.bias is not None:
                    nn.init.zeros_(projection.bias)
        if isinstance(self.out_proj, nn.Linear) and self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                nn.init.xavier_normal_(bias)


def _check_mask(name: str, mask: Tensor, like: Tensor) -> None:
    validation.check_tensor(name, mask, like)
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"{name} is {mask.dtype}: expected bool (True ignores) or a floating dtype (added to "
            "the scores)."
        )


def _split_torch_projections(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any
) -> None:
    """Rename the projections of a torch.nn.MultiheadAttention state dict to this class's."""
    names = {}
    for site in "qkv":
        is_residual = isinstance(getattr(module, f"{site}_proj"), ResidualProjection)
        names[site] = f"{prefix}{site}_proj{'.linear' if is_residual else ''}"
    for kind in ("weight", "bias"):
        fused = state_dict.pop(f"{prefix}in_proj_{kind}", None)
        if fused is not None:
            for site, part in zip("qkv", fused.chunk(3), strict=True):
                state_dict[f"{names[site]}.{kind}"] = part
    for site in "qkv":
        separate = state_dict.pop(f"{prefix}{site}_proj_weight", None)
        if separate is not None:
            state_dict[f"{names[site]}.weight"] = separate
    if isinstance(getattr(module, "out_proj"), ResidualProjection):  # noqa: B009
        for kind in ("weight", "bias"):
            linear = state_dict.pop(f"{prefix}out_proj.{kind}", None)
            if linear is not None:
                state_dict[f"{prefix}out_proj.linear.{kind}"] = linear
