"""Channels-last layers compute what torch's own do."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from esper.kasmina.architectures import TransformerBlock, gpt_block
from esper.kasmina.layers import CausalAttention, Conv, Embedding, Linear, Norm, NormPool, run_rows


def first(x: torch.Tensor) -> torch.Tensor:
    """Channels first."""
    return x.movedim(-1, 1)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize(("kernel", "space"), [((5,), (11,)), ((3, 3), (7, 6)), ((3, 3), (1, 1))])
def test_conv_is_torchs(kernel, space, depthwise, stride, rng):
    layer = Conv(4, 4, kernel, stride=stride, depthwise=depthwise).double()
    x = torch.randn(2, *space, 4, generator=rng, dtype=torch.float64)
    conv = functional.conv1d if len(kernel) == 1 else functional.conv2d
    groups = 4 if depthwise else 1
    weight = layer.weight if not depthwise else layer.weight[..., None, :]
    weight = weight.movedim((-1, -2), (0, 1))
    expected = conv(first(x), weight, layer.bias, stride, kernel[0] // 2, groups=groups)
    torch.testing.assert_close(first(layer(x)), expected)


@pytest.mark.parametrize(("channels", "groups"), [(3, 1), (4, 1), (6, 1), (8, 2), (9, 1), (10, 2)])
def test_norm_over_space_is_group_norm(channels, groups, rng):
    layer = Norm(channels, space=True).double()
    layer.weight.data.uniform_(generator=rng)
    x = torch.randn(3, 5, 4, channels, generator=rng, dtype=torch.float64)
    expected = functional.group_norm(first(x), groups, layer.weight, layer.bias)
    torch.testing.assert_close(first(layer(x)), expected)


def test_norm_keeps_half_precision_streams_but_measures_in_single(rng):
    x = 100 + torch.randn(2, 64, 4, generator=rng)
    half = Norm(4, space=True)(x.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), Norm(4, space=True)(x.bfloat16().float()), rtol=0.01, atol=0.01)


def test_causal_attention_is_a_softmax_over_the_past(rng):
    layer = CausalAttention(8, heads=2).double()
    x = torch.randn(3, 5, 8, generator=rng, dtype=torch.float64)
    q, k, v = layer.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    mixed = torch.stack(
        [(q[:, :, [n]] @ k[:, :, : n + 1].mT / 4**0.5).softmax(-1) @ v[:, :, : n + 1] for n in range(5)], 2
    )
    torch.testing.assert_close(layer(x), layer.out(mixed[:, :, :, 0].transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("space", [(4, 6), (5, 7), (1, 4), (1, 1)])
def test_norm_pools_where_there_is_something_to_pool(space, rng):
    pooling, plain = NormPool(8), Norm(8, space=True, relu=True)
    for name, p in pooling.named_parameters():
        p.data.uniform_(-1, 1, generator=rng)
        plain.get_parameter(name).data.copy_(p)
    x = torch.randn(2, *space, 8, generator=rng)
    kernel = tuple(2 if side > 1 else 1 for side in space)
    assert torch.equal(first(pooling(x)), nn.functional.max_pool2d(first(plain(x)), kernel))


class Doubled(Linear):
    """Inherits how rows run, and changes what is computed."""

    def forward(self, x):
        return 2 * super().forward(x)


class Wrapped(nn.Module):
    """A module of others, which runs under vmap."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def alone_and_together(modules, x):
    """What rows of modules compute, and what each of them computes alone."""
    named = [dict(m.named_parameters()) for m in modules]
    params = {name: torch.stack([of[name] for of in named]) for name in named[0]}
    return torch.stack([m(row) for m, row in zip(modules, x, strict=True)]), run_rows(modules[0], params, x)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Linear(4, 4),
        lambda: nn.Sequential(Linear(4, 4), nn.GELU(), Norm(4, space=True)),
        lambda: CausalAttention(4, heads=2),
        lambda: Wrapped(CausalAttention(4, heads=2)),
        lambda: TransformerBlock(4),
        lambda: gpt_block(4),
        lambda: Doubled(4, 4),
        lambda: nn.Sequential(nn.Linear(4, 4), Doubled(4, 4)),
    ],
)
def test_rows_of_a_module_compute_what_each_computes_alone(build, rng):
    modules = [build() for _ in range(3)]
    alone, together = alone_and_together(modules, torch.randn(3, 2, 5, 4, generator=rng))
    torch.testing.assert_close(together, alone)


def test_rows_of_embeddings_look_up_their_own_tables(rng):
    tokens = torch.randint(7, (3, 2, 5), generator=rng)
    alone, together = alone_and_together([Embedding(7, 6, 4) for _ in range(3)], tokens)
    assert torch.equal(alone, together)
