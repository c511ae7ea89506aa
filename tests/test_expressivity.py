"""What can be expressed: targets, their ranks, and fits that reach them or cannot."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("scipy")

from neural_attention.cli import main
from neural_attention.tasks.expressivity import fit, rank_optimum, targets

FIT = {"seeds": 2, "steps": 300, "learning_rates": (0.1,)}


def test_ranks_are_those_that_can_be_proved():
    ranks = {name: target.rank for name, target in targets(16).items()}
    # A matrix of distances between n points on a line has rank n - 1 without the means of its rows.
    assert ranks["nearest"] == 15
    assert ranks["parity"] == 1
    assert ranks["bilinear"] == 4
    assert ranks["order"] > 8


def test_no_shift_of_rows_lowers_the_rank_further():
    torch.manual_seed(0)
    for target in targets(8).values():
        shifted = target.log_p.double() + torch.randn(8, 1, dtype=torch.float64)
        assert torch.linalg.matrix_rank(shifted, rtol=1e-9) >= target.rank


def test_scores_of_one_size_have_equally_many_parameters():
    target = targets(8)["order"]
    for features in ("raw", "mlp", "embedding"):
        sizes = {
            score: fit(target, score, features, 4, seeds=2, steps=1, learning_rates=(0.1,))
            for score in ("dot", "neural", "hybrid")
        }
        assert len({one.parameters for one in sizes.values()}) == 1


def test_two_channels_express_distance_and_a_dot_product_of_width_two_cannot():
    target = targets(16)["nearest"]
    neural = fit(target, "neural", "raw", 2, **FIT)
    dot = fit(target, "dot", "embedding", 2, **FIT)
    optimum = rank_optimum(target, 2, **FIT)
    assert min(neural.kl) < 0.01 < min(optimum.kl) <= 1.5 * min(dot.kl)


def test_a_dot_product_of_its_rank_suffices_for_a_bilinear_form():
    assert min(fit(targets(16)["bilinear"], "dot", "raw", 4, **FIT).kl) < 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cubic", "raw", 2), "score 'cubic'"),
        (("dot", "cooked", 2), "features 'cooked'"),
        (("dot", "raw", 0), "size is 0"),
        (("hybrid", "raw", 3), "a hybrid needs an even one"),
    ],
)
def test_fits_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        fit(targets(8)["order"], *arguments, **FIT)


def test_an_odd_number_of_items_is_refused():
    with pytest.raises(ValueError, match="12 items: a power of two"):
        targets(12)


def test_the_command_writes_its_result_and_a_picture(tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["compare", "expressivity", "--preset", "smoke", "--quiet", "--out", out]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines()[:40])) <= 80
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["targets"]["equality"]["is_control"]
    assert {one["score"] for one in result["targets"]["order"]["fits"]} == {
        "dot", "neural", "hybrid", "optimum"
    }  # fmt: skip
    assert (tmp_path / "out" / "expressivity.png").read_bytes().startswith(b"\x89PNG")
    assert main(["compare", "expressivity", "--preset", "huge", "--out", out]) == 2
    assert "unknown preset 'huge'" in capsys.readouterr().err
