"""The attention viewer's parts, without a browser: maps, packing, pages, and the command."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import zlib
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import neural_attention as na
from neural_attention.cli import main
from neural_attention.headwise import pair_scores
from neural_attention.report import packing, viewer
from neural_attention.report.maps import collect_maps
from neural_attention.report.page import legible, make_page
from neural_attention.report.scores import channel_shares

needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="needs transformers"
)


class Layers(torch.nn.Module):
    """Two layers of this library, one of them torch's twin inside of torch's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.first = na.NeuralAttention(16, 2)
        self.second = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.second.self_attn = na.MultiheadAttention(16, 2, batch_first=True, score="hybrid")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, is_causal=True))


def embedded(view: Any) -> dict[str, Any]:
    """The data of a page."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', view.html)
    return json.loads(text)


def blob(view: Any, name: str) -> bytes:
    (text,) = re.findall(rf'id="blob-{name}">([^<]*)</script>', view.html)
    return zlib.decompress(base64.b64decode(text))


def decoded(view: Any, name: str, rows: int, columns: int) -> torch.Tensor:
    """A map, as the page's script reads it."""
    data = bytearray(blob(view, name))
    scales = torch.frombuffer(data, dtype=torch.float32, count=rows)
    steps = torch.frombuffer(data, dtype=torch.int8, offset=4 * rows)
    return steps.view(rows, columns) * scales[:, None] / 127


def test_maps_of_plain_layers_are_those_of_the_layers():
    model = Layers().train()
    x = torch.randn(1, 7, 16)
    first, second = collect_maps(model, {"": x})
    torch.testing.assert_close(
        first.weights, model.first.attention_weights(x, is_causal=True)[0].detach()
    )
    model.eval()
    _, weights = model.second.self_attn(*3 * [model.first(x, is_causal=True)],
                                        average_attn_weights=False)  # fmt: skip
    torch.testing.assert_close(second.weights, weights[0].detach(), atol=1e-5, rtol=1e-5)
    network = model.first.score_network
    q = model.first.q_proj(x).unflatten(-1, (2, -1)).transpose(1, 2)
    torch.testing.assert_close(first.score.a, network.query_features(q)[0].detach())
    assert second.score.score == "hybrid"


def test_looking_leaves_a_model_as_it_was():
    model = Layers().train()
    model.second.eval()
    na.view(model, torch.randn(1, 4, 16))
    assert model.training
    assert model.first.training
    assert not model.second.training
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_page_holds_the_maps_in_steps_of_their_rows():
    model = Layers()
    x = torch.randn(1, 9, 16)
    view = na.view(model, x)
    for layer, one in enumerate(collect_maps(model, {"": x})):
        for head in range(2):
            seen = decoded(view, f"map-self-0-{2 * layer + head}", 9, 9)
            step = one.weights[head].amax(-1, keepdim=True) / 127
            assert ((seen - one.weights[head]).abs() <= step * 0.501).all()


def test_the_difference_is_the_first_model_minus_the_second():
    models, x = (Layers(), Layers()), torch.randn(1, 5, 16)
    view = na.view(models[0], x, against=models[1], names=("new", "old"))
    assert embedded(view)["arms"] == ["new", "old", "Difference"]
    first, second = (collect_maps(model, {"": x})[1].weights[1] for model in models)
    seen = decoded(view, "map-self-2-3", 5, 5)
    torch.testing.assert_close(seen, first - second, atol=0.005, rtol=0)


