"""The implementations that are measured: this library's backends, and their peers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import backends
from ..functional import neural_attention
from .cases import Case, Inputs

Call = Callable[[], Tensor]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
# A compiler's fusion pays where many channels are to be summed.
_LEAST_CHANNELS_TO_COMPILE = 8


@dataclass(frozen=True)
class Method:
    """One way to compute a case.

    Attributes:
        label: as in tables.
        prepare: makes the call and names the leaves that it depends on.
        covers: whether it computes a case at all.
        devices: where it runs.
        trains_on: where it has a backward pass.
        unavailable_reason: why it cannot run on this machine, or None.
        is_compiled: whether the first call compiles, which takes its time.
    """

    label: str
    prepare: Callable[[Inputs], tuple[Call, list[Tensor]]]
    covers: Callable[[Case], bool] = lambda case: True
    devices: tuple[str, ...] = ("cpu", "cuda")
    trains_on: tuple[str, ...] = ("cpu", "cuda")
    unavailable_reason: Callable[[], str | None] = lambda: None
    is_compiled: bool = False


def _backend(name: str, *devices: str) -> Method:
    def prepare(inputs: Inputs) -> tuple[Call, list[Tensor]]:
        case, v, weights, slopes = inputs.case, inputs.v, inputs.weights, inputs.slopes
        a, b = inputs.a, inputs.b
        q, k = (inputs.q, inputs.k) if case.dot else (None, None)

        def call() -> Tensor:
            out = neural_attention(
                a,
                b,
                v,
                weights,
                activation=case.activation,
                q=q,
                k=k,
                slopes=slopes,
                is_causal=inputs.shape.causal,
                dropout_p=case.dropout_p,
                backend=name,
            )
            assert isinstance(out, Tensor)
            return out

        used = [v, *inputs.parameters]
        used += [a, b] if case.channels else []
        used += [inputs.q, inputs.k] if case.dot else []
        return call, used

    return Method(
        name, prepare, devices=devices, unavailable_reason=lambda: backends.unavailable_reason(name)
    )


def _sdpa(inputs: Inputs) -> tuple[Call, list[Tensor]]:
    q, k, v = inputs.q, inputs.k, inputs.v
    options: dict[str, Any] = {
        "is_causal": inputs.shape.causal,
        "dropout_p": inputs.case.dropout_p,
    }
    return lambda: F.scaled_dot_product_attention(q, k, v, **options), [q, k, v]


def _later(inputs: Inputs) -> Tensor | None:
    """Which keys a causal mask hides, (Lq, Lk)."""
    if not inputs.shape.causal:
        return None
    queries, keys = inputs.shape.queries, inputs.shape.keys
    ones = torch.ones(queries, keys, dtype=torch.bool, device=inputs.device)
    return ones.triu(keys - queries + 1)


def _attend(scores: Tensor, later: Tensor | None, v: Tensor) -> Tensor:
    if later is not None:
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1).to(v.dtype) @ v


def _published(inputs: Inputs) -> tuple[Call, list[Tensor]]:
    """The authors' formulation: every pair's query and key features, concatenated.

    Its first layer is a matrix over the concatenation, here (I I), so that the score is that of
    the other methods. Weights are shared by all heads, as in the released code.
    """
    case, v, activation = inputs.case, inputs.v, _ACTIVATIONS[inputs.case.activation]
    a, b, dtype = inputs.a, inputs.b, inputs.v.dtype

    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().to(dtype).requires_grad_()

    identity = torch.eye(case.channels, device=inputs.device)
    first = leaf(torch.cat([identity, identity], 1))
    output, hidden = inputs.weights
    last = leaf(output[:1])
    second = [leaf(tensor[0]) for tensor in hidden[0]] if hidden else []
    later = _later(inputs)

    def call() -> Tensor:
        size = (*a.shape[:3], b.shape[2], case.channels)
        pairs = torch.cat([a.unsqueeze(3).expand(size), b.unsqueeze(2).expand(size)], -1)
        units = activation(F.linear(pairs, first))
        if second:
            units = activation(F.linear(units, *second))
        return _attend(F.linear(units, last).squeeze(-1), later, v)

    return call, [a, b, v, first, last, *second]


def _plain(inputs: Inputs) -> tuple[Call, list[Tensor]]:
    """Plain torch with a sum in place of the concatenation, for ``torch.compile`` to fuse."""
    case, activation = inputs.case, _ACTIVATIONS[inputs.case.activation]
    a, b, v, weights = inputs.a, inputs.b, inputs.v, inputs.weights
    q, k = (inputs.q, inputs.k) if case.dot else (None, None)
    later = _later(inputs)

    def formulation(a: Tensor, b: Tensor, v: Tensor, q: Tensor | None, k: Tensor | None) -> Tensor:
        units = activation(a.unsqueeze(3) + b.unsqueeze(2))
        for matrix, bias in weights.hidden:
            mixed = (units.unsqueeze(-2) * matrix[:, None, None]).sum(-1)
            units = activation(mixed + bias[:, None, None])
        scores = (units * weights.output[:, None, None]).sum(-1)
        if q is not None and k is not None:
            scores = scores + q @ k.mT / q.shape[-1] ** 0.5
        return _attend(scores, later, v)

    compiled = torch.compile(formulation, dynamic=False)
    leaves = [a, b, v, *inputs.parameters, *(t for t in (q, k) if t is not None)]
    return lambda: compiled(a, b, v, q, k), leaves


def _flex(inputs: Inputs) -> tuple[Call, list[Tensor]]:
    """FlexAttention with the score network written into ``score_mod``."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    case, shape, offset = inputs.case, inputs.shape, inputs.shape.keys - inputs.shape.queries
    trains = inputs.device in METHODS["flex"].trains_on

    def leaf(tensor: Tensor) -> Tensor:
        return tensor if trains else tensor.detach()  # without a backward pass it refuses leaves

    v = leaf(inputs.v)
    if case.dot:
        q, k = leaf(inputs.q), leaf(inputs.k)
    else:  # it always computes a dot product: the narrowest that it takes
        q = v.new_zeros(shape.batch, shape.heads, shape.queries, 16)
        k = v.new_zeros(shape.batch, shape.heads, shape.keys, 16)
    score_mod = _score_mod(inputs, offset, leaf) if case.channels else None
    block_mask = None
    if shape.causal:
        block_mask = create_block_mask(
            lambda b, h, i, j: i + offset >= j,
            None,
            None,
            shape.queries,
            shape.keys,
            device=inputs.device,
        )
    compiled = torch.compile(flex_attention, dynamic=False)

    def call() -> Tensor:
        out: Tensor = compiled(q, k, v, score_mod=score_mod, block_mask=block_mask)
        return out

    network = [inputs.a, inputs.b, *inputs.parameters] if case.channels else []
    return call, [*network, *([q, k] if case.dot else []), v]


