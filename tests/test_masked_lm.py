"""Masked language modelling: masks, scores, models from scratch and pretrained ones."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

import transformers
from tokenizers import Tokenizer, models

from neural_attention.cli import main
from neural_attention.compare import parse_arm
from neural_attention.compare.comparison import ignore, spec_of
from neural_attention.compare.presets import choose_preset
from neural_attention.tasks.masked_lm import MaskedLanguageModelling
from neural_attention.tasks.masking import (
    MaskedBlocks,
    masked,
    masked_loss,
    scored_blocks,
    special_tokens,
)

from .small_models import save_roberta

TASK = MaskedLanguageModelling()
SPECIAL = {"start": 90, "end": 91, "mask": 92, "entries": 90}
TEXT = "the quick brown fox jumps over the lazy dog and the cat sat on the mat\n" * 400


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    return save_roberta(tmp_path_factory.mktemp("pretrained"), TEXT)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


def spec(arm, folder, **options):
    preset = choose_preset(TASK, "smoke", options)
    source, _ = TASK.read(preset, ignore)
    data = TASK.prepare(source, preset, folder, ignore)
    return spec_of(TASK, parse_arm(arm), preset, data, "cpu", {})


# Masks


def test_the_shares_of_masks_are_those_of_bert():
    tokens = np.full(200_000, 7)
    hidden, chosen = masked(tokens, 90, 92, np.random.default_rng(0))
    assert chosen.mean() == pytest.approx(0.15, abs=0.003)
    found = hidden[chosen]
    assert (found == 92).mean() == pytest.approx(0.8, abs=0.01)
    # One other token in 90 is the one that was there.
    assert ((found != 92) & (found != 7)).mean() == pytest.approx(0.1 * 89 / 90, abs=0.005)
    assert (hidden[~chosen] == 7).all()


def test_training_masks_depend_on_seed_and_index_alone():
    tokens = np.random.default_rng(0).integers(90, size=500)
    arguments = {"length": 30, "samples": 40, "special": SPECIAL}
    one, same = (MaskedBlocks(tokens, seed=3, **arguments) for _ in range(2))
    other = MaskedBlocks(tokens, seed=4, **arguments)
    torch.testing.assert_close(one[17], same[17])
    assert one.sha256 == same.sha256 != other.sha256
    # The same text comes back in a later pass with other masks.
    assert len({tuple(one[index]["input_ids"].tolist()) for index in range(40)}) == 40
    example = one[5]
    ids, labels = example["input_ids"], example["labels"]
    assert (ids[0], ids[-1], labels[0], labels[-1]) == (90, 91, -100, -100)
    kept = labels == -100
    assert kept.any()
    assert not kept.all()
    assert ids.shape == labels.shape == (32,)


class Uniform(torch.nn.Module):
    """Every token is as likely as any other, but where ``sure`` it is certain."""

    def __init__(self, sure=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = []

    def forward(self, input_ids):
        self.seen.append(input_ids)
        logits = torch.zeros(*input_ids.shape, 90) + self.weight
        return transformers.modeling_outputs.MaskedLMOutput(logits=logits)


@pytest.mark.parametrize("size", [10, 30, 31, 100])
def test_every_masked_token_is_scored_once_whatever_the_blocks(size):
    tokens = np.random.default_rng(1).integers(90, size=size)
    loss, count = masked_loss(Uniform(), tokens, length=30, special=SPECIAL, batch_size=3)
    assert loss == pytest.approx(math.log(90))
    whole, chosen = masked(tokens, 90, 92, np.random.default_rng(0))
    assert count == max(1, chosen.sum())
    targets = [t for _, ts in scored_blocks(tokens, 30, SPECIAL, 2) for t in ts]
    found = np.concatenate([t[t != -100].numpy() for t in targets])
    if chosen.any():
        assert found.tolist() == tokens[chosen].tolist()
    inputs = torch.cat([ids for ids, _ in scored_blocks(tokens, 30, SPECIAL, 2)])
    assert (inputs[:, 0] == 90).all()
    assert (inputs[:, -1] == 91).all()
    assert set(inputs[:, 1:-1].flatten().tolist()) == set(whole.tolist())


def test_a_tokeniser_without_a_mask_is_refused():
    bare = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), bos_token="<s>", eos_token="</s>"
    )
    with pytest.raises(ValueError, match="has no token for mask"):
        special_tokens(bare)


# Models


@pytest.mark.parametrize(
    "arm",
    ["neural", "hybrid+alibi", "projection=mlp:qkv+no_layer_norm", "projection=residual",
     "neural+layers=first", "additive+none", "dot+alibi"],
)  # fmt: skip
def test_an_arm_differs_from_the_stock_model_in_its_attention_alone(arm, tmp_path):
    stock = TASK.build(spec("dot", tmp_path)).model
    built = TASK.build(spec(arm, tmp_path))
    assert built.own
    assert all("attention" in name for name in built.own)
    values = dict(stock.named_parameters())
    for name, parameter in built.model.named_parameters():
        if name in built.shared:
            torch.testing.assert_close(parameter, values[name])
    assert {name.rpartition(".")[0] for name in values} - {
        name.rpartition(".")[0] for name in built.shared
    } <= {name.removesuffix(".0").removesuffix(".linear") for name in _replaced(stock)}


def _replaced(model):
    return {
        n for n, m in model.named_modules() if n.rpartition(".")[2] in ("query", "key", "value")
    }


def test_dot_products_run_on_our_kernels_unless_torch_is_asked_for(tmp_path):
    run = spec("dot", tmp_path)
    ours, torchs = TASK.build(run).model.eval(), TASK.build(run, "sdpa").model.eval()
    assert ours.config._attn_implementation == "neural_attention_dot"
    assert torchs.config._attn_implementation == "sdpa"
    ids = torch.randint(0, 300, (2, 20))
    torch.testing.assert_close(ours(ids).logits, torchs(ids).logits, atol=1e-5, rtol=1e-5)
    # Layers that an arm leaves alone too.
    first = TASK.build(spec("neural+layers=first", tmp_path)).model
    assert first.roberta.encoder.layer[1].attention.self.neural_attention.fallback.__name__ == (
        "dot_product_forward"
    )


def test_a_model_from_scratch_takes_no_start_and_no_rotation(tmp_path):
    with pytest.raises(ValueError, match="start is for pretrained models"):
        TASK.build(spec("hybrid+start=preserve", tmp_path))
    with pytest.raises(ValueError, match="rotary positions are not this model's"):
        TASK.build(spec("dot+rotary", tmp_path))
    with pytest.raises(ValueError, match="kv_heads is for decoders"):
        TASK.build(spec("dot+kv_heads=1", tmp_path))


def test_a_pretrained_model_is_kept_where_the_arm_contains_it(pretrained, text, tmp_path):
    options = {"model": str(pretrained), "data": str(text)}
    stock = TASK.build(spec("dot", tmp_path, **options)).model.eval()
    ids = torch.tensor([[0, 5, 6, 7, 8, 2]])
    before = transformers.RobertaForMaskedLM.from_pretrained(pretrained).eval()(ids).logits
    torch.testing.assert_close(stock(ids).logits, before, atol=1e-5, rtol=1e-5)
    for arm, is_kept in [
        ("hybrid", True),
        ("projection=residual", True),
        ("hybrid+projection=residual+start=preserve", True),
        ("projection=residual+start=random", False),
        ("neural", False),
        ("projection=mlp", False),
    ]:
        model = TASK.build(spec(arm, tmp_path, **options)).model.eval()
        assert torch.allclose(model(ids).logits, before, atol=1e-4) == is_kept, arm
    with pytest.raises(ValueError, match="would not compute what it did"):
        TASK.build(spec("neural+start=preserve", tmp_path, **options))
    with pytest.raises(ValueError, match="feed_forward is that of the pretrained model"):
        TASK.build(spec("dot+feed_forward=99", tmp_path, **options))


def test_roles_and_starts_are_refused_where_nothing_is_converted(capsys, tmp_path):
    command = ["compare", "lm", "--preset", "smoke", "--quiet", "--out", str(tmp_path), "--arms"]
    for arm in ("dot+start=random", "neural+roles=encoder"):
        assert main([*command, arm]) == 2
        assert "roles and start are for tasks that convert" in capsys.readouterr().err


# Comparisons


def test_pretrained_arms_are_compared(pretrained, text, tmp_path, capsys):
    command = ["compare", "masked-lm", "--preset", "smoke", "--model", str(pretrained), "--data",
               str(text), "--device", "cpu", "--quiet", "--learning-rates", "1e-3",
               "--log-to", "none", "--out", str(tmp_path), "--arms"]  # fmt: skip
    assert main([*command, "dot", "projection=mlp:qkv+no_layer_norm", "hybrid"]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert list(result["arms"]) == ["dot", "projection=mlp:qkv+no_layer_norm", "hybrid"]
    for arm in result["arms"].values():
        assert 1 < arm["test"]["perplexity"] < 1e6
    counts = {name: arm["parameters"] for name, arm in result["arms"].items()}
    assert counts["projection=mlp:qkv+no_layer_norm"] > counts["hybrid"] > counts["dot"]
    capsys.readouterr()
    assert main([*command, "dot", "hybrid", "--control"]) == 2
    assert "there can be no control: feed_forward" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "says"),
    [("absent-folder", "the model 'absent-folder' cannot be loaded"), ("", "its name is empty")],
)
def test_a_model_that_is_not_there_is_named(capsys, tmp_path, model, says):
    command = ["compare", "masked-lm", "--preset", "smoke", "--model", model, "--quiet"]
    assert main([*command, "--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err


def test_a_model_whose_weights_are_cut_off_is_named(pretrained, text, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(pretrained, broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    command = ["compare", "masked-lm", "--preset", "smoke", "--model", str(broken), "--quiet"]
    out = ["--data", str(text), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*command, *out]) == 2
    said = capsys.readouterr().err
    assert "cannot be loaded" in said
    assert len(said.splitlines()) == 1
