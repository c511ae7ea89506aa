"""What the layers share: projections, score, positions, and the call of the operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import layer_options, validation
from .functional import ScoreWeights, neural_attention
from .grid_positions import GridPositions
from .position_slopes import alibi_slopes, channel_slopes
from .projection import build_projection, reset_projection
from .rotary import apply_rotary
from .score import ScoreNetwork
from .sdpa import scaled_dot_product


class AttentionBase(nn.Module):
    """Projections × score × positions; :class:`NeuralAttention` documents the arguments."""

    alibi: nn.Parameter | None
    slopes: nn.Parameter | None
    grid: GridPositions | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None,
        head_dim: int | None,
        key_dim: int | None,
        value_dim: int | None,
        score: str,
        projection: str | Mapping[str, str],
        projection_options: Mapping[str, Any] | None,
        positions: str | None,
        grid: Sequence[int] | None,
        score_network: str | Mapping[str, Any] | None,
        init: str,
        dropout: float,
        bias: bool,
        rotary_base: float | None,
        backend: str,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = _head_dim(embed_dim, num_heads, self.num_kv_heads, head_dim)
        self.key_dim = embed_dim if key_dim is None else key_dim
        self.value_dim = embed_dim if value_dim is None else value_dim
        validation.check_size("the width of keys", self.key_dim)
        validation.check_size("the width of values", self.value_dim)
        self.score = layer_options.resolve_score(score)
        self.projections = layer_options.resolve_projections(projection)
        self.positions = layer_options.resolve_positions(score, positions)
        layer_options.check_grid(grid, self.positions)
        layer_options.check_preserve(init, score, self.projections)
        network_settings = layer_options.score_network_settings(score, score_network, self.head_dim)
        self.init, self.backend = init, backend
        validation.check_probability("dropout", dropout)
        validation.check_flag("bias", bias)
        self.dropout = dropout
        self._check_backend()
        self.rotary_base = self._rotary_base(rotary_base, has_grid=grid is not None)

        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        inner, key_inner = num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        sizes = {
            "q": (embed_dim, inner),
            "k": (self.key_dim, key_inner),
            "v": (self.value_dim, key_inner),
            "o": (inner, embed_dim),
        }
        options = layer_options.check_projection_options(projection_options, self.projections)
        built = {
            site: build_projection(
                kind,
                sizes[site][0],
                sizes[site][1],
                bias=bias,
                init=init if kind == "residual" else "random",
                **options,
                **factory,
            )
            for site, kind in self.projections.items()
        }
        self.q_proj, self.k_proj, self.v_proj = built["q"], built["k"], built["v"]
        self.out_proj = built["o"]
        self.score_network = (
            None
            if network_settings is None
            else ScoreNetwork(
                self.head_dim,
                num_heads,
                num_kv_heads=self.num_kv_heads,
                zero_output=score == "hybrid" and init == "preserve",
                **network_settings,
                **factory,
            )
        )
        self.slopes = self.alibi = self.grid = None
        if grid is not None:
            width = 0 if self.score_network is None else self.score_network.width
            heads = (num_heads, self.num_kv_heads)
            self.grid = GridPositions(
                grid, self.positions, *heads, width, self.rotary_base, **factory
            )
        elif self.positions == "slopes":
            assert self.score_network is not None
            self.slopes = nn.Parameter(torch.empty(num_heads, self.score_network.width, **factory))
        elif self.positions == "alibi":
            self.alibi = nn.Parameter(torch.empty(num_heads, **factory))
        self._reset_positions()

    def reset_parameters(self) -> None:
        """Draw all starting values anew from torch's generator."""
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            reset_projection(projection)
        if self.score_network is not None:
            self.score_network.reset_parameters()
        self._reset_positions()

    def extra_repr(self) -> str:
        """The settings, as ``print`` shows them."""
        parts = [f"{self.embed_dim}", f"num_heads={self.num_heads}"]
        if self.num_kv_heads != self.num_heads:
            parts.append(f"num_kv_heads={self.num_kv_heads}")
        parts += [f"head_dim={self.head_dim}", f"score={self.score!r}"]
        kinds = {site: kind for site, kind in self.projections.items() if kind != "linear"}
        if kinds:
            parts.append(f"projection={kinds}")
        parts.append(f"positions={self.positions!r}")
        if self.init != "random":
            parts.append(f"init={self.init!r}")
        if self.dropout:
            parts.append(f"dropout={self.dropout}")
        if self.backend != "auto":
            parts.append(f"backend={self.backend!r}")
        return ", ".join(parts)

    def _check_tensors(self, **inputs: Tensor) -> None:
        """That the inputs of q, k and v are tensors in the dtype of the layer's weights."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        for (name, tensor), projection in zip(inputs.items(), projections, strict=True):
            validation.check_tensor(name, tensor)
            dtype, device = _weight_dtype(projection), tensor.device.type
            # Quantised weights have dtypes of their own and take what they take.
            if dtype == tensor.dtype or dtype not in validation.DTYPES:
                continue
            if device == "meta" or not torch.is_autocast_enabled(device):
                raise TypeError(
                    f"{name} is {tensor.dtype} and the layer's weights are {dtype}: convert one of "
                    "them with .to(dtype), or call the layer under torch.autocast."
                )

    def _project(self, x: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``(B, H, Lq, D)``, keys and values ``(B, Hkv, Lk, D)``, in one dtype."""
        q, k, v = self.q_proj(x), self.k_proj(key), self.v_proj(value)
        # Autocast leaves the result of a projection that ends in a norm in float32.
        return (
            _split_heads(q, self.num_heads).to(v.dtype),
            _split_heads(k, self.num_kv_heads).to(v.dtype),
            _split_heads(v, self.num_kv_heads),
        )

    def _stored_keys(self, k: Tensor, positions: Tensor | None) -> Tensor:
        """What the score needs of keys: b, or k, or both side by side (k first)."""
        rotated = self._rotate(k, positions)
        if self.score_network is None:
            return rotated
        b = self.score_network.key_features(k if self.score == "hybrid" else rotated)
        if self.grid is not None:
            b = self.grid.shift_keys(b)
        return torch.cat([rotated, b], dim=-1) if self.score == "hybrid" else b

    def _attend(
        self,
        q: Tensor,
        positions: Tensor | None,
        keys: Tensor,
        v: Tensor,
        *,
        backend: str,
        **masks: Any,
    ) -> Tensor:
        """The operator on queries and stored keys: ``(B, H, Lq, Dv)``."""
        rotated = self._rotate(q, positions)
        dropout_p = self.dropout if self.training else 0.0
        masks.update(alibi=self.alibi, dropout_p=dropout_p)
        if self.grid is not None:
            mask = self.grid.mask_with_distances(masks["attn_mask"], q, keys.shape[2])
            masks["attn_mask"] = mask
        if backend == "sdpa":
            return scaled_dot_product(rotated, keys, v, **masks)
        arguments: dict[str, Any] = {"backend": backend, "slopes": self.slopes, **masks}
        if self.score_network is None:
            a, b = q[..., :0], keys[..., :0]
            weights, activation = ScoreWeights(q.new_empty(1, 0)), "relu"
            arguments.update(q=rotated, k=keys)
        else:
            weights, activation = self.score_network.weights(), self.score_network.activation
            if self.score == "hybrid":
                a, b = self.score_network.query_features(q), keys[..., self.head_dim :]
                arguments.update(q=rotated, k=keys[..., : self.head_dim])
            else:
                a, b = self.score_network.query_features(rotated), keys
            if self.grid is not None:
                a = self.grid.shift_queries(a)
        out = neural_attention(a, b, v, weights, activation=activation, **arguments)
        assert isinstance(out, Tensor)
        return out

    def _identity_values(self, v: Tensor) -> Tensor:
        """Values that make the output the attention weights: ``(B, Hkv, Lk, Lk)``."""
        length = v.shape[2]
        eye = torch.eye(length, dtype=v.dtype, device=v.device)
        return eye.expand(*v.shape[:2], length, length)

    def _merge_heads(self, out: Tensor) -> Tensor:
        """``(B, H, L, D) -> (B, L, embed_dim)`` by the output projection."""
        y: Tensor = self.out_proj(out.transpose(1, 2).flatten(2))
        return y

    def _rotate(self, x: Tensor, positions: Tensor | None) -> Tensor:
        if positions is None:
            return x
        if self.grid is not None:
            return self.grid.rotate(x, positions)
        return apply_rotary(x, positions, self.rotary_base)

    @torch.no_grad()
    def _reset_positions(self) -> None:
        if self.slopes is not None and not self.slopes.is_meta:
            with torch.device("cpu"):
                self.slopes.copy_(channel_slopes(*self.slopes.shape))
        if self.alibi is not None and not self.alibi.is_meta:
            with torch.device("cpu"):
                self.alibi.copy_(alibi_slopes(self.num_heads))
        if self.grid is not None:
            self.grid.reset_parameters()

    def _check_backend(self) -> None:
        if self.backend == "sdpa":
            if self.score != "dot":
                raise ValueError(
                    f"backend='sdpa' is torch's kernel for dot products and score is "
                    f"{self.score!r}: use score='dot', or another backend."
                )
        else:
            validation.check_backend(self.backend)

    def _rotary_base(self, base: float | None, *, has_grid: bool) -> float:
        if self.positions != "rotary" and base is not None:
            raise ValueError(
                f"rotary_base is {base} and positions is {self.positions!r}: leave it out, or use "
                "positions='rotary'."
            )
        if base is not None:
            validation.check_positive("rotary_base", base)
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"rotary positions turn pairs of channels and head_dim is {self.head_dim}: use an "
                "even head_dim or other positions."
            )
        if self.positions == "rotary" and has_grid and self.head_dim % 4:
            raise ValueError(
                "rotary positions on a grid turn pairs of channels in each half of a head and "
                f"head_dim is {self.head_dim}: use a multiple of 4 or other positions."
            )
        # Heo et al. 2024, arXiv 2403.13298: a side of a grid is short.
        usual = 100.0 if has_grid else 10000.0
        return usual if base is None else base


def _weight_dtype(projection: nn.Module) -> torch.dtype | None:
    for weight in projection.parameters():
        return weight.dtype
    return None


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _head_dim(embed_dim: int, num_heads: int, num_kv_heads: int, head_dim: int | None) -> int:
    sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
    if head_dim is not None:
        sizes["head_dim"] = head_dim
    for name, size in sizes.items():
        validation.check_size(name, size)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_kv_heads is {num_kv_heads} and num_heads {num_heads}: the first must divide the "
            "second (grouped-query attention)."
        )
    if head_dim is not None:
        return head_dim
    if embed_dim % num_heads:
        raise ValueError(
            f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}: change one of them "
            "or give head_dim."
        )
    return embed_dim // num_heads