def test_long_inputs_are_reduced_to_the_largest_weight_of_blocks(monkeypatch):
    monkeypatch.setattr(viewer, "BUDGET", 60_000)
    model, length = na.NeuralAttention(16, 2, score="dot"), 250
    x = torch.randn(1, length, 16)
    view = na.view(model, x)
    (role,) = embedded(view)["roles"]
    block, (rows, columns) = role["maps"][0]["block"], role["maps"][0]["cells"]
    assert block > 1
    assert rows == columns == -(-length // block)
    (one,) = collect_maps(model, {"": x})
    seen = decoded(view, "map-self-0-1", rows, columns)
    largest = one.weights[1, :block, :block].max()
    assert seen[0, 0] == pytest.approx(float(largest), abs=float(seen[0].max()) / 127)
    # The strongest keys of each query stay exact.
    top = bytearray(blob(view, "top-self-0-1"))
    keys = torch.frombuffer(top, dtype=torch.uint16, count=5 * length).view(length, 5).long()
    assert torch.equal(keys, one.weights[1].topk(5).indices)
    assert sum(len(part) for part in re.findall(r"blob-[^>]*>([^<]*)<", view.html)) < 80_000 + 4e3


def test_a_page_of_long_maps_of_many_heads_stays_under_20_mb():
    # Rows of noise, which nothing compresses.
    heads = [torch.rand(12, 512, 512) for _ in range(2)]
    packed = packing.pack_maps(heads, budget=packing.BUDGET // 60)
    size = sum(map(len, packed.maps)) + sum(map(len, packed.strongest))
    assert packed.block > 1
    assert size <= packing.BUDGET // 60


@pytest.mark.parametrize("options", [{}, {"hidden": [3], "activation": "gelu"}])
def test_shares_are_what_scores_lose_without_a_channel(options):
    layer = na.NeuralAttention(16, 2, score_network={"width": 4, **options})
    (one,) = collect_maps(layer, {"": torch.randn(1, 6, 16)})
    site = one.score
    shares = channel_shares(site, one.weights)
    assert shares.shape == (2, 4)
    torch.testing.assert_close(shares.sum(-1), torch.ones(2))

    def varying(weights: Any, a: torch.Tensor) -> torch.Tensor:
        scores = pair_scores(a, site.b, weights, site.network.activation, site.slopes)
        return scores - scores.mean(-1, keepdim=True)

    with torch.no_grad():
        weights = site.network.weights()
        lost = []
        for channel in range(4):
            # Silence the channel where it enters the next layer.
            output, hidden = weights.output.clone(), weights.hidden
            if hidden:
                second = hidden[0][0].clone()
                second[..., channel] = 0
                hidden = ((second, hidden[0][1]),)
            else:
                output[..., channel] = 0
            silent = na.ScoreWeights(output, hidden)
            lost.append((varying(weights, site.a) - varying(silent, site.a)).abs().mean((1, 2)))
    expected = torch.stack(lost, -1)
    torch.testing.assert_close(
        shares, expected / expected.sum(-1, keepdim=True), atol=1e-4, rtol=1e-3
    )


@needs_transformers
@pytest.mark.parametrize("score", ["dot", "hybrid"])
def test_a_transformers_model_is_seen_whatever_its_implementation(score):
    import transformers

    config = transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_layer=2, n_head=2, initializer_range=0.3
    )
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(40, (1, 6))
    model.set_attn_implementation("eager")
    expected = model.eval()(ids, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    if score == "hybrid":
        na.hf.convert(model, score=score, init="preserve")
    found = collect_maps(model, {"input_ids": ids})
    assert [one.layer for one in found] == [0, 1]
    for one, weights in zip(found, expected, strict=True):
        torch.testing.assert_close(one.weights, weights[0], atol=1e-5, rtol=1e-4)
        assert (one.score is not None) == (score == "hybrid")
    assert model.config._attn_implementation == ("sdpa" if score == "dot" else "neural_attention")


@needs_transformers
def test_networks_are_shown_with_the_layers_they_belong_to():
    import transformers

    size = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "vocab_size": 40}
    heads = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("ffn_dim",)}
    heads |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = transformers.BartModel(transformers.BartConfig(**size, **heads, pad_token_id=0))
    layers = {"encoder": [1], "decoder": [0], "cross": [1]}
    na.hf.convert(model, score="hybrid", init="random", layers=layers)
    ids = {"input_ids": torch.randint(3, 40, (1, 4)), "decoder_input_ids": torch.ones(1, 3).long()}
    found = {
        (one.role, one.layer): one.score is not None for one in collect_maps(model.eval(), ids)
    }
    assert {place for place, has_score in found.items() if has_score} == {
        ("encoder", 1), ("decoder", 0), ("cross", 1),
    }  # fmt: skip
    assert len(found) == 6


def test_text_in_a_page_cannot_become_markup():
    hostile = "</script><script>alert(1)</script><!-- \u2028 ]]> & \" '"
    page = make_page(
        hostile,
        "",
        style="p{}",
        script="let a;",
        data={hostile: [hostile]},
        blobs={"a": b"<>"},
        without_script=hostile,
    )
    assert "alert(1)</script>" not in page
    assert page.count("<script") == 3
    assert page.count("</script>") == 3
    assert "<!--" not in page
    assert json.loads(re.findall('id="data">(.*?)</script>', page)[0]) == {hostile: [hostile]}


def test_text_stays_legible():
    assert (
        legible("a\x00b\x7f\u202e\ud800 ü 日本 مرحبا\n")
        == "a␀b\\u007f\\u202e\\ud800 ü 日本 مرحبا\n"
    )


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    view = na.view(na.NeuralAttention(8, 2), torch.randn(1, 3, 8))
    path = tmp_path / "new" / "page.html"
    assert view.save(path) == path
    assert path.read_text(encoding="utf-8") == view.html
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        viewer.View("other").save(path)
    assert [one.name for one in path.parent.iterdir()] == ["page.html"]
    assert path.read_text(encoding="utf-8") == view.html
    with pytest.raises(OSError, match="cannot write"):
        view.save(path / "inside.html")


