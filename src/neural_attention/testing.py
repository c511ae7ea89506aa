"""Factories and yardsticks that the tests of operators and backends share.

Needs torch alone, so that a backend outside this package can be tested with it too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from .backends import NAMES, triton, unavailable_reason
from .functional import ScoreWeights, neural_attention
from .philox import dropout_keep

# Every test of the operator runs on each of these: all that compute on this machine's CPU.
BACKENDS: tuple[str, ...] = tuple(
    name
    for name in NAMES
    if unavailable_reason(name) is None and (name != "triton" or triton.interprets())
)
# Those that compute in float64, which gradcheck needs.
FLOAT64_BACKENDS: tuple[str, ...] = ("reference", "blocked")

_PARAMETERS = ("output", "hidden_weight", "hidden_bias", "slopes", "alibi", "attn_mask")

# How far a backend may be from float64: FACTOR times as far as eager torch in the same dtype, and
# beyond that one unit of the inputs' precision and a few of the precision computed in, both of the
# largest value: the sums over all pairs in a parameter's gradient may come in another order, which
# over n terms is worth about √n units: 84 for the 7,000 pairs of a head in the largest tests.
FACTOR = 2.0
WORKING_ULPS = 64.0

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "leaky_relu:0.2": lambda x: F.leaky_relu(x, 0.2),
    "hardswish": F.hardswish,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}
ACTIVATIONS: tuple[str, ...] = tuple(_ACTIVATIONS)


@dataclass(frozen=True)
class OperatorInputs:
    """The arguments of one call of :func:`neural_attention.neural_attention`.

    Attributes:
        tensors: by name: ``a, b, v, output``, and, where present, ``hidden_weight, hidden_bias, q,
            k, slopes, alibi, attn_mask``.
        options: the other keyword arguments.
        seed: what the values, and a dropout mask, were drawn from.

    >>> inputs = operator_inputs(queries=5, keys=7, is_causal=True)
    >>> out, lse = inputs.run("reference")
    >>> out.shape, lse.shape
    (torch.Size([2, 4, 5, 8]), torch.Size([2, 4, 5]))
    """

    tensors: dict[str, Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __getitem__(self, name: str) -> Tensor:
        """A tensor by its name."""
        return self.tensors[name]

    def __repr__(self) -> str:
        """Shapes, dtypes, options and seed: all that is needed to build it again."""
        shapes = ", ".join(
            f"{name} {tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}"
            for name, t in self.tensors.items()
        )
        return f"OperatorInputs(seed={self.seed}, {shapes}, {self.options})"

    def arguments(self) -> dict[str, Any]:
        """Everything as keyword arguments of ``neural_attention``."""
        tensors = dict(self.tensors)
        hidden_weight = tensors.pop("hidden_weight", None)
        hidden_bias = tensors.pop("hidden_bias", None)
        hidden = (
            () if hidden_weight is None or hidden_bias is None else ((hidden_weight, hidden_bias),)
        )
        return tensors | {"weights": ScoreWeights(tensors.pop("output"), hidden)} | self.options

    def run(self, backend: str) -> tuple[Tensor, Tensor]:
        """Output and lse of a backend; a dropout mask follows from ``seed`` alone."""
        torch.manual_seed(self.seed)
        out, lse = neural_attention(**self.arguments(), backend=backend, return_lse=True)
        return out, lse

    def run_eagerly(self) -> tuple[Tensor, Tensor]:
        """Output and lse of :func:`eager_attention`, with the dropout mask that ``run`` uses."""
        arguments, keep = self.arguments(), None
        if self.options.get("dropout_p"):
            torch.manual_seed(self.seed)
            drawn = torch.randint(-(2**63), 2**63 - 1, (1,), device=self["v"].device)
            sizes = (*self["a"].shape[:3], self["b"].shape[2])
            keep = dropout_keep(drawn, self.options["dropout_p"], *(slice(0, n) for n in sizes))
        return eager_attention(**arguments, keep=keep)

    def leaves(self) -> dict[str, Tensor]:
        """The tensors that want a gradient."""
        return {name: tensor for name, tensor in self.tensors.items() if tensor.requires_grad}

    def with_tensors(self, **tensors: Tensor) -> OperatorInputs:
        """The same call with some tensors replaced."""
        return replace(self, tensors=self.tensors | tensors)

    def with_options(self, **options: Any) -> OperatorInputs:
        """The same call with some options replaced."""
        return replace(self, options=self.options | options)

    def to(self, dtype: torch.dtype) -> OperatorInputs:
        """The same values as leaves of another dtype; boolean tensors stay."""

        def cast(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            return tensor.detach().to(dtype, copy=True).requires_grad_(tensor.requires_grad)

        return replace(self, tensors={name: cast(t) for name, t in self.tensors.items()})


def operator_inputs(
    *,
    batch: int = 2,
    heads: int = 4,
    key_heads: int | None = None,
    queries: int = 17,
    keys: int | None = None,
    channels: int = 5,
    value_width: int = 8,
    hidden_width: int | None = None,
    dot_width: int | None = None,
    slopes: bool = False,
    alibi: bool = False,
    share_heads: bool = False,
    mask: Literal["bool", "float"] | None = None,
    mask_shape: tuple[int, ...] | None = None,
    activation: str = "relu",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    requires_grad: bool = True,
    **options: Any,
) -> OperatorInputs:
    """Random arguments of the operator; scores have a spread of about one.

    Args:
        batch: B.
        heads: H.
        key_heads: Hkv; H if None.
        queries: Lq.
        keys: Lk; Lq if None.
        channels: C.
        value_width: Dv.
        hidden_width: width of a second hidden layer; None for one hidden layer.
        dot_width: width of q and k; None for no dot product.
        slopes: whether channels have slopes over relative position.
        alibi: whether heads have.
        share_heads: one set of weights and slopes for all heads.
        mask: kind of ``attn_mask``: three in ten entries are hidden, none in the first column.
        mask_shape: its shape; (B, H, Lq, Lk) if None.
        activation: of the score network.
        dtype: of a, b, v, q, k. Parameters and a float mask are float32, or float64 with float64.
        device: of all tensors.
        seed: of the values; the global generator is left alone.
        requires_grad: of every floating tensor.
        **options: further keyword arguments of ``neural_attention``, such as ``is_causal``.

    >>> operator_inputs(heads=6, key_heads=2, dot_width=3)["k"].shape
    torch.Size([2, 2, 17, 3])
    """
    key_heads = heads if key_heads is None else key_heads
    keys = queries if keys is None else keys
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64) * scale

    sets = 1 if share_heads else heads
    last = channels if hidden_width is None else hidden_width
    tensors = {
        "a": draw(batch, heads, queries, channels),
        "b": draw(batch, key_heads, keys, channels),
        "v": draw(batch, key_heads, keys, value_width),
        "output": draw(sets, last, scale=1 / math.sqrt(max(last, 1))),
    }
    if hidden_width is not None:
        tensors["hidden_weight"] = draw(sets, hidden_width, channels, scale=1 / math.sqrt(channels))
        tensors["hidden_bias"] = draw(sets, hidden_width, scale=0.5)
    if dot_width is not None:
        tensors["q"] = draw(batch, heads, queries, dot_width)
        tensors["k"] = draw(batch, key_heads, keys, dot_width)
    if slopes:
        tensors["slopes"] = draw(sets, channels, scale=0.1)
    if alibi:
        tensors["alibi"] = draw(heads, scale=0.1)
    if mask is not None:
        shape = (batch, heads, queries, keys) if mask_shape is None else mask_shape
        visible = torch.rand(shape, generator=generator) < 0.7
        if shape:
            visible[..., :1] = True
        additive = draw(*shape).masked_fill(~visible, -math.inf)
        tensors["attn_mask"] = visible if mask == "bool" else additive

    def finish(name: str, tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.bool:
            return tensor.to(device)
        wanted = torch.promote_types(dtype, torch.float32) if name in _PARAMETERS else dtype
        return tensor.to(device, wanted).requires_grad_(requires_grad)

    return OperatorInputs(
        {name: finish(name, tensor) for name, tensor in tensors.items()},
        {"activation": activation} | options,
        seed,
    )


def eager_attention(
    a: Tensor,
    b: Tensor,
    v: Tensor,
    weights: ScoreWeights,
    *,
    activation: str,
    q: Tensor | None = None,
    k: Tensor | None = None,
    scale: float | None = None,
    slopes: Tensor | None = None,
    alibi: Tensor | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    query_offset: int | Tensor | None = None,
    window: tuple[int | None, int | None] | None = None,
    key_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dropout_p: float = 0.0,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The operator as one would write it in plain torch, in the inputs' own dtype throughout.

    Shares no code with the operator. In float64 it is the oracle; in a lower precision its error is
    the yardstick of a backend's. Entries that are hidden must be finite.

    Arguments are those of ``neural_attention``; ``keep``, bool ``(B, H, Lq, Lk)``, says which
    weights survive dropout.

    Returns:
        Output ``(B, H, Lq, Dv)`` and lse ``(B, H, Lq)``, both in the inputs' dtype.

    >>> inputs = operator_inputs(heads=2, queries=3)
    >>> eager_attention(**inputs.arguments())[0].shape
    torch.Size([2, 2, 3, 8])
    """
    dtype = v.dtype
    batch, heads, queries, channels = a.shape
    keys = b.shape[2]
    b, v = (_for_every_query_head(tensor, heads) for tensor in (b, v))
    distance = _distance(batch, queries, keys, query_offset, v.device)

    scores = torch.zeros(batch, heads, queries, keys, dtype=dtype, device=v.device)
    if channels:
        hidden = a.unsqueeze(3) + b.unsqueeze(2)
        if slopes is not None:
            ramps = slopes.view(1, -1, 1, 1, channels) * distance[..., None].to(slopes.dtype)
            hidden = hidden + ramps.to(dtype)
        hidden = _ACTIVATIONS[activation](hidden)
        for weight, bias in weights.hidden:
            mixed = (hidden.unsqueeze(-2) * weight[None, :, None, None].to(dtype)).sum(-1)
            hidden = _ACTIVATIONS[activation](mixed + bias[None, :, None, None].to(dtype))
        scores = (hidden * weights.output[None, :, None, None].to(dtype)).sum(-1)
    if q is not None and k is not None:
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        scores = scores + factor * (q @ _for_every_query_head(k, heads).mT)
    if alibi is not None:
        scores = scores + (alibi.view(1, -1, 1, 1) * distance.to(alibi.dtype)).to(dtype)
    visible = _visible(distance, is_causal, window, key_lengths, cu_seqlens)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    elif attn_mask is not None:
        visible = visible & (attn_mask > -math.inf)
        scores = scores + attn_mask.masked_fill(attn_mask == -math.inf, 0).to(dtype)

    visible = visible.expand(scores.shape)
    # A row that sees nothing is computed as if it saw all, and then set: no NaN arises on the way.
    sees_nothing = ~visible.any(-1)
    scores = scores.masked_fill(~(visible | sees_nothing[..., None]), -math.inf)
    probabilities = scores.softmax(-1).masked_fill(sees_nothing[..., None], 0)
    lse = scores.logsumexp(-1).masked_fill(sees_nothing, -math.inf)
    if keep is not None:
        probabilities = probabilities * keep / (1 - dropout_p)
    return probabilities @ v, lse


