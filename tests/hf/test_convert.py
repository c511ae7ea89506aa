"""What convert keeps, changes and refuses."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch import nn

import neural_attention as na
from neural_attention.projection import HalfResidualProjection, ResidualProjection

from .families import (
    DECODERS,
    FAMILIES,
    LAYERS,
    PAD,
    SCORES,
    TEXT,
    TRANSLATORS,
    logits,
    quiet_convert,
)

PRESERVED = {
    "hybrid": {"score": "hybrid", "score_network": {"width": 6}},
    "hybrid-slopes": {"score": "hybrid", "positions": "slopes"},
    "alibi": {"score": "dot", "positions": "alibi"},
    "residual": {"score": "dot", "projection": dict.fromkeys("qkvo", "residual")},
    "both": {"score": "hybrid", "projection": "residual"},
}


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("options", PRESERVED.values(), ids=PRESERVED.keys())
def test_preserve_computes_what_the_model_did(name, options):
    family = FAMILIES[name]
    stock, converted = family.make(), na.hf.convert(family.make(), **options)
    inputs = family.inputs()
    close(logits(converted, inputs), logits(stock, inputs))
    # and it is converted: what was added takes part
    inputs["output_attentions"] = True
    before = converted(**inputs)
    with torch.no_grad():
        for key, parameter in converted.named_parameters():
            if "neural_attention" in key or "network" in key:
                parameter.normal_(std=0.5)
    assert not torch.allclose(converted(**inputs).logits, before.logits, atol=1e-3)


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("side", ["left", "right"])
def test_preserve_with_padding(name, side):
    family = FAMILIES[name]
    stock, converted = family.make(), na.hf.convert(family.make(), projection="residual")
    inputs = family.inputs()
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, slice(None, 3) if side == "left" else slice(-3, None)] = 0
    inputs["input_ids"][mask == 0] = PAD
    inputs["attention_mask"] = mask
    found, expected = logits(converted, inputs), logits(stock, inputs)
    if found.shape[1] == mask.shape[1]:
        found, expected = found[mask == 1], expected[mask == 1]
    close(found, expected)


@pytest.mark.parametrize("name", [*DECODERS, *TRANSLATORS])
def test_preserve_with_a_cache(name):
    family = FAMILIES[name]
    stock, converted = family.make(), na.hf.convert(family.make(), projection="residual")
    inputs = family.inputs()
    options = {"do_sample": False, "max_new_tokens": 6, "output_logits": True}
    options["return_dict_in_generate"] = True
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    found, expected = (model.generate(**inputs, **options) for model in (converted, stock))
    assert torch.equal(found.sequences, expected.sequences)
    close(torch.stack(found.logits), torch.stack(expected.logits))


@pytest.mark.parametrize("name", FAMILIES)
def test_eager_models_keep_their_eager_attention_in_layers_left_alone(name):
    family = FAMILIES[name]
    inputs = family.inputs()
    stock, model = family.make(), family.make()
    for one in (stock, model):
        one.set_attn_implementation("eager")
    role = {"decoder": "decoder"}.get(family.kind, "encoder")
    na.hf.convert(model, layers={role: [0]})
    close(logits(model, inputs), logits(stock, inputs))
    found = model(**inputs, output_attentions=True)
    expected = stock(**inputs, output_attentions=True)
    maps = "encoder_attentions" if family.kind == "translation" else "attentions"
    assert len(found[maps]) == LAYERS
    for one, other in zip(found[maps], expected[maps], strict=True):
        close(one, other)


def test_layers_and_roles_are_chosen():
    model = na.hf.convert(FAMILIES["marian"].make(), layers={"encoder": [1], "cross": None})
    networks = [
        name.partition(".neural_attention")[0]
        for name, _ in model.named_parameters()
        if name.endswith("score_network.output")
    ]
    assert networks == [
        "model.encoder.layers.1.self_attn",
        "model.decoder.layers.0.encoder_attn",
        "model.decoder.layers.1.encoder_attn",
    ]
    assert model.config.neural_attention["layers"] == {"encoder": [1], "cross": [0, 1]}


def test_cross_attention_has_no_distances():
    model = FAMILIES["bart"].converted(**SCORES["neural"])
    layer = model.model.decoder.layers[0]
    assert layer.self_attn.neural_attention.slopes is not None
    assert layer.encoder_attn.neural_attention.slopes is None


def test_projections_of_every_kind_and_place():
    llama = quiet_convert(
        FAMILIES["llama"].make(),
        score="dot",
        projection={"q": "karbevski", "k": "mlp", "v": "residual", "o": "residual"},
        init="random",
        layers=[1],
        projection_options={"width_factor": 1, "layer_norm": False},
    )
    attention = llama.model.layers[1].self_attn
    assert isinstance(attention.q_proj, HalfResidualProjection)
    assert [type(part) for part in attention.k_proj] == [nn.Linear, nn.ReLU, nn.Linear]
    assert isinstance(attention.v_proj, ResidualProjection)
    assert attention.k_proj[0].bias is None
    assert isinstance(llama.model.layers[0].self_attn.q_proj, nn.Linear)

    stock = FAMILIES["roberta"].make()
    bert = na.hf.convert(copy.deepcopy(stock), projection={"o": "residual"}, score="dot")
    output = bert.roberta.encoder.layer[0].attention.output.dense
    assert torch.equal(
        output.linear.weight, stock.roberta.encoder.layer[0].attention.output.dense.weight
    )

    gpt2 = na.hf.convert(FAMILIES["gpt2"].make(), score="dot", projection={"q": "residual"})
    parts = gpt2.transformer.h[0].attn.c_attn.parts
    assert isinstance(parts["q"], ResidualProjection)
    assert isinstance(parts["k"], nn.Linear)


def test_new_linear_layers_start_as_the_models_own():
    model = FAMILIES["marian"].make(init_std=0.7)
    na.hf.convert(model, score="dot", projection="mlp", init="random")
    first = model.model.encoder.layers[0].self_attn.q_proj[0]
    assert 0.6 < first.weight.std() < 0.8
    assert not first.bias.any()


def test_the_models_configuration_becomes_its_own():
    family = FAMILIES["llama"]
    stock = family.make()
    other = transformers.LlamaForCausalLM(stock.config).eval()
    inputs = family.inputs()
    expected = logits(other, inputs)
    na.hf.convert(stock)
    close(logits(other, inputs), expected)
    assert not hasattr(other.config, "neural_attention")
    assert isinstance(stock.config, transformers.LlamaConfig)
    assert isinstance(stock, transformers.LlamaForCausalLM)


def test_a_rotary_model_with_a_pure_network_is_warned_about():
    with pytest.warns(UserWarning, match="not relative"):
        na.hf.convert(FAMILIES["llama"].make(), score="neural", init="random")


def test_slopes_take_the_rotations_place():
    family = FAMILIES["llama"]
    model = family.converted(**SCORES["neural"])
    inputs = family.inputs()
    moved = {**inputs, "position_ids": torch.arange(9)[None] * 7}
    close(logits(model, moved), logits(model, inputs))
    hybrid = family.converted(**SCORES["hybrid"])
    assert not torch.allclose(logits(hybrid, moved), logits(hybrid, inputs), atol=1e-3)


BAD_OPTIONS = {
    "unknown score": ({"score": "cosine"}, "score is 'cosine'"),
    "unknown projection": ({"projection": "lora"}, "projection 'lora' is unknown"),
    "unknown positions": ({"positions": "rotary"}, "positions is 'rotary'"),
    "unknown init": ({"init": "zero"}, "init is 'zero'"),
    "slopes without network": ({"score": "dot", "positions": "slopes"}, "score='dot' has none"),
    "no positions for a dot product": ({"positions": "none"}, "keeps it"),
    "nothing to do": ({"score": "dot"}, "nothing to convert"),
    "pure score preserved": ({"score": "neural"}, "init='random'"),
    "mlp preserved": ({"projection": "mlp"}, "init='random'"),
    "network of a dot product": (
        {"score": "dot", "projection": "residual", "score_network": {"width": 3}},
        "no score network",
    ),
    "unknown preset": ({"score_network": "huge"}, "preset 'huge' is unknown"),
    "layer out of range": ({"layers": [2]}, "layers 0 to 1"),
    "negative layer": ({"layers": [-1]}, "layers 0 to 1"),
    "no layers": ({"layers": []}, "nothing to convert"),
    "unknown role": ({"layers": {"cross": None}}, "this model has decoder"),
    "options of nothing": ({"projection_options": {"layer_norm": False}}, "nothing to act on"),
    "unknown option": ({"projection": "residual", "projection_options": {"depth": 3}}, "depth"),
    "karbevski on unequal widths": (
        {"projection": {"q": "karbevski"}, "init": "random", "changes": {"head_dim": 4}},
        "as many outputs",
    ),
}


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_bad_options_leave_the_model_as_it_was(options, message):
    options = dict(options)
    model = FAMILIES["llama"].make(**options.pop("changes", {}))
    before = repr(model), model.config.to_dict(), type(model)
    with pytest.raises(ValueError, match=message):
        na.hf.convert(model, **options)
    assert (repr(model), model.config.to_dict(), type(model)) == before
    assert model.config._attn_implementation == "sdpa"
    na.hf.convert(model)  # and can still be converted


def test_converting_twice_is_refused():
    model = na.hf.convert(FAMILIES["llama"].make())
    with pytest.raises(ValueError, match="converted already"):
        na.hf.convert(model)


def test_unsupported_models_are_refused_by_name():
    bloom = transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=9, hidden_size=8, n_layer=1, n_head=2)
    )
    with pytest.raises(ValueError, match="BloomForCausalLM has no attention that goes through"):
        na.hf.convert(bloom)
    with pytest.raises(TypeError, match="expected a transformers PreTrainedModel"):
        na.hf.convert(nn.Linear(2, 2))


_SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 61}
OTHERS = {
    "GPTNeoXForCausalLM": {**_SMALL, "hidden_size": 32, "intermediate_size": 48},
    "OPTForCausalLM": {**_SMALL, "hidden_size": 32, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "Olmo2ForCausalLM": {**_SMALL, "hidden_size": 32, "intermediate_size": 48, "pad_token_id": 0},
    "AlbertForMaskedLM": {**_SMALL, "hidden_size": 32, "intermediate_size": 48},
    "ElectraForMaskedLM": {**_SMALL, "hidden_size": 32, "intermediate_size": 48},
}


@pytest.mark.parametrize("name", OTHERS)
def test_models_without_code_of_our_own(name):
    kind = getattr(transformers, name)
    stock = kind(kind.config_class(**OTHERS[name])).eval()
    model = na.hf.convert(copy.deepcopy(stock), projection=dict.fromkeys("o", "residual"))
    inputs = FAMILIES["bert"].inputs()
    close(logits(model, inputs), logits(stock, inputs))
    quiet_convert(stock, score="neural", positions="slopes", init="random")
    assert not torch.allclose(logits(model, inputs), logits(stock, inputs), atol=1e-4)


def test_a_soft_cap_is_refused_and_its_absence_is_not():
    options = dict(FAMILIES["gemma3_text"].options, num_attention_heads=4)
    config = transformers.Gemma2Config(**options)
    with pytest.raises(ValueError, match=r"Gemma2Attention .* 'softcap'"):
        na.hf.convert(transformers.Gemma2ForCausalLM(config))
    stock = transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**options, attn_logit_softcapping=None)
    ).eval()
    inputs = FAMILIES["llama"].inputs()
    close(logits(na.hf.convert(copy.deepcopy(stock)), inputs), logits(stock, inputs))
    # projections alone leave the score, and its cap, to the model
    capped = transformers.Gemma2ForCausalLM(config).eval()
    capped.set_attn_implementation("eager")
    found = na.hf.convert(copy.deepcopy(capped), score="dot", projection="residual")
    close(logits(found, inputs), logits(capped, inputs))
    assert found(**inputs, output_attentions=True).attentions[0] is not None


def test_sinks_are_refused():
    config = transformers.GptOssConfig(
        vocab_size=9,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        num_local_experts=2,
        num_experts_per_tok=1,
    )
    with pytest.raises(ValueError, match="'s_aux'"):
        na.hf.convert(transformers.GptOssForCausalLM(config))


def test_flash_attention_is_refused_by_name():
    model = FAMILIES["llama"].make()
    model.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(ValueError, match=r"set_attn_implementation\('sdpa'\)"):
        na.hf.convert(model)


def test_attention_maps_in_the_configuration_are_refused():
    model = FAMILIES["llama"].make()
    model.set_attn_implementation("eager")
    model.config.output_attentions = True
    with pytest.raises(ValueError, match="output_attentions=True to the calls"):
        na.hf.convert(model)


def test_a_changed_implementation_is_noticed():
    model = na.hf.convert(FAMILIES["llama"].make())
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="does not know its scores"):
        model(**FAMILIES["llama"].inputs())


def test_a_keyword_that_is_not_computed_is_refused():
    model = na.hf.convert(FAMILIES["llama"].make())
    with pytest.raises(ValueError, match="'softcap'"):
        model(**FAMILIES["llama"].inputs(), softcap=30.0)
