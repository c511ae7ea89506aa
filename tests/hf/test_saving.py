"""Saving and loading, tied weights, copies, export."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import warnings

import pytest
import torch
import transformers

import neural_attention as na

from .families import FAMILIES, LAYERS, SCORES, disturb, logits

AUTO = {
    "decoder": transformers.AutoModelForCausalLM,
    "translation": transformers.AutoModelForSeq2SeqLM,
    "encoder": transformers.AutoModelForMaskedLM,
    "image": transformers.AutoModelForImageClassification,
}
CONVERSION = {
    "score": "hybrid",
    "positions": "slopes",
    "projection": {"q": "mlp", "k": "residual", "o": "residual"},
    "score_network": {"width": 6, "hidden": (3,)},
    "layers": [1],
}


@pytest.fixture(autouse=True)
def _quiet():
    transformers.utils.logging.disable_progress_bar()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_auto_classes_open_what_was_saved(name, tmp_path):
    family = FAMILIES[name]
    model, inputs = family.converted(**CONVERSION), family.inputs()
    expected = logits(model, inputs)
    model.save_pretrained(tmp_path)
    assert (
        json.loads((tmp_path / "config.json").read_text())["model_type"]
        == f"neural_attention_{name}"
    )
    assert (tmp_path / "model.safetensors").exists()
    for load in (AUTO[family.kind].from_pretrained, na.hf.from_pretrained):
        loaded, report = load(tmp_path, output_loading_info=True)
        assert not any(report.values()), report
        assert type(loaded) is type(model)
        assert loaded.config.neural_attention == model.config.neural_attention
        assert torch.equal(logits(loaded.eval(), inputs), expected)
    again = tmp_path / "again"
    loaded.save_pretrained(again)
    assert torch.equal(logits(na.hf.from_pretrained(again).eval(), inputs), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_base_model_is_saved_and_reports_its_outputs(name, tmp_path):
    family = FAMILIES[name]
    base = type(family.make().base_model)
    model = na.hf.convert(base(family.make().config).eval())
    inputs = family.inputs()
    outputs = model(**inputs, output_attentions=True, output_hidden_states=True)
    maps = outputs.decoder_attentions if family.kind == "translation" else outputs.attentions
    assert len(maps) == LAYERS
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(**inputs)[0], outputs[0])


def test_another_process_needs_the_import(tmp_path):
    FAMILIES["llama"].converted().save_pretrained(tmp_path)
    load = (
        f"from transformers import AutoModelForCausalLM as A; A.from_pretrained({str(tmp_path)!r})"
    )
    without = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True)
    assert without.returncode == 1
    assert "neural_attention_llama" in without.stderr
    code = f"import neural_attention.hf; {load}"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_type_outside_the_list_is_loaded_by_name(tmp_path):
    config = transformers.OlmoConfig(**FAMILIES["llama"].options)
    model = na.hf.convert(transformers.OlmoForCausalLM(config).eval())
    model.save_pretrained(tmp_path)
    inputs = FAMILIES["llama"].inputs()
    loaded = na.hf.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(loaded, inputs), logits(model, inputs))


def test_a_model_of_two_towers(tmp_path):
    """Gemma 3 with its vision tower: an encoder and a decoder under one configuration."""
    text = FAMILIES["gemma3_text"].options
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 8, "patch_size": 2}
    config = transformers.Gemma3Config(
        text_config=dict(text),
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=60,
        boi_token_index=58,
        eoi_token_index=59,
    )
    torch.manual_seed(0)
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    tokens = torch.tensor([[5, 58, 60, 60, 60, 60, 59, 7, 8]])
    inputs = {"input_ids": tokens, "pixel_values": torch.randn(1, 3, 8, 8)}
    inputs["token_type_ids"] = (tokens == 60).long()
    expected = logits(model, inputs)
    na.hf.convert(model)
    torch.testing.assert_close(logits(model, inputs), expected, atol=1e-5, rtol=1e-5)
    assert model.config.neural_attention["layers"] == {"encoder": [0], "decoder": [0, 1]}
    disturb(model)
    expected = logits(model, inputs)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(loaded, inputs), expected)


@pytest.mark.parametrize("name", ["llama", "marian", "roberta", "gpt2"])
def test_tied_weights_stay_tied(name, tmp_path):
    family = FAMILIES[name]
    model = family.converted({"tie_word_embeddings": True}, projection="residual")
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    model.save_pretrained(tmp_path)
    loaded = na.hf.from_pretrained(tmp_path)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert sum(p.numel() for p in loaded.parameters()) == sum(p.numel() for p in model.parameters())


def test_loading_keeps_the_dtype_and_the_implementation_behind(tmp_path):
    model = FAMILIES["llama"].make().bfloat16()
    na.hf.convert(model, layers=[0], score_network={"width": 4}).save_pretrained(tmp_path)
    loaded = na.hf.from_pretrained(
        tmp_path, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    inputs = FAMILIES["llama"].inputs()
    torch.testing.assert_close(logits(loaded, inputs), logits(model, inputs), atol=0.1, rtol=0.1)


def test_a_stock_checkpoint_in_a_converted_class_starts_the_new_parts(tmp_path):
    family = FAMILIES["llama"]
    stock = family.make()
    stock.save_pretrained(tmp_path)
    model = na.hf.convert(family.make())
    loaded = type(model).from_pretrained(tmp_path, config=model.config).eval()
    inputs = family.inputs()
    torch.testing.assert_close(logits(loaded, inputs), logits(stock, inputs), atol=1e-5, rtol=1e-5)
    network = loaded.model.layers[0].self_attn.neural_attention.score_network
    assert network.query.weight.norm() > 1


def test_copies_and_pickles():
    family = FAMILIES["mistral"]
    model, inputs = family.converted(**SCORES["neural"]), family.inputs()
    expected = logits(model, inputs)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0)
        assert torch.equal(logits(other, inputs), expected)
        assert other.model.layers[0].self_attn.neural_attention is not None
    built = type(model)(model.config).eval()
    built.load_state_dict(model.state_dict())
    assert torch.equal(logits(built, inputs), expected)


def changed_config(folder, change):
    FAMILIES["llama"].converted().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config["neural_attention"].update(version=2), "version 2.*install a newer"),
        (lambda config: config["neural_attention"].pop("score"), "score missing or unknown"),
        (lambda config: config.pop("neural_attention"), "has no neural_attention"),
        (lambda config: config.update(model_type="llama"), "of type 'llama'"),
        (lambda config: config.update(model_type="neural_attention_lama"), "neural_attention_lama"),
        (
            lambda config: config.update(architectures=["NeuralAttentionX"]),
            "holds a 'NeuralAttentionX'",
        ),
    ],
)
def test_checkpoints_that_do_not_fit(change, message, tmp_path):
    changed_config(tmp_path, change)
    with pytest.raises(ValueError, match=message):
        na.hf.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["llama", "roberta", "marian", "vit"])
@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES.keys())
def test_export(name, score):
    family = FAMILIES[name]
    model, inputs = family.converted(**score), family.inputs()
    if family.kind != "image":
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if family.kind in ("decoder", "translation"):
        inputs["use_cache"] = False
    expected = logits(model, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its own
        program = torch.export.export(model, (), kwargs=inputs)
    assert "neural_attention.attention" in str(program.graph)
    torch.testing.assert_close(program.module()(**inputs).logits, expected, atol=1e-5, rtol=1e-5)


def test_export_with_a_length_that_varies():
    model = FAMILIES["llama"].converted(**SCORES["hybrid"])
    inputs = {"input_ids": FAMILIES["llama"].inputs()["input_ids"], "use_cache": False}
    length = torch.export.Dim("length", min=2, max=64)
    shapes = {"input_ids": {1: length}, "use_cache": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its own
        program = torch.export.export(model, (), kwargs=inputs, dynamic_shapes=shapes)
    inputs["input_ids"] = FAMILIES["llama"].inputs(length=17)["input_ids"]
    found = program.module()(**inputs).logits
    torch.testing.assert_close(found, logits(model, inputs), atol=1e-5, rtol=1e-5)
