"""The command that converts a checkpoint."""

from __future__ import annotations

import pytest
import transformers

import neural_attention as na
from neural_attention.cli import main

from .families import FAMILIES, logits


@pytest.fixture
def stock(tmp_path):
    transformers.utils.logging.disable_progress_bar()
    folder = tmp_path / "stock"
    FAMILIES["marian"].make().save_pretrained(folder)
    return folder


def test_a_checkpoint_is_converted_and_summed_up(stock, tmp_path, capsys):
    out = tmp_path / "deep" / "converted"
    options = ["--roles", "decoder", "cross", "--layers", "1", "--projection", "q=residual"]
    assert main(["convert", str(stock), str(out), *options, "--width", "4"]) == 0
    text = capsys.readouterr().out
    assert "NeuralAttentionMarianMTModel" in text
    assert "decoder layers: 1\ncross layers: 1\n" in text
    assert "cache, bytes a token: 512 before, 512 after" in text
    assert [path.name for path in out.parent.iterdir()] == ["converted"]
    inputs = FAMILIES["marian"].inputs()
    model = na.hf.from_pretrained(out).eval()
    assert logits(model, inputs).allclose(logits(FAMILIES["marian"].make(), inputs), atol=1e-5)
    assert model.model.decoder.layers[1].encoder_attn.neural_attention.score_network.width == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--score", "cosine"], "score is 'cosine'"),
        (["--score", "neural"], "init='random'"),
        (["--layers", "7"], "layers 0 to 1"),
        (["--projection", "mlp", "q=mlp"], "the key 'mlp'"),
        (["--preset", "huge"], "preset 'huge' is unknown"),
    ],
)
def test_a_mistake_is_told_and_writes_nothing(stock, tmp_path, capsys, options, says):
    assert main(["convert", str(stock), str(tmp_path / "out"), *options]) == 2
    assert says in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["stock"]


def test_nothing_is_overwritten_and_what_is_missing_is_named(stock, tmp_path, capsys):
    assert main(["convert", str(stock), str(stock)]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "absent"), str(tmp_path / "out")]) == 2
    assert "absent" in capsys.readouterr().err
