import copy
import io

import pytest
import torch
from torch import nn

from neural_attention.multihead import MultiheadAttention

WIDTH, HEADS, BATCH, TARGET, SOURCE = 16, 4, 2, 5, 7

CONSTRUCTIONS = [
    {},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"kdim": 12, "vdim": 20},
    {"kdim": 12, "bias": False, "add_bias_kv": True},
    {"batch_first": True},
]


def pair(**options):
    """torch's layer, and ours as a dot product with its state dict."""
    theirs = nn.MultiheadAttention(WIDTH, HEADS, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)
    ours = MultiheadAttention(WIDTH, HEADS, score="dot", **options)
    assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"
    return theirs, ours


def inputs(target=TARGET, source=SOURCE, kdim=WIDTH, vdim=WIDTH, batch_first=False, **_):
    tensors = (
        torch.randn(target, BATCH, WIDTH),
        torch.randn(source, BATCH, kdim),
        torch.randn(source, BATCH, vdim),
    )
    return tuple(x.transpose(0, 1).contiguous() if batch_first else x for x in tensors)


def padding(source=SOURCE):
    mask = torch.zeros(BATCH, source, dtype=torch.bool)
    mask[1, -2:] = True
    return mask


def causal(target=TARGET, source=SOURCE):
    return torch.ones(target, source, dtype=torch.bool).triu(1)


def as_added(mask):
    return torch.zeros(mask.shape).masked_fill(mask, -torch.inf)


MASKS = {
    "none": dict,
    "padding": lambda: {"key_padding_mask": padding()},
    "float padding": lambda: {"key_padding_mask": as_added(padding())},
    "causal": lambda: {"attn_mask": causal()},
    "hinted": lambda: {"attn_mask": causal(), "is_causal": True},
    "both": lambda: {"attn_mask": causal(), "key_padding_mask": padding()},
    "float both": lambda: {
        "attn_mask": torch.randn(TARGET, SOURCE),
        "key_padding_mask": as_added(padding()),
    },
    "per head": lambda: {"attn_mask": torch.randn(BATCH * HEADS, TARGET, SOURCE)},
    "bool per head": lambda: {
        "attn_mask": torch.rand(BATCH * HEADS, TARGET, SOURCE).argsort(-1) > 2,
        "key_padding_mask": None,
    },
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", CONSTRUCTIONS, ids=str)
def test_dot_product_equals_torch_with_the_same_weights(options, mask):
    theirs, ours = pair(**options)
    arguments, masks = inputs(**options), MASKS[mask]()
    # torch drops attn_mask for its hint and then hides the added keys from early queries.
    without_weights = not (mask == "hinted" and {"add_bias_kv", "add_zero_attn"} & options.keys())
    for call in (
        {},
        {"average_attn_weights": False},
        *([{"need_weights": False}] if without_weights else []),
    ):
        expected, expected_weights = theirs(*arguments, **masks, **call)
        output, weights = ours(*arguments, **masks, **call)
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)
        if call.get("need_weights", True):
            torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-4)
        else:
            assert weights is None


@pytest.mark.parametrize("options", CONSTRUCTIONS, ids=str)
def test_unbatched_input_equals_torch(options):
    theirs, ours = pair(**options)
    query, key, value = (x[:, 0] for x in inputs(**{**options, "batch_first": False}))
    masks = {"key_padding_mask": padding()[1], "attn_mask": causal()}
    for call in ({}, {"average_attn_weights": False}):
        for got, expected in zip(
            ours(query, key, value, **masks, **call),
            theirs(query, key, value, **masks, **call),
            strict=True,
        ):
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    per_head = torch.randn(HEADS, TARGET, SOURCE)
    torch.testing.assert_close(
        ours(query, key, value, attn_mask=per_head)[0],
        theirs(query, key, value, attn_mask=per_head)[0],
        atol=1e-5,
        rtol=1e-4,
    )


def test_gradients_equal_torch():
    theirs, ours = pair(add_bias_kv=True)
    arguments = inputs()
    for need_weights in (True, False):
        for layer in (theirs, ours):
            layer.zero_grad()
            layer(*arguments, need_weights=need_weights)[0].square().sum().backward()
        fused = torch.cat([getattr(ours, f"{x}_proj").weight.grad for x in "qkv"])
        torch.testing.assert_close(fused, theirs.in_proj_weight.grad, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.bias_k.grad, theirs.bias_k.grad, atol=1e-4, rtol=1e-4)


