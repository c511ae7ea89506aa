"""What NeuralAttention refuses, and with which words."""

import pytest
import torch

from neural_attention.attention import NeuralAttention
from neural_attention.cache import KeyValueCache

from .attention_layers import BATCH, HEADS, LENGTH, WIDTH, hidden_states


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "cosine"}, "neural, dot, hybrid, additive"),
        ({"positions": "absolute"}, "slopes, alibi, rotary, none"),
        ({"score": "dot", "positions": "slopes"}, "alibi"),
        ({"score": "dot", "score_network": {"width": 4}}, "no score network"),
        ({"score_network": {"num_heads": 4}}, "leave it out"),
        ({"score_network": "releases"}, "paper, release"),
        ({"score": "additive", "score_network": {"activation": "relu"}}, "Bahdanau"),
        ({"projection": "dense"}, "karbevski"),
        ({"projection": {"x": "mlp"}}, "'x'"),
        ({"projection": {"k": "karbevski"}}, "query projection alone"),
        ({"projection": "karbevski", "head_dim": 3}, "must equal embed_dim"),
        ({"projection_options": {"width_factor": 3}}, "nothing to act on"),
        ({"projection": "mlp", "projection_options": {"factor": 3}}, "width_factor, layer_norm"),
        ({"init": "preserve"}, "keeps the dot product"),
        ({"init": "zeros"}, "'random' or 'preserve'"),
        ({"num_kv_heads": 3}, "must divide"),
        ({"embed_dim": 18}, "not a multiple"),
        ({"num_heads": 0}, "num_heads is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"rotary_base": 500.0}, "leave it out"),
        ({"score": "dot", "head_dim": 3}, "even head_dim"),
        ({"backend": "sdpa"}, "score='dot'"),
        ({"backend": "flash"}, "flash"),
        ({"num_heads": -1}, "num_heads is -1: expected a whole number"),
        ({"num_heads": True}, "num_heads is True: expected a whole number"),
        ({"num_kv_heads": 0}, "num_kv_heads is 0: expected a whole number"),
        ({"embed_dim": "16"}, "embed_dim is '16': expected a whole number"),
        ({"head_dim": 4.0}, "head_dim is 4.0: expected a whole number"),
        ({"key_dim": 0}, "width of keys is 0: expected a whole number"),
        ({"value_dim": "a"}, "width of values is 'a': expected a whole number"),
        ({"score_network": {"foo": 1}}, "score_network has foo: .*, width, hidden, activation"),
        ({"score_network": {"device": "cpu"}}, "score_network sets device"),
        ({"score_network": {"width": "4"}}, "width is '4': expected a whole number"),
        ({"score_network": {"preset": ["release"]}}, "preset .'release'. is unknown"),
        ({"score_network": {"preset": "release", "bottleneck": "2"}}, "bottleneck is '2'"),
        ({"dropout": float("nan")}, "dropout is nan"),
        (
            {"projection": "mlp", "projection_options": {"width_factor": -1}},
            "width_factor is -1: expected a finite number above 0",
        ),
        (
            {"projection": "mlp", "projection_options": {"width_factor": float("nan")}},
            "width_factor is nan",
        ),
        ({"projection": "mlp", "projection_options": {1: 3}}, "projection_options has 1"),
        ({"score": "dot", "rotary_base": -1.0}, "rotary_base is -1.0: expected a finite"),
        ({"score": ["dot"]}, "score is .'dot'.: expected one of"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        NeuralAttention(**({"embed_dim": WIDTH, "num_heads": HEADS} | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": "a"}, "dropout is 'a': expected a number"),
        ({"dropout": True}, "dropout is True: expected a number"),
        ({"bias": "yes"}, "bias is 'yes': expected True or False"),
        ({"bias": None}, "bias is None: expected True or False"),
        ({"backend": None}, "backend is None: expected a name"),
        ({"projection": 5}, "projection is 5: expected a name"),
        ({"projection": "mlp", "projection_options": 5}, "projection_options is 5: expected a"),
        (
            {"projection": "mlp", "projection_options": {"width_factor": "2"}},
            "width_factor is '2': expected a number above 0",
        ),
        (
            {"projection": "residual", "projection_options": {"layer_norm": 1}},
            "layer_norm is 1: expected True or False",
        ),
        ({"score_network": 5}, "score_network is 5: expected a preset's name, or a dict"),
        ({"score_network": {"hidden": 5}}, "hidden is 5: expected"),
        ({"score_network": {"hidden": "4"}}, "hidden is '4': expected"),
        ({"score_network": {"activation": 3}}, "activation is 3: expected a name"),
        ({"score_network": {"share_heads": "no"}}, "share_heads is 'no': expected True"),
        ({"score": "dot", "rotary_base": "a"}, "rotary_base is 'a': expected a number above 0"),
    ],
)
def test_options_of_another_type_are_refused(options, message):
    with pytest.raises(TypeError, match=message):
        NeuralAttention(**({"embed_dim": WIDTH, "num_heads": HEADS} | options))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": torch.zeros(7, 16)}, ValueError, "expected .batch, length, 16."),
        ({"x": torch.zeros(2, 7, 8)}, ValueError, "expected .batch, length, 16."),
        ({"key": torch.zeros(3, 7, 16)}, ValueError, "batch size 3"),
        ({"value": torch.zeros(2, 7, 16)}, ValueError, "without key"),
        (
            {"key": torch.zeros(2, 7, 16), "value": torch.zeros(2, 6, 16)},
            ValueError,
            "length 7 and value 6",
        ),
        ({"key": torch.zeros(2, 7, 16), "cache": KeyValueCache()}, ValueError, "cache and key"),
        ({"key_padding_mask": torch.zeros(2, 7)}, TypeError, "expected bool"),
        (
            {"key_padding_mask": torch.zeros(2, 6, dtype=torch.bool)},
            ValueError,
            "keys in the cache|those in the cache",
        ),
        (
            {
                "key_padding_mask": torch.zeros(2, 7, dtype=torch.bool),
                "attn_mask": torch.zeros(7, 7, dtype=torch.int64),
            },
            TypeError,
            "attn_mask is torch.int64",
        ),
        (
            {
                "key_padding_mask": torch.zeros(2, 7, dtype=torch.bool),
                "attn_mask": torch.zeros(3, 7),
            },
            ValueError,
            r"attn_mask has shape \(3, 7\): .*\(2, 4, 7, 7\)",
        ),
        ({"x": [1.0]}, TypeError, "x is a list: expected a torch.Tensor"),
        ({"key": [1.0]}, TypeError, "key is a list: expected a torch.Tensor"),
        ({"x": hidden_states().double()}, TypeError, "x is torch.float64 .* torch.float32.*autoc"),
        ({"x": hidden_states().long()}, TypeError, "x is torch.int64 and .* torch.float32"),
        ({"key": hidden_states().bfloat16()}, TypeError, "key is torch.bfloat16 and the layer's"),
        ({"key_padding_mask": [[True]]}, TypeError, "key_padding_mask is a list"),
        ({"attn_mask": [[True]]}, TypeError, "attn_mask is a list"),
        ({"attn_mask": torch.zeros(7, 6)}, ValueError, r"attn_mask has shape \(7, 6\)"),
        ({"window": 3}, TypeError, "window is 3: expected .left, right."),
        ({"query_offset": "x"}, TypeError, "query_offset is 'x': expected an int"),
        ({"cu_seqlens": [0, 7]}, TypeError, "cu_seqlens is a list"),
        ({"cu_seqlens": torch.tensor([0, 7], dtype=torch.int32)}, ValueError, "got batch 2"),
        ({"is_causal": "no"}, TypeError, "is_causal is 'no': expected True or False"),
        ({"cache": {}}, TypeError, "cache is a dict: expected .* KeyValueCache"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"score": "dot"}, {"score": "dot", "backend": "sdpa"}])
