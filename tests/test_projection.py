import pytest
import torch
from torch import nn
from torch.nn import functional as F

from neural_attention.projection import ResidualProjection, build_projection


def test_mlp_is_zhangs_network_under_his_names():
    projection = build_projection("mlp", 6, 10, width_factor=2, layer_norm=True)
    names = [name for name, _ in projection.named_parameters()]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    x = torch.randn(2, 3, 6)
    hidden = F.layer_norm(
        F.linear(x, *projection[0].parameters()), (12,), *projection[1].parameters()
    )
    expected = F.linear(F.relu(hidden), *projection[3].parameters())
    torch.testing.assert_close(projection(x), expected)


def test_mlp_without_layer_norm_has_the_numbers_of_zhangs_roberta():
    projection = build_projection("mlp", 6, 6, width_factor=3, layer_norm=False)
    assert [name for name, _ in projection.named_parameters()] == [
        "0.weight", "0.bias", "2.weight", "2.bias",
    ]  # fmt: skip
    assert projection[0].out_features == 18


def test_published_parameter_counts_of_neural_projections():
    def count(width, layer_norm):
        projection = build_projection("mlp", width, width, layer_norm=layer_norm)
        linear = nn.Linear(width, width)
        return sum(p.numel() for p in projection.parameters()) - sum(
            p.numel() for p in linear.parameters()
        )

    assert 3 * count(512, True) == 2_368_512
    assert count(768, False) == 1_771_008


def test_residual_adds_the_network_to_the_linear_map():
    projection = build_projection("residual", 6, 10)
    x = torch.randn(2, 6)
    torch.testing.assert_close(projection(x), projection.linear(x) + projection.network(x))
    assert not torch.allclose(projection(x), projection.linear(x))


def test_preserve_starts_the_residual_as_its_linear_map_and_can_learn():
    projection = build_projection("residual", 6, 10, init="preserve")
    x = torch.randn(2, 6)
    assert torch.equal(projection(x), projection.linear(x))
    projection(x).sum().backward()
    assert projection.network[-1].weight.grad.abs().sum() > 0
    projection.reset_parameters()
    assert torch.equal(projection(x), projection.linear(x))


@pytest.mark.parametrize("width", [6, 7])
def test_karbevski_is_the_published_formula_with_the_linear_maps_weights(width):
    projection = build_projection("karbevski", width, width)
    for parameter in projection.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(3, width)
    normed = x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt()
    inner = F.gelu((normed * projection.norm_in.weight) @ projection.linear1.weight.T)
    outer = inner @ projection.linear2.weight.T
    normed = (outer - outer.mean(-1, keepdim=True)) / (
        outer.var(-1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt()
    f = normed * projection.norm_out.weight + projection.norm_out.bias
    torch.testing.assert_close(projection(x), (x + f) / 2, atol=1e-5, rtol=1e-4)
    matrices = sum(p.numel() for p in projection.parameters() if p.dim() == 2)
    assert matrices == 2 * width * (width // 2)


@pytest.mark.parametrize("kind", ["linear", "mlp", "residual", "karbevski"])
def test_bias_false_leaves_no_bias_and_reset_draws_anew(kind):
    projection = build_projection(kind, 6, 6, bias=False)
    assert not any(name.endswith("bias") for name, _ in projection.named_parameters())
    module = projection if isinstance(projection, ResidualProjection) else None
    if module is not None:
        before = module.linear.weight.clone()
        module.reset_parameters()
        assert not torch.equal(before, module.linear.weight)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "dense"}, "linear, mlp, residual, karbevski"),
        ({"kind": "mlp", "init": "preserve"}, "preserve"),
        ({"kind": "linear", "init": "preserve"}, "preserve"),
        ({"kind": "karbevski", "init": "preserve"}, "preserve"),
        ({"kind": "linear", "init": "zeros"}, "zeros"),
        ({"kind": "karbevski", "out_features": 8}, "width 6 to its result of width 8"),
        ({"kind": "mlp", "width_factor": 0.01}, "at least 1"),
    ],
)
def test_projections_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_projection(**({"in_features": 6, "out_features": 6} | arguments))
