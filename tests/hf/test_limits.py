"""What cannot be converted or loaded is refused, before anything changes."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers

import neural_attention as na
from neural_attention.cli import main
from neural_attention.hf import convert, from_pretrained
from neural_attention.hf.score import AttentionScore

from .families import FAMILIES, logits, quiet_convert

# Earlier ones have these models, but not through transformers' attention interface.
needs_5_24 = pytest.mark.skipif(
    not hasattr(transformers.PreTrainedModel, "activation_checkpointing_enable"),
    reason="needs transformers 5.24",
)
SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "max_position_embeddings": 64,
}  # fmt: skip
TOKENS = torch.arange(3, 15)[None]
NEURAL = {"score": "neural", "init": "random"}


def made(name, **options):
    """A small model by the name of its class, such as ``"LlamaForCausalLM"``."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**{**SIZES, **options})).eval()


def gemma3n(**options):
    return made(
        "Gemma3nForCausalLM", num_hidden_layers=4, num_kv_shared_layers=2, sliding_window=5,
        layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=61, laurel_rank=4, activation_sparsity_pattern=[0.0] * 4,
        **options,
    )  # fmt: skip


def recurrent_gemma():
    return made("RecurrentGemmaForCausalLM", block_types=["attention"] * 2, lru_width=32)


def deepseek():
    return made(
        "DeepseekV3ForCausalLM", q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4,
        qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=2, num_key_value_heads=4,
        n_routed_experts=2, num_experts_per_tok=1, n_group=1, topk_group=1, moe_intermediate_size=8,
    )  # fmt: skip


def state_of(model):
    return type(model), model.config.to_dict(), [name for name, _ in model.named_modules()]


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (gemma3n, {**NEURAL, "layers": [0, 1]}, "Gemma3nTextAttention .* keys of another layer"),
        (gemma3n, NEURAL, "use score='hybrid'"),
        pytest.param(
            recurrent_gemma, {**NEURAL, "positions": "none"}, "turns queries", marks=needs_5_24
        ),
        pytest.param(
            recurrent_gemma, {**NEURAL, "positions": "slopes"}, "turns queries", marks=needs_5_24
        ),
        (deepseek, {"score": "hybrid"}, "DeepseekV3Attention .* is latent attention"),
        (deepseek, {"score": "dot", "positions": "alibi"}, "is latent attention"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_left_alone(make, options, says):
    model = make()
    before = state_of(model)
    with pytest.raises(ValueError, match=says):
        convert(model, **options)
    assert state_of(model) == before


def test_layers_that_share_keys_may_have_a_hybrid_score():
    stock, model = gemma3n(), convert(gemma3n(), score="hybrid")
    for use_cache in (True, False):
        expected = stock(TOKENS, use_cache=use_cache).logits
        found = model(TOKENS, use_cache=use_cache).logits
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@needs_5_24
def test_a_module_that_rotates_itself_is_warned_about():
    with pytest.warns(UserWarning, match="is not relative"):
        convert(recurrent_gemma(), **NEURAL)


def test_complex_angles_are_turned_off():
    model = made(
        "Llama4ForCausalLM", intermediate_size_mlp=48, num_local_experts=2, moe_layers=[],
        layer_types=["full_attention"] * 2, no_rope_layers=[1, 1], use_qk_norm=False,
        attn_temperature_tuning=False,
    )  # fmt: skip
    convert(model, positions="none", **NEURAL)
    before = model(TOKENS).logits
    model.model.rotary_emb.inv_freq.mul_(1.7)
    torch.testing.assert_close(model(TOKENS).logits, before)


@needs_5_24
def test_positions_that_are_no_rotation_stay():
    config = transformers.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, d_model=32, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32,
        decoder_ffn_dim=32, num_queries=3,
        backbone_config=transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"]
        ),
    )  # fmt: skip
    model = transformers.DetrModel(config).eval()
    convert(model, positions="slopes", **NEURAL)
    out = model(torch.randn(1, 3, 32, 32)).last_hidden_state
    assert out.shape == (1, 3, 32)
    assert torch.isfinite(out).all()


def test_frozen_weights_stay_frozen():
    for name in ("gpt2", "llama"):
        model = FAMILIES[name].make()
        model.requires_grad_(False)
        quiet_convert(model, score="hybrid", projection="residual")
        learns = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
        assert learns
        assert not any(".linear." in key for key in learns)


def test_a_dynamically_quantized_model_is_refused():
    model = FAMILIES["llama"].make()
    for block in model.model.layers:
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(block.self_attn, name, torch.nn.Identity())
    with pytest.raises(ValueError, match="has no parameters"):
        convert(model)