def test_inputs_that_do_not_fit_are_refused(options, arguments, error, message):
    with pytest.raises(error, match=message):
        NeuralAttention(WIDTH, HEADS, **options)(**({"x": hidden_states()} | arguments))


@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_documents_must_cover_the_row_on_every_backend(backend):
    layer = NeuralAttention(WIDTH, HEADS, score="dot", backend=backend)
    with pytest.raises(ValueError, match=r"cu_seqlens is \[0, 5\]"):
        layer(hidden_states(batch=1), cu_seqlens=torch.tensor([0, 5], dtype=torch.int32))


@pytest.mark.parametrize(
    ("other", "x", "error", "message"),
    [
        ({}, hidden_states(batch=3), ValueError, r"\(2, 4, 7, 4\).*\(3, 4, 7, 4\)"),
        ({"num_kv_heads": 2}, hidden_states(), ValueError, r"\(2, 4, 7, 4\).*\(2, 2, 7, 4\)"),
        ({"head_dim": 6}, hidden_states(), ValueError, r"\(2, 4, 7, 4\).*\(2, 4, 7, 6\)"),
        ({"dtype": torch.float64}, hidden_states().double(), TypeError, "float32 .* torch.float64"),
        ({"device": "meta"}, hidden_states().to("meta"), ValueError, "cache is on cpu .* on meta"),
    ],
)
def test_a_cache_of_another_layer_or_batch_is_refused_and_left_as_it_was(other, x, error, message):
    options = {"score": "dot", "positions": "none"}
    cache = KeyValueCache()
    NeuralAttention(WIDTH, HEADS, **options)(hidden_states(), cache=cache)
    before = cache.keys
    with pytest.raises(error, match=message):
        NeuralAttention(WIDTH, HEADS, **options, **other)(x, cache=cache)
    assert cache.keys is before


def test_a_refused_mask_leaves_the_cache_as_it_was():
    layer, cache = NeuralAttention(WIDTH, HEADS), KeyValueCache()
    layer(hidden_states(), cache=cache)
    for masks in (
        {"key_padding_mask": torch.zeros(BATCH, LENGTH, dtype=torch.bool)},
        {"attn_mask": torch.zeros(LENGTH, LENGTH)},
        {"is_causal": None},
    ):
        with pytest.raises((ValueError, TypeError)):
            layer(hidden_states(), cache=cache, **masks)
        assert cache.length == LENGTH


def test_autocast_takes_inputs_of_another_dtype():
    layer = NeuralAttention(WIDTH, HEADS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(hidden_states().bfloat16()).dtype == torch.bfloat16
