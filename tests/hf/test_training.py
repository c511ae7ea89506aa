"""Every way to train: the loss falls, and equals that of a plain loop."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import transformers
from packaging.version import Version

import neural_attention as na

from .families import FAMILIES, SCORES, quiet_convert
from .training import STEPS, batch, build, train

NAMES = ["llama", "roberta", "marian", "gpt2", "vit"]


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        # of torch and transformers, about their own
        warnings.filterwarnings(
            "ignore", message=".*(use_reentrant|pin_memory|is_gradient_checkpointing).*"
        )
        yield


def falls(losses):
    assert losses[-1] < losses[0] - 0.02, losses


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES.keys())
def test_every_new_parameter_learns(name, score):
    family = FAMILIES[name]
    model = quiet_convert(
        family.make(), init="random", projection={"q": "residual", "k": "mlp"}, **score
    ).train()
    new = dict(model.named_parameters()).keys() - dict(family.make().named_parameters()).keys()
    assert any("neural_attention" in key for key in new)
    before = {key: model.get_parameter(key).detach().clone() for key in new}
    falls(train(model, batch(name)))
    still = [key for key in new if torch.equal(model.get_parameter(key), before[key])]
    # A constant added to all keys of a head drops out of a dot product's softmax.
    assert not [key for key in still if not key.endswith("k_proj.3.bias")], still


def checkpoint(model, use_reentrant):
    enable = getattr(model, "activation_checkpointing_enable", None)  # its name before 5.24:
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": use_reentrant})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("layers", [None, [0]])
def test_maps_go_with_gradient_checkpointing(name, use_reentrant, layers):
    model = quiet_convert(FAMILIES[name].make(), score="hybrid", layers=layers).train()
    inputs = FAMILIES[name].inputs()
    plain = model(**inputs)[0]
    checkpoint(model, use_reentrant)
    out = model(**inputs, output_attentions=True, return_dict=True)
    torch.testing.assert_close(out[0], plain)
    out[0].square().sum().backward()
    maps = next(value for key, value in out.items() if "attentions" in key and value)
    torch.testing.assert_close(maps[0].sum(-1), torch.ones_like(maps[0].sum(-1)))
    assert all(
        parameter.grad is not None
        for key, parameter in model.named_parameters()
        if "neural_attention" in key
    )


@pytest.mark.skipif(
    not hasattr(transformers.PreTrainedModel, "activation_checkpointing_enable"),
    reason="T5 goes through the attention interface in transformers 5.24, not in the oldest",
)
def test_maps_of_a_model_whose_scores_have_a_bias():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    tokens = torch.arange(3, 12)[None]
    models = []
    for implementation in ("eager", "sdpa"):
        torch.manual_seed(0)
        config = transformers.T5Config(vocab_size=61, decoder_start_token_id=0, **sizes)
        model = transformers.T5ForConditionalGeneration(config).eval()
        model.set_attn_implementation(implementation)
        models.append(model)
    stock, model = models
    na.hf.convert(model, score="dot", projection="residual")
    arguments = {"input_ids": tokens, "decoder_input_ids": tokens, "output_attentions": True}
    expected, found = stock(**arguments), model(**arguments)
    for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(name, use_reentrant):
    expected = train(build(name), batch(name))
    model = build(name)
    checkpoint(model, use_reentrant)
    torch.testing.assert_close(train(model, batch(name)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "marian"])
def test_gradient_checkpointing_replays_dropout(name):
    losses = []
    for checkpointing in (False, True):
        key = "attention_dropout"
        model = build(name, {key: 0.5})
        if checkpointing:
            checkpoint(model, use_reentrant=False)
        torch.manual_seed(3)
        losses.append(train(model, batch(name)))
    torch.testing.assert_close(losses[0], losses[1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(losses[0], train(build(name), batch(name)), atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(name):
    expected = train(build(name), batch(name), lr=0.01)
    found = train(build(name), batch(name), lr=0.01, autocast=True)
    falls(found)
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)
    pure = build(name).bfloat16()
    inputs = {
        key: value.bfloat16() if value.is_floating_point() else value
        for key, value in batch(name).items()
    }
    falls(train(pure, inputs, lr=0.01))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", NAMES)
def test_compiled_as_one_graph(name):
    torch._dynamo.reset()
    inputs = batch(name)
    if name in ("llama", "gpt2", "marian"):
        inputs["use_cache"] = False  # making one does not compile with older versions of torch
    expected = train(build(name), inputs)
    model = build(name)
    if model.loss_type is None:  # GPT-2: transformers would log a warning, which does not compile
        model.loss_type = "ForCausalLM"
    # Before 5.24 Marian's layer dropout, even of 0, looks at a random number.
    whole = name != "marian" or Version(transformers.__version__) >= Version("5.24")
    # One model's backward graph too; tracing that takes long.
    backend = "aot_eager" if name == "roberta" else "eager"
    compiled = torch.compile(model, fullgraph=whole, backend=backend)
    found = train(compiled, inputs)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def arguments(folder, **options):
    return {
        "output_dir": str(folder),
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "per_device_train_batch_size": 4,
        "num_train_epochs": STEPS,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        **options,
    }


def rows(name):
    """A data set that is one batch, so that its order does not matter."""
    inputs = batch(name)
    return [{key: value[i] for key, value in inputs.items()} for i in range(4)]


def same_weights(model, other):
    for (key, found), expected in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4, msg=key)


def test_trainer(tmp_path):
    expected = build("llama")
    losses = train(expected, batch("llama"))
    model = build("llama")
    trainer = transformers.Trainer(
        model, transformers.TrainingArguments(**arguments(tmp_path)), train_dataset=rows("llama")
    )
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    torch.testing.assert_close(torch.tensor(logged), losses, atol=1e-3, rtol=1e-3)
    falls(logged)
    same_weights(model, expected)
    trainer.save_model(str(tmp_path / "model"))
    same_weights(na.hf.from_pretrained(tmp_path / "model"), expected)


def test_trainer_shifts_labels_that_it_smooths(tmp_path):
    losses = []
    for model in (FAMILIES["llama"].make(), na.hf.convert(FAMILIES["llama"].make())):
        options = transformers.TrainingArguments(**arguments(tmp_path, label_smoothing_factor=0.5))
        trainer = transformers.Trainer(model, options, eval_dataset=rows("llama"))
        losses.append(trainer.evaluate()["eval_loss"])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_sequence_to_sequence_trainer(tmp_path):
    expected = build("marian")
    train(expected, batch("marian"))
    model = build("marian")
    options = arguments(tmp_path, predict_with_generate=True, generation_max_length=6)
    trainer = transformers.Seq2SeqTrainer(
        model,
        transformers.Seq2SeqTrainingArguments(**options),
        train_dataset=rows("marian"),
        eval_dataset=rows("marian"),
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    assert trainer.predict(rows("marian")).predictions.shape[0] == 4
    same_weights(model, expected)


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    model = build("roberta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared, optimizer = accelerator.prepare(model, optimizer)
    found = train(prepared, batch("roberta"), optimizer, accelerator.backward)
    torch.testing.assert_close(found, train(build("roberta"), batch("roberta")))
    falls(found)


def test_lora_on_the_linear_parts(tmp_path):
    peft = pytest.importorskip("peft", reason="needs peft: pip install peft")
    model = build("llama", projection="residual", init="preserve")
    config = peft.LoraConfig(
        r=4,
        target_modules=["q_proj.linear", "k_proj.linear", "v_proj"],
        modules_to_save=["neural_attention"],
    )
    adapted = peft.get_peft_model(model, config)
    trained = {key for key, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert {"lora" in key or "neural_attention" in key for key in trained} == {True}
    falls(train(adapted, batch("llama"), lr=1.0))
    expected = adapted(**batch("llama")).logits
    maps = adapted(**batch("llama"), output_attentions=True).attentions
    assert len(maps) == 2
    adapted.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(
        build("llama", projection="residual", init="preserve"), tmp_path
    )
    torch.testing.assert_close(loaded(**batch("llama")).logits, expected, atol=1e-5, rtol=1e-5)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(**batch("llama")).logits, expected, atol=1e-4, rtol=1e-4)


class LowRank(torch.nn.Module):
    """W + scale · B A, by hand."""

    def __init__(self, down, up, scale):
        super().__init__()
        self.down, self.up = torch.nn.Parameter(down.clone()), torch.nn.Parameter(up.clone())
        self.scale = scale

    def forward(self, weight):
        return weight + self.scale * self.up @ self.down


def test_lora_learns_as_the_same_low_rank_change_by_hand():
    peft = pytest.importorskip("peft", reason="needs peft: pip install peft")
    model = build("llama", init="preserve")
    plain = copy.deepcopy(model).requires_grad_(False)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    torch.manual_seed(0)
    adapted = peft.get_peft_model(model, config)
    for name, layer in adapted.named_modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            change = LowRank(
                layer.lora_A["default"].weight,
                layer.lora_B["default"].weight,
                layer.scaling["default"],
            )
            linear = plain.get_submodule(name.removeprefix("base_model.model."))
            torch.nn.utils.parametrize.register_parametrization(linear, "weight", change)
    expected = train(plain, batch("llama"), lr=1.0)
    falls(expected)
    torch.testing.assert_close(train(adapted, batch("llama"), lr=1.0), expected)


def test_dropout_of_the_model_is_used():
    model, inputs = build("llama", {"attention_dropout": 0.5}), batch("llama")
    assert model(**inputs).loss == model(**inputs).loss
    model.train()
    assert model(**inputs).loss != model(**inputs).loss