def test_looking_is_loaded_when_it_is_first_used():
    code = (
        "import sys, neural_attention as na;"
        "assert not any('report.viewer' in name for name in sys.modules); na.view;"
        "assert 'neural_attention.report.viewer' in sys.modules; assert 'PIL' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: na.view(torch.nn.Linear(8, 8), x), "gave no attention maps"),
        (lambda x: na.view(na.NeuralAttention(8, 2), x.expand(2, -1, -1)), "of 2 inputs"),
        (lambda x: na.view(na.NeuralAttention(8, 2), x, ["a"]), "has 1 entries"),
        (
            lambda x: na.view(na.NeuralAttention(8, 2), x, against=na.NeuralAttention(8, 4)),
            "differ in shape",
        ),
    ],
)
def test_what_cannot_be_shown_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call(torch.randn(1, 3, 8))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Models in folders: a language model, one of images, ours without a tokenizer, a bad one."""
    transformers = pytest.importorskip("transformers")
    from PIL import Image
    from tokenizers import Tokenizer, models, pre_tokenizers

    from neural_attention.models.language import NeuralAttentionForCausalLM, NeuralAttentionLMConfig

    folder = tmp_path_factory.mktemp("models")
    words = {word: number for number, word in enumerate(["[UNK]", "the", "cat", "sat", "<b>"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
    special = {"bos_token_id": 0, "eos_token_id": 0}
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=5, n_embd=16, n_layer=2, n_head=2, n_positions=8, **special
        )
    )
    gpt2.save_pretrained(folder / "gpt2")
    tokenizer.save_pretrained(folder / "gpt2")
    na.hf.convert(gpt2, score="neural", positions="slopes", init="random")
    gpt2.save_pretrained(folder / "converted")
    tokenizer.save_pretrained(folder / "converted")
    ours = NeuralAttentionForCausalLM(
        NeuralAttentionLMConfig(
            vocab_size=5, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=2, attention={"score": "neural"},
        )
    )  # fmt: skip
    ours.save_pretrained(folder / "ours")
    vit = transformers.ViTModel(
        transformers.ViTConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            image_size=8, patch_size=4,
        )
    )  # fmt: skip
    vit.save_pretrained(folder / "vit")
    sizes = {"size": {"height": 8, "width": 8}}
    settings = {"image_processor_type": "ViTImageProcessor", **sizes}
    (folder / "vit" / "preprocessor_config.json").write_text(json.dumps(settings))
    Image.new("RGB", (20, 10), "teal").save(folder / "teal.png")
    (folder / "empty").mkdir()
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text('{"model_type": "gpt2", "architectures": ["N"]}')
    return folder


def viewed(capsys, saved, tmp_path, *arguments: str) -> str:
    """The page that the command writes; names of models are folders of ``saved``."""
    out = tmp_path / "out.html"
    named = [str(saved / word) if (saved / word).exists() else word for word in arguments]
    code = main(["view", *named, "--out", str(out)])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert captured.err == ""
    assert captured.out.startswith(f"{out}: ")
    return out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "holds"),
    [
        (["gpt2", "--text", "the cat sat"], '" cat"'),
        (["converted", "--text", "the cat <b>"], '"score":"neural"'),
        (["ours", "--tokenizer", "gpt2", "--text", "the cat"], '"score":"neural"'),
        (["converted", "--against", "gpt2", "--text", "the cat"], "Difference"),
        (["vit", "--image", "teal.png"], "data:image/png"),
    ],
)
def test_the_command_writes_a_page(capsys, saved, tmp_path, arguments, holds):
    page = viewed(capsys, saved, tmp_path, *arguments)
    assert page.startswith("<!doctype html>")
    assert holds.strip('" ') in page


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gpt2"], "takes text: give --text"),
        (["gpt2", "--text", " "], "the text is empty"),
        (["gpt2", "--text", "the " * 9], "has 9 tokens and GPT2LMHeadModel takes 8"),
        (["gpt2", "--image", "teal.png"], "takes text: give --text, and nothing else"),
        (["gpt2", "--text", "the", "--source", "the"], "and nothing else"),
        (["vit", "--text", "the"], "takes an image: give --image"),
        (["vit", "--image", "absent.png"], "no image absent.png"),
        (["vit", "--image", "gpt2/config.json"], "not an image that can be read"),
        (["ours", "--text", "the"], "--tokenizer FOLDER"),
        (["absent", "--text", "the"], "no folder absent"),
        (["empty", "--text", "the"], "not a saved transformers model"),
        (["broken", "--text", "the"], "cannot be loaded"),
        (["teal.png", "--text", "the"], "not a saved transformers model"),
        (["gpt2", "--text", "the", "--against", "vit"], "takes an image"),
        (["gpt2", "--text", "the", "--out", "empty"], "is a folder"),
        (["gpt2", "--text", "the", "--out", "teal.png/page.html"], "cannot write"),
    ],
)
def test_mistakes_end_with_one_message(capsys, saved, arguments, says):
    named = [
        str(saved / word) if (saved / word.split("/")[0]).exists() else word for word in arguments
    ]
    assert main(["view", *named]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert says in lines[0]