def test_a_conversion_that_runs_out_of_memory_changes_nothing(monkeypatch):
    model = FAMILIES["llama"].make()
    before, expected = state_of(model), logits(model, {"input_ids": TOKENS})
    begin, made_so_far = AttentionScore.__init__, []

    def fail(self, **arguments):
        made_so_far.append(self)
        if len(made_so_far) == 4:  # the trial on the meta device has made two
            raise MemoryError
        begin(self, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(AttentionScore, "__init__", fail)
        with pytest.raises(MemoryError):
            convert(model, projection="residual")
    assert state_of(model) == before
    assert torch.equal(logits(model, {"input_ids": TOKENS}), expected)
    convert(model, projection="residual")


def test_an_error_while_maps_are_wanted_is_forgotten():
    model = convert(FAMILIES["llama"].make())
    with pytest.raises(IndexError):
        model(torch.tensor([[10**6]]), output_attentions=True)
    scores = [module for module in model.modules() if isinstance(module, AttentionScore)]
    assert not any(score.returns_weights for score in scores)


@pytest.mark.parametrize("name", ["marian", "bart"])
def test_an_encoder_decoder_is_one_graph_with_its_cache(name):
    torch._dynamo.reset()
    model = convert(FAMILIES[name].make())
    inputs = FAMILIES[name].inputs()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(**inputs)[0], model(**inputs)[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layers", [0, {"decoder": 0}])
def test_a_layer_that_is_no_list_is_named(layers):
    with pytest.raises(TypeError, match=r"expected indices( of layers)?, such as \[0\]"):
        convert(FAMILIES["llama"].make(), layers=layers)


# Folders


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stock")
    FAMILIES["llama"].make().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    quiet_convert(FAMILIES["llama"].make(), positions="slopes", **NEURAL).save_pretrained(folder)
    return folder


def edited(folder, out, **changes):
    """A copy with other values in its configuration."""
    shutil.copytree(folder, out)
    path = out / "config.json"
    config = json.loads(path.read_text())
    for name, value in changes.items():
        if name == "record":
            config["neural_attention"] |= value
        else:
            config[name] = value
    path.write_text(json.dumps(config))
    return out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"record": {"score": "bogus"}}, "score is 'bogus'"),
        ({"record": {"score": 3}}, "score is 3"),
        ({"record": {"positions": "rotary"}}, "positions is 'rotary'"),
        ({"record": {"layers": {"decoder": [0, 7]}}}, "does not have: {'decoder': .7.}"),
        ({"record": {"layers": {"zz": [0]}}}, "expected lists of indices"),
        ({"record": {"layers": {"encoder": [0]}}}, "does not have: {'encoder': .0.}"),
        ({"record": {"layers": None}}, "has None for layers"),
        ({"record": {"layers": [0]}}, "for layers"),
        ({"record": {"projection": {"q": "cubic"}}}, "is 'cubic'"),
        ({"record": {"version": 0}}, "has version 0"),
        ({"record": {"more": 1}}, "more missing or unknown"),
        ({"neural_attention": [1]}, "neural_attention is .1."),
        ({"neural_attention": "yes"}, "neural_attention is 'yes'"),
        ({"architectures": ["A", "B"]}, "expected the name of one class"),
        ({"architectures": ["apply_plan"]}, "expected the name of one class"),
        ({"architectures": ["NeuralAttentionLlamaConfig"]}, "expected the name of one class"),
    ],
    ids=str,
)
def test_a_record_that_no_conversion_wrote_is_refused(converted, tmp_path, changes, says):
    with pytest.raises(ValueError, match=says):
        from_pretrained(edited(converted, tmp_path / "edited", **changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 3}, "lacks weights of its LlamaForCausalLM"),
        ({"architectures": ["BertForMaskedLM"]}, "lacks weights"),
        ({"hidden_size": 64}, "cannot be loaded"),
        ({"architectures": [None]}, "is no model of transformers"),
        ({"architectures": ["__name__"]}, "is no model of transformers"),
        ({"architectures": ["LlamaConfig"]}, "is no model of transformers"),
        ({"num_attention_heads": 0}, "cannot be loaded"),
        ({"dtype": "bogus"}, "cannot be loaded"),
    ],
    ids=str,
)
def test_the_command_refuses_a_damaged_checkpoint(stock, tmp_path, capsys, changes, says):
    folder = edited(stock, tmp_path / "damaged", **changes)
    assert main(["convert", str(folder), str(tmp_path / "out")]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


@pytest.mark.parametrize("size", [0, 100])
def test_the_command_refuses_weights_that_are_cut_off(stock, tmp_path, capsys, size):
    folder = tmp_path / "cut"
    shutil.copytree(stock, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    assert main(["convert", str(folder), str(tmp_path / "out")]) == 2
    assert "cannot be loaded" in capsys.readouterr().err.splitlines()[-1]


def test_the_command_says_what_is_converted_already_and_named_twice(
    stock, converted, tmp_path, capsys
):
    out = str(tmp_path / "out")
    assert main(["convert", str(converted), out]) == 2
    assert "it is converted already" in capsys.readouterr().err
    assert main(["convert", str(stock), out, "--projection", "q=mlp", "q=residual"]) == 2
    assert "names a place twice: q=mlp q=residual" in capsys.readouterr().err
    assert na.hf.from_pretrained(converted).config.model_type == "neural_attention_llama"
