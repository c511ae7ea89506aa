"""The dot product by this library's operator in stock models: what torch's gives."""

from __future__ import annotations

import pytest
import torch

import neural_attention.hf  # noqa: F401 (registers it)

from .families import FAMILIES, PAD, VOCABULARY

OURS = "neural_attention_dot"


@pytest.mark.parametrize("name", FAMILIES)
def test_stock_models_compute_what_they_did(name):
    model = FAMILIES[name].make()
    inputs = FAMILIES[name].inputs()
    expected = model(**inputs)[0]
    model.set_attn_implementation(OURS)
    torch.testing.assert_close(model(**inputs)[0], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "marian"])
def test_padding_and_caches_are_those_of_torch(name):
    family = FAMILIES[name]
    inputs = family.inputs(batch=3, length=7)
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, :3] = 0
    tokens = {"input_ids": inputs["input_ids"].masked_fill(mask == 0, PAD), "attention_mask": mask}
    found = {}
    for implementation in ("sdpa", OURS):
        model = family.make()
        model.set_attn_implementation(implementation)
        found[implementation] = model.generate(
            **tokens, max_new_tokens=6, num_beams=2, do_sample=False, pad_token_id=PAD
        )
    assert torch.equal(found["sdpa"], found[OURS])


def test_gradients_are_those_of_torch():
    found = {}
    for implementation in ("sdpa", OURS):
        model = FAMILIES["llama"].make()
        model.set_attn_implementation(implementation)
        tokens = torch.arange(3, VOCABULARY)[:20].view(2, 10)
        model(input_ids=tokens, labels=tokens).loss.backward()
        found[implementation] = {n: p.grad for n, p in model.named_parameters()}
    for key, gradient in found["sdpa"].items():
        torch.testing.assert_close(found[OURS][key], gradient, atol=1e-5, rtol=1e-3)


def test_a_keyword_that_would_change_the_weights_is_refused():
    from neural_attention.hf.attention import dot_product_forward

    q = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="gives its attention 'softcap'"):
        dot_product_forward(torch.nn.Identity(), q, q, q, None, softcap=3.0)
