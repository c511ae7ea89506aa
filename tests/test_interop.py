import math

import pytest
import torch
from torch import nn

from neural_attention import interop
from neural_attention.attention import NeuralAttention

BATCH, LENGTH = 2, 6


class Released(nn.Module):
    """The released module's computation with its parameter names, everything materialised."""

    def __init__(self, width, heads, head_dim, reduced):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.to_qkv = nn.Linear(width, 3 * heads * head_dim, bias=False)
        self.W_out = nn.Linear(heads * head_dim, width, bias=False)
        self.q_proj = nn.Linear(head_dim, reduced)
        self.k_proj = nn.Linear(head_dim, reduced)
        self.linear1 = nn.Linear(2 * reduced, reduced)
        self.linear2 = nn.Linear(reduced, max(1, reduced // 2))
        self.linear3 = nn.Linear(max(1, reduced // 2), 1)

    def forward(self, x, is_causal=False):
        batch, length, _ = x.shape
        # Features vary slowest, then query, key and value, then heads.
        split = self.to_qkv(x).view(batch, length, self.head_dim, 3, self.heads)
        q, k, v = (split[:, :, :, i].permute(0, 3, 1, 2) for i in range(3))
        q, k = self.q_proj(q), self.k_proj(k)
        pairs = torch.cat(
            [
                q[:, :, :, None].expand(-1, -1, -1, length, -1),
                k[:, :, None].expand(-1, -1, length, -1, -1),
            ],
            dim=-1,
        )
        hidden = self.linear2(self.linear1(pairs).relu()).relu()
        scores = self.linear3(hidden)[..., 0]
        if is_causal:
            hidden_keys = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden_keys, -math.inf)
        out = scores.softmax(-1) @ v
        return self.W_out(out.transpose(1, 2).reshape(batch, length, -1))


class ZhangMarian(nn.Module):
    """Marian's attention with Zhang's networks in place of three projections."""

    def __init__(self, width, heads, factor=2):
        super().__init__()
        self.heads = heads

        def network():
            inner = factor * width
            return nn.Sequential(
                nn.Linear(width, inner), nn.LayerNorm(inner), nn.ReLU(), nn.Linear(inner, width)
            )

        self.q_proj, self.k_proj, self.out_proj = network(), network(), network()
        self.v_proj = nn.Linear(width, width)

    def forward(self, x, memory=None):
        memory = x if memory is None else memory

        def split(y):
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        head_dim = x.shape[-1] // self.heads
        q = split(self.q_proj(x) * head_dim**-0.5)
        k, v = split(self.k_proj(memory)), split(self.v_proj(memory))
        out = (q @ k.mT).softmax(-1) @ v
        return self.out_proj(out.transpose(1, 2).flatten(2))


class ZhangRoberta(nn.Module):
    """RoBERTa's attention up to, not including, the residual connection's LayerNorm."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads

        def network():
            return nn.Sequential(
                nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
            )

        self.self = nn.ModuleDict({name: network() for name in ("query", "key", "value")})
        self.output = nn.ModuleDict(
            {"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width)}
        )

    def forward(self, x):
        q, k, v = (
            self.self[name](x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        out = scores.softmax(-1) @ v
        return self.output["dense"](out.transpose(1, 2).flatten(2))


def varied(module):
    """Norms away from one and zero, and weights large enough for scores to differ."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def released():
    return varied(Released(12, 3, 8, 4))


def marian():
    return varied(ZhangMarian(12, 3))


def roberta():
    return varied(ZhangRoberta(12, 3))


PUBLISHED = {
    "released": (released, interop.build_released, interop.load_released),
    "marian": (marian, interop.build_zhang_marian, interop.load_zhang_marian),
    "roberta": (roberta, interop.build_zhang_roberta, interop.load_zhang_roberta),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_weights_give_the_published_output(name):
    make, build, _ = PUBLISHED[name]
    published = make()
    layer = build(published.state_dict(), num_heads=3)
    x = torch.randn(BATCH, LENGTH, 12)
    torch.testing.assert_close(layer(x), published(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("width", "heads", "head_dim", "reduced"), [(8, 2, 64, 2), (6, 1, 5, 1)])
def test_released_sizes_are_read_from_the_weights(width, heads, head_dim, reduced):
    published = varied(Released(width, heads, head_dim, reduced))
    layer = interop.build_released(published.state_dict(), heads)
    x = torch.randn(BATCH, LENGTH, width)
    torch.testing.assert_close(layer(x), published(x), atol=1e-4, rtol=1e-5)


def test_released_causal_output_is_the_published_one():
    published = released()
    layer = interop.build_released(published.state_dict(), 3)
    x = torch.randn(BATCH, LENGTH, 12)
    torch.testing.assert_close(
        layer(x, is_causal=True), published(x, is_causal=True), atol=1e-5, rtol=1e-5
    )


def test_released_parameters_are_the_published_ones_less_the_last_bias():
    published = varied(Released(512, 8, 64, 2))
    layer = interop.build_released(published.state_dict(), 8)
    ours, theirs = (sum(p.numel() for p in m.parameters()) for m in (layer, published))
    assert ours == theirs - 1


def test_marian_cross_attention_and_another_width_give_the_published_output():
    published = varied(ZhangMarian(12, 3, factor=3))
    layer = interop.build_zhang_marian(published.state_dict(), 3)
    x, memory = torch.randn(BATCH, LENGTH, 12), torch.randn(BATCH, 9, 12)
    torch.testing.assert_close(layer(x, memory), published(x, memory), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_layer_that_is_there_is_filled_and_a_prefix_finds_the_module(name):
    make, build, load = PUBLISHED[name]
    published, other = make(), make()
    layer = build(other.state_dict(), 3)
    model = {f"layers.0.{key}": value for key, value in published.state_dict().items()}
    load(layer, model | {"head.weight": torch.zeros(1)}, prefix="layers.0.")
    x = torch.randn(BATCH, LENGTH, 12)
    torch.testing.assert_close(layer(x), published(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", PUBLISHED)
def test_loading_converts_to_the_layers_dtype_and_takes_options(name):
    make, build, _ = PUBLISHED[name]
    published = make()
    layer = build(published.state_dict(), 3, dtype=torch.float64, dropout=0.1).eval()
    assert layer.dropout == 0.1
    x = torch.randn(BATCH, LENGTH, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x), published.double()(x), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("name", PUBLISHED)
def test_wrong_names_are_all_in_one_error_and_nothing_is_loaded(name):
    make, build, load = PUBLISHED[name]
    state = make().state_dict()
    layer = build(state, 3)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    missing = next(iter(state))
    broken = {key: value + 1 for key, value in state.items() if key != missing}
    broken["surplus.weight"] = torch.zeros(1)
    for call in (lambda: build(broken, 3), lambda: load(layer, broken)):
        with pytest.raises(ValueError, match=r"missing: .*unexpected: surplus\.weight") as error:
            call()
        assert missing in str(error.value)
    for key, value in layer.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("released", "to_qkv.weight"),
        ("released", "W_out.weight"),
        ("released", "q_proj.weight"),
        ("released", "k_proj.bias"),
        ("released", "linear1.weight"),
        ("released", "linear2.bias"),
        ("released", "linear3.weight"),
        ("released", "linear3.bias"),
        ("marian", "q_proj.0.weight"),
        ("marian", "k_proj.1.bias"),
        ("marian", "out_proj.3.weight"),
        ("roberta", "self.value.2.weight"),
        ("roberta", "output.dense.bias"),
    ],
)
def test_a_tensor_of_the_wrong_size_is_named_and_nothing_is_loaded(name, key):
    make, build, load = PUBLISHED[name]
    state = make().state_dict()
    layer = build(state, 3)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    wrong = dict(state)
    for bad in (torch.zeros([size + 1 for size in state[key].shape]), torch.zeros(2, 3, 4)):
        wrong[key] = bad
        with pytest.raises(ValueError, match=key.replace(".", r"\.")):
            load(layer, wrong)
        with pytest.raises(ValueError, match=r"expected|gives|inner width|matrix|divide"):
            build(wrong, 3)
    for key, value in layer.state_dict().items():
        assert torch.equal(value, before[key])


def test_the_wrong_number_of_heads_or_kind_of_layer_is_refused():
    state = released().state_dict()
    with pytest.raises(ValueError, match="5 heads do not divide"):
        interop.build_released(state, 5)
    with pytest.raises(ValueError, match="score='dot'"):
        interop.load_released(NeuralAttention(12, 3, score="dot"), state)
    network = {"bottleneck": 4, "width": 4, "hidden": (2,), "share_heads": True}
    options = {"head_dim": 8, "bias": False, "positions": "none"}
    gelu = NeuralAttention(12, 3, score_network=network | {"activation": "gelu"}, **options)
    with pytest.raises(ValueError, match="'gelu'"):
        interop.load_released(gelu, state)
    slopes = NeuralAttention(12, 3, score_network=network, head_dim=8, bias=False)
    with pytest.raises(ValueError, match="slopes is not in it"):
        interop.load_released(slopes, state)
    with pytest.raises(ValueError, match="'rotary'"):
        interop.load_zhang_marian(NeuralAttention(12, 3, score="dot"), marian().state_dict())
    plain = NeuralAttention(12, 3, score="dot", positions="none", projection="mlp")
    with pytest.raises(ValueError, match=r"3\.bias"):
        interop.load_zhang_marian(plain, marian().state_dict())


def test_every_wrong_size_is_named_in_one_error():
    state = released().state_dict()
    state["to_qkv.weight"] = torch.zeros(3, 3)
    state["linear2.weight"] = torch.zeros(2, 9)
    with pytest.raises(ValueError, match=r"to_qkv\.weight.*linear2\.weight"):
        interop.build_released(state, 3)
