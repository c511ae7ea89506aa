import pytest
import torch
from torch import nn
from torch.nn import functional as F

from neural_attention.attention import NeuralAttention
from neural_attention.cache import KeyValueCache
from neural_attention.position_slopes import alibi_slopes, channel_slopes

from .attention_layers import (
    BATCH,
    HEADS,
    LENGTH,
    SCORES,
    WIDTH,
    build,
    hidden_states,
    identifier,
    written_out,
)

PROJECTIONS = [
    "linear",
    "mlp",
    "residual",
    "karbevski",
    {"q": "mlp", "k": "residual", "v": "mlp", "o": "residual"},
]


@pytest.mark.parametrize("kv_heads", [None, 2, 1])
@pytest.mark.parametrize("options", SCORES, ids=identifier)
def test_layer_is_its_written_out_formula(options, kv_heads):
    layer = build(num_kv_heads=kv_heads, **options)
    x = hidden_states()
    expected, weights = written_out(layer, x)
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(layer.attention_weights(x), weights, atol=1e-5, rtol=1e-4)
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    expected, weights = written_out(layer, x, visible=causal)
    torch.testing.assert_close(layer(x, is_causal=True), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        layer.attention_weights(x, is_causal=True), weights, atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("options", SCORES, ids=identifier)
def test_cross_attention_takes_keys_and_values_of_other_widths(options):
    layer = build(key_dim=10, value_dim=6, head_dim=6, **options)
    x, key, value = hidden_states(3), hidden_states(5, width=10), hidden_states(5, width=6)
    expected, _ = written_out(layer, x, key, value)
    torch.testing.assert_close(layer(x, key, value), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("projection", PROJECTIONS, ids=str)
@pytest.mark.parametrize("options", SCORES, ids=identifier)
def test_every_score_goes_with_every_projection_and_trains_all_parameters(options, projection):
    layer = build(projection=projection, **options)
    x = hidden_states(requires_grad=True)
    out = layer(x, is_causal=True)
    torch.testing.assert_close(
        out,
        written_out(layer, x, visible=torch.ones(LENGTH, LENGTH).tril().bool())[0],
        atol=1e-5,
        rtol=1e-4,
    )
    (out * torch.randn_like(out)).sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        # A bias of the keys adds the same to all scores of a query in a dot product.
        if not (layer.score == "dot" and name in ("k_proj.bias", "k_proj.3.bias")):
            assert parameter.grad.abs().sum() > 0, name
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("kv_heads", [None, 2])
@pytest.mark.parametrize("window", [None, (2, 0)])
@pytest.mark.parametrize("options", SCORES, ids=identifier)
def test_decoding_one_token_at_a_time_equals_one_full_pass(options, window, kv_heads):
    layer = build(num_kv_heads=kv_heads, **options).eval()
    x = hidden_states()
    full = layer(x, is_causal=True, window=window)
    cache = KeyValueCache()
    prompt = layer(x[:, :3], is_causal=True, window=window, cache=cache)
    steps = [
        layer(x[:, t : t + 1], is_causal=True, window=window, cache=cache) for t in range(3, LENGTH)
    ]
    torch.testing.assert_close(torch.cat([prompt, *steps], 1), full, atol=1e-5, rtol=1e-4)
    assert cache.length == LENGTH


@pytest.mark.parametrize("chunks", [[1] * LENGTH, [3, 2, 2], [2, 1, 4]], ids=str)
@pytest.mark.parametrize("kv_heads", [None, 2])
@pytest.mark.parametrize("positions", ["slopes", "alibi", "rotary", "none"])
@pytest.mark.parametrize("score", ["neural", "hybrid"])
def test_cached_chunks_of_a_batch_padded_on_the_left_equal_one_full_pass(
    score, positions, kv_heads, chunks
):
    layer = build(score=score, positions=positions, num_kv_heads=kv_heads).eval()
    x, cache = hidden_states(), KeyValueCache()
    pad = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    pad[0, :3] = True
    full = layer(x, is_causal=True, key_padding_mask=pad)
    parts = []
    for chunk in x.split(chunks, dim=1):
        seen = cache.length + chunk.shape[1]
        parts.append(layer(chunk, is_causal=True, key_padding_mask=pad[:, :seen], cache=cache))
    torch.testing.assert_close(torch.cat(parts, 1), full, atol=1e-5, rtol=1e-4)
    # A score that is relative does not see where the padding put its tokens.
    if (score, positions) != ("neural", "rotary"):
        alone = layer(x[:1, 3:], is_causal=True)
        torch.testing.assert_close(full[:1, 3:], alone, atol=1e-5, rtol=1e-4)


def test_pure_neural_cache_holds_features_instead_of_keys():
    layer, cache = build(num_kv_heads=2), KeyValueCache()
    layer(hidden_states(), cache=cache)
    assert cache.keys.shape == (BATCH, 2, LENGTH, 16)
    assert cache.values.shape == (BATCH, 2, LENGTH, 4)


def test_attention_maps_of_a_decoding_step_cover_the_cache():
    layer = build(score="hybrid").eval()
    x, cache = hidden_states(), KeyValueCache()
    layer(x[:, :-1], is_causal=True, cache=cache)
    step = layer.attention_weights(x[:, -1:], is_causal=True, cache=cache)
    full = layer.attention_weights(x, is_causal=True)
    torch.testing.assert_close(step, full[:, :, -1:], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", SCORES, ids=identifier)
def test_huge_padded_tokens_change_no_valid_output_and_no_gradient(options):
    layer = build(**options)
    pad = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    pad[0, -3:] = pad[1, :2] = True

    def outputs_and_gradients(filling):
        layer.zero_grad()
        x = hidden_states().masked_fill(pad[..., None], filling).requires_grad_()
        out = layer(x, key_padding_mask=pad)[~pad]
        out.square().sum().backward()
        return [out, x.grad[~pad], *(parameter.grad for parameter in layer.parameters())]

    torch.manual_seed(1)
    plain = outputs_and_gradients(0.0)
    for filling in (1e4, 1e15, -1e15):
        torch.manual_seed(1)
        for got, expected in zip(outputs_and_gradients(filling), plain, strict=True):
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa"])
def test_rows_with_nothing_to_attend_to_give_the_output_bias_and_finite_gradients(backend):
    layer = build(score="dot" if backend == "sdpa" else "hybrid", backend=backend)
    x = hidden_states(requires_grad=True)
    pad = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    pad[1] = True
    out = layer(x, key_padding_mask=pad)
    assert torch.equal(out[1], layer.out_proj.bias.expand(LENGTH, -1))
    out.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    assert x.grad.isfinite().all()
    assert (layer.attention_weights(x, key_padding_mask=pad)[1] == 0).all()


def test_masks_compose():
    layer = build(score="hybrid")
    x = hidden_states()
    pad = torch.rand(BATCH, LENGTH) < 0.3
    pad[:, 0] = False
    mask = torch.rand(BATCH, 1, LENGTH, LENGTH) < 0.7
    mask[..., 0] = True
    visible = mask & ~pad[:, None, None]
    relative = torch.arange(LENGTH) - torch.arange(LENGTH)[:, None]
    visible = visible & (relative <= 0) & (relative >= -4) | (visible & (relative == 0))
    some = visible.any(-1)[:, 0]
    out = layer(x, attn_mask=mask, key_padding_mask=pad, is_causal=True, window=(4, None))
    expected, _ = written_out(layer, x, visible=visible)
    torch.testing.assert_close(out[some], expected[some], atol=1e-5, rtol=1e-4)
    additive = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    again = layer(x, attn_mask=additive, key_padding_mask=pad, is_causal=True, window=(4, None))
    torch.testing.assert_close(again, out)


@pytest.mark.parametrize("options", SCORES, ids=identifier)
def test_packed_documents_attend_as_if_alone(options):
    layer = build(**options)
    x = hidden_states(9, batch=1)
    bounds = torch.tensor([0, 4, 9], dtype=torch.int32)
    packed = layer(x, cu_seqlens=bounds, is_causal=True)
    alone = torch.cat([layer(x[:, :4], is_causal=True), layer(x[:, 4:], is_causal=True)], 1)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", SCORES, ids=identifier)
def test_query_offset_places_the_queries(options):
    layer = build(**options)
    x = hidden_states()
    full = layer(x, is_causal=True)
    for offset in (2, torch.tensor([2, 2])):
        part = layer(x[:, 2:5], x, is_causal=True, query_offset=offset)
        torch.testing.assert_close(part, full[:, 2:5], atol=1e-5, rtol=1e-4)


def test_dropout_acts_in_training_only_and_repeats_with_the_seed():
    layer = build(dropout=0.5)
    x = hidden_states()
    torch.manual_seed(4)
    first = layer(x)
    torch.manual_seed(4)
    assert torch.equal(layer(x), first)
    assert not torch.allclose(layer(x), first)
    layer.eval()
    torch.testing.assert_close(layer(x), written_out(layer, x)[0], atol=1e-5, rtol=1e-4)


FOLDING = [
    ({}, "q_proj.weight"),
    ({"num_kv_heads": 2, "bias": False}, "q_proj.weight"),
    ({"score": "additive"}, "q_proj.weight"),
    ({"positions": "alibi", "score_network": {"share_heads": True, "hidden": (3,)}}, None),
    ({"score_network": {"bottleneck": 3}, "num_kv_heads": 2}, "q_proj.weight"),
    ({"projection": "mlp"}, "q_proj.3.weight"),
    ({"projection": "residual"}, "q_proj.linear.weight"),
    ({"projection": "karbevski"}, "k_proj.weight"),
    ({"score": "hybrid", "score_network": {"bottleneck": 3}}, None),
    ({"positions": "rotary", "score_network": {"bottleneck": 3}}, None),
]


@pytest.mark.parametrize(("options", "merged"), FOLDING, ids=str)
def test_folding_keeps_the_output_with_fewer_parameters(options, merged):
    layer = build(head_dim=8 if options.get("projection") != "karbevski" else None, **options)
    layer.eval()
    folded = layer.fold()
    x = hidden_states()
    torch.testing.assert_close(folded(x, is_causal=True), layer(x, is_causal=True), atol=1e-5,
                               rtol=1e-5)  # fmt: skip
    if merged is not None:
        rows = folded.get_parameter(merged).shape[0]
        heads = layer.num_kv_heads if merged[0] == "k" else layer.num_heads
        assert rows == heads * layer.score_network.width
    before = {name for name, _ in layer.named_parameters()}
    assert before - {name for name, _ in folded.named_parameters()}
    cache = KeyValueCache()
    steps = [folded(x[:, t : t + 1], is_causal=True, cache=cache) for t in range(LENGTH)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x, is_causal=True), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "dot"}, "no score network"),
        ({"score": "hybrid"}, "hybrid score needs the queries"),
        ({"positions": "rotary"}, "rotary positions turn"),
    ],
)
def test_fold_says_why_nothing_folds(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options).fold()
    with pytest.raises(ValueError, match="folded already"):
        build().fold().fold()


