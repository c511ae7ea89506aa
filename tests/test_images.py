"""Image classification as a task: order, augmentation, scores, and a whole comparison."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("torchvision")
# Importing it here would bring its own OpenMP runtime beside torch's, before any test runs.
if importlib.util.find_spec("sklearn") is None:
    pytest.skip("scikit-learn is not installed", allow_module_level=True)

from neural_attention.cli import main
from neural_attention.compare.arms import parse_arm
from neural_attention.compare.comparison import spec_of
from neural_attention.compare.jobs import count_parameters
from neural_attention.tasks.image_classification import (
    AUGMENTATIONS,
    TrainingImages,
    normalised,
    resized,
    score_images,
)
from neural_attention.tasks.images import PRESETS, ImageClassification
from neural_attention.tasks.labelled_images import LabelledImages

TASK = ImageClassification()
SMOKE = PRESETS["smoke"]


def labelled(count=10, side=8, channels=3):
    images = np.random.default_rng(0).integers(0, 256, (count, side, side, channels), np.uint8)
    return LabelledImages(images, np.arange(count))


class Brightness(torch.nn.Module):
    """Logits that grow with the mean of an image, one class for each step of brightness."""

    def __init__(self, classes):
        super().__init__()
        self.steps = torch.nn.Parameter(torch.linspace(-1, 1, classes))

    def forward(self, pixel_values):
        assert not self.training
        mean = pixel_values.mean((1, 2, 3))
        return SimpleNamespace(logits=-((mean[:, None] - self.steps) ** 2) * 50)


def test_every_pass_reads_every_image_once_in_an_order_of_its_own():
    examples = TrainingImages(labelled(), 8, "none", 25, seed=3)
    labels = [int(examples[index]["labels"]) for index in range(len(examples))]
    assert len(labels) == 25
    assert sorted(labels[:10]) == sorted(labels[10:20]) == list(range(10))
    assert labels[:10] != labels[10:20]
    assert examples.sha256 == TrainingImages(labelled(), 8, "paper", 25, seed=3).sha256
    assert examples.sha256 != TrainingImages(labelled(), 8, "none", 25, seed=4).sha256


@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_an_example_depends_on_seed_and_place_alone_and_leaves_the_generator_as_it_was(augment):
    examples = TrainingImages(labelled(), 16, augment, 40, seed=0)
    first = examples[7]["pixel_values"]
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    again = TrainingImages(labelled(), 16, augment, 40, seed=0)
    assert torch.equal(again[7]["pixel_values"], first)
    assert torch.equal(torch.rand(3), expected)
    assert first.shape == (3, 16, 16)
    assert first.dtype == torch.float32
    assert -1 <= first.min() < 0 < first.max() <= 1


@pytest.mark.parametrize("augment", ["crop_flip", "paper"])
def test_augmentation_changes_an_image_anew_in_each_pass(augment):
    examples = TrainingImages(labelled(1), 8, augment, 12, seed=0)
    seen = {examples[index]["pixel_values"].numpy().tobytes() for index in range(12)}
    assert len(seen) > 6
    plain = TrainingImages(labelled(1), 8, "none", 12, seed=0)
    assert len({plain[index]["pixel_values"].numpy().tobytes() for index in range(12)}) == 1


def test_pixels_lie_between_minus_one_and_one_with_channels_first():
    image = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    image[0, 0, 1] = (255, 0, 255)
    pixels = normalised(resized(image, 4))
    assert pixels.shape == (2, 3, 4, 4)
    assert pixels[0, :, 0, 1].tolist() == [1, -1, 1]
    assert resized(image, 8).shape == (2, 3, 8, 8)
    assert resized(image[0], 8).dtype == torch.uint8


def test_accuracy_and_loss_count_every_image_once():
    levels = np.array([0, 60, 120, 200, 255, 30], dtype=np.uint8)
    images = np.broadcast_to(levels[:, None, None, None], (6, 4, 4, 1)).copy()
    part = LabelledImages(images, np.array([0, 1, 0, 2, 2, 0]))
    model = Brightness(3).train()
    score = score_images(model, part, 4, tokens=4096)
    mean = torch.from_numpy(levels).float() / 127.5 - 1
    logits = -((mean[:, None] - model.steps) ** 2) * 50
    labels = torch.from_numpy(part.labels)
    assert score["images"] == 6
    assert score["accuracy"] == 100 * (logits.argmax(-1) == labels).sum().item() / 6
    expected = torch.nn.functional.cross_entropy(logits, labels).item()
    assert score["loss"] == pytest.approx(expected, rel=1e-5)
    assert model.training
    # Whatever is scored at once.
    assert score_images(model, part, 4, tokens=1)["loss"] == pytest.approx(score["loss"])


@pytest.mark.parametrize(
    ("score", "is_one"),
    [
        ({"images": 8, "loss": 1.5, "accuracy": 37.5}, True),
        ({"images": 8, "loss": 1.5, "accuracy": 38.0}, False),
        ({"images": 8, "loss": 1.5, "accuracy": 112.5}, False),
        ({"images": 8, "loss": -1.0, "accuracy": 37.5}, False),
        ({"images": 8, "accuracy": 37.5}, False),
        ({"images": 8, "loss": 1.5, "accuracy": 37.5, "more": 1}, False),
        ([], False),
    ],
)
def test_a_score_that_cannot_be_is_not_believed(score, is_one):
    assert TASK.is_score(score, "test") is is_one


@pytest.mark.parametrize("architecture", ["current", "paper"])
@pytest.mark.parametrize(
    "arm", ["dot", "dot+alibi", "dot+none", "neural", "hybrid", "hybrid+rotary", "neural+alibi",
            "additive", "projection=mlp", "neural+layers=first"],
)  # fmt: skip
def test_arms_start_as_the_dot_product_wherever_they_can(arm, architecture):
    preset = TASK.choose(SMOKE, {"model": architecture})
    data = {"shape": [8, 8, 1], "classes": ["a", "b", "c"]}
    built = TASK.build(spec_of(TASK, parse_arm(arm), preset, data, "cpu", {}))
    plain = TASK.build(spec_of(TASK, parse_arm("dot"), preset, data, "cpu", {}))
    values = dict(plain.model.named_parameters())
    assert not plain.own
    for name, parameter in built.model.named_parameters():
        assert (name in built.shared) != (name in built.own)
        if name in built.shared:
            assert torch.equal(parameter, values[name]), name
    assert {"patches.weight", "class_token", "head.weight"} <= set(built.shared)
    own = ("score_network", "grid", "q_proj", "k_proj")
    assert all(any(word in name for word in own) for name in built.own)


def test_data_of_ones_own_at_a_small_preset_have_a_size_of_their_own():
    assert (SMOKE.image_size, SMOKE.patch_size) == (8, 2)
    own = TASK.choose(SMOKE, {"data": "folder"})
    assert (own.image_size, own.patch_size, own.data) == (32, 4, "folder")
    assert TASK.choose(SMOKE, {"data": "built-in"}).image_size == 8
    assert TASK.choose(PRESETS["paper"], {"data": "folder"}).image_size == 224


def test_the_papers_preset_has_the_papers_model():
    preset = PRESETS["paper"]
    spec = spec_of(TASK, parse_arm("dot"), preset, None, "cpu", {})
    assert count_parameters(TASK, spec) == 47_402_506
    first = spec_of(TASK, parse_arm("neural:release+layers=first"), preset, None, "cpu", {})
    with pytest.warns(UserWarning, match="can start dead"):
        assert count_parameters(TASK, first) == 47_402_506 + 608
    assert preset.steps * preset.batch_size // 45_000 == 349


def test_what_is_to_be_minded_is_noted():
    counts = {"train": 100, "validation": 20, "test": 50}
    notes = TASK.notes(PRESETS["quick"], {"counts": counts})
    assert "read 128 times over without augmentation" in notes[0]
    assert "50 images, one of which is 2.00 percentage points" in notes[1]
    many = dict.fromkeys(counts, 10_000)
    assert TASK.notes(PRESETS["laptop"], {"counts": many}) == []


def test_a_comparison_on_class_folders_from_the_command_line(tmp_path, capsys):
    from PIL import Image

    folder, generator = tmp_path / "pictures", np.random.default_rng(0)
    for name, level in (("dark", 60), ("light", 190)):
        (folder / name).mkdir(parents=True)
        for index in range(20):
            pixels = (generator.normal(level, 20, (10, 12, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    command = ["compare", "images", "--data", str(folder), "--preset", "smoke", "--arms",
               "dot+alibi", "neural", "--control", "--device", "cpu", "--out"]  # fmt: skip
    assert main([*command, str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "28 train, 4 validation, 8 test (2 classes, 10 × 12 × 3)" in printed.err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["measures"][0]["field"] == "accuracy"
    arms = result["arms"]
    assert len(arms) == 3
    for arm in arms.values():
        assert 0 <= arm["test"]["accuracy"] <= 100
        assert arm["speed"] > 0
    hashes = {one["results"][0]["data_order_sha256"] for one in arms.values()}
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--data", "absent"], "no file or folder 'absent'"),
        (["--model", "vgg"], "unknown model 'vgg'; known are current, paper"),
        (["--arms", "dot", "dot+slopes"], "slopes are positions of a score network"),
    ],
)
def test_mistakes_end_the_command_with_one_line(tmp_path, capsys, options, says):
    out = ["--out", str(tmp_path / "out"), "--preset", "smoke"]
    assert main(["compare", "images", *options, *out]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_missing_torchvision_is_named_with_the_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    assert main(["compare", "images", "--out", str(tmp_path)]) == 2
    assert 'pip install "neural-attention[images]"' in capsys.readouterr().err
