"""Newborn weights are what their key, their layer's name and its bound say."""

import pytest
import torch
from torch import nn

from esper.kasmina.birth import Nursery
from esper.kasmina.layers import CausalAttention, Conv, Embedding, Linear, Norm
from esper.leyline.rng import key, uniform

LAYERS = {
    "linear": (lambda: Linear(4, 9), {"weight": 0.5, "bias": 0.5}),
    "zero": (lambda: Linear(4, 9, zero=True), {}),
    "twins": (
        lambda: nn.Sequential(Linear(4, 4, bias=False), Linear(4, 4, bias=False)),
        {"0.weight": 0.5, "1.weight": 0.5},
    ),
    "conv": (lambda: Conv(5, 2, (5,)), {"weight": 0.2, "bias": 0.2}),
    "image": (lambda: Conv(4, 7, (3, 3)), {"weight": 1 / 6, "bias": 1 / 6}),
    "depthwise": (lambda: Conv(4, 4, (3, 3), depthwise=True), {"weight": 1 / 3, "bias": 1 / 3}),
    "norm": (lambda: Norm(6), {}),
    "embedding": (lambda: Embedding(5, 6, 4), {"token": 0.1, "position": 0.1}),
    "attention": (lambda: CausalAttention(16, zero=True), {"qkv.weight": 0.25}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_parameter_is_uniform_within_its_bound_or_as_constructed(name):
    """The bound of a map is one over the square root of the inputs that each output sees."""
    build, bounds = LAYERS[name]
    layer, keys = build(), key(torch.arange(2))
    born = Nursery(layer, build, keys.device).bear(keys)
    parameters = dict(layer.named_parameters())
    assert born.keys() == parameters.keys()
    for part, p in parameters.items():
        if part in bounds:
            u = uniform(key(keys, part), p.numel()).view(2, *p.shape)
            torch.testing.assert_close(born[part], ((2 * u - 1) * bounds[part]).float())
            assert not torch.equal(born[part][0], born[part][1])
        else:
            assert p.unique().numel() == 1, "drawn, though it has no bound"
            assert torch.equal(born[part], torch.stack([p, p]))
