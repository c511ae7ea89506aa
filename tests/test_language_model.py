"""The language model as a transformers model."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("transformers")

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    StaticCache,
    Trainer,
    TrainingArguments,
)

from neural_attention.models.block import sinusoidal_positions
from neural_attention.models.language import NeuralAttentionForCausalLM, NeuralAttentionLMConfig

ATTENTIONS = {
    "dot": {"score": "dot"},
    "alibi": {"score": "dot", "positions": "alibi"},
    "neural": {"score": "neural", "score_network": {"width": 4}},
    "two-layers": {"score": "neural", "score_network": {"width": 4, "hidden": [3]}},
    "hybrid": {"score": "hybrid"},
    "additive": {"score": "additive"},
    "mlp": {"score": "dot", "projection": "mlp"},
}
VOCABULARY = 40


def make_config(attention: str = "neural", **changes) -> NeuralAttentionLMConfig:
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
    }
    return NeuralAttentionLMConfig(attention=ATTENTIONS[attention], **{**settings, **changes})


def make_model(attention: str = "neural", **changes) -> NeuralAttentionForCausalLM:
    torch.manual_seed(0)
    return NeuralAttentionForCausalLM(make_config(attention, **changes)).eval()


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(2, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def test_the_papers_dot_product_model_has_its_number_of_parameters():
    config = NeuralAttentionLMConfig(
        architecture="paper",
        vocab_size=28_996,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        attention={"score": "dot"},
    )
    with torch.device("meta"):
        model = NeuralAttentionForCausalLM(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == 46_527_812


def test_the_released_score_network_in_the_first_layer_adds_what_the_paper_says_less_one_bias():
    sizes = {
        "architecture": "paper",
        "vocab_size": 100,
        "hidden_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
    }
    counts = []
    for attention in (
        {"score": "dot"},
        {"score": "neural", "score_network": {"preset": "release", "init": "random"}},
    ):
        config = NeuralAttentionLMConfig(attention=attention, attention_layers="first", **sizes)
        with torch.device("meta"):
            model = NeuralAttentionForCausalLM(config)
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
    # The last layer's bias drops out of the softmax and is not there.
    assert counts[1] - counts[0] == 275 - 1


@pytest.mark.parametrize("architecture", ["current", "paper"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_later_tokens_do_not_change_earlier_logits(attention, architecture):
    model, ids = make_model(attention, architecture=architecture), tokens(2, 9)
    changed = ids.clone()
    changed[:, 5:] = tokens(2, 4, seed=1)
    before, after = model(input_ids=ids).logits, model(input_ids=changed).logits
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize("architecture", ["current", "paper"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_decoding_with_a_cache_equals_one_full_pass(attention, architecture):
    model, ids = make_model(attention, architecture=architecture), tokens(2, 9)
    full = model(input_ids=ids).logits
    cache, steps = None, []
    for piece in ids.split([4, 1, 3, 1], dim=1):
        output = model(input_ids=piece, cache=cache)
        cache = output[-1] if cache is None else cache
        steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, 1), full, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("architecture", ["current", "paper"])
@pytest.mark.parametrize("attention", ["dot", "neural", "hybrid"])
@pytest.mark.parametrize(
    "how",
    [{"do_sample": False}, {"do_sample": True, "top_k": 5}, {"num_beams": 3}],
    ids=["greedy", "sampling", "beam"],
)
def test_generation_with_and_without_a_cache_agrees(attention, architecture, how):
    model, ids = make_model(attention, architecture=architecture), tokens(2, 5)
    written = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        mask = torch.ones_like(ids)
        written.append(
            model.generate(ids, attention_mask=mask, max_new_tokens=7, use_cache=use_cache, **how)
        )
    assert written[0].shape == (2, 12)
    assert torch.equal(*written)


@pytest.mark.parametrize("architecture", ["current", "paper"])
@pytest.mark.parametrize("attention", ["dot", "alibi", "neural", "hybrid"])
def test_padding_on_the_left_does_not_change_what_is_generated(attention, architecture):
    model, ids = make_model(attention, architecture=architecture), tokens(1, 6)
    alone = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False
    )
    other = tokens(1, 9, seed=2)
    batch = torch.cat([torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1), other])
    mask = torch.ones_like(batch)
    mask[0, :3] = 0
    together = model.generate(batch, attention_mask=mask, max_new_tokens=5, do_sample=False)
    assert torch.equal(together[0, 3:], alone[0])


@pytest.mark.parametrize("attention", ["dot", "neural", "hybrid"])
def test_what_stands_in_padding_changes_neither_outputs_nor_gradients(attention):
    results = []
    for filler in (0, 17):
        model, ids = make_model(attention), tokens(2, 8)
        mask = torch.ones_like(ids)
        mask[0, :3] = 0
        ids[0, :3] = filler
        labels = ids.masked_fill(mask == 0, -100)
        labels[0, 3] = -100  # its predecessor is padding
        output = model(input_ids=ids, attention_mask=mask, labels=labels)
        output.loss.backward()
        gradients = [p.grad for n, p in model.named_parameters() if "embedding" not in n]
        results.append((output.logits[mask == 1], gradients))
    torch.testing.assert_close(results[0], results[1])


def test_cache_memory_of_a_neural_score_is_that_of_its_narrow_key_features():
    model = make_model("neural", num_attention_heads=1)
    cache = DynamicCache()
    model(input_ids=tokens(1, 7), cache=cache)
    assert cache.layers[0].keys.shape == (1, 1, 7, 4)
    assert cache.layers[0].values.shape == (1, 1, 7, 16)


def test_a_static_cache_is_refused_by_name():
    model = make_model()
    with pytest.raises(ValueError, match=r"StaticCache.*DynamicCache"):
        model(input_ids=tokens(1, 4), cache=StaticCache(config=model.config, max_cache_len=8))


@pytest.mark.parametrize("architecture", ["current", "paper"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_saving_and_loading_through_auto_classes_keeps_the_logits(
    attention, architecture, tmp_path
):
    model, ids = make_model(attention, architecture=architecture), tokens(2, 6)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is NeuralAttentionForCausalLM
    assert type(AutoConfig.from_pretrained(tmp_path)) is NeuralAttentionLMConfig
    torch.testing.assert_close(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    assert [file for file in os.listdir(tmp_path) if file.endswith(".bin")] == []


def test_what_a_checkpoint_lacks_starts_as_in_a_new_model(tmp_path):
    make_model("dot", attention_layers="first").save_pretrained(tmp_path)
    config = make_config("neural", attention_layers="first")
    loaded = NeuralAttentionForCausalLM.from_pretrained(tmp_path, config=config)
    network = loaded.blocks[0].attention.score_network
    assert all(torch.isfinite(parameter).all() for parameter in loaded.parameters())
    assert network.output.abs().sum() > 0
    features = network.features(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))
    assert not network.dead_heads(*features).any()


def test_only_the_named_layers_have_the_arms_attention():
    model = make_model("neural", num_hidden_layers=3, attention_layers=[0, 2])
    scores = [block.attention.score for block in model.blocks]
    assert scores == ["neural", "dot", "neural"]
    assert [block.attention.positions for block in model.blocks] == ["slopes", "rotary", "slopes"]


def test_no_layer_of_the_papers_model_adds_positions_of_its_own():
    model = make_model("neural", architecture="paper", attention_layers="first")
    assert {block.attention.positions for block in model.blocks} == {"none"}


@pytest.mark.parametrize("layers", ["last", [2], [-1]])
def test_layers_that_are_not_there_are_refused(layers):
    with pytest.raises(ValueError, match="attention_layers"):
        make_config(attention_layers=layers)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"attention": {"score": "foo"}}, ValueError, "score is 'foo': expected one of neural"),
        ({"attention": {"foo": 1}}, ValueError, "attention has foo: expected keywords .*, score"),
        ({"attention": {"embed_dim": 8}}, ValueError, "attention has embed_dim"),
        ({"attention": {"score_network": {"foo": 1}}}, ValueError, "score_network has foo"),
        ({"attention": {"dropout": "a"}}, TypeError, "dropout is 'a'"),
        ({"attention": {"score": "dot", "head_dim": 3}}, ValueError, "even head_dim"),
        ({"attention": "neural"}, TypeError, "attention is 'neural': expected a dict"),
        ({"attention_layers": 0}, TypeError, "attention_layers is 0: expected 'all'"),
        ({"attention_layers": [True]}, TypeError, "attention_layers has True"),
        ({"num_attention_heads": 0}, ValueError, "num_attention_heads is 0"),
        ({"num_key_value_heads": 3}, ValueError, "num_kv_heads is 3 and num_heads 2"),
        ({"head_dim": 0}, ValueError, "head_dim is 0"),
        ({"hidden_size": 15}, ValueError, "hidden_size 15 is not a multiple"),
        ({"hidden_size": "16"}, ValueError, "hidden_size is '16'"),
        ({"vocab_size": -1}, ValueError, "vocab_size is -1"),
        ({"intermediate_size": 2.5}, ValueError, "intermediate_size is 2.5"),
        ({"num_hidden_layers": 0}, ValueError, "num_hidden_layers is 0"),
        ({"dropout": 1.0}, ValueError, "dropout is 1.0"),
        ({"dropout": "a"}, TypeError, "dropout is 'a'"),
    ],
)
def test_an_impossible_configuration_is_refused_when_it_is_made(changes, error, message):
    settings = {"hidden_size": 16, "num_attention_heads": 2}
    with pytest.raises(error, match=message):
        NeuralAttentionLMConfig(**settings | changes)


def test_making_a_configuration_draws_no_random_numbers_and_warns_of_nothing():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    # The model of this one warns that its start can be dead.
    make_config(attention="neural", attention_layers="first")
    NeuralAttentionLMConfig(attention={"score": "neural", "score_network": "release"})
    assert torch.equal(torch.rand(1), expected)


def test_a_stored_configuration_of_few_words_loads(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"model_type": "neural_attention_lm", "attention": {"score": "hybrid"}, "hidden_size": 64,'
        ' "num_attention_heads": 4, "num_hidden_layers": 2, "dropout": 0}'
    )
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.attention == {"score": "hybrid"}
    assert config.to_diff_dict()["hidden_size"] == 64


def test_a_cache_of_another_batch_is_refused_and_left_as_it_was():
    model, cache = make_model(), DynamicCache()
    model(input_ids=tokens(2, 4), cache=cache)
    with pytest.raises(ValueError, match=r"\(2, 2, 4, 4\).*\(3, 2, 1, 4\)"):
        model(input_ids=tokens(3, 1), cache=cache)
    assert cache.get_seq_length() == 4


def test_an_unknown_architecture_is_refused():
    with pytest.raises(ValueError, match=r"architecture.*current, paper"):
        make_config(architecture="old")


@pytest.mark.parametrize("attention", ["dot", "neural"])
def test_gradient_checkpointing_gives_the_same_loss_and_gradients(attention):
    results = []
    for checkpointing in (False, True):
        model, ids = make_model(attention, dropout=0.2).train(), tokens(2, 8)
        if checkpointing:
            # Its name before transformers 5.2x, which warns about it now.
            old = "gradient_checkpointing_enable"
            enable = getattr(model, "activation_checkpointing_enable", None) or getattr(model, old)
            enable({"use_reentrant": False})
        torch.manual_seed(1)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        results.append((loss.detach(), [p.grad for p in model.parameters()]))
    torch.testing.assert_close(results[0], results[1])


def test_the_loss_predicts_each_token_from_those_before_it():
    model, ids = make_model(), tokens(2, 6)
    logits = model(input_ids=ids).logits
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(model(input_ids=ids, labels=ids).loss, expected)
    shifted = model(input_ids=ids[:, :-1], shift_labels=ids[:, 1:]).loss
    torch.testing.assert_close(shifted, expected)


@pytest.mark.parametrize("attention", ["dot", "neural"])
def test_attention_maps_and_hidden_states_come_when_asked_for(attention):
    model, ids = make_model(attention), tokens(2, 5)
    output = model(input_ids=ids, output_attentions=True, output_hidden_states=True)
    assert [m.shape for m in output.attentions] == [(2, 2, 5, 5)] * 2
    torch.testing.assert_close(output.attentions[0].sum(-1), torch.ones(2, 2, 5))
    assert output.attentions[0].triu(1).abs().max() == 0
    assert len(output.hidden_states) == 3
    torch.testing.assert_close(output.logits, model(input_ids=ids).logits)


def test_attention_maps_of_cached_steps_are_rows_of_the_whole_map():
    model, ids = make_model(), tokens(1, 6)
    whole = model(input_ids=ids, output_attentions=True).attentions[1]
    first = model(input_ids=ids[:, :5])
    step = model(input_ids=ids[:, 5:], cache=first[-1], output_attentions=True)
    torch.testing.assert_close(step.attentions[1][:, :, 0], whole[:, :, 5])


def test_a_full_attention_mask_replaces_causality():
    model, ids = make_model("dot"), tokens(1, 5)
    everything = torch.ones(1, 1, 5, 5, dtype=torch.bool)
    causal = everything.tril()
    torch.testing.assert_close(
        model(input_ids=ids, attention_mask=causal).logits, model(input_ids=ids).logits
    )
    seen = model(input_ids=ids, attention_mask=everything).logits
    assert not torch.allclose(seen[:, 0], model(input_ids=ids).logits[:, 0])


def test_mistaken_inputs_are_refused_with_what_was_expected():
    model, ids = make_model(), tokens(1, 5)
    with pytest.raises(ValueError, match="one of input_ids and inputs_embeds"):
        model()
    with pytest.raises(ValueError, match=r"\(1, 4\): \(1, 5\) is needed"):
        model(input_ids=ids, attention_mask=torch.ones(1, 4))
    with pytest.raises(TypeError, match="soft_cap"):
        model(input_ids=ids, soft_cap=3.0)


def test_embeddings_are_tied_in_the_current_model_and_apart_in_the_papers():
    current, paper = make_model(), make_model(architecture="paper")
    assert current.head.weight is current.embedding.weight
    assert paper.head.weight is not paper.embedding.weight


def test_resizing_the_vocabulary_keeps_old_rows_and_ties():
    model = make_model()
    old = model.embedding.weight.detach().clone()
    model.resize_token_embeddings(VOCABULARY + 3)
    assert model(input_ids=tokens(1, 3)).logits.shape[-1] == VOCABULARY + 3
    torch.testing.assert_close(model.embedding.weight[:VOCABULARY], old)
    assert model.head.weight is model.embedding.weight


def test_trainer_lowers_the_loss(tmp_path):
    model = make_model().train()
    data = [{"input_ids": tokens(8), "labels": tokens(8)} for _ in range(8)]
    before = model(input_ids=data[0]["input_ids"][None], labels=data[0]["labels"][None]).loss.item()
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
    Trainer(model=model, args=arguments, train_dataset=data).train()
    model.eval()
    after = model(input_ids=data[0]["input_ids"][None], labels=data[0]["labels"][None]).loss.item()
    assert after < before - 0.5


def test_sinusoids_have_the_published_frequencies():
    table = sinusoidal_positions(torch.arange(50), 8)
    position, pair = 7, 2
    angle = position / 10000 ** (2 * pair / 8)
    torch.testing.assert_close(table[position, 2 * pair], torch.tensor(angle).sin())
    torch.testing.assert_close(table[position, 2 * pair + 1], torch.tensor(angle).cos())


def test_trainer_finds_the_labels_and_so_the_evaluation_loss():
    from transformers.utils.generic import find_labels

    assert find_labels(NeuralAttentionForCausalLM) == ["labels"]
