"""Causality, padding and packed documents, for every family and score."""

from __future__ import annotations

import pytest
import torch

from .families import DECODERS, FAMILIES, PAD, SCORES, TEXT, TRANSLATORS, logits

scores = pytest.mark.parametrize("score", SCORES.values(), ids=SCORES.keys())


def same(found, expected):
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@scores
@pytest.mark.parametrize("name", [*DECODERS, *TRANSLATORS])
@pytest.mark.parametrize("with_mask", [False, True])
def test_a_later_token_changes_no_earlier_logits(name, score, with_mask):
    family = FAMILIES[name]
    model, inputs = family.converted(**score), family.inputs(length=12)
    key = "decoder_input_ids" if family.kind == "translation" else "input_ids"
    if with_mask:  # one row padded, so that the mask is written out
        mask = torch.ones_like(inputs[key])
        mask[0, :2] = 0
        inputs["decoder_attention_mask" if "decoder" in key else "attention_mask"] = mask
    before = logits(model, inputs)
    inputs[key] = inputs[key].clone()
    inputs[key][:, 6] = (inputs[key][:, 6] + 7) % 50 + 3
    after = logits(model, inputs)
    same(after[:, :6], before[:, :6])
    assert (after[:, 6:] - before[:, 6:]).abs().amax(-1).min() > 1e-4


@scores
@pytest.mark.parametrize("name", TEXT)
def test_what_stands_in_padding_changes_nothing(name, score):
    family = FAMILIES[name]
    model, inputs = family.converted(**score), family.inputs()
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, -3:] = 0
    mask[1, -1:] = 0
    inputs["attention_mask"] = mask
    before = logits(model, inputs)
    other = {**inputs, "input_ids": torch.where(mask == 1, inputs["input_ids"], 17)}
    after = logits(model, other)
    if before.shape[1] == mask.shape[1]:
        before, after = before[mask == 1], after[mask == 1]
    same(after, before)
    # and as if it were not there
    alone = {key: value[:1] for key, value in inputs.items()}
    alone["input_ids"], alone["attention_mask"] = (
        alone["input_ids"][:, :-3],
        alone["attention_mask"][:, :-3],
    )
    expected = logits(model, alone)
    found = logits(model, inputs)[:1, : expected.shape[1]]
    same(found, expected)


@scores
@pytest.mark.parametrize("name", DECODERS)
def test_packed_documents_equal_separate_ones(name, score):
    family = FAMILIES[name]
    model, tokens = family.converted(**score), family.inputs(batch=1, length=12)["input_ids"]
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    packed = logits(model, {"input_ids": tokens, "position_ids": positions, "use_cache": False})
    parts = [logits(model, {"input_ids": part}) for part in tokens.split([5, 7], dim=1)]
    same(packed, torch.cat(parts, dim=1))


@scores
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", *TRANSLATORS])
def test_documents_of_a_mask_do_not_see_each_other(name, score):
    family = FAMILIES[name]
    model, inputs = family.converted(**score), family.inputs(batch=1, length=12)
    document = torch.tensor([0] * 5 + [1] * 7)
    inputs["attention_mask"] = (document[:, None] == document)[None, None]
    encoder = model.get_encoder() if family.kind == "translation" else model.base_model
    inputs.pop("decoder_input_ids", None)
    before = encoder(**inputs).last_hidden_state
    inputs["input_ids"] = inputs["input_ids"].clone()
    inputs["input_ids"][:, 2] = 9
    after = encoder(**inputs).last_hidden_state
    same(after[:, 5:], before[:, 5:])
    assert not torch.allclose(after[:, :5], before[:, :5], atol=1e-4)


@scores
@pytest.mark.parametrize("name", TRANSLATORS)
def test_documents_packed_into_a_decoder_do_not_see_each_other(name, score):
    family = FAMILIES[name]
    model, inputs = family.converted(**score), family.inputs(batch=1, length=12)
    length = inputs["decoder_input_ids"].shape[1]
    document = torch.tensor([0] * 5 + [1] * (length - 5))
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    inputs["decoder_attention_mask"] = (causal & (document[:, None] == document))[None, None]
    before = logits(model, inputs)
    inputs["decoder_input_ids"] = inputs["decoder_input_ids"].clone()
    inputs["decoder_input_ids"][:, 2] = 9
    after = logits(model, inputs)
    same(after[:, 5:], before[:, 5:])
    same(after[:, :2], before[:, :2])
    assert not torch.allclose(after[:, 2:5], before[:, 2:5], atol=1e-4)


@scores
@pytest.mark.parametrize("name", ["mistral", "gemma3_text"])
def test_a_sliding_window_hides_old_tokens(name, score):
    family = FAMILIES[name]
    changes = {"layer_types": ["sliding_attention"] * 2} if name == "gemma3_text" else {}
    model, inputs = family.converted(changes, **score), family.inputs(batch=1, length=16)
    before = logits(model, inputs)
    inputs["input_ids"] = inputs["input_ids"].clone()
    inputs["input_ids"][:, 0] = 9
    after = logits(model, inputs)
    # two layers of windows of 5 reach 8 back
    same(after[:, 9:], before[:, 9:])
    assert not torch.allclose(after[:, :5], before[:, :5], atol=1e-4)


@pytest.mark.parametrize("name", TEXT)
def test_a_row_of_nothing_but_padding_harms_nobody(name):
    family = FAMILIES[name]
    model, inputs = family.converted(**SCORES["neural"]), family.inputs()
    mask = torch.ones_like(inputs["input_ids"])
    mask[0] = 0
    inputs["input_ids"][0] = PAD
    inputs["attention_mask"] = mask
    found = logits(model, inputs)
    assert found.isfinite().all()
    same(found[1:], logits(model, {key: value[1:] for key, value in inputs.items()}))
