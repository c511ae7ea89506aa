import copy
import pickle

import pytest
import torch

from neural_attention.functional import neural_attention
from neural_attention.presets import PRESETS
from neural_attention.score import ScoreNetwork

WIDTHS = (2, 3, 4, 8, 16)
# What each preset starts with, and the other starting values it may be given.
STARTS = [
    (preset, init)
    for preset in PRESETS
    for init in (("random",) if preset == "bahdanau" else ("difference_pairs", "random"))
]


def inputs(heads, queries=32, keys=64, head_dim=8, seed=1, kv_heads=None):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(1, heads, queries, head_dim, generator=generator)
    k = torch.randn(1, kv_heads or heads, keys, head_dim, generator=generator)
    return q, k


def layers_of(network):
    """The network written out on a concatenation, for one head, as published."""

    def score(q, k, head, kv_head):
        def map_(layer, x, index):
            index = index if layer.weight.shape[0] > 1 else 0
            y = x @ layer.weight[index].T
            return y if layer.bias is None else y + layer.bias[index]

        if network.query_bottleneck is not None:
            q = map_(network.query_bottleneck, q, head)
            k = map_(network.key_bottleneck, k, kv_head)
        own = head if network.query.weight.shape[0] > 1 else 0
        own_key = kv_head if network.key.weight.shape[0] > 1 else 0
        first = torch.cat([network.query.weight[own], network.key.weight[own_key]], dim=1)
        pairs = torch.cat(
            [q[:, None].expand(-1, len(k), -1), k[None].expand(len(q), -1, -1)], dim=-1
        )
        activation = {
            "relu": torch.relu,
            "tanh": torch.tanh,
            "leaky_relu:0.2": lambda x: torch.nn.functional.leaky_relu(x, 0.2),
        }[network.activation]
        hidden = activation(pairs @ first.T + network.query.bias[own])
        if network.hidden is not None:
            hidden = activation(map_(network.hidden, hidden, head))
        return hidden @ network.output[head if network.output.shape[0] > 1 else 0]

    return score


@pytest.mark.parametrize("kv_heads", [None, 2])
@pytest.mark.parametrize("preset", PRESETS)
def test_scores_are_those_of_the_published_network_on_the_concatenation(preset, kv_heads):
    network = ScoreNetwork.from_preset(
        preset, 64, 4, init="random", share_heads=preset == "release", num_kv_heads=kv_heads
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_()
    q, k = inputs(4, 5, 7, 64, kv_heads=kv_heads)
    scores = network(q, k)
    expected = layers_of(network)
    for head in range(4):
        kv_head = head // (4 // (kv_heads or 4))
        torch.testing.assert_close(
            scores[0, head],
            expected(q[0, head], k[0, kv_head], head, kv_head),
            atol=1e-3,
            rtol=1e-4,
        )


def test_the_operator_attends_with_the_network_s_scores():
    network = ScoreNetwork(8, 4, width=5, hidden=(3,), init="random", num_kv_heads=2)
    q, k = inputs(4, 6, 9, kv_heads=2)
    v = torch.randn(1, 2, 9, 8)
    a, b = network.features(q, k)
    out = neural_attention(a, b, v, network.weights(), activation="relu")
    expected = network(q, k).softmax(-1) @ v.repeat_interleave(2, dim=1)
    torch.testing.assert_close(out, expected)


def test_release_preset_has_the_papers_parameters_less_the_last_bias():
    for head_dim, count in ((64, 275), (96, 609)):
        network = ScoreNetwork.from_preset("release", head_dim, 8, init="random")
        assert sum(parameter.numel() for parameter in network.parameters()) == count - 1


def test_preset_widths_follow_an_overridden_bottleneck():
    network = ScoreNetwork.from_preset("release", 64, 8, bottleneck=8, init="random")
    assert (network.bottleneck, network.width, network.hidden_widths) == (8, 8, (4,))
    assert sum(parameter.numel() for parameter in network.parameters()) == 1217 - 1


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("preset", "init"), STARTS)
def test_no_start_is_dead_and_scores_deviate_by_about_one(preset, init, width):
    # Heads are independent draws: 480 of them, and 20 modules of one head from their own seeds.
    settings = {"bottleneck": width} if preset == "release" else {"width": width}
    settings |= {"init": init, "share_heads": False}
    many = ScoreNetwork.from_preset(preset, 8, 480, **settings)
    q, k = inputs(1)
    features = many.features(q.expand(-1, 480, -1, -1), k.expand(-1, 480, -1, -1))
    assert not many.dead_heads(*features).any()
    q, k = inputs(1, queries=48, keys=192, seed=2)
    some = ScoreNetwork.from_preset(preset, 8, 60, **settings)
    deviations = some(q.expand(-1, 60, -1, -1), k.expand(-1, 60, -1, -1)).std(-1).mean(-1)
    assert deviations.mean().item() == pytest.approx(1, abs=0.15)
    # With few units that fire for a few pairs only, a small sample says less.
    is_sparse = init == "random" and many.hidden is not None
    assert deviations.min() > (0.4 if is_sparse else 0.6)
    for seed in range(20):
        torch.manual_seed(seed)
        one = ScoreNetwork.from_preset(preset, 8, 1, **settings)
        assert not one.dead_heads(*one.features(q, k)).any()


