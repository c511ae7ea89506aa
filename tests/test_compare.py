"""Arms, initial values, presets, statistics and files of a comparison."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from neural_attention.compare import parse_arm
from neural_attention.compare.arms import check_arms
from neural_attention.compare.dead import dead_score_networks
from neural_attention.compare.devices import resolve_device
from neural_attention.compare.jobs import control_feed_forward, count_parameters
from neural_attention.compare.presets import choose_preset
from neural_attention.compare.statistics import compare_pairs, statement
from neural_attention.tasks.task import Measure

from .small_comparisons import PERPLEXITY, TASK, paired_ratio, spec_of_arm


def built(name: str, seed: int = 0, **overrides):
    return TASK.build(spec_of_arm(parse_arm(name), seed, **overrides))


def sentence_of(arms, reference, steps):
    return statement(arms, reference, steps, PERPLEXITY, "text")


# Arms


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dot", {"score": "dot", "projection": "linear"}),
        ("dot+alibi", {"score": "dot", "projection": "linear", "positions": "alibi"}),
        ("neural", {"score": "neural", "projection": "linear"}),
        ("hybrid+rotary", {"score": "hybrid", "projection": "linear", "positions": "rotary"}),
        ("additive", {"score": "additive", "projection": "linear"}),
        ("projection=mlp", {"score": "dot", "projection": "mlp"}),
        (
            "projection=mlp:qkv+no_layer_norm",
            {
                "score": "dot",
                "projection": {"q": "mlp", "k": "mlp", "v": "mlp"},
                "projection_options": {"layer_norm": False},
            },
        ),
        (
            "alibi+projection=residual",
            {"score": "dot", "projection": "residual", "positions": "alibi"},
        ),
        (
            "neural+width=8+hidden=4+activation=silu+init=random+share_heads",
            {
                "score": "neural",
                "projection": "linear",
                "score_network": {
                    "width": 8,
                    "hidden": (4,),
                    "activation": "silu",
                    "init": "random",
                    "share_heads": True,
                },
            },
        ),
        (
            "neural:gatv2+width=4",
            {
                "score": "neural",
                "projection": "linear",
                "score_network": {"activation": "leaky_relu:0.2", "width": 4},
            },
        ),
        (
            "neural:paper+bottleneck=4",
            {
                "score": "neural",
                "projection": "linear",
                "score_network": {"bottleneck": 4, "width": 8, "share_heads": True},
            },
        ),
    ],
)
def test_an_arm_is_what_its_name_says(name, expected):
    assert parse_arm(name).attention(64) == expected
    built(name)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("neural", "all"), ("neural+layers=first", "first"), ("dot+layers=2,0", (0, 2))],
)
def test_an_arm_says_which_layers_have_it(name, layers):
    assert parse_arm(name).layers == layers


def test_the_last_layer_is_counted_from_the_end():
    assert parse_arm("neural+layers=first,last").layers_of(8) == [0, 7]
    assert parse_arm("neural+layers=last").layers_of(1) == [0]
    assert parse_arm("neural+layers=first").layers_of(8) == "first"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nueral", "unknown part 'nueral'.*did you mean neural.*An arm is"),
        ("neural+wdith=8", "did you mean width"),
        ("neural:relase", "unknown preset 'relase'; known are paper, release"),
        ("dot:paper", "goes with neural or hybrid"),
        ("neural+width=8+width=4", "gives width twice"),
        ("dot+alibi+rotary", "gives positions twice"),
        ("neural+width=eight", "whole number"),
        ("neural+width=0", "whole number"),
        ("neural+activation=sine", "activation is 'sine'"),
        ("neural+init=zero", "unknown init 'zero'"),
        ("dot+width=8", "a dot product has none"),
        ("dot+slopes", "slopes are positions of a score network"),
        ("dot+projection=cubic", "unknown projection 'cubic'"),
        ("dot+projection=mlp:qx", "the places of a projection are 'qx'"),
        ("dot+projection=mlp:qq", "the places of a projection are 'qq'"),
        ("dot+projection=mlp:", "the places of a projection are ''"),
        ("neural+roles=encoder,self", "roles is 'encoder,self'; it is some of encoder, decoder"),
        ("hybrid+start=zero", "start is 'zero'; it is preserve or random"),
        ("neural+layers=middle", "layers is 'middle'"),
        ("neural+layers=-1", "layers is '-1'"),
        ("dot+feed_forward=4611686018427387904", "is '4611686018427387904', a whole number from 1"),
        ("neural+width=1048577", "from 1 to 1,048,576"),
        ("neural+hidden=99999999", "from 1 to 1,048,576"),
        ("dot+feed_forward=" + "9" * 5_000, "^arm 'dot.feed_forward=9+…' has 5,017 characters"),
        ("neural+layers=" + "9" * 5_000, "^arm 'neural.layers=9+…' has 5,014 characters"),
        ("neural+", "unknown part ''"),
        ("", "unknown part ''"),
    ],
)
def test_a_mistaken_arm_is_refused_with_what_is_known(name, message):
    with pytest.raises(ValueError, match=message):
        parse_arm(name)


def test_the_same_arm_under_two_names_is_refused():
    with pytest.raises(ValueError, match=r"'neural\+alibi\+width=8' and 'neural\+width=8\+alibi'"):
        check_arms([parse_arm("neural+alibi+width=8"), parse_arm("neural+width=8+alibi")])


# Initial values, parameters, dead networks


@pytest.mark.parametrize("name", ["dot+alibi", "neural", "hybrid", "additive+layers=first"])
def test_arms_start_with_the_values_of_the_dot_product_wherever_both_have_them(name):
    dot, arm = built("dot", seed=3).model, built(name, seed=3)
    values = dict(arm.model.named_parameters())
    assert set(arm.shared) == set(dict(dot.named_parameters()))
    for parameter_name, parameter in dot.named_parameters():
        assert torch.equal(parameter, values[parameter_name])
    assert set(arm.own) == set(values) - set(arm.shared)


def test_another_seed_gives_other_values():
    first, second = (built("dot", seed).model for seed in (0, 1))
    assert not torch.equal(first.embedding.weight, second.embedding.weight)


def test_a_wider_control_shares_all_but_its_feed_forward_layers():
    control = built("dot", feed_forward=30)
    assert all(".feed_forward." in name for name in control.own)
    assert len(control.own) == 6


def test_the_control_has_at_least_as_many_parameters_and_is_the_least_that_has():
    neural, dot = (spec_of_arm(parse_arm(name)) for name in ("neural", "dot"))
    target = count_parameters(TASK, neural)
    width = control_feed_forward(TASK, neural, target)
    at, below = (replace(dot, overrides={"feed_forward": wide}) for wide in (width, width - 1))
    assert count_parameters(TASK, at) >= target > count_parameters(TASK, below)


def test_a_dead_score_network_is_found_and_live_ones_are_not():
    model = built("neural+hidden=2+none").model
    ids = {"input_ids": torch.randint(0, 50, (2, 12))}
    assert dead_score_networks(model, ids) == {}
    with torch.no_grad():
        model.blocks[1].attention.score_network.hidden.weight[1].zero_()
    assert dead_score_networks(model, ids) == {"1": [1]}


# Presets and devices


def test_a_preset_takes_the_changes_of_the_command():
    preset = choose_preset(
        TASK, "quick", {"model": "paper"}, steps=7, seeds=2, learning_rates=[2e-3, 1e-3]
    )
    assert (preset.architecture, preset.steps, preset.seeds) == ("paper", 7, 2)
    assert preset.learning_rates == (1e-3, 2e-3)
    assert preset.warmup_steps <= 7
    assert preset.evaluations <= 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("slow", {}, {}), "unknown preset 'slow'; known are smoke, quick, laptop, paper"),
        (("quick", {"model": "old"}, {}), "unknown model 'old'"),
        (
            ("quick", {"modle": "paper"}, {}),
            "lm has no option 'modle'; its own are data, tokenizer, model",
        ),
        (("quick", {}, {"steps": 0}), "steps is 0"),
        (("quick", {}, {"seeds": 0}), "seeds is 0"),
        (("quick", {}, {"patience": 0}), "patience is 0"),
        (("quick", {}, {"accumulation": 3}), "8 examples cannot be cut"),
        (("quick", {}, {"learning_rates": [1e-3, -1.0]}), "positive numbers"),
        (("quick", {}, {"learning_rates": [1e-3, 1e-3]}), "given twice"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(arguments, message):
    name, options, changes = arguments
    with pytest.raises(ValueError, match=message):
        choose_preset(TASK, name, options, **changes)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:0"])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(ValueError, match="unknown device"):
        resolve_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no CUDA GPU"):
        resolve_device("cuda")


# Statistics


def test_paired_ratios_have_the_t_interval_of_scipy():
    from scipy import stats

    losses, reference = [3.1, 3.3, 3.0, 3.2], [3.2, 3.35, 3.15, 3.25]
    ratio = paired_ratio(losses, reference)
    differences = np.subtract(losses, reference)
    low, high = stats.t.interval(0.95, 3, differences.mean(), stats.sem(differences))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx(
        (np.exp(differences.mean()), np.exp(low), np.exp(high))
    )
    assert ratio.is_told_apart


def test_one_seed_has_no_interval_and_no_pairs_are_refused():
    assert paired_ratio([1.0], [2.0]).low is None
    assert not paired_ratio([1.0], [2.0]).is_told_apart
    with pytest.raises(ValueError, match="pairs are needed"):
        paired_ratio([1.0], [])


def test_differences_are_told_in_points():
    accuracy = Measure("accuracy", "accuracy", False, "difference", "acc", "%", 1)
    values, reference = [61.0, 62.5, 63.0], [60.0, 60.5, 60.5]
    pairs = compare_pairs(values, reference, accuracy)
    low, high = stats_interval(np.subtract(values, reference))
    assert (pairs.value, pairs.low, pairs.high) == pytest.approx((5.5 / 3, low, high))
    arms = {"dot": scored(60.3, is_plain=True), "neural": scored(62.2, pairs)}
    told = statement(arms, "dot", 5, accuracy, "images")
    assert told.startswith(
        "The test accuracy of neural is 1.8 points above that of dot (3 seeds, 95%"
    )
    assert "do not tell the two apart" in told
    assert pairs.is_better(accuracy)


def stats_interval(differences):
    from scipy import stats

    return stats.t.interval(0.95, len(differences) - 1, differences.mean(), stats.sem(differences))


def scored(perplexity, ratio=None, is_plain=False):
    return {
        "is_plain": is_plain,
        "test": perplexity,
        "order": perplexity,
        "parameters": 5e5,
        "against_reference": ratio,
    }


@pytest.mark.parametrize(
    ("losses", "says", "never"),
    [
        ([3.0], "With one seed", "better at"),
        ([2.9, 3.02, 3.1], "do not tell the two apart", "better at"),
        ([2.90, 2.91, 2.89], "so neural is better", "apart"),
        ([3.10, 3.11, 3.09], "so neural is worse", "apart"),
    ],
)
def test_the_sentence_claims_no_more_than_the_numbers(losses, says, never):
    ratio = paired_ratio(losses, [3.0] * len(losses))
    arms = {"dot": scored(20.0, is_plain=True), "neural": scored(20.0 * ratio.value, ratio)}
    sentence = sentence_of(arms, "dot", 100)
    assert says in sentence
    assert never not in sentence
    assert sentence.count(". ") == 0


@pytest.mark.parametrize(
    ("seeds", "says"),
    [
        (
            1,
            "With one seed, the test perplexity of dot is 1.105 times that of dot+alibi, and that "
            "of neural is 1.350 times that of dot+alibi: hints at this size (0.5 M parameters and "
            "100 steps), not results; they do not show",
        ),
        (
            3,
            "The test perplexity of dot is 1.105 times that of dot+alibi (3 seeds, 95% interval "
            "0.862 to 1.417), so these seeds do not tell the two apart, and that of neural is "
            "1.350 times that of dot+alibi (3 seeds, 95% interval 1.317 to 1.384), so neural is "
            "worse; this is so at this size",
        ),
    ],
)
def test_the_sentence_names_the_best_score_network_where_dot_products_are_ahead(seeds, says):
    dot = paired_ratio([3.1, 3.2, 3.0][:seeds], [3.0] * seeds)
    neural = paired_ratio([3.3, 3.31, 3.29][:seeds], [3.0] * seeds)
    arms = {
        "dot+alibi": scored(20.0, is_plain=True),
        "dot": scored(21.0, dot, is_plain=True),
        "neural": scored(26.0, neural),
        "additive": scored(30.0, neural),
    }
    sentence = sentence_of(arms, "dot+alibi", 100)
    assert sentence.startswith(says)
    assert "additive" not in sentence
    assert sentence.count(". ") == 0


def test_the_sentence_does_not_hide_a_score_network_without_a_result():
    ratio = paired_ratio([3.1], [3.0])
    arms = {
        "dot+alibi": scored(20.0, is_plain=True),
        "dot": scored(21.0, ratio, is_plain=True),
        "neural": scored(None),
    }
    assert sentence_of(arms, "dot+alibi", 1).endswith(
        "(--seeds 3 tells the first); neural gave no result."
    )
    assert "and 1 step)" in sentence_of(arms, "dot+alibi", 1)


def test_an_arm_with_fewer_seeds_is_not_said_to_have_an_interval():
    arms = {
        "dot": scored(20.0, is_plain=True),
        "dot+alibi": scored(18.0, paired_ratio([2.9, 2.91], [3.0, 3.0]), is_plain=True),
        "neural": scored(19.0, paired_ratio([2.95], [3.0])),
    }
    assert "neural is 0.951 times that of dot (one seed: a hint" in sentence_of(arms, "dot", 9)


def test_the_sentence_says_so_when_nothing_can_be_compared():
    assert "shows nothing" in sentence_of({"dot": scored(None)}, "dot", 1)
    assert "compares nothing" in sentence_of({"dot": scored(2.0), "x": scored(None)}, "dot", 1)


# Memory


def test_peak_memory_counts_what_was_freed_again():
    # In a process of its own, as the meter asks: here, other tests' memory comes and goes.
    code = """
import torch
from neural_attention.compare.memory import PeakMemory
memory = PeakMemory(torch.device("cpu"))
block = torch.ones(16 << 20)
del block
print(memory.peak())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 60 << 20 < int(done.stdout) < 200 << 20