def _score_mod(
    inputs: Inputs, offset: int, leaf: Callable[[Tensor], Tensor]
) -> Callable[..., Tensor]:
    case, activation = inputs.case, _ACTIVATIONS[inputs.case.activation]
    a_features, b_features, output = leaf(inputs.a), leaf(inputs.b), leaf(inputs.weights.output)
    hidden = [leaf(tensor) for layer in inputs.weights.hidden for tensor in layer]
    slopes = None if inputs.slopes is None else leaf(inputs.slopes)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        units = []
        for c in range(case.channels):
            unit = a_features[b, h, i, c] + b_features[b, h, j, c]
            if slopes is not None:
                unit = unit + slopes[h, c] * (j - i - offset)
            units.append(activation(unit))
        if hidden:
            matrix, bias = hidden
            units = [
                activation(bias[h, e] + sum(matrix[h, e, c] * u for c, u in enumerate(units)))
                for e in range(case.hidden)
            ]
        total = score if case.dot else torch.zeros_like(score)
        for c, unit in enumerate(units):
            total = total + output[h, c] * unit
        return total

    return score_mod


def _operator(inputs: Inputs) -> tuple[Call, list[Tensor]]:
    """The operator without the function around it."""
    return _flat(inputs, torch.ops.neural_attention.attention.default)


def _empty(inputs: Inputs) -> tuple[Call, list[Tensor]]:
    """An operator of the same schema that computes nothing: what torch's dispatch costs."""
    return _flat(inputs, _empty_operator())


def _flat(inputs: Inputs, operator: Any) -> tuple[Call, list[Tensor]]:
    native = "native" if inputs.device == "cpu" else "triton"
    known = {
        "a": inputs.a,
        "b": inputs.b,
        "v": inputs.v,
        "output_weight": inputs.weights.output,
        "activation": inputs.case.activation,
        "scale": 1.0,
        "is_causal": inputs.shape.causal,
        "query_offset": inputs.shape.keys - inputs.shape.queries,
        "dropout_p": 0.0,
        "backend": native,
    }
    schema = torch.ops.neural_attention.attention.default._schema
    arguments = [known.get(argument.name) for argument in schema.arguments]
    return lambda: operator(*arguments)[0], [inputs.a, inputs.b, inputs.v, *inputs.parameters]


@cache
def _empty_operator() -> Any:
    schema = str(torch.ops.neural_attention.attention.default._schema)
    name = "neural_attention_bench::empty"
    torch.library.define(name, schema[schema.index("(") :])

    @torch.library.impl(name, "CompositeExplicitAutograd")
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        a, v = arguments[0], arguments[2]
        return torch.empty_like(v), a.new_empty(a.shape[:3])

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        needs = zip(inputs, ctx.needs_input_grad, strict=False)
        ctx.gradients = [torch.zeros_like(value) if need else None for value, need in needs]

    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return tuple(ctx.gradients)

    torch.library.register_autograd(name, backward, setup_context=setup_context)
    return torch.ops.neural_attention_bench.empty.default


def _no_compiler() -> str | None:
    if any(map(shutil.which, ("c++", "g++", "clang++"))):
        return None
    return "torch.compile needs a C++ compiler, and none was found"


def _is_smallest(case: Case) -> bool:
    return case.name == "relu-1"


METHODS: dict[str, Method] = {
    "sdpa": Method("scaled_dot_product_attention", _sdpa, lambda case: case.is_plain_dot),
    "native": _backend("native", "cpu"),
    "triton": _backend("triton", "cuda"),
    "blocked": _backend("blocked", "cpu", "cuda"),
    "published": Method(
        "published formulation",
        _published,
        lambda case: not (case.dot or case.slopes or case.dropout_p),
    ),
    "compiled": Method(
        "torch.compile",
        _plain,
        lambda case: (
            case.channels >= _LEAST_CHANNELS_TO_COMPILE and not (case.slopes or case.dropout_p)
        ),
        unavailable_reason=_no_compiler,
        is_compiled=True,
    ),
    "flex": Method(
        "FlexAttention",
        _flex,
        lambda case: not case.dropout_p,
        trains_on=("cuda",),
        unavailable_reason=_no_compiler,
        is_compiled=True,
    ),
    "operator": Method("operator alone", _operator, _is_smallest),
    "empty": Method("empty operator", _empty, _is_smallest),
}