@pytest.mark.parametrize("activation", ["leaky_relu", "hardswish", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("hidden", [(), (1,), (4,)])
@pytest.mark.parametrize("width", [1, 5])
def test_other_activations_and_odd_widths_start_alive(activation, hidden, width):
    for init in ("difference_pairs", "random"):
        network = ScoreNetwork(8, 60, width, hidden, activation, init=init)
        q, k = (x.expand(-1, 60, -1, -1) for x in inputs(1, queries=64, keys=128))
        assert not network.dead_heads(*network.features(q, k)).any()
        assert network(q, k).std(-1).mean().item() == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(("scale", "expected"), [(1.0, 0.29), (3**-0.5, 0.38)])
def test_torch_start_of_the_released_network_is_dead_as_often_as_documented(scale, expected):
    # The published layer: d' = 2, then 2, then 1. Each head stands for a start.
    dead = []
    for seed in range(4):
        with pytest.warns(UserWarning, match="29% of starts"):
            network = ScoreNetwork.from_preset("release", 64, 250, share_heads=False)
        q, k = (scale * x.expand(-1, 250, -1, -1) for x in inputs(1, 256, 256, 64, seed))
        dead.append(network.dead_heads(*network.features(q, k)))
    assert torch.cat(dead).float().mean().item() == pytest.approx(expected, abs=0.06)


def test_difference_pairs_start_as_negative_distance():
    network = ScoreNetwork(8, 2, width=6)
    directions = network.query.weight[:, ::2]
    torch.testing.assert_close(network.query.weight[:, 1::2], -directions)
    torch.testing.assert_close(network.key.weight, -network.query.weight)
    assert (network.output < 0).all()
    q, k = inputs(2, 3, 4)
    projected_q, projected_k = (x[0] @ directions.transpose(1, 2) for x in (q, k))
    distance = (projected_q[:, :, None] - projected_k[:, None]).abs().sum(-1)
    torch.testing.assert_close(network(q, k)[0], network.output[:, :1, None] * distance)


def test_a_key_at_the_query_s_place_scores_highest_at_the_start():
    for hidden in ((), (4,)):
        network = ScoreNetwork(8, 2, width=16, hidden=hidden)
        q, _ = inputs(2, 20)
        scores = network(q, q)
        assert (scores.argmax(-1) == torch.arange(20)).all()


def test_starting_values_are_the_same_for_the_same_seed_and_leave_later_draws_alone():
    torch.manual_seed(3)
    first = ScoreNetwork(8, 2)
    after = torch.rand(1)
    torch.manual_seed(3)
    second = ScoreNetwork(8, 2, width=16)
    assert torch.equal(first.query.weight, second.query.weight)
    assert torch.equal(after, torch.rand(1))


def test_reset_parameters_draws_anew_and_revives_a_network_built_on_meta():
    network = ScoreNetwork(8, 2, device="meta").to_empty(device="cpu")
    network.reset_parameters()
    assert network(*inputs(2)).std(-1).mean().item() == pytest.approx(1, abs=0.25)


def test_low_precision_networks_start_like_float32_ones():
    torch.manual_seed(5)
    network = ScoreNetwork(8, 2, width=8)
    torch.manual_seed(5)
    low = ScoreNetwork(8, 2, width=8, dtype=torch.bfloat16)
    torch.testing.assert_close(low.output.float(), network.output, rtol=0.02, atol=0)


def test_zero_output_gives_zero_scores_and_is_reported_dead():
    network = ScoreNetwork(8, 3, zero_output=True)
    assert (network(*inputs(3)) == 0).all()
    assert network.dead_heads(*network.features(*inputs(3))).all()


def test_slopes_count_when_a_head_is_judged_dead():
    network = ScoreNetwork(8, 2)
    with torch.no_grad():
        network.query.weight.zero_()
        network.key.weight.zero_()
    features = network.features(*inputs(2))
    assert network.dead_heads(*features).tolist() == [True, True]
    slopes = torch.zeros(2, 16)
    slopes[1, 0] = 0.5
    assert network.dead_heads(*features, slopes).tolist() == [True, False]


def test_one_key_cannot_tell_whether_a_head_is_dead():
    network = ScoreNetwork(8, 2)
    with pytest.raises(ValueError, match="1 keys"):
        network.dead_heads(*network.features(*inputs(2, keys=1)))


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_folding_the_bottleneck_keeps_the_scores(kv_heads):
    network = ScoreNetwork(
        64, 4, 6, (3,), bottleneck=5, init="random", num_kv_heads=kv_heads, share_heads=False
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.3)
    folded = network.fold()
    q, k = inputs(4, head_dim=64, kv_heads=kv_heads)
    torch.testing.assert_close(folded(q, k), network(q, k), atol=1e-5, rtol=1e-5)
    assert folded.query_bottleneck is None
    assert network.query_bottleneck is not None
    assert ScoreNetwork.from_config(folded.to_config()).bottleneck is None


def test_nothing_folds_without_a_bottleneck():
    with pytest.raises(ValueError, match="no bottleneck"):
        ScoreNetwork(8, 2).fold()


def test_configuration_round_trips_and_is_plain():
    network = ScoreNetwork(
        8, 4, 6, (3,), "gelu", True, num_kv_heads=2, bottleneck=5, init="random", zero_output=True
    )
    config = network.to_config()
    assert all(isinstance(value, (int, str, bool, list)) for value in config.values())
    again = ScoreNetwork.from_config(config)
    assert again.to_config() == config
    again.load_state_dict(pickle.loads(pickle.dumps(network.state_dict())))
    assert torch.equal(again(*inputs(4, kv_heads=2)), network(*inputs(4, kv_heads=2)))
    assert copy.deepcopy(network).to_config() == config


def test_every_parameter_has_a_gradient():
    network = ScoreNetwork(8, 4, 6, (5,), bottleneck=5, num_kv_heads=2, init="random")
    network(*inputs(4, kv_heads=2)).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in network.parameters())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation": "tanh", "init": "difference_pairs"}, "cancel under an odd activation"),
        ({"activation": "sigmoid"}, "sigmoid"),
        ({"init": "zeros"}, "difference_pairs, random, torch"),
        ({"width": 0}, "width is 0"),
        ({"bottleneck": 0}, "bottleneck is 0"),
        ({"hidden": (4, 4)}, "deeper"),
        ({"hidden": (0,)}, r"hidden\[0\] is 0"),
        ({"num_heads": 6, "num_kv_heads": 4}, "divide"),
        ({"head_dim": 2.5}, "head_dim is 2.5"),
        ({"num_heads": True}, "num_heads is True"),
        ({"hidden": ("4",)}, r"hidden\[0\] is '4'"),
        ({"activation": "leaky_relu:nan"}, "finite number"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ScoreNetwork(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 5}, "hidden is 5: expected"),
        ({"hidden": "44"}, "hidden is '44': expected"),
        ({"activation": 3}, "activation is 3: expected a name"),
        ({"share_heads": "no"}, "share_heads is 'no': expected True or False"),
        ({"zero_output": None}, "zero_output is None: expected True or False"),
    ],
)
def test_settings_of_another_type_are_refused(settings, message):
    with pytest.raises(TypeError, match=message):
        ScoreNetwork(**settings)


def test_an_unknown_preset_names_those_there_are():
    with pytest.raises(ValueError, match="paper, release, bahdanau, gatv2"):
        ScoreNetwork.from_preset("released")


def test_tanh_starts_at_random_directions_by_default():
    assert ScoreNetwork(activation="tanh").init == "random"
    assert ScoreNetwork.from_preset("bahdanau").activation == "tanh"
    assert ScoreNetwork().init == "difference_pairs"
