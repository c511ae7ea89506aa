"""torch.compile, torch.export and the operators' registration."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import neural_attention as na
from neural_attention import ops
from neural_attention.testing import OperatorInputs, operator_inputs, output_gradients

OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "two-layers-slopes": {"hidden_width": 3, "slopes": True, "window": (5, 0)},
    "dot-alibi": {"channels": 0, "dot_width": 3, "alibi": True, "key_heads": 2},
    "hybrid-mask": {"dot_width": 3, "mask": "float", "mask_shape": (1, 4, 1, 17)},
    "boolean-mask-key-lengths": {"mask": "bool", "key_lengths": torch.tensor([17, 3])},
    "query-offsets": {"query_offset": torch.tensor([0, -3]), "is_causal": True, "slopes": True},
    "documents": {"batch": 1, "cu_seqlens": torch.tensor([0, 5, 5, 17], dtype=torch.int32)},
    "dropout": {"dropout_p": 0.3, "share_heads": True},
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def outputs_and_gradients(
    function: Any, inputs: OperatorInputs, backend: str = "auto"
) -> list[Tensor]:
    torch.manual_seed(inputs.seed)
    out, lse = function(**inputs.arguments(), backend=backend, return_lse=True)
    leaves = list(inputs.leaves().values())
    upstream = output_gradients(inputs)
    found = torch.autograd.grad((out, lse), leaves, upstream, allow_unused=True)
    return [out, lse, *(gradient for gradient in found if gradient is not None)]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_compiled_whole_gives_the_same_values(options: dict[str, Any], backend: str) -> None:
    inputs = operator_inputs(seed=1, **options)
    compiled = torch.compile(na.neural_attention, fullgraph=True, backend="aot_eager")
    expected = outputs_and_gradients(na.neural_attention, inputs, backend)
    found = outputs_and_gradients(compiled, inputs, backend)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_compiled_by_inductor_gives_the_same_values() -> None:
    inputs = operator_inputs(seed=2, slopes=True, hidden_width=3, is_causal=True)
    compiled = torch.compile(na.neural_attention, fullgraph=True)
    expected = outputs_and_gradients(na.neural_attention, inputs)
    found = outputs_and_gradients(compiled, inputs)
    torch.testing.assert_close(found, expected)


def test_inductor_draws_new_dropout_masks_at_the_right_rate() -> None:
    inputs = operator_inputs(
        batch=1, queries=64, value_width=64, channels=1, dropout_p=0.25, requires_grad=False
    )
    inputs = inputs.with_tensors(v=torch.eye(64).expand(1, 4, -1, -1))
    compiled = torch.compile(na.neural_attention, fullgraph=True)
    torch.manual_seed(3)
    masks = [compiled(**inputs.arguments()) > 0 for _ in range(4)]
    for mask in masks:
        assert abs(mask.float().mean().item() - 0.75) < 0.02
    for first, second in pairwise(masks):
        assert abs((first & second).float().mean().item() - 0.75**2) < 0.02
    torch.manual_seed(3)
    assert torch.equal(compiled(**inputs.arguments()) > 0, masks[0])


LENGTHS = [(17, 17), (23, 23), (5, 31), (40, 12), (111, 111)]
GROWING: dict[str, Any] = {"dot_width": 3, "slopes": True, "hidden_width": 3, "is_causal": True}


def run_lengths(compiled: Any, **options: Any) -> None:
    for queries, keys in LENGTHS:
        inputs = operator_inputs(queries=queries, keys=keys, seed=4, **GROWING, **options)
        found = outputs_and_gradients(compiled, inputs)
        expected = outputs_and_gradients(na.neural_attention, inputs)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("mask", [None, "float"])
def test_new_lengths_cost_at_most_the_recompilations_of_automatic_dynamic_shapes(
    mask: Any,
) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    run_lengths(torch.compile(na.neural_attention, fullgraph=True, backend=counter), mask=mask)
    assert counter.frame_count == 2


def test_new_equal_lengths_cost_one_recompilation() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(na.neural_attention, fullgraph=True, backend=counter)
    for length in (17, 23, 40, 111):
        outputs_and_gradients(compiled, operator_inputs(queries=length, seed=5, **GROWING))
    assert counter.frame_count == 2


def test_decoding_steps_cost_one_recompilation() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(na.neural_attention, fullgraph=True, backend=counter)
    for keys in (17, 18, 19, 40):
        inputs = operator_inputs(queries=1, keys=keys, seed=6, requires_grad=False, **GROWING)
        found = compiled(**inputs.arguments())
        torch.testing.assert_close(found, na.neural_attention(**inputs.arguments()))
    assert counter.frame_count == 2


def test_new_lengths_cost_no_recompilation_with_dynamic_shapes() -> None:
    compiled = torch.compile(na.neural_attention, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for queries, keys in ((17, 19), (23, 29), (5, 31), (40, 12)):
            inputs = operator_inputs(queries=queries, keys=keys, seed=7, **GROWING)
            found = outputs_and_gradients(compiled, inputs)
            torch.testing.assert_close(found, outputs_and_gradients(na.neural_attention, inputs))


def test_new_offsets_and_windows_cost_one_recompilation_each() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(na.neural_attention, fullgraph=True, backend=counter)
    inputs = operator_inputs(seed=8, is_causal=True)
    for offset, left in ((2, 5), (3, 5), (4, 5), (4, 6), (4, 7), (9, 11)):
        other = inputs.with_options(query_offset=offset, window=(left, 0))
        found = outputs_and_gradients(compiled, other)
        torch.testing.assert_close(found, outputs_and_gradients(na.neural_attention, other))
    assert counter.frame_count <= 3


class Attention(torch.nn.Module):
    def __init__(self, inputs: OperatorInputs) -> None:
        super().__init__()
        self.output = torch.nn.Parameter(inputs["output"].detach())

    def forward(self, a: Tensor, b: Tensor, v: Tensor, q: Tensor, k: Tensor) -> Tensor:
        out = na.neural_attention(
            a, b, v, na.ScoreWeights(self.output), activation="relu", q=q, k=k, is_causal=True
        )
        assert isinstance(out, Tensor)
        return out


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_dynamic_lengths(strict: bool) -> None:
    inputs, longer = (
        operator_inputs(queries=n, dot_width=3, requires_grad=False, seed=9) for n in (17, 29)
    )
    module = Attention(inputs)
    length = torch.export.Dim("length", min=2)
    names = ("a", "b", "v", "q", "k")
    program = torch.export.export(
        module,
        tuple(inputs[name] for name in names),
        dynamic_shapes={name: {2: length} for name in names},
        strict=strict,
    )
    assert "neural_attention.attention" in str(program.graph)
    arguments = tuple(longer[name] for name in names)
    assert torch.equal(program.module()(*arguments), module(*arguments))


def flat_arguments(
    inputs: OperatorInputs, backend: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, ...]:
    """What ``neural_attention`` hands to the registered operator."""
    seen: list[tuple[Any, ...]] = []
    original = ops.attention

    def record(*arguments: Any) -> Any:
        seen.append(arguments)
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ops, "attention", record)
        inputs.run(backend)
    return seen[0]


CHECKED = {
    **OPTIONS,
    "plain": {},
    "no-gradient": {"requires_grad": False},
    "bfloat16": {"dtype": torch.bfloat16, "dot_width": 3},
    "one-query-one-key": {"queries": 1},
    "no-keys": {"keys": 0},
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("options", CHECKED.values(), ids=CHECKED.keys())
def test_the_operators_are_registered_as_torch_wants(
    options: dict[str, Any], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = operator_inputs(seed=10, **options)
    arguments = flat_arguments(inputs, backend, monkeypatch)
    forward = torch.ops.neural_attention.attention.default
    torch.library.opcheck(forward, arguments)

    plain = [value.detach() if isinstance(value, Tensor) else value for value in arguments]
    out, lse, rest = forward(*plain)
    grad_out, grad_lse = output_gradients(inputs)
    needs = [isinstance(value, Tensor) and value.is_floating_point() for value in plain[:11]]
    for wanted in (needs, [need and position % 2 == 0 for position, need in enumerate(needs)]):
        torch.library.opcheck(
            torch.ops.neural_attention.attention_backward.default,
            (out, lse, rest, grad_out, grad_lse.to(lse.dtype), wanted, *plain),
        )


def test_meta_tensors_give_shapes_without_computing() -> None:
    inputs = operator_inputs(queries=10**6, batch=0, dtype=torch.bfloat16, seed=11)
    on_meta = inputs.with_tensors(
        **{name: t.detach().to("meta") for name, t in inputs.tensors.items()}
    )
    out, lse = on_meta.run("auto")
    assert (out.shape, out.dtype) == ((0, 4, 10**6, 8), torch.bfloat16)
    assert (lse.shape, lse.dtype) == ((0, 4, 10**6), torch.float32)
