"""Generation with every cache equals generation without one."""

from __future__ import annotations

import pytest
import torch
import transformers
from packaging.version import Version

import neural_attention as na

from .families import DECODERS, FAMILIES, PAD, SCORES, TRANSLATORS, cache_name, logits

scores = pytest.mark.parametrize("score", SCORES.values(), ids=SCORES.keys())
NEW = 7
# Before, masks of padded prompts break the graph.
NEW_ENOUGH = Version(transformers.__version__) >= Version("5.24")


def prompts(family):
    """Two prompts of different length: the padding stands at the left in front of a decoder."""
    inputs = family.inputs()
    inputs.pop("decoder_input_ids", None)
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, slice(None, 3) if family.kind == "decoder" else slice(-3, None)] = 0
    inputs["input_ids"][mask == 0] = PAD
    return {**inputs, "attention_mask": mask}


def generate(model, inputs, **options):
    return model.generate(
        **inputs,
        do_sample=False,
        min_new_tokens=NEW,
        max_new_tokens=NEW,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )


def same(found, expected):
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(
        torch.stack(found.logits), torch.stack(expected.logits), atol=1e-4, rtol=1e-4
    )


@scores
@pytest.mark.parametrize("name", [*DECODERS, *TRANSLATORS])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_cache_changes_nothing(name, cache, score):
    family = FAMILIES[name]
    model, inputs = family.converted(**score), prompts(family)
    found = generate(model, inputs, cache_implementation=cache)
    same(found, generate(model, inputs, use_cache=False))


@pytest.mark.parametrize("name", [*DECODERS, *TRANSLATORS])
def test_beam_search_with_a_cache_changes_nothing(name):
    family = FAMILIES[name]
    model, inputs = family.converted(**SCORES["neural"]), prompts(family)
    found = generate(model, inputs, num_beams=3)
    expected = generate(model, inputs, num_beams=3, use_cache=False)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)


@scores
@pytest.mark.parametrize("name", DECODERS)
def test_generated_logits_equal_one_full_pass(name, score):
    family = FAMILIES[name]
    model, inputs = family.converted(**score), prompts(family)
    found = generate(model, inputs)
    length = inputs["input_ids"].shape[1]
    mask = torch.cat([inputs["attention_mask"], torch.ones(2, NEW, dtype=torch.long)], dim=1)
    full = {"input_ids": found.sequences, "attention_mask": mask, "use_cache": False}
    full["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    expected = logits(model, full)[:, length - 1 : -1]
    torch.testing.assert_close(torch.stack(found.logits, dim=1), expected, atol=1e-4, rtol=1e-4)


@scores
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text"])
def test_a_prompt_in_pieces_equals_one(name, score):
    family = FAMILIES[name]
    model = family.converted(**score)
    tokens = family.inputs(batch=1, length=14)["input_ids"]
    cache = transformers.DynamicCache(config=model.config)
    options = {cache_name(model): cache}
    pieces = [model(piece, **options).logits for piece in tokens.split(5, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(tokens).logits, atol=1e-4, rtol=1e-4)


def test_a_pure_network_stores_its_channels_as_keys():
    model = FAMILIES["llama"].converted(**SCORES["neural"], layers=[1])
    cache = model(**FAMILIES["llama"].inputs())[cache_name(model)]
    assert [layer.keys.shape[-1] for layer in cache.layers] == [8, 6]
    report = na.hf.cache_report(model)
    stored = sum(
        x.numel() * x.itemsize for layer in cache.layers for x in (layer.keys, layer.values)
    )
    assert report.after == stored / (2 * 9)
    assert report.before == 2 * 2 * 8 * 2 * 4


def test_a_hybrid_stores_what_the_model_did():
    report = na.hf.cache_report(FAMILIES["marian"].converted(score="hybrid"))
    assert (
        report.before == report.after == report.cross_before == report.cross_after == 2 * 2 * 32 * 4
    )


def test_cache_report_of_a_stock_model_is_refused():
    with pytest.raises(ValueError, match="not converted"):
        na.hf.cache_report(FAMILIES["llama"].make())


def test_a_cache_of_another_width_is_refused():
    family = FAMILIES["llama"]
    inputs = family.inputs(batch=1)
    model = family.converted(**SCORES["neural"])
    cache = family.make()(**inputs)[cache_name(model)]
    with pytest.raises(ValueError, match="filled by another model"):
        model(**inputs, **{cache_name(model): cache})


def test_prefill_in_chunks():
    family = FAMILIES["llama"]
    model = family.converted(**SCORES["neural"])
    inputs = family.inputs(batch=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    expected = generate(model, inputs, use_cache=False)
    cache = {cache_name(model): transformers.DynamicCache(config=model.config)}
    options = {"prefill_chunk_size": 4, "disable_compile": True}
    same(generate(model, inputs, **cache, **options), expected)


@pytest.mark.parametrize("score", ["neural", "hybrid"])
def test_compiled_decoding_with_a_static_cache(score):
    torch._dynamo.reset()
    family = FAMILIES["mistral"]
    model, inputs = family.converted(**SCORES[score]), prompts(family)
    expected = generate(model, inputs, use_cache=False)
    model.forward = torch.compile(model.forward, backend="aot_eager", fullgraph=NEW_ENOUGH)
    same(generate(model, inputs, cache_implementation="static"), expected)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_decoder_with_cross_attention(name):
    """An encoder and a decoder of single models, put together."""
    changes = {"is_decoder": True, "add_cross_attention": True, "is_causal": True}
    config = {**FAMILIES[name].options, **changes}
    kinds = {
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
        "bert": (transformers.BertConfig, transformers.BertLMHeadModel),
    }
    torch.manual_seed(0)
    config.pop("is_causal")
    decoder = kinds[name][1](kinds[name][0](**config)).eval()
    encoder = FAMILIES["bert"].make().bert
    model = transformers.EncoderDecoderModel(encoder=encoder, decoder=decoder).eval()
    stock = logits(model, {**FAMILIES["marian"].inputs()})
    na.hf.convert(model)
    torch.testing.assert_close(
        logits(model, {**FAMILIES["marian"].inputs()}), stock, atol=1e-5, rtol=1e-5
    )
    assert set(model.config.neural_attention["layers"]) == {"encoder", "decoder", "cross"}
    inputs = prompts(FAMILIES["marian"])
    options = {"decoder_start_token_id": 1, "pad_token_id": PAD}
    found = generate(model, inputs, **options)
    same(found, generate(model, inputs, use_cache=False, **options))
