"""The score network: its configuration and its module."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import starting_values, validation
from .functional import ScoreWeights
from .headwise import HeadwiseLinear, compose, of_heads, pair_scores
from .presets import PRESETS, preset_settings
from .starting_values import INITS

__all__ = ["INITS", "PRESETS", "ScoreNetwork", "preset_settings"]

# The most elements of a materialised hidden layer at a time.
_CHUNK = 1 << 22


class ScoreNetwork(nn.Module):
    r"""A small feed-forward network that scores a query against a key, in place of a dot product.

    .. math::
        a_i = W_q q'_i + c, \quad b_j = W_k k'_j, \qquad
        s_{ij} = w^\top \sigma(a_i + b_j) \quad\text{or}\quad
                 w^\top \sigma(W_2\,\sigma(a_i + b_j) + c_2)

    where q' and k' are q and k, or their images under a ``bottleneck``. The first layer on the
    concatenation [q'; k'] is exactly this sum, so nothing of size Lq × Lk × C is needed: hand
    :meth:`features` and :meth:`weights` to :func:`neural_attention.neural_attention`. A bias of the
    last layer would drop out of the softmax and is left out.

    Starting values (``init``), which q, k ~ N(0, 1) turn into scores with a standard deviation over
    the keys of about 1, and which are never dead:

    ``difference_pairs``
        channels 2m and 2m+1 are exact negatives, a = ±P q and b = ∓P k, with equal negative output
        weights, so that with relu the score starts as −Σ_m \|P_m q − P_m k\|: content matching by
        distance. A second hidden layer starts with positive weights. The default; impossible for
        odd activations (tanh), where the pairs cancel.
    ``random``
        independent directions; a second hidden layer's bias centres its units, so that they fire
        for about half of all pairs. The default for odd activations.
    ``torch``
        that of ``nn.Linear``, as in the published code, for replication alone: unscaled, and with
        two narrow hidden layers of relu often dead (constant scores).

    Args:
        head_dim: width of q and k.
        num_heads: H.
        width: C, channels of the first hidden layer.
        hidden: ``()`` for one hidden layer, or ``(C2,)`` for two.
        activation: σ, see :func:`neural_attention.neural_attention`.
        share_heads: one network for all heads, as in the published code.
        num_kv_heads: Hkv, a divisor of num_heads (grouped-query attention); num_heads if None.
        bottleneck: d', width of q' and k'; None for no bottleneck.
        init: ``difference_pairs``, ``random`` or ``torch``; None chooses as above.
        zero_output: start with w = 0, so that a hybrid score begins as its dot product.
        device, dtype: of the parameters.

    Raises:
        ValueError: a size, name or combination that does not fit.
        TypeError: a value of another type.

    Source:
        DiGiugno & Mahmood 2025, arXiv 2502.17206.

    >>> network = ScoreNetwork(head_dim=64, num_heads=8, width=16)
    >>> a, b = network.features(torch.randn(1, 8, 128, 64), torch.randn(1, 8, 128, 64))
    >>> a.shape, network.weights().output.shape
    (torch.Size([1, 8, 128, 16]), torch.Size([8, 16]))
    """

    query: HeadwiseLinear | None
    key: HeadwiseLinear | None

    def __init__(
        self,
        head_dim: int = 64,
        num_heads: int = 8,
        width: int = 16,
        hidden: Iterable[int] = (),
        activation: str = "relu",
        share_heads: bool = False,
        *,
        num_kv_heads: int | None = None,
        bottleneck: int | None = None,
        init: str | None = None,
        zero_output: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.head_dim, self.num_heads, self.width = head_dim, num_heads, width
        if not isinstance(hidden, Iterable) or isinstance(hidden, str):
            raise TypeError(
                f"hidden is {hidden!r}: expected () for one hidden layer, or (C2,) for two."
            )
        self.hidden_widths = tuple(hidden)
        self.activation, self.share_heads = activation, share_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.bottleneck, self.zero_output = bottleneck, zero_output
        self._check_sizes()
        self.init = starting_values.choose_init(init, activation)
        if self.init == "torch" and self.hidden_widths and activation == "relu":
            warnings.warn(
                f"init='torch' with two hidden layers of relu (width {width}) can start dead: "
                "attention exactly uniform, with no gradient to queries and keys. With N(0, 1) "
                "queries and keys 29% of starts did at width 2, 21% at 3, 2% at 4, none at 8. "
                "init='difference_pairs' and 'random' never do.",
                stacklevel=2,
            )

        heads = 1 if share_heads else num_heads
        key_heads = 1 if share_heads else self.num_kv_heads
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        first_in = head_dim
        self.query_bottleneck = self.key_bottleneck = None
        if bottleneck is not None:
            first_in = bottleneck
            self.query_bottleneck = HeadwiseLinear(
                heads, head_dim, bottleneck, bias=True, **factory
            )
            self.key_bottleneck = HeadwiseLinear(
                key_heads, head_dim, bottleneck, bias=True, **factory
            )
        self.query = HeadwiseLinear(heads, first_in, width, bias=True, **factory)
        self.key = HeadwiseLinear(key_heads, first_in, width, bias=False, **factory)
        self.hidden = (
            HeadwiseLinear(heads, width, self.hidden_widths[0], bias=True, **factory)
            if self.hidden_widths
            else None
        )
        last = self.hidden_widths[0] if self.hidden_widths else width
        self.output = nn.Parameter(torch.empty(heads, last, **factory))
        self.reset_parameters()

    @classmethod
    def from_preset(
        cls, name: str, head_dim: int = 64, num_heads: int = 8, **overrides: Any
    ) -> ScoreNetwork:
        """A published network by name; keywords override its settings.

        :data:`neural_attention.presets.PRESETS` lists them. Widths that a preset
        derives from its bottleneck follow an overridden ``bottleneck``.

        Raises:
            ValueError: no preset has this name.

        >>> network = ScoreNetwork.from_preset("release", 64, 8, init="difference_pairs")
        >>> sum(parameter.numel() for parameter in network.parameters())
        274
        """
        return cls(head_dim, num_heads, **preset_settings(name, head_dim, overrides))

    def to_config(self) -> dict[str, Any]:
        """The constructor's keywords as plain values, for :meth:`from_config`.

        Raises:
            ValueError: parts of the network were folded into projections.
        """
        if self.query is None or self.key is None:
            raise ValueError(
                "this score network's first layer was folded into a projection, so no "
                "configuration describes it: save the configuration of the layer before fold()."
            )
        return {
            "head_dim": self.head_dim,
            "num_heads": self.num_heads,
            "width": self.width,
            "hidden": list(self.hidden_widths),
            "activation": self.activation,
            "share_heads": self.share_heads,
            "num_kv_heads": self.num_kv_heads,
            "bottleneck": self.bottleneck,
            "init": self.init,
            "zero_output": self.zero_output,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **factory: Any) -> ScoreNetwork:
        """A new network from :meth:`to_config`'s dictionary; ``device`` and ``dtype`` may be added.

        >>> config = ScoreNetwork(head_dim=32, num_heads=2, hidden=(4,)).to_config()
        >>> ScoreNetwork.from_config(config).hidden_widths
        (4,)
        """
        return cls(**config, **factory)

    def query_features(self, q: Tensor) -> Tensor:
        """Query features a: ``(B, H, Lq, head_dim) -> (B, H, Lq, C)``."""
        if self.query_bottleneck is not None:
            q = self.query_bottleneck(q)
        return q if self.query is None else self.query(q)

    def key_features(self, k: Tensor) -> Tensor:
        """Key features b: ``(B, Hkv, Lk, head_dim) -> (B, Hkv, Lk, C)``."""
        if self.key_bottleneck is not None:
            k = self.key_bottleneck(k)
        return k if self.key is None else self.key(k)

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Features a and b, the operator's inputs: ``(B, H, Lq, C)`` and ``(B, Hkv, Lk, C)``."""
        return self.query_features(q), self.key_features(k)

    def weights(self) -> ScoreWeights:
        """The layers behind the first, as the operator takes them."""
        if self.hidden is None:
            return ScoreWeights(self.output)
        assert self.hidden.bias is not None
        return ScoreWeights(self.output, ((self.hidden.weight, self.hidden.bias),))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores before the softmax, materialised: ``(B, H, Lq, Lk)``. To look at, not to train."""
        a, b = self.features(q, k)
        b = b.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
        weights = self._expanded_weights(a.dtype)
        return torch.stack(
            [pair_scores(*pair, weights, self.activation) for pair in zip(a, b, strict=True)]
        )

    @torch.no_grad()
    def dead_heads(self, a: Tensor, b: Tensor, slopes: Tensor | None = None) -> Tensor:
        """Which heads score all keys alike for every query: uniform attention, and no gradient.

        Args:
            a: features of a sample of queries, as from :meth:`features`.
            b: features of at least two keys.
            slopes: ``(H or 1, C)``, the layer's slopes over relative position, if it has any.

        Returns:
            bool ``(H,)``.

        Raises:
            ValueError: fewer than two keys, which any network scores alike.

        >>> network = ScoreNetwork(head_dim=8, num_heads=2)
        >>> network.dead_heads(*network.features(torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)))
        tensor([False, False])
        """
        if b.shape[2] < 2:
            raise ValueError(f"b has {b.shape[2]} keys: at least two are needed to compare scores.")
        heads = a.shape[1]
        # Rounding to a shorter dtype would hide small differences.
        a, b = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (a, b))
        b = b.repeat_interleave(heads // b.shape[1], dim=1)
        weights = self._expanded_weights(a.dtype)
        if slopes is not None:
            slopes = slopes.to(a.dtype).expand(heads, -1)
        alive = [
            any(
                _scores_vary(
                    a[entry, one],
                    b[entry, one],
                    of_heads(weights, one),
                    self.activation,
                    None if slopes is None else slopes[one],
                )
                for entry in range(a.shape[0])
            )
            for one in (slice(head, head + 1) for head in range(heads))
        ]
        return ~torch.tensor(alive, device=a.device)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw starting values anew from torch's generator, as ``init`` says.

        Raises:
            ValueError: parts of the network were folded into projections.
        """
        if self.query is None or self.key is None:
            raise ValueError("a folded score network has no starting values: build a new one.")
        queries = [layer for layer in (self.query_bottleneck, self.query) if layer is not None]
        keys = [layer for layer in (self.key_bottleneck, self.key) if layer is not None]
        if self.init == "torch":
            self._reset_as_torch()
        else:
            pairs = self.init == "difference_pairs"
            for query, key in zip(queries, keys, strict=True):
                starting_values.reset_first_layer(
                    query, key, tied=pairs, paired=pairs and query is self.query
                )
            if self.hidden is not None:
                starting_values.reset_second_layer(self.hidden, paired=pairs)
            if pairs:
                self.output.fill_(-starting_values.even_part_sign(self.activation))
            else:
                self.output.normal_()
            if not self.output.is_meta:
                starting_values.centre_and_scale(
                    (queries, keys), self.hidden, self.output, self.activation, centre=not pairs
                )
        if self.zero_output:
            self.output.zero_()

    def fold(self) -> ScoreNetwork:
        """A copy for inference whose bottleneck is merged into the first layer: same scores.

        Raises:
            ValueError: there is no bottleneck.

        >>> ScoreNetwork.from_preset("paper", 64, 8).fold().bottleneck is None
        True
        """
        if self.query_bottleneck is None or self.key_bottleneck is None:
            raise ValueError(
                "this score network has no bottleneck, and between its other layers stands an "
                "activation: nothing folds."
            )
        assert self.query is not None
        assert self.key is not None
        folded = copy.deepcopy(self)
        folded.query_bottleneck = folded.key_bottleneck = folded.bottleneck = None
        query_weight, query_bias = compose(self.query, self.query_bottleneck)
        key_weight, key_bias = compose(self.key, self.key_bottleneck)
        # a and b are added, so the constant of b may as well stand in a.
        group = query_weight.shape[0] // key_weight.shape[0]
        query_bias = query_bias + key_bias.repeat_interleave(group, dim=0)
        dtype = self.output.dtype
        assert folded.query is not None
        assert folded.key is not None
        folded.query.weight = nn.Parameter(query_weight.to(dtype))
        folded.query.bias = nn.Parameter(query_bias.to(dtype))
        folded.key.weight = nn.Parameter(key_weight.to(dtype))
        return folded

    def extra_repr(self) -> str:
        """The settings, as ``print`` shows them."""
        parts = [f"width={self.width}", f"activation={self.activation!r}", f"init={self.init!r}"]
        if self.hidden_widths:
            parts.insert(1, f"hidden={self.hidden_widths}")
        if self.bottleneck is not None:
            parts.insert(0, f"bottleneck={self.bottleneck}")
        if self.share_heads:
            parts.append("share_heads=True")
        return ", ".join(parts)

    def _check_sizes(self) -> None:
        sizes = {"head_dim": self.head_dim, "num_heads": self.num_heads, "width": self.width}
        sizes["num_kv_heads"] = self.num_kv_heads
        if self.bottleneck is not None:
            sizes["bottleneck"] = self.bottleneck
        for index, size in enumerate(self.hidden_widths):
            sizes[f"hidden[{index}]"] = size
        for name, size in sizes.items():
            validation.check_size(name, size)
        validation.check_flag("share_heads", self.share_heads)
        validation.check_flag("zero_output", self.zero_output)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads is {self.num_kv_heads} and num_heads {self.num_heads}: the first "
                "must divide the second (grouped-query attention)."
            )
        if len(self.hidden_widths) > 1:
            raise ValueError(
                f"hidden is {self.hidden_widths}: expected () for one hidden layer, or (C2,) for "
                "two; deeper score networks are not supported."
            )

    def _expanded_weights(self, dtype: torch.dtype) -> ScoreWeights:
        output, hidden = self.weights()
        return ScoreWeights(
            output.to(dtype).expand(self.num_heads, -1),
            tuple(
                (
                    weight.to(dtype).expand(self.num_heads, -1, -1),
                    bias.to(dtype).expand(self.num_heads, -1),
                )
                for weight, bias in hidden
            ),
        )

    def _reset_as_torch(self) -> None:
        first_in = self.bottleneck or self.head_dim
        for layer, fan_in in (
            (self.query_bottleneck, self.head_dim),
            (self.key_bottleneck, self.head_dim),
            # In the published code these two are one Linear over the concatenation.
            (self.query, 2 * first_in),
            (self.key, 2 * first_in),
            (self.hidden, self.width),
        ):
            for parameter in () if layer is None else layer.parameters():
                starting_values.reset_as_torch(parameter, fan_in)
        starting_values.reset_as_torch(self.output, self.output.shape[1])


def _scores_vary(
    a: Tensor, b: Tensor, weights: ScoreWeights, activation: str, slopes: Tensor | None
) -> bool:
    """Whether any query of ``(1, Lq, C)`` scores the keys of ``(1, Lk, C)`` differently."""
    step = max(1, _CHUNK // (b.shape[1] * max(1, b.shape[2])))
    for start in range(0, a.shape[1], step):
        offset = b.shape[1] - a.shape[1] + start
        scores = pair_scores(a[:, start : start + step], b, weights, activation, slopes, offset)
        spread = scores.amax(-1) - scores.amin(-1)
        # Rounding alone moves constant scores by this much.
        tolerance = 8 * torch.finfo(a.dtype).eps * scores.abs().amax(-1)
        if bool((spread > tolerance).any()):
            return True
    return False