def test_causal_order_needs_no_mask_and_is_aligned_to_the_top_left():
    theirs, ours = pair()
    query, key, value = inputs()
    expected, expected_weights = theirs(query, key, value, attn_mask=causal())
    output, weights = ours(query, key, value, is_causal=True)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=1e-4)
    output, _ = ours(query, key, value, is_causal=True, need_weights=False)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)


def test_fully_masked_rows_give_the_output_bias_where_torch_gives_nan():
    theirs, ours = pair()
    query, key, value = (x.requires_grad_() for x in inputs())
    mask = padding()
    mask[0] = True
    assert theirs(query, key, value, key_padding_mask=mask)[0][:, 0].isnan().all()
    for need_weights in (True, False):
        output, weights = ours(query, key, value, key_padding_mask=mask, need_weights=need_weights)
        torch.testing.assert_close(output[:, 0], ours.out_proj.bias.expand(TARGET, -1))
        ours.zero_grad()
        output.sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in ours.parameters())
        if need_weights:
            assert (weights[0] == 0).all()


@pytest.mark.parametrize("score", ["neural", "dot", "hybrid", "additive"])
@pytest.mark.parametrize("positions", ["none", "alibi"])
def test_returned_weights_make_the_output_and_both_ways_agree(score, positions):
    layer = MultiheadAttention(
        WIDTH, HEADS, add_bias_kv=True, add_zero_attn=True, score=score, positions=positions
    )
    query, key, value = inputs()
    masks = {"key_padding_mask": padding(), "is_causal": True}
    output, weights = layer(query, key, value, **masks, average_attn_weights=False)
    assert weights.shape == (BATCH, HEADS, TARGET, SOURCE + 2)
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, TARGET))
    assert (weights[1, ..., SOURCE - 2 : SOURCE] == 0).all()
    assert (weights[..., SOURCE:] > 0).all()
    assert (weights[..., :SOURCE][..., causal()] == 0).all()
    plain, none = layer(query, key, value, **masks, need_weights=False)
    torch.testing.assert_close(plain, output, atol=1e-5, rtol=1e-4)
    assert none is None


@pytest.mark.parametrize("positions", ["rotary", "slopes", "alibi"])
def test_positions_see_distances_between_tokens(positions):
    layer = MultiheadAttention(WIDTH, HEADS, positions=positions, batch_first=True)
    x = torch.randn(1, 6, WIDTH)
    full = layer(x, x, x, is_causal=True)[0]
    # Attending causally, a prefix does not know what follows.
    torch.testing.assert_close(layer(x[:, :4], x[:, :4], x[:, :4], is_causal=True)[0], full[:, :4])
    reordered = x[:, [1, 0, 2, 3, 4, 5]]
    assert not torch.allclose(
        layer(reordered, reordered, reordered)[0][:, 5], layer(x, x, x)[0][:, 5]
    )


def test_without_positions_order_does_not_matter():
    layer = MultiheadAttention(WIDTH, HEADS, batch_first=True)
    x = torch.randn(1, 6, WIDTH)
    order = torch.randperm(6)
    moved = x[:, order]
    torch.testing.assert_close(layer(moved, moved, moved)[0], layer(x, x, x)[0][:, order])


