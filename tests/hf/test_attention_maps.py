"""Attention maps: as an argument of forward and generate, in every family."""

from __future__ import annotations

import pytest
import torch

from neural_attention.hf.score import AttentionScore

from .families import DECODERS, FAMILIES, LAYERS, SCORES, TRANSLATORS

scores = pytest.mark.parametrize("score", SCORES.values(), ids=SCORES.keys())


@scores
@pytest.mark.parametrize("name", FAMILIES)
def test_maps_are_what_attention_used(name, score):
    family = FAMILIES[name]
    model, inputs = family.converted(**score), family.inputs()
    modules = [module for module in model.modules() if isinstance(module, AttentionScore)]
    seen = {}
    handles = [
        module.register_forward_hook(
            lambda module, args, output: seen.update({module: (args[2], output)})
        )
        for module in modules
    ]
    expected = model(**inputs).logits
    for handle in handles:
        handle.remove()
    outputs = model(**inputs, output_attentions=True)
    torch.testing.assert_close(outputs.logits, expected)
    if family.kind == "translation":
        decoder = zip(outputs.decoder_attentions, outputs.cross_attentions, strict=True)
        maps = [*outputs.encoder_attentions, *(one for pair in decoder for one in pair)]
    else:
        maps = outputs.attentions
    assert len(seen) >= LAYERS
    for module, weights in zip(modules, maps, strict=True):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        if module in seen:  # not one that left its attention to the model
            value, output = seen[module]
            value = value.repeat_interleave(weights.shape[1] // value.shape[1], dim=1)
            torch.testing.assert_close(weights @ value, output, atol=1e-5, rtol=1e-4)
    assert model(**inputs).get("attentions") is None  # and no longer than asked for


@pytest.mark.parametrize("name", [*DECODERS, *TRANSLATORS])
def test_generate_returns_maps(name):
    family = FAMILIES[name]
    model, inputs = family.converted(**SCORES["neural"]), family.inputs()
    inputs.pop("decoder_input_ids", None)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    options = {"do_sample": False, "min_new_tokens": 3, "max_new_tokens": 3}
    options["return_dict_in_generate"] = True
    output = model.generate(**inputs, **options, output_attentions=True)
    maps = output.decoder_attentions if family.kind == "translation" else output.attentions
    assert len(maps) == 3
    for step in maps:
        assert len(step) == LAYERS
        for weights in step:
            torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert torch.equal(output.sequences, model.generate(**inputs, **options).sequences)


def test_maps_of_a_model_whose_projections_alone_are_converted():
    family = FAMILIES["bert"]
    model = family.converted(score="dot", projection="residual")
    maps = model(**family.inputs(), output_attentions=True).attentions
    assert len(maps) == LAYERS
