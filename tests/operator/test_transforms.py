"""Autocast, activation checkpointing, and the transforms that the operator refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import neural_attention as na
from neural_attention.testing import (
    OperatorInputs,
    gradients,
    operator_inputs,
    output_gradients,
)

FULL: dict[str, Any] = {
    "dot_width": 3, "hidden_width": 3, "slopes": True, "alibi": True, "mask": "float",
    "is_causal": True,
}  # fmt: skip


@pytest.mark.parametrize("autocast_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_autocast_casts_features_and_values_and_nothing_else(
    dtype: torch.dtype, autocast_dtype: torch.dtype, backend: str
) -> None:
    inputs = operator_inputs(dtype=dtype, seed=1, **FULL)
    features = {
        name: inputs[name].detach().to(autocast_dtype).requires_grad_()
        for name in ("a", "b", "v", "q", "k")
    }
    by_hand = inputs.with_tensors(**features)
    expected = by_hand.run(backend)
    with torch.autocast("cpu", autocast_dtype):
        found = inputs.run(backend)
    # Bit for bit: inside, a float32 network is not cast down.
    assert all(map(torch.equal, found, expected))
    assert found[0].dtype == autocast_dtype
    upstream = output_gradients(by_hand)
    wanted = gradients(by_hand, *expected, *upstream)
    with torch.autocast("cpu", autocast_dtype):
        given = gradients(inputs, *found, *upstream)
    for name, gradient in given.items():
        assert gradient.dtype == inputs[name].dtype
        assert torch.equal(gradient, wanted[name].to(gradient.dtype)), name


def test_autocast_brings_mixed_dtypes_together(backend: str) -> None:
    inputs = operator_inputs(seed=2, dot_width=3)
    mixed = inputs.with_tensors(v=inputs["v"].bfloat16(), q=inputs["q"].bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(torch.equal, mixed.run(backend), inputs.run(backend)))


def test_autocast_leaves_float64_alone(float64_backend: str) -> None:
    inputs = operator_inputs(dtype=torch.float64, seed=3, **FULL)
    with torch.autocast("cpu", torch.bfloat16):
        found = inputs.run(float64_backend)
    assert all(map(torch.equal, found, inputs.run(float64_backend)))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_with_dropout_gives_identical_gradients(
    use_reentrant: bool, backend: str
) -> None:
    inputs = operator_inputs(dropout_p=0.3, seed=4, **FULL)
    names = list(inputs.leaves())

    def attend(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        arguments = inputs.with_tensors(**dict(zip(names, tensors, strict=True))).arguments()
        result = na.neural_attention(**arguments, backend=backend, return_lse=True)
        return result[0], result[1]

    def run(how: Callable[..., tuple[Tensor, Tensor]]) -> dict[str, Tensor | None]:
        for leaf in inputs.leaves().values():
            leaf.grad = None
        torch.manual_seed(5)
        out, lse = how(*(inputs[name] for name in names))
        torch.rand(3)  # the generator moves on before backward
        (out.square().sum() + lse.masked_fill(lse.isinf(), 0).sum()).backward()
        return {name: leaf.grad for name, leaf in inputs.leaves().items()}

    expected = run(attend)
    found = run(lambda *tensors: checkpoint(attend, *tensors, use_reentrant=use_reentrant))
    for name, gradient in expected.items():
        assert gradient is not None
        assert torch.equal(gradient, found[name]), name  # type: ignore[arg-type]


def test_gradients_under_a_dispatch_mode(backend: str) -> None:
    inputs = operator_inputs(seed=11, **FULL)
    upstream = output_gradients(inputs)
    expected = gradients(inputs, *inputs.run(backend), *upstream)
    with FlopCounterMode(display=False):
        found = gradients(inputs, *inputs.run(backend), *upstream)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


def test_backward_runs_twice_over_a_retained_graph(backend: str) -> None:
    inputs = operator_inputs(dropout_p=0.3, seed=6, **FULL)
    out, lse = inputs.run(backend)
    leaves = list(inputs.leaves().values())
    first, second = (torch.autograd.grad(out.sum(), leaves, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_jacobian_by_batched_backward_equals_the_row_by_row_one(float64_backend: str) -> None:
    inputs = operator_inputs(
        batch=1, heads=1, queries=2, channels=2, value_width=2, dtype=torch.float64, seed=7
    )

    def output_of(a: Tensor) -> Tensor:
        return inputs.with_tensors(a=a).run(float64_backend)[0]

    rows, batched = (
        torch.autograd.functional.jacobian(output_of, inputs["a"].detach(), vectorize=vectorize)
        for vectorize in (False, True)
    )
    torch.testing.assert_close(batched, rows)


def small() -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    inputs = operator_inputs(batch=1, heads=1, queries=3, activation="tanh", requires_grad=False)
    return inputs["a"], lambda a: inputs.with_tensors(a=a).run("auto")[0]


def test_second_derivatives_are_refused(backend: str) -> None:
    inputs = operator_inputs(seed=8)
    out, _ = inputs.run(backend)
    with pytest.raises(RuntimeError, match="neural_attention has no second derivatives"):
        torch.autograd.grad(out.sum(), inputs["a"], create_graph=True)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_vmap_is_refused(requires_grad: bool) -> None:
    a, output_of = small()
    with pytest.raises(RuntimeError, match=r"does not support torch\.vmap: put the mapped"):
        torch.vmap(output_of)(a[None].detach().requires_grad_(requires_grad))


# torch compiles its own forward-mode formulas with what it calls deprecated.
@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_forward_mode_is_refused() -> None:
    a, output_of = small()
    with (
        forward_ad.dual_level(),
        pytest.raises(RuntimeError, match="no forward-mode derivatives: use reverse mode"),
    ):
        output_of(forward_ad.make_dual(a, a))


# torch compiles its own forward-mode formulas with what it calls deprecated.
@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.func.hessian])
def test_gradient_transforms_of_torch_func_are_refused(transform: Any) -> None:
    a, output_of = small()
    with pytest.raises(RuntimeError, match=r"does not support the transforms of torch\.func"):
        transform(lambda x: output_of(x).sum())(a)


def test_onnx_export_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    a, output_of = small()
    # As in the exporter that traces: torch.export, in the other, keeps the operator as it is.
    monkeypatch.setattr(torch._C, "_get_tracing_state", object)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with pytest.raises(RuntimeError, match="cannot be exported to ONNX"):
        output_of(a)


def test_inference_mode_and_no_grad_give_the_same_values(backend: str) -> None:
    inputs = operator_inputs(seed=9, **FULL)
    expected = inputs.run(backend)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            found = inputs.run(backend)
        assert all(map(torch.equal, found, expected))
        assert not found[0].requires_grad


def test_only_the_inputs_that_require_gradients_get_them(backend: str) -> None:
    inputs = operator_inputs(seed=10, requires_grad=False, **FULL)
    tuned = OperatorInputs(
        inputs.tensors | {"slopes": inputs["slopes"].requires_grad_()}, inputs.options, inputs.seed
    )
    out, _ = tuned.run(backend)
    out.sum().backward()
    for name, tensor in tuned.tensors.items():
        assert (tensor.grad is not None) == (name == "slopes")