def test_dropout_strikes_the_returned_weights_and_the_output_alike():
    layer = MultiheadAttention(WIDTH, HEADS, dropout=0.5, batch_first=True, score="dot")
    query, key, value = inputs(batch_first=True)
    output, weights = layer(query, key, value, average_attn_weights=False)
    assert (weights == 0).any()
    v = layer.v_proj(value).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    expected = layer.out_proj((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected)
    layer.eval()
    assert (layer(query, key, value)[1] > 0).all()


def test_causal_order_hides_beside_a_mask_that_hides_less():
    _, ours = pair()
    arguments, nothing = inputs(), torch.zeros(TARGET, SOURCE, dtype=torch.bool)
    for need_weights in (True, False):
        beside, _ = ours(*arguments, attn_mask=nothing, is_causal=True, need_weights=need_weights)
        alone, _ = ours(*arguments, is_causal=True, need_weights=need_weights)
        torch.testing.assert_close(beside, alone)


def test_our_state_dict_does_not_load_into_torchs_class():
    theirs, ours = pair()
    with pytest.raises(RuntimeError, match="in_proj_weight"):
        theirs.load_state_dict(ours.state_dict())


def test_starting_scale_is_torchs():
    theirs, ours = nn.MultiheadAttention(64, 4), MultiheadAttention(64, 4)
    bound = theirs.in_proj_weight.abs().max()
    for projection in (ours.q_proj, ours.k_proj, ours.v_proj):
        torch.testing.assert_close(projection.weight.abs().max(), bound, rtol=0.01, atol=0)
        assert (projection.bias == 0).all()
    ours.reset_parameters()
    torch.testing.assert_close(ours.q_proj.weight.abs().max(), bound, rtol=0.01, atol=0)
    assert (ours.out_proj.bias == 0).all()


def test_torch_weights_start_a_preserving_hybrid_as_what_was_trained():
    theirs = nn.MultiheadAttention(WIDTH, HEADS)
    projection = {"q": "residual", "k": "residual", "o": "residual"}
    ours = MultiheadAttention(WIDTH, HEADS, init="preserve", projection=projection)
    before = theirs.state_dict()
    result = ours.load_state_dict(before, strict=False)
    assert result.unexpected_keys == []
    assert all("network" in name for name in result.missing_keys)
    assert list(before) == list(theirs.state_dict())
    arguments = inputs()
    torch.testing.assert_close(ours(*arguments), theirs(*arguments), atol=1e-5, rtol=1e-4)


def test_a_model_that_contains_the_layer_loads_torch_weights_too():
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 32)
    theirs, ours = nn.TransformerDecoder(layer, 1), nn.TransformerDecoder(layer, 1)
    block = ours.layers[0]
    block.self_attn = MultiheadAttention(WIDTH, HEADS, score="dot")
    block.multihead_attn = MultiheadAttention(WIDTH, HEADS, score="dot")
    ours.load_state_dict(theirs.state_dict())
    source, target = torch.randn(6, BATCH, WIDTH), torch.randn(4, BATCH, WIDTH)
    torch.testing.assert_close(
        ours.eval()(source, target), theirs.eval()(source, target), atol=1e-5, rtol=1e-4
    )


