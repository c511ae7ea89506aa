"""The Triton kernels against float64: on a GPU, or interpreted on the CPU in small shapes.

Without a GPU they run only with ``TRITON_INTERPRET=1``, which must be set before Triton loads:
``test_without_a_gpu.py`` runs this file in a process of its own. Tiles have 16 rows and columns
there, and splits of the keys 16 programs.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from neural_attention.backends import triton, unavailable_reason
from neural_attention.testing import (
    ACTIVATIONS,
    OperatorInputs,
    assert_close_to_float64,
    gradients,
    operator_inputs,
    output_gradients,
)

DEVICE = "cpu" if triton.interprets() else "cuda"
pytestmark = [
    pytest.mark.skipif(
        unavailable_reason("triton") is not None, reason=str(unavailable_reason("triton"))
    ),
    # NumPy, which computes for the interpreter, warns of the infinities that masks are made of.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def inputs_of(**options: Any) -> OperatorInputs:
    """A small call: two heads, a tile and a bit."""
    small = {"batch": 1, "heads": 2, "queries": 17, "device": DEVICE} | options
    on_device = {
        name: value.to(DEVICE) if isinstance(value, Tensor) else value
        for name, value in small.items()
    }
    return operator_inputs(**on_device)


def run(inputs: OperatorInputs, backend: str = "triton") -> dict[str, Tensor]:
    out, lse = inputs.run(backend)
    return {"out": out, "lse": lse} | gradients(inputs, out, lse, *output_gradients(inputs))


OPTIONS: dict[str, dict[str, Any]] = {
    "one-layer": {"batch": 2},
    "causal-shared": {"is_causal": True, "share_heads": True, "slopes": True, "alibi": True},
    "more-queries-than-keys": {"queries": 23, "keys": 5, "is_causal": True, "dot_width": 3},
    "window-over-tiles": {"queries": 40, "window": (5, 2), "slopes": True, "heads": 1},
    "inner-tiles": {"queries": 50, "keys": 55, "is_causal": True, "heads": 1, "dot_width": 4},
    "grouped": {"heads": 6, "key_heads": 2, "slopes": True, "dot_width": 4},
    "dot": {"channels": 0, "dot_width": 3, "alibi": True},
    "20-channels": {"channels": 20, "slopes": True, "heads": 1},
    "two-layers": {"channels": 2, "hidden_width": 1, "slopes": True, "share_heads": True},
    "two-narrow-layers": {"channels": 3, "hidden_width": 4, "slopes": True, "alibi": True},
    "two-wide-layers": {"channels": 5, "hidden_width": 3, "slopes": True, "is_causal": True},
    "two-wider-layers": {"channels": 40, "hidden_width": 20, "heads": 1, "slopes": True},
    "key-lengths": {"batch": 2, "key_lengths": torch.tensor([0, 9]), "slopes": True},
    "offsets": {"batch": 2, "query_offset": torch.tensor([-20, 4]), "is_causal": True},
    "documents": {
        "queries": 40, "cu_seqlens": torch.tensor([0, 5, 5, 22, 40], dtype=torch.int32),
        "is_causal": True, "slopes": True, "heads": 1,
    },
    "boolean-mask": {"mask": "bool", "mask_shape": (17, 17)},
    "dropout": {"dropout_p": 0.3, "keys": 21},
    "everything": {
        "slopes": True, "alibi": True, "dot_width": 3, "channels": 3, "hidden_width": 4,
        "mask": "float", "is_causal": True, "window": (9, None), "key_heads": 1,
        "activation": "silu", "dropout_p": 0.3,
    },
    "head-width-40": {"value_width": 40, "dot_width": 33, "heads": 1},
    "large-scores": {"dot_width": 8, "scale": 300.0},
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_option_is_as_close_to_float64_as_eager_torch(options: dict[str, Any]) -> None:
    assert_close_to_float64(inputs_of(seed=1, **options), "triton")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("options", ["everything", "two-wide-layers", "inner-tiles"])
def test_16_bit_inputs(options: str, dtype: torch.dtype) -> None:
    assert_close_to_float64(inputs_of(dtype=dtype, seed=2, **OPTIONS[options]), "triton")


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(activation: str) -> None:
    for hidden_width in (None, 2):
        assert_close_to_float64(
            inputs_of(
                activation=activation, heads=1, channels=2, hidden_width=hidden_width, seed=3
            ),
            "triton",
        )


SHAPES = [(1, 2, 17, 19), (2, 1, 17, 1), (2, 1, 19), (1, 19), ()]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_of_additive_masks_that_broadcast(shape: tuple[int, ...]) -> None:
    inputs = inputs_of(batch=2, keys=19, mask="float", mask_shape=shape, channels=1, seed=4)
    assert_close_to_float64(inputs, "triton")


DECODING: dict[str, dict[str, Any]] = {
    "one-query": {"queries": 1, "is_causal": True, "slopes": True},
    "groups": {"heads": 6, "queries": 3, "is_causal": True, "dot_width": 4, "alibi": True},
    "wide": {"hidden_width": 3, "slopes": True},
    "lengths": {"batch": 2, "key_lengths": torch.tensor([3, 70]), "mask": "float"},
    "no-key-visible": {"queries": 1, "is_causal": True, "query_offset": -1},
    "window-bfloat16-dropout": {
        "dtype": torch.bfloat16, "window": (30, 4), "dot_width": 3, "dropout_p": 0.2
    },
}  # fmt: skip


@pytest.mark.parametrize("options", DECODING.values(), ids=DECODING.keys())
def test_few_queries_against_many_keys(options: dict[str, Any]) -> None:
    sizes = {"heads": 4, "key_heads": 2, "queries": 2, "keys": 70, "requires_grad": False}
    assert_close_to_float64(inputs_of(seed=5, **sizes | options), "triton")


def test_decoding_splits_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    from neural_attention.backends.triton import launch

    ran = []
    original = launch._launch

    def record(kernel: Any, *arguments: Any, **constants: Any) -> None:
        ran.append(kernel.fn.__name__)
        original(kernel, *arguments, **constants)

    monkeypatch.setattr(launch, "_launch", record)
    inputs_of(queries=1, keys=1000, channels=1, requires_grad=False).run("triton")
    inputs_of(queries=1, keys=7, channels=1, requires_grad=False).run("triton")
    assert ran == ["split_kernel", "merge_kernel", "forward_kernel"]


POISONED: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True, "query_offset": -3, "dot_width": 3},
    "key-lengths-two-layers": {"key_lengths": torch.tensor([14]), "channels": 3, "hidden_width": 2},
    "window-wide": {"window": (None, 2), "query_offset": -5, "hidden_width": 3},
    "decoding": {"queries": 2, "key_lengths": torch.tensor([14]), "dot_width": 3},
}


@pytest.mark.parametrize("poison", [math.nan, math.inf, 3e38], ids=str)
@pytest.mark.parametrize("options", POISONED.values(), ids=POISONED.keys())
def test_what_is_masked_reaches_nothing(options: dict[str, Any], poison: float) -> None:
    inputs = inputs_of(heads=1, slopes=True, seed=6, **{"keys": 17} | options)
    hidden = {}
    for name in {"b", "k", "v"} & inputs.tensors.keys():
        hidden[name] = inputs[name].detach().clone()
        hidden[name][:, :, -3:] = poison
        hidden[name].requires_grad_()
    clean, found = run(inputs), run(inputs.with_tensors(**hidden))
    for name, expected in clean.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("name", ["b", "k", "v"])
def test_a_nan_reaches_the_queries_that_see_it_alone(name: str) -> None:
    inputs = inputs_of(heads=1, is_causal=True, dot_width=3, seed=7)
    poisoned = inputs[name].detach().clone()
    poisoned[:, :, 9] = math.nan
    clean = run(inputs)
    found = run(inputs.with_tensors(**{name: poisoned.requires_grad_()}))
    assert found["out"][:, :, 9:].isnan().all()
    for entries in ("out", "lse", "a", "q"):
        torch.testing.assert_close(found[entries][:, :, :9], clean[entries][:, :, :9])


def test_rows_that_see_nothing_give_zeros_whatever_comes_back() -> None:
    inputs = inputs_of(
        queries=9, keys=5, is_causal=True, dot_width=3, slopes=True, mask="float", seed=8
    )
    out, lse = inputs.run("triton")
    empty = lse == -math.inf
    assert empty.any()
    assert (out[empty] == 0).all()
    grad_out, grad_lse = output_gradients(inputs)
    clean = gradients(inputs, out, lse, grad_out, grad_lse)
    grad_out = grad_out.masked_fill(empty[..., None], math.nan)
    found = gradients(inputs, *inputs.run("triton"), grad_out, grad_lse.masked_fill(empty, 1e9))
    for name, expected in clean.items():
        assert torch.equal(found[name], expected), name
    assert (found["a"][empty] == 0).all()


def test_dropout_drops_what_the_reference_drops() -> None:
    inputs = inputs_of(heads=2, key_heads=1, queries=18, keys=40, dropout_p=0.4, seed=9)
    inputs = inputs.with_tensors(v=torch.eye(40, device=DEVICE).expand(1, 1, -1, -1))
    assert torch.equal(inputs.run("triton")[0] > 0, inputs.run("reference")[0] > 0)


def test_inputs_and_gradients_of_any_layout() -> None:
    inputs = inputs_of(dot_width=4, hidden_width=3, slopes=True, mask="float", seed=10)
    laid_out = {
        name: tensor.detach().mT.contiguous().mT.requires_grad_()
        for name, tensor in inputs.tensors.items()
    }
    clean = run(inputs)
    out, lse = inputs.with_tensors(**laid_out).run("triton")
    upstream = [gradient.mT.contiguous().mT for gradient in output_gradients(inputs)]
    found = gradients(inputs.with_tensors(**laid_out), out, lse, *upstream)
    for name, value in ({"out": out, "lse": lse} | found).items():
        torch.testing.assert_close(value, clean[name], msg=name)


def test_the_gradient_of_one_input_alone() -> None:
    inputs = inputs_of(
        heads=1, channels=2, dot_width=4, slopes=True, alibi=True, mask="float", seed=11
    )
    expected = run(inputs)
    for wanted in inputs.tensors:
        others = {name: t.detach() for name, t in inputs.tensors.items() if name != wanted}
        found = run(inputs.with_tensors(**others))
        assert found.keys() == {"out", "lse", wanted}
        torch.testing.assert_close(found[wanted], expected[wanted], msg=wanted)


def test_results_repeat_bit_for_bit() -> None:
    inputs = inputs_of(queries=40, heads=1, slopes=True, is_causal=True, dropout_p=0.2, seed=12)
    first, again = run(inputs), run(inputs)
    assert all(torch.equal(again[name], value) for name, value in first.items())


@pytest.mark.parametrize(
    "sizes", [{"queries": 0, "keys": 7}, {"keys": 0}, {"batch": 0}, {"value_width": 0}], ids=str
)
def test_empty_dimensions(sizes: dict[str, int]) -> None:
    assert_close_to_float64(inputs_of(dot_width=4, mask="float", seed=13, **sizes), "triton")


def test_float64_and_great_widths_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="float64 on"):
        inputs_of(dtype=torch.float64).run("triton")
    with pytest.raises(ValueError, match="up to 256; v has 257"):
        inputs_of(value_width=257).run("triton")


def test_float32_products_are_true_unless_torch_allows_tf32() -> None:
    from neural_attention.backends.triton import call

    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed, precision in ((False, "ieee"), (True, "tf32")):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            assert call._precision() == precision
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_weights_sum_to_1_beside_a_large_number_in_the_mask() -> None:
    mask = torch.zeros(17, 17, device=DEVICE)
    mask[0] = torch.finfo(torch.float32).min
    mask[1] = -1e6
    inputs = inputs_of().with_options(attn_mask=mask)
    ones = inputs.with_tensors(v=torch.ones_like(inputs["v"]).requires_grad_())
    out, _ = ones.run("triton")
    torch.testing.assert_close(out, torch.ones_like(out))
    (grad,) = torch.autograd.grad(out[:, :, :2].sum(), ones["v"])
    expected = torch.tensor(2.0 * out.shape[0] * out.shape[1] * out.shape[3], device=DEVICE)
    torch.testing.assert_close(grad.sum(), expected)