def test_preserve_starts_a_hybrid_as_its_dot_product():
    options = {"score": "hybrid", "positions": "rotary", "init": "preserve"}
    layer = NeuralAttention(WIDTH, HEADS, projection="residual", **options)
    dot = NeuralAttention(WIDTH, HEADS, score="dot")
    linear = {
        name.replace(".linear.", "."): tensor
        for name, tensor in layer.state_dict().items()
        if "network" not in name
    }
    dot.load_state_dict(linear)
    x = hidden_states()
    torch.testing.assert_close(layer(x), dot(x))
    layer(x).square().sum().backward()
    assert layer.score_network.output.grad.abs().sum() > 0


def test_published_layer_adds_its_known_parameters_to_the_dot_product():
    def count(**options):
        layer = NeuralAttention(512, 8, positions="none", bias=False, **options)
        return sum(parameter.numel() for parameter in layer.parameters())

    network = {"preset": "release", "init": "random"}
    assert count(score="neural", score_network=network) - count(score="dot") == 275 - 1


def test_channel_slopes_are_geometric_opposite_pairs():
    slopes = channel_slopes(2, 14)
    assert torch.equal(slopes[:, 0::2], -slopes[:, 1::2])
    torch.testing.assert_close(slopes[0, 0::2], 2.0 ** -torch.arange(1.0, 8))
    single = channel_slopes(7, 2)
    torch.testing.assert_close(single[:, 0], 2.0 ** -torch.arange(1.0, 8))
    assert channel_slopes(1, 3).shape == (1, 3)


