"""Stock models on this library's kernels: what torch's kernel gives, in every family."""

from __future__ import annotations

import pytest
import torch

from neural_attention.hf.dot_product import DOT_PRODUCT, dot_product_forward

from .families import DECODERS, FAMILIES, TEXT, logits

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def on_both_kernels(family):
    models = {}
    for name in ("sdpa", DOT_PRODUCT):
        models[name] = family.make()
        models[name].set_attn_implementation(name)
    return models.values()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_gradients_are_those_of_torchs_kernel(name):
    family = FAMILIES[name]
    found = []
    for model in on_both_kernels(family):
        out = logits(model, family.inputs())
        out.square().mean().backward()
        grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        found.append((out, grads))
    (expected, expected_grads), (ours, grads) = found
    torch.testing.assert_close(ours, expected, **CLOSE)
    torch.testing.assert_close(grads, expected_grads, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_masked(name, side):
    family = FAMILIES[name]
    inputs = family.inputs()
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, slice(0, 2) if side == "left" else slice(-2, None)] = 0
    inputs["attention_mask"] = mask
    expected, ours = (logits(model, inputs) for model in on_both_kernels(family))
    if expected.shape[1] == mask.shape[1]:
        expected, ours = expected[mask.bool()], ours[mask.bool()]
    torch.testing.assert_close(ours, expected, **CLOSE)


@pytest.mark.parametrize("name", DECODERS)
def test_generation_with_a_cache_gives_the_same_tokens(name):
    family = FAMILIES[name]
    options = {"max_new_tokens": 6, "do_sample": False}
    inputs = {"input_ids": family.inputs()["input_ids"]}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    expected, ours = (m.generate(**inputs, **options) for m in on_both_kernels(family))
    assert ours.tolist() == expected.tolist()


def test_what_is_not_computed_is_refused():
    q = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="Module gives its attention 'softcap', which this"):
        dot_product_forward(torch.nn.Module(), q, q, q, None, softcap=5.0)
