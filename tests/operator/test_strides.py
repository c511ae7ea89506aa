"""Inputs and output gradients of any memory layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from neural_attention.testing import (
    OperatorInputs,
    assert_close_to_float64,
    gradients,
    operator_inputs,
    output_gradients,
)


def transposed(tensor: Tensor) -> Tensor:
    """As a projection's output split into heads lies: (B, L, H, C), or any last two swapped."""
    dims = (1, 2) if tensor.dim() == 4 else (-1, -2) if tensor.dim() > 1 else (0, 0)
    return tensor.transpose(*dims).contiguous().transpose(*dims)


def sliced(tensor: Tensor) -> Tensor:
    """Every second element of a wider tensor, from the second on."""
    wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), torch.nan, dtype=tensor.dtype)
    wide[..., 1::2] = tensor
    return wide[..., 1::2]


def reversed_order(tensor: Tensor) -> Tensor:
    """The first dimension varies fastest."""
    order = list(range(tensor.dim()))[::-1]
    return tensor.permute(order).contiguous().permute(order)


def full_inputs(seed: int) -> OperatorInputs:
    return operator_inputs(
        heads=6, key_heads=2, queries=19, keys=33, hidden_width=3, dot_width=4, slopes=True,
        alibi=True, mask="float", seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize("layout", [transposed, sliced, reversed_order])
def test_inputs_of_any_layout(layout: Callable[[Tensor], Tensor], backend: str) -> None:
    inputs = full_inputs(1)
    laid_out = {
        name: layout(tensor.detach()).requires_grad_() for name, tensor in inputs.tensors.items()
    }
    for name, tensor in laid_out.items():
        assert torch.equal(tensor, inputs[name])
    assert not laid_out["a"].is_contiguous()
    assert_close_to_float64(inputs.with_tensors(**laid_out), backend)


def test_expanded_inputs_sum_their_gradients(backend: str) -> None:
    inputs = operator_inputs(heads=3, dot_width=4, slopes=True, alibi=True, seed=2)
    small = {
        "a": inputs["a"][:, :1], "b": inputs["b"][:1], "v": inputs["v"][:1, :1],
        "output": inputs["output"][:1], "slopes": inputs["slopes"][:, :1],
        "alibi": inputs["alibi"][:1],
    }  # fmt: skip
    small = {name: tensor.detach().requires_grad_() for name, tensor in small.items()}

    def expanded(kind: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        wide = {name: kind(small[name].expand_as(inputs[name])) for name in small}
        out, lse = inputs.with_tensors(**wide).run(backend)
        grad_out, grad_lse = output_gradients(inputs)
        leaves = OperatorInputs(small)
        return {"out": out, "lse": lse} | gradients(leaves, out, lse, grad_out, grad_lse)

    views, copies = expanded(lambda t: t), expanded(torch.clone)
    for name, value in copies.items():
        torch.testing.assert_close(views[name], value, msg=name)


@pytest.mark.parametrize("layout", [transposed, sliced, reversed_order])
def test_output_gradients_of_any_layout(layout: Callable[[Tensor], Tensor], backend: str) -> None:
    inputs = full_inputs(3)
    grad_out, grad_lse = output_gradients(inputs)
    expected = gradients(inputs, *inputs.run(backend), grad_out, grad_lse)
    found = gradients(inputs, *inputs.run(backend), layout(grad_out), sliced(grad_lse))
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_output_gradient_of_a_sum_is_expanded_from_one_number(backend: str) -> None:
    inputs = full_inputs(4)
    out, lse = inputs.run(backend)
    expected = gradients(inputs, out, lse, torch.ones_like(out), torch.ones_like(lse))
    out, lse = inputs.run(backend)
    found = torch.autograd.grad(out.sum() + lse.sum(), list(inputs.leaves().values()))
    for name, gradient in zip(inputs.leaves(), found, strict=True):
        torch.testing.assert_close(gradient, expected[name], msg=name)


@pytest.mark.parametrize("which", ["out", "lse"])
def test_gradient_of_one_output_alone(which: str, backend: str) -> None:
    inputs = full_inputs(5)
    out, lse = inputs.run(backend)
    grad_out, grad_lse = output_gradients(inputs)
    if which == "out":
        expected = gradients(inputs, out, lse, grad_out, torch.zeros_like(grad_lse))
        outputs, upstream = inputs.run(backend)[0], grad_out
    else:
        expected = gradients(inputs, out, lse, torch.zeros_like(grad_out), grad_lse)
        outputs, upstream = inputs.run(backend)[1], grad_lse
    found = torch.autograd.grad(outputs, list(inputs.leaves().values()), upstream)
    for name, gradient in zip(inputs.leaves(), found, strict=True):
        torch.testing.assert_close(gradient, expected[name], msg=name)


@pytest.mark.parametrize("wanted", full_inputs(0).tensors)
def test_gradient_of_one_input_alone(wanted: str, backend: str) -> None:
    inputs = full_inputs(6)
    grad_out, grad_lse = output_gradients(inputs)
    expected = gradients(inputs, *inputs.run(backend), grad_out, grad_lse)[wanted]
    others = {name: t.detach() for name, t in inputs.tensors.items() if name != wanted}
    alone = inputs.with_tensors(**others)
    found = gradients(alone, *alone.run(backend), grad_out, grad_lse)
    assert found.keys() == {wanted}
    torch.testing.assert_close(found[wanted], expected)


def test_gradient_of_weights_that_nothing_depends_on_is_empty(backend: str) -> None:
    inputs = operator_inputs(channels=0, dot_width=3, requires_grad=False)
    alone = inputs.with_tensors(output=inputs["output"].requires_grad_())
    out, lse = alone.run(backend)
    (gradient,) = torch.autograd.grad(out.sum() + lse.sum(), alone["output"])
    assert gradient.shape == (4, 0)


def test_inputs_are_left_as_they_were(backend: str) -> None:
    inputs = full_inputs(7).with_options(dropout_p=0.2, is_causal=True)
    before = {name: tensor.detach().clone() for name, tensor in inputs.tensors.items()}
    grad_out, grad_lse = output_gradients(inputs)
    upstream = grad_out.clone(), grad_lse.clone()
    gradients(inputs, *inputs.run(backend), grad_out, grad_lse)
    assert all(torch.equal(inputs[name], value) for name, value in before.items())
    assert torch.equal(grad_out, upstream[0])
    assert torch.equal(grad_lse, upstream[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_default_dtype_changes_nothing(dtype: torch.dtype, backend: str) -> None:
    inputs = full_inputs(8).with_options(dropout_p=0.2, is_causal=True)
    expected = gradients(inputs, *inputs.run(backend), *output_gradients(inputs))
    upstream = output_gradients(inputs)
    torch.set_default_dtype(dtype)
    try:
        found = gradients(inputs, *inputs.run(backend), *upstream)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
