"""The vision model as a transformers model."""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers

pytest.importorskip("transformers")

from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    Trainer,
    TrainingArguments,
)

from neural_attention.cli import main
from neural_attention.models.vision import (
    NeuralAttentionForImageClassification,
    NeuralAttentionVisionConfig,
)

ATTENTIONS = {
    "dot": {"score": "dot"},
    "alibi": {"score": "dot", "positions": "alibi"},
    "none": {"score": "dot", "positions": "none"},
    "neural": {"score": "neural", "score_network": {"width": 4}},
    "hybrid": {"score": "hybrid"},
    "additive": {"score": "additive"},
    "mlp": {"score": "dot", "projection": "mlp"},
}
RELEASE = {"score": "neural", "score_network": "release"}
PAPER = {
    "architecture": "paper",
    "image_size": 224,
    "patch_size": 8,
    "hidden_size": 768,
    "intermediate_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
}


def make_config(attention="neural", **changes):
    settings = {
        "image_size": 8,
        "patch_size": 2,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_labels": 5,
    }
    return NeuralAttentionVisionConfig(attention=ATTENTIONS[attention], **{**settings, **changes})


def make_model(attention="neural", **changes):
    torch.manual_seed(0)
    return NeuralAttentionForImageClassification(make_config(attention, **changes)).eval()


def pictures(count=3, seed=0):
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def parameters(**settings):
    with torch.device("meta"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="init='torch'")
        model = NeuralAttentionForImageClassification(NeuralAttentionVisionConfig(**settings))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("classes", "expected"), [(10, 47_402_506), (100, 47_471_716)])
def test_the_papers_dot_product_model_has_its_number_of_parameters(classes, expected):
    assert parameters(**PAPER, num_labels=classes) == expected


def test_the_released_score_network_in_the_first_layer_adds_what_the_paper_says_less_one_bias():
    more = parameters(**PAPER, num_labels=10, attention=RELEASE, attention_layers="first")
    # The last layer's bias drops out of the softmax and is not there.
    assert more == 47_402_506 + 609 - 1


