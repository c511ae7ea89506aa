"""Positions on a grid against the formula, pair by pair, in float64."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch

from neural_attention.attention import NeuralAttention
from neural_attention.observation import recorded_features, score_owners
from neural_attention.position_slopes import grid_slopes

from .attention_layers import identifier

WIDTH, HEADS, ROWS, COLUMNS = 16, 2, 3, 4
KINDS = [
    {"score": "neural"},
    {"score": "neural", "score_network": {"width": 3, "hidden": (5,)}},
    {"score": "neural", "positions": "alibi"},
    {"score": "additive"},
    {"score": "dot"},
    {"score": "dot", "positions": "alibi"},
    {"score": "hybrid"},
    {"score": "hybrid", "positions": "rotary"},
    {"score": "hybrid", "positions": "alibi"},
]


def build(dtype=torch.float64, **options):
    torch.manual_seed(0)
    layer = NeuralAttention(WIDTH, HEADS, grid=(ROWS, COLUMNS), dtype=dtype, **options)
    # Starting values alone would leave zeros and symmetric channels untested.
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def tokens(has_class_token, dtype=torch.float64):
    torch.manual_seed(1)
    return torch.randn(2, ROWS * COLUMNS + has_class_token, WIDTH, dtype=dtype)


def places(has_class_token):
    """Row and column of each token, the middle of the grid at (0, 0)."""
    patches = [
        (row - (ROWS - 1) / 2, column - (COLUMNS - 1) / 2)
        for row, column in itertools.product(range(ROWS), range(COLUMNS))
    ]
    return ([(0.0, 0.0)] if has_class_token else []) + patches


def turned(x, place, base):
    """One head's vector, turned as complex numbers: half by the row, half by the column."""
    halves = []
    for half, at in zip(x.chunk(2), place, strict=True):
        pairs = half.shape[0] // 2
        turns = at * base ** (-torch.arange(pairs, dtype=torch.float64) * 2 / half.shape[0])
        z = torch.complex(half[:pairs], half[pairs:]) * torch.polar(torch.ones_like(turns), turns)
        halves += [z.real, z.imag]
    return torch.cat(halves)


