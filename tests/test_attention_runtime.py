import copy
import io

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from neural_attention.attention import NeuralAttention
from neural_attention.cache import KeyValueCache

from .attention_layers import (
    BATCH,
    HEADS,
    LENGTH,
    SCORES,
    WIDTH,
    build,
    hidden_states,
    identifier,
    rotate,
)


@pytest.mark.parametrize("kv_heads", [None, 2])
@pytest.mark.parametrize("positions", ["none", "rotary", "alibi"])
def test_torchs_kernel_gives_what_ours_gives(positions, kv_heads):
    ours = build(score="dot", positions=positions, num_kv_heads=kv_heads)
    torchs = NeuralAttention(
        WIDTH, HEADS, score="dot", positions=positions, num_kv_heads=kv_heads, backend="sdpa"
    )
    torchs.load_state_dict(ours.state_dict())
    x = hidden_states()
    pad = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    pad[0, -2:] = True
    for masks in (
        {},
        {"is_causal": True},
        {"window": (2, 1)},
        {"key_padding_mask": pad, "is_causal": True},
        {"attn_mask": torch.randn(LENGTH, LENGTH)},
        {"query_offset": torch.tensor([1, -1]), "is_causal": True},
    ):
        torch.testing.assert_close(torchs(x, **masks), ours(x, **masks), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        torchs(x[:, :1], x, is_causal=True), ours(x[:, :1], x, is_causal=True)
    )
    packed = {"cu_seqlens": torch.tensor([0, 3, LENGTH], dtype=torch.int32), "is_causal": True}
    torch.testing.assert_close(torchs(x[:1], **packed), ours(x[:1], **packed), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", SCORES, ids=identifier)
def test_compiles_whole_with_the_same_values_and_gradients(options):
    layer = build(**options)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = hidden_states(requires_grad=True)
    pad = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    pad[0, -2:] = True
    masks = {"is_causal": True, "key_padding_mask": pad, "window": (4, 0)}
    out, expected = compiled(x, **masks), layer(x, **masks)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    gradient = torch.autograd.grad(out.square().sum(), layer.v_proj.weight)
    wanted = torch.autograd.grad(expected.square().sum(), layer.v_proj.weight)
    torch.testing.assert_close(gradient, wanted, atol=1e-4, rtol=1e-4)


def test_compiled_decoding_with_a_cache_keeps_its_values():
    layer = build(score="hybrid").eval()
    x = hidden_states()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(token, cache):
        return layer(token, is_causal=True, cache=cache)

    cache = KeyValueCache()
    with torch.no_grad():
        steps = [step(x[:, t : t + 1], cache) for t in range(LENGTH)]
    torch.testing.assert_close(torch.cat(steps, 1), layer(x, is_causal=True), atol=1e-5, rtol=1e-4)


def test_new_lengths_recompile_at_most_once():
    layer = build()
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=False, recompile_limit=2,
                                    fail_on_recompile_limit_hit=True):  # fmt: skip
        for length in (5, 7, 11, 13):
            x = hidden_states(length)
            torch.testing.assert_close(compiled(x, is_causal=True), layer(x, is_causal=True))


@pytest.mark.parametrize("options", [SCORES[0], SCORES[5], SCORES[9]], ids=identifier)
def test_exports_with_a_dynamic_length(options):
    layer = build(**options).eval()
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(
        layer, (hidden_states(),), {"is_causal": True},
        dynamic_shapes={"x": {1: length}, "is_causal": None},
    )  # fmt: skip
    x = hidden_states(12)
    torch.testing.assert_close(program.module()(x, is_causal=True), layer(x, is_causal=True))


@pytest.mark.parametrize("projection", ["linear", "karbevski", "residual"])
@pytest.mark.parametrize("options", SCORES, ids=identifier)
def test_autocast_gives_bfloat16_near_float32_and_full_gradients(options, projection):
    layer = build(projection=projection, **options)
    x = hidden_states()
    expected = layer(x, is_causal=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x, is_causal=True)
        cache = KeyValueCache()
        steps = [layer(x[:, t : t + 1], is_causal=True, cache=cache) for t in range(LENGTH)]
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, atol=0.15, rtol=0.1)
    torch.testing.assert_close(torch.cat(steps, 1).float(), expected, atol=0.15, rtol=0.1)
    out.float().square().sum().backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("options", SCORES, ids=identifier)
def test_other_dtypes_come_back_as_they_went_in(options, dtype):
    layer = build(**options)
    x = hidden_states()
    expected = layer(x)
    out = layer.to(dtype)(x.to(dtype))
    assert out.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float64 else 0.15
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("options", [SCORES[0], SCORES[8], SCORES[5]], ids=identifier)
def test_gradients_agree_with_finite_differences_in_float64(options):
    layer = build(**options).double()
    names = list(dict(layer.named_parameters()))
    x = hidden_states(3, batch=1, dtype=torch.float64)

    def run(x, *parameters):
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, named, (x,), {"is_causal": True})

    leaves = [p.detach().requires_grad_() for p in layer.parameters()]
    assert torch.autograd.gradcheck(run, (x.requires_grad_(), *leaves), fast_mode=True)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_replays_dropout_and_keeps_gradients(use_reentrant):
    layer = build(dropout=0.3)
    x = hidden_states(requires_grad=True)

    def gradients(run):
        torch.manual_seed(2)
        layer.zero_grad()
        run().square().sum().backward()
        return [parameter.grad.clone() for parameter in layer.parameters()]

    plain = gradients(lambda: layer(x, is_causal=True))
    again = gradients(
        lambda: checkpoint(lambda y: layer(y, is_causal=True), x, use_reentrant=use_reentrant)
    )
    for got, expected in zip(again, plain, strict=True):
        torch.testing.assert_close(got, expected)


def test_copies_and_saved_state_dicts_give_the_same_output():
    layer = build(score="hybrid", projection="residual")
    x = hidden_states()
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    other = NeuralAttention(WIDTH, HEADS, score="hybrid", projection="residual")
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(other(x), layer(x))


def test_reset_parameters_gives_a_meta_layer_its_starting_values():
    torch.manual_seed(7)
    layer = NeuralAttention(WIDTH, HEADS)
    empty = NeuralAttention(WIDTH, HEADS, device="meta").to_empty(device="cpu")
    torch.manual_seed(7)
    empty.reset_parameters()
    for (name, got), expected in zip(empty.named_parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(got, expected, msg=name)


def test_rotary_angles_stay_exact_in_bfloat16():
    layer = NeuralAttention(WIDTH, HEADS, score="dot").bfloat16()
    x = hidden_states(1, dtype=torch.bfloat16)
    near = layer._rotate(torch.ones(1, 1, 1, 4, dtype=torch.bfloat16), torch.tensor([1001]))
    expected = rotate(torch.ones(1, 1, 1, 4), torch.tensor([1001]))
    torch.testing.assert_close(near.float(), expected, atol=0.01, rtol=0.01)
    assert layer(x).dtype == torch.bfloat16