@pytest.mark.parametrize("architecture", ["current", "paper"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_saved_model_gives_the_same_logits(attention, architecture, tmp_path):
    model, images = make_model(attention, architecture=architecture), pictures()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert type(loaded) is NeuralAttentionForImageClassification
    assert AutoConfig.from_pretrained(tmp_path).num_labels == 5
    assert torch.equal(model(images).logits, loaded.eval()(images).logits)


def test_the_saved_processor_makes_the_pixels_that_the_model_takes(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    make_model().save_pretrained(tmp_path)
    processor = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    levels = torch.arange(8 * 8 * 3, dtype=torch.uint8).view(8, 8, 3)
    pixels = processor(image_module.fromarray(levels.numpy()), return_tensors="pt")["pixel_values"]
    expected = levels.permute(2, 0, 1)[None] / 127.5 - 1
    torch.testing.assert_close(torch.as_tensor(pixels), expected)


def test_a_saved_model_is_viewed_with_an_image(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    make_model().save_pretrained(tmp_path)
    image_module.new("RGB", (20, 30), (200, 100, 0)).save(tmp_path / "picture.png")
    command = ["view", str(tmp_path), "--image", str(tmp_path / "picture.png")]
    assert main([*command, "--out", str(tmp_path / "page.html")]) == 0
    assert "[class]" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("architecture", ["current", "paper"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_parameter_learns(attention, architecture):
    model = make_model(attention, architecture=architecture, dropout=0.0).train()
    # Away from the starting values, of which some make gradients cancel.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model(pixel_values=pictures(), labels=torch.tensor([0, 1, 2])).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("architecture", ["current", "paper"])
def test_the_class_depends_on_where_a_patch_lies(architecture):
    model, images = make_model("none", architecture=architecture), pictures()
    moved = images.clone()
    moved[:, :, :2, :2], moved[:, :, 6:, 6:] = images[:, :, 6:, 6:], images[:, :, :2, :2]
    assert not torch.allclose(model(images).logits, model(moved).logits, atol=1e-4)


@pytest.mark.parametrize("attention", ["alibi", "neural", "dot"])
def test_arms_see_rows_and_columns(attention):
    layers = [block.attention for block in make_model(attention).blocks]
    assert [layer.grid.shape for layer in layers] == [(4, 4)] * 2
    assert all(layer.slopes is None and layer.alibi is None for layer in layers)


def test_the_papers_model_has_sinusoids_and_no_positions_in_attention():
    model = make_model("neural", architecture="paper", attention_layers="first")
    assert [block.attention.positions for block in model.blocks] == ["none", "none"]
    assert model.positions is None
    slopes = make_config("alibi", architecture="paper").attention_of_layer(0)
    assert slopes["grid"] == (4, 4)


def test_maps_and_hidden_states_come_when_asked_for():
    model, images = make_model(), pictures(2)
    output = model(images, output_attentions=True, output_hidden_states=True)
    assert [m.shape for m in output.attentions] == [(2, 2, 17, 17)] * 2
    torch.testing.assert_close(output.attentions[0].sum(-1), torch.ones(2, 2, 17))
    assert [state.shape for state in output.hidden_states] == [(2, 17, 16)] * 3
    torch.testing.assert_close(output.logits, model(images, return_dict=False)[0])


def test_the_loss_is_the_mean_cross_entropy():
    model, labels = make_model(), torch.tensor([4, 0, 1])
    output = model(pictures(), labels)
    log_p = output.logits.log_softmax(-1)
    torch.testing.assert_close(output.loss, -(log_p[0, 4] + log_p[1, 0] + log_p[2, 1]) / 3)


def test_what_a_checkpoint_lacks_starts_as_in_a_new_model(tmp_path):
    make_model("dot").save_pretrained(tmp_path)
    config = make_config("alibi")
    model = NeuralAttentionForImageClassification.from_pretrained(tmp_path, config=config)
    fresh = make_model("alibi")
    for block, other in zip(model.blocks, fresh.blocks, strict=True):
        assert torch.equal(block.attention.grid.alibi, other.attention.grid.alibi)


def test_gradient_checkpointing_gives_the_same_gradients():
    results = []
    for checkpointing in (False, True):
        model = make_model().train()
        if checkpointing:
            # Its name before transformers 5.2x, which warns about it now.
            old = "gradient_checkpointing_enable"
            enable = getattr(model, "activation_checkpointing_enable", None) or getattr(model, old)
            enable({"use_reentrant": False})
        model(pictures(), labels=torch.tensor([0, 1, 2])).loss.backward()
        results.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*results)


def test_trainer_lowers_the_loss(tmp_path):
    model = make_model().train()
    data = [{"pixel_values": pictures(1, seed)[0], "labels": seed % 5} for seed in range(8)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=15,
        learning_rate=1e-2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
        dataloader_pin_memory=False,
    )
    batch = {
        "pixel_values": torch.stack([one["pixel_values"] for one in data]),
        "labels": torch.tensor([one["labels"] for one in data]),
    }
    before = model(**batch).loss.item()
    Trainer(model=model, args=arguments, train_dataset=data).train()
    assert model.eval()(**batch).loss.item() < before - 0.5


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"patch_size": 3}, "image_size 8 is not a multiple of patch_size 3"),
        ({"image_size": 0}, "image_size is 0"),
        ({"architecture": "old"}, "must be one of current, paper"),
        ({"num_attention_heads": 3}, "not a multiple of num_attention_heads"),
        ({"head_dim": 6}, "use a multiple of 4"),
    ],
)
def test_an_impossible_configuration_is_refused_when_it_is_made(changes, says):
    with pytest.raises(ValueError, match=says):
        make_config("dot", **changes)


def test_images_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \(1, 1, 8, 8\): expected \(batch, 3, 8, 8\)"):
        make_model()(torch.zeros(1, 1, 8, 8))


def test_its_model_type_is_not_that_of_a_converted_vit():
    from neural_attention.hf import classes

    converted = classes.config_class(transformers.ViTConfig)
    assert converted.model_type != NeuralAttentionVisionConfig.model_type
    assert converted.__name__ != NeuralAttentionVisionConfig.__name__
    assert transformers.AutoConfig.for_model(converted.model_type).__class__ is converted