def encoders(before, **options):
    """Two equal encoders: torch's, and ours put in before or after it was built."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True, **options)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not before)
    if before:
        layer = copy.deepcopy(layer)
        layer.self_attn = MultiheadAttention(WIDTH, HEADS, batch_first=True, score="dot")
        ours = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    else:
        ours = copy.deepcopy(theirs)
        for block in ours.layers:
            block.self_attn = MultiheadAttention(WIDTH, HEADS, batch_first=True, score="dot")
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_transformer_encoder_runs_our_layer_in_every_mode(before, training, grad):
    theirs, ours = encoders(before)
    theirs.train(training), ours.train(training)
    x = torch.randn(BATCH, SOURCE, WIDTH)
    mask = nn.Transformer.generate_square_subsequent_mask(SOURCE)
    calls = []
    for block in ours.layers:
        inner = block.self_attn
        inner._attend = lambda *a, _run=inner._attend, **k: calls.append(1) or _run(*a, **k)
    with torch.set_grad_enabled(grad):
        for masks in (
            {},
            {"src_key_padding_mask": padding()},
            {"mask": mask},
            {"mask": mask, "is_causal": True},
            {"mask": mask, "src_key_padding_mask": as_added(padding())},
        ):
            calls.clear()
            output, expected = ours(x, **masks), theirs(x, **masks)
            assert len(calls) == 2, "torch's fused kernel took the place of our layer"
            valid = torch.ones(BATCH, SOURCE, dtype=torch.bool)
            if "src_key_padding_mask" in masks:
                valid = ~padding()
            assert output.isfinite().all()
            torch.testing.assert_close(output[valid], expected[valid], atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padded_input_of_an_encoder_in_eval_becomes_nested_and_comes_back():
    _, encoder = encoders(before=False)
    encoder.eval()
    for block in encoder.layers:
        block.self_attn = MultiheadAttention(WIDTH, HEADS, batch_first=True, score="hybrid")
    x = torch.randn(BATCH, SOURCE, WIDTH)
    seen = []
    encoder.layers[0].self_attn.register_forward_pre_hook(
        lambda _, arguments: seen.append(arguments[0].is_nested)
    )
    with torch.no_grad():
        nested = encoder(x, src_key_padding_mask=padding())
        encoder.use_nested_tensor = False
        padded = encoder(x, src_key_padding_mask=padding())
    assert seen == [True, False]
    torch.testing.assert_close(nested[~padding()], padded[~padding()], atol=1e-5, rtol=1e-4)
    assert (nested[padding()] == 0).all()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_input_gives_nested_output_and_padded_weights():
    layer = MultiheadAttention(WIDTH, HEADS, batch_first=True)
    rows = [torch.randn(4, WIDTH), torch.randn(2, WIDTH)]
    nested = torch.nested.nested_tensor(rows)
    output, weights = layer(nested, nested, nested)
    for row, got in zip(rows, output.unbind(), strict=True):
        torch.testing.assert_close(got, layer(row, row, row)[0])
    assert weights.shape == (2, 4, 4)
    with pytest.raises(ValueError, match="self-attention"):
        layer(nested, nested, torch.nested.nested_tensor(rows))
    with pytest.raises(ValueError, match="own padding"):
        layer(nested, nested, nested, key_padding_mask=padding(4))
    with pytest.raises(ValueError, match="batch_first"):
        MultiheadAttention(WIDTH, HEADS)(nested, nested, nested)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_decoder_equals_torch(norm_first, training):
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 32, dropout=0.0, norm_first=norm_first)
    theirs = nn.TransformerDecoder(layer, 2).train(training)
    ours = copy.deepcopy(theirs)
    for block in ours.layers:
        block.self_attn = MultiheadAttention(WIDTH, HEADS, score="dot")
        block.multihead_attn = MultiheadAttention(WIDTH, HEADS, score="dot")
    ours.load_state_dict(theirs.state_dict())
    target, memory = torch.randn(TARGET, BATCH, WIDTH), torch.randn(SOURCE, BATCH, WIDTH)
    masks = {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(TARGET),
        "memory_key_padding_mask": padding(),
    }
    for more in ({}, {"tgt_is_causal": True}):
        torch.testing.assert_close(
            ours(target, memory, **masks, **more),
            theirs(target, memory, **masks, **more),
            atol=1e-5,
            rtol=1e-4,
        )


def test_an_encoder_of_hybrid_layers_trains_every_parameter():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)
    layer.self_attn = MultiheadAttention(WIDTH, HEADS, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    # Fresh projections have no biases, and the two layers are copies.
    out = encoder(torch.randn(BATCH, SOURCE, WIDTH), src_key_padding_mask=padding())
    (out * torch.randn_like(out)).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_compiles_whole_and_exports():
    layer = MultiheadAttention(WIDTH, HEADS, batch_first=True, add_bias_kv=True).eval()
    x = torch.randn(BATCH, SOURCE, WIDTH)
    masks = {"key_padding_mask": padding(), "is_causal": True}
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for call in ({}, {"need_weights": False}):
        torch.testing.assert_close(
            compiled(x, x, x, **masks, **call), layer(x, x, x, **masks, **call)
        )
    program = torch.export.export(layer, (x, x, x), masks)
    torch.testing.assert_close(program.module()(x, x, x, **masks), layer(x, x, x, **masks))


def test_copies_and_saved_state_dicts_give_the_same_output():
    layer = MultiheadAttention(WIDTH, HEADS, add_bias_kv=True)
    arguments = inputs()
    twin = copy.deepcopy(layer)
    torch.testing.assert_close(twin(*arguments), layer(*arguments))
    theirs = nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True)
    assert twin.load_state_dict(theirs.state_dict(), strict=False).unexpected_keys == []
    assert torch.equal(twin.k_proj.weight, theirs.in_proj_weight[WIDTH : 2 * WIDTH])
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    torch.testing.assert_close(again(*arguments), layer(*arguments))
    again.load_state_dict(layer.state_dict())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_come_back_as_they_went_in(dtype):
    layer = MultiheadAttention(WIDTH, HEADS, dtype=dtype, add_bias_kv=True)
    output, weights = layer(*(x.to(dtype) for x in inputs()), key_padding_mask=as_added(padding()))
    assert output.dtype == weights.dtype == dtype


def test_autocast_runs_the_added_keys_in_its_dtype():
    layer = MultiheadAttention(WIDTH, HEADS, add_bias_kv=True, add_zero_attn=True)
    arguments = inputs()
    expected, _ = layer(*arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = layer(*arguments, attn_mask=torch.zeros(TARGET, SOURCE))
    torch.testing.assert_close(output.float(), expected, atol=0.1, rtol=0.1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"query": torch.zeros(5, 2, 8)}, ValueError, "the last 16"),
        ({"query": torch.zeros(5, 16)}, ValueError, "2 for all without a batch"),
        ({"query": torch.zeros(1, 5, 2, 16)}, ValueError, "4 dimensions"),
        ({"key": torch.zeros(6, 2, 16)}, ValueError, "one length"),
        ({"query": torch.zeros(5, 3, 16)}, ValueError, "batch must be the same"),
        ({"attn_mask": torch.zeros(7, 5)}, ValueError, r"\(8, 5, 7\)"),
        (
            {"attn_mask": torch.zeros(5, 7, dtype=torch.int64)},
            TypeError,
            "attn_mask is torch.int64",
        ),
        ({"key_padding_mask": torch.zeros(2, 5)}, ValueError, r"expected \(2, 7\)"),
        ({"key_padding_mask": torch.zeros(2, 7).byte()}, TypeError, "key_padding_mask"),
        ({"key_padding_mask": [[True]]}, TypeError, "key_padding_mask is a list"),
        ({"attn_mask": [[True]]}, TypeError, "attn_mask is a list"),
        ({"attn_mask": torch.zeros(5, 7).to("meta")}, ValueError, "attn_mask is on meta and"),
        ({"query": [1.0]}, TypeError, "query is a list: expected a torch.Tensor"),
        ({"value": None}, TypeError, "value is a NoneType: expected a torch.Tensor"),
        ({"query": torch.zeros(5, 2, 16).double()}, TypeError, "query is torch.float64 and"),
        ({"value": torch.zeros(7, 2, 16).half()}, TypeError, "value is torch.float16 and"),
        ({"is_causal": "no"}, TypeError, "is_causal is 'no': expected True or False"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(arguments, error, message):
    query, key, value = inputs()
    with pytest.raises(error, match=message):
        MultiheadAttention(WIDTH, HEADS)(
            **({"query": query, "key": key, "value": value} | arguments)
        )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_heads": 0}, ValueError, "num_heads is 0: expected a whole number"),
        ({"num_heads": True}, ValueError, "num_heads is True: expected a whole number"),
        ({"kdim": 0}, ValueError, "width of keys is 0"),
        ({"dropout": "a"}, TypeError, "dropout is 'a': expected a number"),
        ({"bias": 1}, TypeError, "bias is 1: expected True or False"),
        ({"add_bias_kv": "no"}, TypeError, "add_bias_kv is 'no': expected True or False"),
        ({"add_zero_attn": None}, TypeError, "add_zero_attn is None: expected True or False"),
        ({"batch_first": "no"}, TypeError, "batch_first is 'no': expected True or False"),
        ({"score_network": {"foo": 1}}, ValueError, "score_network has foo"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        MultiheadAttention(**({"embed_dim": WIDTH, "num_heads": HEADS} | options))


def test_the_signature_begins_like_torchs():
    import inspect

    for name in ("__init__", "forward"):
        ours, theirs = (
            inspect.signature(getattr(kind, name)).parameters
            for kind in (MultiheadAttention, nn.MultiheadAttention)
        )
        assert list(ours)[: len(theirs)] == list(theirs)
        assert all(ours[key].default == theirs[key].default for key in theirs)


def test_a_row_of_the_most_negative_number_is_uniform_as_in_torch() -> None:
    torch.manual_seed(7)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    ours = MultiheadAttention(8, 2, batch_first=True, score="dot")
    ours.load_state_dict(theirs.state_dict())
    mask = torch.zeros(4, 4)
    mask[0] = torch.finfo(torch.float32).min
    x = torch.randn(1, 4, 8)
    torch.testing.assert_close(ours(x, x, x, attn_mask=mask), theirs(x, x, x, attn_mask=mask))
