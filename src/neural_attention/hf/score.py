"""What a converted attention module scores with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .. import layer_options
from ..functional import ScoreWeights, neural_attention
from ..position_slopes import alibi_slopes, channel_slopes
from ..score import ScoreNetwork
from .settings import PURE_SCORES


class AttentionScore(nn.Module):
    """The score of one attention module, which holds it as its child ``neural_attention``.

    Args:
        score: ``dot``, ``hybrid``, ``neural`` or ``additive``.
        positions: ``model``, ``slopes``, ``alibi`` or ``none``.
        num_heads, num_kv_heads, head_dim: of the attention.
        score_network: as in :class:`neural_attention.NeuralAttention`.
        init: ``random`` or ``preserve``: the network and ALiBi's slopes start at zero.
        fallback: the attention function that the model had.
        device, dtype: of the parameters.

    Attributes:
        score_network: the :class:`neural_attention.ScoreNetwork`, or None.
        slopes: ``(H, C)``, or None.
        alibi: ``(H,)``, or None.
        returns_weights: whether this forward pass wants attention maps.
        weights_learn: whether those have a gradient.
    """

    slopes: nn.Parameter | None
    alibi: nn.Parameter | None

    def __init__(
        self,
        *,
        score: str,
        positions: str,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        score_network: Mapping[str, Any],
        init: str,
        fallback: Callable[..., tuple[Tensor, Tensor | None]],
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.score, self.positions, self.init = score, positions, init
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.fallback = fallback
        self.returns_weights, self.weights_learn = False, True
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        settings = layer_options.score_network_settings(score, score_network or None, head_dim)
        self.score_network = (
            None
            if settings is None
            else ScoreNetwork(
                head_dim,
                num_heads,
                num_kv_heads=num_kv_heads,
                zero_output=init == "preserve",
                **settings,
                **factory,
            )
        )
        self.slopes = self.alibi = None
        if positions == "slopes":
            assert self.score_network is not None
            self.slopes = nn.Parameter(torch.empty(num_heads, self.score_network.width, **factory))
        if positions == "alibi":
            self.alibi = nn.Parameter(torch.empty(num_heads, **factory))
        self._reset_positions()

    @property
    def is_own(self) -> bool:
        """Whether there is a score of our own, and not just the model's dot product."""
        return self.score_network is not None or self.alibi is not None

    @property
    def is_pure(self) -> bool:
        """Whether keys are needed only as features b, and caches store those."""
        return self.score in PURE_SCORES

    @property
    def turns_off_rotation(self) -> bool:
        """Whether the network has positions of its own, so that the model's would disturb."""
        return self.is_pure and self.positions != "model"

    @property
    def key_width(self) -> int:
        """Numbers that a cache stores for each key and head."""
        if self.is_pure and self.score_network is not None:
            return self.score_network.width
        return self.head_dim

    def key_features(self, key: Tensor) -> Tensor:
        """Features b of keys: ``(B, Hkv, L, head_dim) -> (B, Hkv, L, C)``."""
        assert self.score_network is not None
        return self.score_network.key_features(key)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        keys_are_features: bool,
        scale: float | None,
        backend: str = "auto",
        **masks: Any,
    ) -> Tensor:
        """Attention, ``(B, H, Lq, Dv)``.

        Args:
            query: ``(B, H, Lq, head_dim)``.
            key: ``(B, Hkv, Lk, head_dim)``, or features ``(B, Hkv, Lk, C)``.
            value: ``(B, Hkv, Lk, Dv)``.
            keys_are_features: which of both.
            scale: of the dot product.
            backend: as in :func:`neural_attention.neural_attention`.
            masks: further arguments of that function.
        """
        # Norms and rotations may leave float32 under autocast.
        query, key = query.to(value.dtype), key.to(value.dtype)
        network = self.score_network
        if network is None:
            a, b = query[..., :0], key[..., :0]
            weights, activation = ScoreWeights(query.new_empty(1, 0)), "relu"
        else:
            a = network.query_features(query)
            b = key if keys_are_features else network.key_features(key)
            weights, activation = network.weights(), network.activation
        if not self.is_pure:
            masks.update(q=query, k=key, scale=scale)
        out = neural_attention(
            a,
            b,
            value,
            weights,
            activation=activation,
            slopes=self.slopes,
            alibi=self.alibi,
            backend=backend,
            **masks,
        )
        assert isinstance(out, Tensor)
        return out

    def attention_weights(
        self, query: Tensor, key: Tensor, value: Tensor, **arguments: Any
    ) -> Tensor:
        """The weights that :meth:`forward` gives the values, undropped: ``(B, H, Lq, Lk)``."""
        length = value.shape[2]
        identity = torch.eye(length, dtype=value.dtype, device=value.device)
        identity = identity.expand(*value.shape[:2], length, length)
        arguments.update(backend="reference", dropout_p=0.0)
        weights: Tensor = self(query, key, identity, **arguments)
        return weights

    def reset_parameters(self) -> None:
        """Draw starting values anew from torch's generator."""
        if self.score_network is not None:
            self.score_network.reset_parameters()
        self._reset_positions()

    def extra_repr(self) -> str:
        """The settings, as ``print`` shows them."""
        return f"score={self.score!r}, positions={self.positions!r}"

    @torch.no_grad()
    def _reset_positions(self) -> None:
        if self.slopes is not None and not self.slopes.is_meta:
            with torch.device("cpu"):
                self.slopes.copy_(channel_slopes(*self.slopes.shape))
        if self.alibi is not None and not self.alibi.is_meta:
            with torch.device("cpu"):
                self.alibi.copy_(alibi_slopes(self.num_heads))
            if self.init == "preserve":
                self.alibi.zero_()