def _for_every_query_head(tensor: Tensor, heads: int) -> Tensor:
    """Key head h // group for query head h."""
    group = heads // tensor.shape[1]
    return tensor[:, [head // group for head in range(heads)]]


def _distance(
    batch: int, queries: int, keys: int, query_offset: int | Tensor | None, device: torch.device
) -> Tensor:
    """Key position minus query position, (B, 1, Lq, Lk)."""
    offset = keys - queries if query_offset is None else query_offset
    offsets = torch.as_tensor(offset, device=device).expand(batch)
    distance = torch.zeros(batch, 1, queries, keys, dtype=torch.int64, device=device)
    distance += torch.arange(keys, device=device)
    distance -= torch.arange(queries, device=device).unsqueeze(1)
    distance -= offsets.view(batch, 1, 1, 1)
    return distance


def _visible(
    distance: Tensor,
    is_causal: bool,
    window: tuple[int | None, int | None] | None,
    key_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
) -> Tensor:
    """Which pairs all masks but the explicit one allow, (B, 1, Lq, Lk)."""
    visible = torch.ones_like(distance, dtype=torch.bool)
    if is_causal:
        visible &= distance <= 0
    if window is not None:
        left, right = window
        visible &= -distance <= (math.inf if left is None else left)
        visible &= distance <= (math.inf if right is None else right)
    if key_lengths is not None:
        for entry, length in enumerate(key_lengths.tolist()):
            visible[entry, ..., length:] = False
    if cu_seqlens is not None:
        documents = torch.zeros_like(visible)
        bounds = cu_seqlens.tolist()
        for start, stop in pairwise(bounds):
            documents[..., start:stop, start:stop] = True
        visible &= documents
    return visible


def gradients(
    inputs: OperatorInputs, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor
) -> dict[str, Tensor]:
    """Gradients of all leaves, given those of output and lse."""
    leaves = inputs.leaves()
    upstream = [(out, grad_out.to(out.dtype)), (lse, grad_lse.to(lse.dtype))]
    dependent = [pair for pair in upstream if pair[0].requires_grad]
    found = torch.autograd.grad(
        [output for output, _ in dependent],
        list(leaves.values()),
        [gradient for _, gradient in dependent],
        # Without channels nothing depends on a, b and the weights.
        materialize_grads=True,
    )
    return dict(zip(leaves, found, strict=True))


def output_gradients(inputs: OperatorInputs) -> tuple[Tensor, Tensor]:
    """Random gradients of output and lse, exactly representable in the inputs' dtype."""
    generator = torch.Generator().manual_seed(inputs.seed + 1)
    shape, dtype = inputs["a"].shape[:3], inputs["v"].dtype

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(inputs["v"].device, dtype)

    return draw(*shape, inputs["v"].shape[-1]), draw(*shape)


def assert_close_to_float64(
    inputs: OperatorInputs, backend: str, *, factor: float = FACTOR
) -> None:
    """A backend's output, lse and gradients are as close to float64 as eager torch is.

    The largest error of each must be at most ``factor`` times that of :func:`eager_attention` in
    the inputs' dtype, plus a few units in the last place of its largest value. Rows that attend to
    nothing must agree exactly.

    Raises:
        AssertionError: with every quantity that is too far, its error and the one allowed, and the
            inputs' description.

    >>> assert_close_to_float64(operator_inputs(is_causal=True), "blocked")
    """
    grad_out, grad_lse = output_gradients(inputs)

    def quantities(
        of: OperatorInputs, run: Callable[[], tuple[Tensor, Tensor]]
    ) -> dict[str, Tensor]:
        out, lse = run()
        found = {"out": out, "lse": lse}
        if of.leaves():
            found |= gradients(of, out, lse, grad_out, grad_lse)
        return found

    exact = inputs.to(torch.float64)
    eager = inputs.to(inputs["v"].dtype)
    truth = quantities(exact, exact.run_eagerly)
    yardstick = quantities(eager, eager.run_eagerly)
    actual = quantities(inputs, lambda: inputs.run(backend))
    faults = list(_faults(truth, yardstick, actual, factor))
    assert not faults, "\n".join(
        [f"{backend} is further from float64 than allowed:", *faults, repr(inputs)]
    )


def _faults(
    truth: dict[str, Tensor], yardstick: dict[str, Tensor], actual: dict[str, Tensor], factor: float
) -> Iterator[str]:
    working = torch.finfo(actual["lse"].dtype).eps
    stored = torch.finfo(actual["out"].dtype).eps
    for name, exact in truth.items():
        found = actual[name]
        if found.shape != exact.shape:
            yield f"  {name}: shape {tuple(found.shape)}, expected {tuple(exact.shape)}"
            continue
        if not exact.numel():
            continue
        largest = float(exact.detach().masked_fill(exact == -math.inf, 0).abs().max())
        rounding = 0.0 if name == "lse" else stored * largest
        floor = rounding + WORKING_ULPS * working * max(largest, 1.0)
        allowed = factor * _largest_error(yardstick[name], exact) + floor
        error = _largest_error(found, exact)
        if not error <= allowed:
            yield f"  {name}: error {error:.3g}, allowed {allowed:.3g}, largest value {largest:.3g}"


def _largest_error(found: Tensor, exact: Tensor) -> float:
    difference = (found.double() - exact).detach()
    # Equal infinities: no difference. NaN counts as an infinite error.
    return float(difference.masked_fill(found == exact, 0).abs().nan_to_num(nan=math.inf).max())