def test_alibi_slopes_are_the_published_ones():
    torch.testing.assert_close(alibi_slopes(8), 2.0 ** -torch.arange(1.0, 9))
    twelve = [2.0**-n for n in range(1, 9)] + [2.0**-n for n in (0.5, 1.5, 2.5, 3.5)]
    torch.testing.assert_close(alibi_slopes(12), torch.tensor(twelve))


def test_defaults_are_slopes_with_a_network_and_rotary_without():
    assert NeuralAttention(WIDTH, HEADS).positions == "slopes"
    assert NeuralAttention(WIDTH, HEADS, score="hybrid").positions == "slopes"
    assert NeuralAttention(WIDTH, HEADS, score="dot").positions == "rotary"
    additive = NeuralAttention(WIDTH, HEADS, score="additive").score_network
    assert (additive.activation, additive.hidden) == ("tanh", None)


def test_a_neural_score_with_rotary_positions_warns_that_it_is_not_relative():
    with pytest.warns(UserWarning, match="not relative") as warned:
        NeuralAttention(WIDTH, HEADS, positions="rotary")
    assert warned[0].filename == __file__


def test_the_representation_names_what_differs():
    layer = NeuralAttention(WIDTH, HEADS, num_kv_heads=2, projection="mlp", dropout=0.1)
    text = repr(layer)
    for part in ("num_kv_heads=2", "score='neural'", "'q': 'mlp'", "positions='slopes'", "dropout"):
        assert part in text


def test_a_language_of_layers_learns_to_copy():
    torch.manual_seed(0)
    layer = NeuralAttention(WIDTH, HEADS)
    head = nn.Linear(WIDTH, 4)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-2)
    embedding = torch.randn(4, WIDTH)
    for _ in range(150):
        tokens = torch.randint(4, (16, 8))
        logits = head(layer(embedding[tokens], is_causal=True))[:, 1:]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2
