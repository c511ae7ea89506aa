"""Arms, initial values, presets, statistics and files of a comparison."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from neural_attention.compare import parse_arm
from neural_attention.compare.arms import check_arms
from neural_attention.compare.building import (
    build_model,
    control_feed_forward,
    count_parameters,
    dead_score_networks,
    model_config,
)
from neural_attention.compare.devices import resolve_device
from neural_attention.compare.presets import choose_preset
from neural_attention.compare.statistics import paired_ratio, statement

from .small_comparisons import SIZES


def config_of(name: str, **changes):
    arm = parse_arm(name)
    layers = arm.layers if isinstance(arm.layers, str) else list(arm.layers)
    return model_config(SIZES, arm.attention(8), layers, **changes)


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
    model_config(SIZES, parse_arm(name).attention(8), "all")


@pytest.mark.parametrize(
    ("name", "layers"),
    [("neural", "all"), ("neural+layers=first", "first"), ("dot+layers=2,0", (0, 2))],
)
def test_an_arm_says_which_layers_have_it(name, layers):
    assert parse_arm(name).layers == layers


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
        ("neural+layers=last", "layers is 'last'"),
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
    dot = build_model(config_of("dot"), SIZES, seed=3).model
    built = build_model(config_of(name), SIZES, seed=3)
    values = dict(built.model.named_parameters())
    assert set(built.shared) == set(dict(dot.named_parameters()))
    for parameter_name, parameter in dot.named_parameters():
        assert torch.equal(parameter, values[parameter_name])
    assert set(built.own) == set(values) - set(built.shared)


def test_another_seed_gives_other_values():
    first, second = (build_model(config_of("dot"), SIZES, seed=s).model for s in (0, 1))
    assert not torch.equal(first.embedding.weight, second.embedding.weight)


def test_a_wider_control_shares_all_but_its_feed_forward_layers():
    built = build_model(config_of("dot", intermediate_size=30), SIZES, seed=0)
    assert all(".feed_forward." in name for name in built.own)
    assert len(built.own) == 6


def test_the_control_has_at_least_as_many_parameters_and_is_the_least_that_has():
    target = count_parameters(config_of("neural"))
    width = control_feed_forward(config_of("dot"), target)
    assert count_parameters(config_of("dot", intermediate_size=width)) >= target
    assert count_parameters(config_of("dot", intermediate_size=width - 1)) < target


def test_a_dead_score_network_is_found_and_live_ones_are_not():
    model = build_model(config_of("neural+hidden=2+none"), SIZES, seed=0).model
    ids = torch.randint(0, 50, (2, 12))
    assert dead_score_networks(model, ids) == {}
    with torch.no_grad():
        model.blocks[1].attention.score_network.hidden.weight[1].zero_()
    assert dead_score_networks(model, ids) == {"1": [1]}


# Presets and devices


def test_a_preset_takes_the_changes_of_the_command():
    preset = choose_preset("quick", "paper", 7, 2, [2e-3, 1e-3])
    assert (preset.architecture, preset.steps, preset.seeds) == ("paper", 7, 2)
    assert preset.learning_rates == (1e-3, 2e-3)
    assert preset.warmup_steps <= 7
    assert preset.evaluations <= 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("slow",), "unknown preset 'slow'; known are smoke, quick, laptop, paper"),
        (("quick", "old"), "unknown model 'old'"),
        (("quick", None, 0), "steps is 0"),
        (("quick", None, None, 0), "seeds is 0"),
        (("quick", None, None, None, [1e-3, -1.0]), "positive numbers"),
        (("quick", None, None, None, [1e-3, 1e-3]), "given twice"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        choose_preset(*arguments)


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
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx(
        (np.exp(differences.mean()), np.exp(low), np.exp(high))
    )
    assert ratio.is_told_apart


def test_one_seed_has_no_interval_and_no_pairs_are_refused():
    assert paired_ratio([1.0], [2.0]).low is None
    assert not paired_ratio([1.0], [2.0]).is_told_apart
    with pytest.raises(ValueError, match="pairs are needed"):
        paired_ratio([1.0], [])


def scored(perplexity, ratio=None, is_plain=False):
    return {
        "is_plain": is_plain,
        "test_perplexity": perplexity,
        "validation_perplexity": perplexity,
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
    arms = {"dot": scored(20.0, is_plain=True), "neural": scored(20.0 * ratio.ratio, ratio)}
    sentence = statement(arms, "dot", 100)
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
    sentence = statement(arms, "dot+alibi", 100)
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
    assert statement(arms, "dot+alibi", 1).endswith(
        "(--seeds 3 tells the first); neural gave no result."
    )
    assert "and 1 step)" in statement(arms, "dot+alibi", 1)


def test_an_arm_with_fewer_seeds_is_not_said_to_have_an_interval():
    arms = {
        "dot": scored(20.0, is_plain=True),
        "dot+alibi": scored(18.0, paired_ratio([2.9, 2.91], [3.0, 3.0]), is_plain=True),
        "neural": scored(19.0, paired_ratio([2.95], [3.0])),
    }
    assert "neural is 0.951 times that of dot (one seed: a hint" in statement(arms, "dot", 9)


def test_the_sentence_says_so_when_nothing_can_be_compared():
    assert "shows nothing" in statement({"dot": scored(None)}, "dot", 1)
    assert "compares nothing" in statement({"dot": scored(2.0), "x": scored(None)}, "dot", 1)


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