def written_out(layer, x, visible=None):
    """The layer by its formula, one pair of tokens at a time."""
    length = x.shape[1]
    at = places(length > ROWS * COLUMNS)
    group = layer.num_heads // layer.num_kv_heads
    outputs = []
    for entry in x:
        q = layer.q_proj(entry).view(length, layer.num_heads, -1)
        k = layer.k_proj(entry).view(length, layer.num_kv_heads, -1)
        v = layer.v_proj(entry).view(length, layer.num_kv_heads, -1)
        heads = []
        for head in range(layer.num_heads):
            rows = [
                torch.stack(
                    [
                        score(layer, head, q[i, head], k[j, head // group], at[i], at[j])
                        for j in range(length)
                    ]
                )
                for i in range(length)
            ]
            scores = torch.stack(rows)
            if visible is not None:
                scores = scores.masked_fill(~visible, -torch.inf)
            heads.append(scores.softmax(-1) @ v[:, head // group])
        outputs.append(layer.out_proj(torch.cat(heads, -1)))
    return torch.stack(outputs)


def score(layer, head, q, k, here, there):
    """Score of a query at ``here`` and a key at ``there``, in one head."""
    down, across = there[0] - here[0], there[1] - here[1]
    total, turned_q, turned_k = 0.0, q, k
    if layer.positions == "rotary":
        turned_q, turned_k = (turned(one, at, 100.0) for one, at in ((q, here), (k, there)))
    if layer.score in ("dot", "hybrid"):
        total = total + turned_q @ turned_k / math.sqrt(layer.head_dim)
    network = layer.score_network
    if network is not None:
        key_head = head * layer.num_kv_heads // layer.num_heads
        u = network.query.weight[head] @ q + network.query.bias[head]
        u = u + network.key.weight[key_head] @ k
        if layer.positions == "slopes":
            u = u + layer.grid.slopes[0, key_head] * down + layer.grid.slopes[1, key_head] * across
        activation = {"relu": torch.relu, "tanh": torch.tanh}[network.activation]
        hidden = activation(u)
        if network.hidden is not None:
            second = network.hidden
            hidden = activation(second.weight[head] @ hidden + second.bias[head])
        total = total + network.output[head] @ hidden
    if layer.positions == "alibi":
        alibi = layer.grid.alibi[:, head]
        total = total - alibi[0] * abs(down) - alibi[1] * abs(across)
    return total


@pytest.mark.parametrize("has_class_token", [False, True], ids=["patches", "class-token"])
@pytest.mark.parametrize("kv_heads", [None, 1])
@pytest.mark.parametrize("options", KINDS, ids=identifier)
def test_a_layer_on_a_grid_is_its_formula_with_gradients(options, kv_heads, has_class_token):
    layer = build(num_kv_heads=kv_heads, **options)
    x = tokens(has_class_token).requires_grad_()
    out, expected = layer(x), written_out(layer, x)
    torch.testing.assert_close(out, expected)
    wanted = [x, *layer.parameters()]
    along = torch.randn_like(out)
    ours = torch.autograd.grad(out, wanted, along)
    theirs = torch.autograd.grad(expected, wanted, along, allow_unused=True)
    for name, one, other in zip(["x", *dict(layer.named_parameters())], ours, theirs, strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("options", KINDS, ids=identifier)
def test_float32_and_attention_weights_agree_with_float64(options):
    exact, layer = build(**options), build(**options).float()
    x = tokens(True)
    torch.testing.assert_close(layer(x.float()).double(), exact(x), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        layer.attention_weights(x.float()).double(),
        exact.attention_weights(x),
        atol=1e-5,
        rtol=1e-4,
    )


@pytest.mark.parametrize("kind", ["bool", "float", "padding"])
@pytest.mark.parametrize("options", [{"score": "neural"}, {"score": "dot", "positions": "alibi"}])
def test_masks_go_with_a_grid(options, kind):
    layer, x = build(**options), tokens(False)
    length = x.shape[1]
    visible = torch.rand(length, length, generator=torch.Generator().manual_seed(2)) < 0.6
    visible |= torch.eye(length, dtype=torch.bool)
    if kind == "padding":
        visible = torch.ones(length, length, dtype=torch.bool)
        visible[:, -3:] = False
        ignored = ~visible[:1].expand(2, -1)
        out = layer(x, key_padding_mask=ignored)
    elif kind == "float":
        out = layer(x, attn_mask=torch.where(visible, 0.0, -torch.inf).double())
    else:
        out = layer(x, attn_mask=visible)
    torch.testing.assert_close(out, written_out(layer, x, visible))


def test_a_dot_product_on_torchs_kernel_is_the_same():
    ours = build(score="dot", positions="alibi")
    torchs = build(score="dot", positions="alibi", backend="sdpa")
    torch.testing.assert_close(torchs(tokens(True)), ours(tokens(True)))


def test_slopes_over_a_single_row_are_those_over_a_sequence():
    torch.manual_seed(0)
    row = NeuralAttention(WIDTH, HEADS, grid=(1, 9), dtype=torch.float64)
    sequence = NeuralAttention(WIDTH, HEADS, dtype=torch.float64)
    state = {name: value for name, value in row.state_dict().items() if name != "grid.slopes"}
    sequence.load_state_dict({**state, "slopes": row.grid.slopes[1]})
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(row(x), sequence(x))


def test_slopes_start_in_both_directions_in_every_head():
    slopes = grid_slopes(2, 16)
    assert slopes.shape == (2, 2, 16)
    assert ((slopes != 0).sum(0) == 1).all()
    assert ((slopes != 0).sum(-1) == 8).all()
    torch.testing.assert_close(slopes[..., 0::2], -slopes[..., 1::2])
    # A network with a single pair has one direction a head.
    assert [axis.any(-1).tolist() for axis in grid_slopes(2, 2)] == [[True, False], [False, True]]


@pytest.mark.parametrize("options", KINDS, ids=identifier)
def test_a_state_dict_makes_the_same_layer(options):
    layer = build(**options)
    other = NeuralAttention(WIDTH, HEADS, grid=[ROWS, COLUMNS], dtype=torch.float64, **options)
    other.load_state_dict(copy.deepcopy(layer.state_dict()))
    assert torch.equal(layer(tokens(True)), other(tokens(True)))


@pytest.mark.parametrize("positions", ["slopes", "alibi"])
def test_reset_gives_the_starting_values_back(positions):
    layer = build(score="neural", positions=positions)
    fresh = NeuralAttention(WIDTH, HEADS, grid=(ROWS, COLUMNS), positions=positions).double()
    layer.reset_parameters()
    assert torch.equal(getattr(layer.grid, positions), getattr(fresh.grid, positions))


def test_a_folded_layer_on_a_grid_computes_the_same():
    layer = build(score="neural").eval()
    torch.testing.assert_close(layer.fold()(tokens(True)), layer(tokens(True)))


def test_a_network_that_sees_nothing_but_the_grid_is_not_dead():
    layer = build(score="neural")
    with torch.no_grad():
        layer.k_proj.weight.zero_()
        layer.score_network.query.bias.fill_(1)
    with recorded_features(layer) as features:
        layer(tokens(False))
    seen, network = features[""], score_owners(layer)[""].score_network
    assert not network.dead_heads(seen["query"], seen["key"]).any()
    with torch.no_grad():
        layer.grid.slopes.zero_()
    with recorded_features(layer) as features:
        layer(tokens(False))
    assert network.dead_heads(features[""]["query"], features[""]["key"]).all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"grid": (3, 4), "positions": "none"}, "positions='none' do not look"),
        ({"grid": (3, 4, 5)}, "grid has 3 entries"),
        ({"grid": (0, 4)}, "the number of rows of grid is 0"),
        ({"grid": (3, 4), "score": "dot", "head_dim": 6}, "use a multiple of 4"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        NeuralAttention(WIDTH, HEADS, **options)


@pytest.mark.parametrize("options", KINDS, ids=identifier)
def test_a_number_of_tokens_that_fills_no_grid_is_refused(options):
    with pytest.raises(ValueError, match="there are 14 tokens and a grid of 3 × 4: expected 12"):
        build(**options)(torch.randn(1, 14, WIDTH, dtype=torch.float64))


def test_a_grid_takes_no_cache_and_must_be_a_pair():
    from neural_attention.cache import KeyValueCache

    with pytest.raises(ValueError, match="without a cache"):
        build()(tokens(False), cache=KeyValueCache())
    with pytest.raises(TypeError, match=r"expected \(rows, columns\)"):
        NeuralAttention(WIDTH, HEADS, grid=12)
