"""Recipes: every one there is runs, and mistakes in one are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("yaml")

import yaml

from neural_attention.cli import main
from neural_attention.compare.arms import check_arms, parse_arm
from neural_attention.compare.recipes import read_recipe

from .small_models import save_roberta

RECIPES = sorted((Path(__file__).parent.parent / "recipes").glob("*.yaml"))
SMALL = ["--preset", "smoke", "--steps", "2", "--seeds", "1", "--device", "cpu", "--quiet"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_runs_at_its_smallest(recipe, tmp_path, capsys):
    content = yaml.safe_load(recipe.read_text())
    task = content["task"]
    arms = read_recipe(str(recipe), task)["arms"]
    check_arms([parse_arm(arm) for arm in arms])
    # Without a network.
    data = ["--data", "built-in"] if "data" in content else []
    out = ["--out", str(tmp_path / "out")]
    if (task, content["preset"]) == ("masked-lm", "paper"):
        # Where the recipe has a model of the hub, one that is small and here.
        out += ["--model", str(save_roberta(tmp_path / "pretrained", "a few words"))]
    assert main(["compare", task, "--recipe", str(recipe), *SMALL, *data, *out]) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert set(arms) <= set(result["arms"])
    assert all(arm["test"] for arm in result["arms"].values())


def test_the_command_line_comes_before_the_recipe(tmp_path, capsys):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"task: lm\narms: [dot, neural]\npreset: paper\nout: {tmp_path / 'out'}\n")
    command = ["compare", "lm", "--recipe", str(recipe), "--arms", "dot+none", *SMALL]
    assert main(command) == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert list(result["arms"]) == ["dot+none"]
    assert result["preset"]["hidden_size"] == 32


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("arms: [dot\n", "is not YAML"),
        ("- dot\n", "is no mapping"),
        ("amrs: [dot]\n", "'amrs', no option of lm (did you mean arms?)"),
        ("arms: dot\n", "a list of arms is needed"),
        ("seeds: many\n", "'many' for seeds: a whole number is needed"),
        ("seeds: true\n", "True for seeds: a whole number is needed"),
        ("learning-rates: [fast]\n", "a list of numbers is needed"),
        ("control: 1\n", "true or false is needed"),
        ("task: images\n", "is one of 'images', and the command says 'lm'"),
        ("arms: !!python/object/apply:os.system [ls]\n", "is not YAML"),
    ],
)
def test_mistakes_in_a_recipe_are_named(tmp_path, capsys, content, says):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(content)
    assert main(["compare", "lm", "--recipe", str(recipe), *SMALL]) == 2
    assert says in capsys.readouterr().err


def test_a_recipe_that_is_not_there_is_named(capsys):
    assert main(["compare", "lm", "--recipe", "absent.yaml"]) == 2
    assert "there is no recipe absent.yaml" in capsys.readouterr().err
