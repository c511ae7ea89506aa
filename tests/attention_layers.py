"""Layers of every score and positions, and their written-out formula, for the tests of layers."""

import math
import warnings

import torch

from neural_attention.attention import NeuralAttention

WIDTH, HEADS, LENGTH, BATCH = 16, 4, 7, 2

# Score and positions, each with the options it needs.
SCORES = [
    {"score": "neural"},
    {"score": "neural", "positions": "none", "score_network": {"width": 3, "hidden": (5,)}},
    {"score": "neural", "positions": "alibi", "score_network": {"share_heads": True}},
    {"score": "neural", "positions": "rotary"},
    {"score": "neural", "score_network": {"preset": "release", "init": "random"}},
    {"score": "dot"},
    {"score": "dot", "positions": "alibi"},
    {"score": "dot", "positions": "none"},
    {"score": "hybrid"},
    {"score": "hybrid", "positions": "rotary", "score_network": {"width": 2}},
    {"score": "additive"},
]


def identifier(options):
    return "-".join(str(value) for value in options.values()) if isinstance(options, dict) else None


def build(**options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="score='neural' with positions='rotary'")
        layer = NeuralAttention(WIDTH, HEADS, **options)
    # Starting values alone would leave biases and symmetric channels untested.
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return layer


def hidden_states(length=LENGTH, batch=BATCH, width=WIDTH, **options):
    return torch.randn(batch, length, width, **options)


def rotate(x, positions):
    """Rotation of complex numbers, independent of the half-split arithmetic."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float64) * 2 / x.shape[-1])
    turns = torch.polar(torch.ones(1, dtype=torch.float64), positions[..., None] * frequencies)
    z = torch.complex(x[..., :half].double(), x[..., half:].double()) * turns
    return torch.cat([z.real, z.imag], dim=-1).to(x.dtype)


def written_out(layer, x, key=None, value=None, visible=None):
    """The layer by its formula: output, and weights (B, H, Lq, Lk)."""
    key = x if key is None else key
    value = key if value is None else value
    queries, keys = x.shape[1], key.shape[1]
    group = layer.num_heads // layer.num_kv_heads

    def heads(projected, count):
        return projected.view(*projected.shape[:2], count, -1).transpose(1, 2)

    q = heads(layer.q_proj(x), layer.num_heads)
    k = heads(layer.k_proj(key), layer.num_kv_heads).repeat_interleave(group, 1)
    v = heads(layer.v_proj(value), layer.num_kv_heads).repeat_interleave(group, 1)
    at_query = torch.arange(queries) + keys - queries
    at_key = torch.arange(keys)
    relative = at_key - at_query[:, None]
    turned_q, turned_k = q, k
    if layer.positions == "rotary":
        turned_q, turned_k = rotate(q, at_query), rotate(k, at_key)
    scores = torch.zeros(x.shape[0], layer.num_heads, queries, keys, dtype=x.dtype)
    if layer.score in ("dot", "hybrid"):
        scores = scores + turned_q @ turned_k.mT / math.sqrt(layer.head_dim)
    if layer.score_network is not None:
        network = layer.score_network
        ours = (q, k) if layer.score == "hybrid" else (turned_q, turned_k)
        a = network.query_features(ours[0])
        # Features of the repeated keys, by the repeated weights.
        b = network.key_features(ours[1][:, ::group]).repeat_interleave(group, 1)
        hidden = a[:, :, :, None] + b[:, :, None]
        if layer.slopes is not None:
            hidden = hidden + relative[..., None] * layer.slopes[:, None, None]
        activation = {"relu": torch.relu, "tanh": torch.tanh}[network.activation]
        hidden = activation(hidden)
        if network.hidden is not None:
            weight, bias = network.hidden.weight, network.hidden.bias
            hidden = activation(hidden @ weight[:, None].mT + bias[:, None, None])
        scores = scores + (hidden * network.output[:, None, None]).sum(-1)
    if layer.alibi is not None:
        scores = scores + layer.alibi[:, None, None] * relative
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    weights = scores.softmax(-1)
    out = (weights @ v).transpose(1, 2).flatten(2)
    return layer.out_proj(out), weights
