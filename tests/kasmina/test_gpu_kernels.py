"""Our Triton kernels compute what the same operations compute without them.

Needs a CUDA device; with Triton installed, TRITON_INTERPRET=1 runs them on any machine.
"""

import os
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from esper.kasmina.kernels import along, births, causal_attention, conv, grafts, layer_norm, norm, pool, routes
from esper.tolaria import TrainConfig
from esper.tolaria.optimizer import CLIP_EPS, EPS, step
from esper.tolaria.stack import Stack, squares

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (torch.cuda.is_available() or INTERPRETED), reason="needs a CUDA device"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONVOLUTIONS = [
    ((16, 16), (3, 3), 3, 8, 3),
    ((6, 5), (7, 7), 2, 4, 3),
    ((11,), (5,), 1, 8, 70),
    ((20,), (5,), 8, 32, 12),
    ((8,), (5,), 20, 6, 40),
    ((7, 6), (3, 3), 4, 6, 5),
    ((1, 1), (3, 3), 16, 40, 9),
    ((4, 4), (3, 3), 3, 8, 40),
]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(ours, plain, dtype):
    """As close as sums in another order come; half precision rounds once at the end."""
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for a, b in zip(ours, plain, strict=True):
        scale = b.float().abs().max()
        torch.testing.assert_close(a.float().cpu() / scale.cpu(), b.float().cpu() / scale.cpu(), rtol=0, atol=tolerance)


def on_device(tensors, dtype=None):
    return [x.to(DEVICE, dtype) if x.is_floating_point() else x.to(DEVICE) for x in tensors]


DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("space", "kernel", "inputs", "outputs", "batch"), CONVOLUTIONS)
def test_convolutions(space, kernel, inputs, outputs, batch, stride, dtype):
    from esper.kasmina.kernels import gpu

    x, weight, filters = (
        t.to(dtype)
        for t in (drawn(3, batch, *space, inputs), drawn(3, *kernel, inputs, outputs), drawn(3, *kernel, inputs))
    )
    wide = [t.float() for t in (x, weight, filters)]
    bias = drawn(3, outputs).to(dtype)
    bare = conv._Conv.forward(*wide[:2], None, stride)
    grad = drawn(*bare.shape).to(dtype)
    into = conv._ConvBackward.forward(grad.float(), *wide[:2], stride, True, True, False)[:2]
    plain = bare, bare + along(bias.float(), bare), *into, grad.float().flatten(1, -2).sum(1)
    a, w, f, b, g = on_device((x, weight, filters, bias, grad))
    with_bias = gpu.conv(a, w, stride, b)
    into = gpu.conv_for_input(g, w, stride, a.shape), *gpu.conv_for_weight(g, a, w, stride, bias=True)
    close((gpu.conv(a, w, stride), with_bias, *into), plain, dtype)
    close(gpu.conv_for_weight(g, a, w, stride)[:1], into[1:2], dtype)
    out = conv._Depthwise.forward(wide[0], wide[2], stride)
    grad = drawn(*out.shape).to(dtype)
    plain = out, *conv._DepthwiseBackward.forward(grad.float(), wide[0], wide[2], stride)
    (g,) = on_device((grad,))
    into = gpu.depthwise_for_input(g, f, stride, a.shape), gpu.depthwise_for_weight(g, a, f, stride)
    close((gpu.depthwise(a, f, stride), *into), plain, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("space", "kernel", "inputs", "outputs", "batch"),
    [
        ((32, 32), (3, 3), 3, 8, 2),
        ((16, 16), (3, 3), 8, 16, 3),
        ((8, 8), (5, 5), 16, 32, 17),
        ((5, 32), (3, 3), 1, 2, 9),
        ((4, 4), (1, 3), 8, 24, 40),
    ],
)
def test_convolutions_with_band_matrices(space, kernel, inputs, outputs, batch, dtype):
    from esper.kasmina.kernels.gpu import band

    x, weight = drawn(3, batch, *space, inputs).to(dtype), drawn(3, *kernel, inputs, outputs).to(dtype)
    bias, grad = drawn(3, outputs).to(dtype), drawn(3, batch, *space, outputs).to(dtype)
    bare = conv._Conv.forward(x.float(), weight.float(), None, 1)
    into = conv._ConvBackward.forward(grad.float(), x.float(), weight.float(), 1, True, True, False)[:2]
    a, w, b, g = on_device((x, weight, bias, grad))
    ours = band.band_conv(a, w), band.band_conv(a, w, b), band.band_conv(g, w, mirrored=True)
    close((*ours, band.band_conv_for_weight(g, a, w)), (bare, bare + along(bias.float(), bare), *into), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("length", "heads", "head"), [(1, 1, 8), (7, 2, 3), (24, 1, 16), (64, 4, 16), (128, 2, 16)])
def test_attention(length, heads, head, dtype):
    """Also where a context is no power of two, and for logits so large that only their maximum keeps them finite."""
    from esper.kasmina.kernels import gpu

    qkv = (8 * drawn(5, length, 3 * heads * head)).to(dtype)
    grad = drawn(5, length, heads * head).to(dtype)
    wide = qkv.float().requires_grad_()
    plain = causal_attention(wide, heads)
    (into,) = torch.autograd.grad(plain, wide, grad.float())
    q, g = on_device((qkv, grad))
    assert gpu.attends(q, heads) == (length <= (128 if dtype == torch.bfloat16 else 64))
    close((gpu.attention(q, heads), gpu.attention_backward(g, q, heads)), (plain.detach(), into), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("space", "channels"), [((), 64), ((20,), 6), ((129,), 100), ((3, 4), 5000)])
def test_layer_norms(space, channels, dtype):
    """Of rows that lie apart in memory, too, and whose gradient is one row for all."""
    from esper.kasmina.kernels import gpu

    whole, weights = (drawn(3, 2, 4, *space, channels) + 2).to(dtype), drawn(3, 2, channels).to(dtype)
    grad = drawn(4, *space, channels).to(dtype)
    leaves = [t.float().requires_grad_() for t in (whole[:, 1], *weights.unbind(1))]
    out = layer_norm(*leaves)
    plain = out, *torch.autograd.grad(out, leaves, grad.float().expand(out.shape))
    whole, weights, g = on_device((whole, weights, grad))
    a, (w, b), g = whole[:, 1], weights.unbind(1), g.expand(3, *g.shape)
    ours = gpu.layer_norm(a, w, b, norm.EPS), *gpu.layer_norm_backward(g, a, w, norm.EPS)
    close(ours, [t.detach() for t in plain], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("space", "channels", "groups", "relu"),
    [((20,), 8, 2, True), ((3, 4), 6, 1, False), ((1, 1), 64, 2, True), ((16, 16), 32, 2, True)],
)
@pytest.mark.parametrize("batch", [4, 13])
def test_norms(space, channels, groups, relu, batch, dtype):
    """Of examples of which one program holds one, several, or all and more."""
    from esper.kasmina.kernels import gpu

    x, weight, bias = (
        t.to(dtype) for t in (drawn(3, batch, *space, channels) + 2, drawn(3, channels), drawn(3, channels))
    )
    wide = [t.float() for t in (x, weight, bias)]
    out, mean, scale = norm._Norm.forward(*wide, groups, relu)
    grad = drawn(*out.shape).to(dtype)
    plain = out, mean, scale, *norm._NormBackward.forward(grad.float(), *wide, out, mean, scale, groups, relu)
    ours = gpu.norm(*on_device((x, weight, bias)), groups, relu, norm.EPS)
    into = gpu.norm_backward(*on_device((grad, x, weight, bias)), *ours[1:], groups, relu)
    close((*ours, *into), plain, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("space", "channels", "groups"), [((4, 6), 8, 2), ((2, 2), 6, 1), ((8, 8), 64, 2), ((16, 16), 5, 1)]
)
def test_norms_with_pools(space, channels, groups, dtype):
    from esper.kasmina.kernels import gpu

    x, weight, bias = (t.to(dtype) for t in (drawn(3, 4, *space, channels) + 2, drawn(3, channels), drawn(3, channels)))
    a, w, b = on_device((x, weight, bias))
    assert gpu.pools(a, groups)
    normed, mean, scale = gpu.norm(a, w, b, groups, True, norm.EPS)
    pooled = gpu.pool(normed, (2, 2))
    (grad,) = on_device((drawn(*pooled.shape).to(dtype),))
    into = gpu.norm_backward(gpu.pool_backward(grad, normed, (2, 2)), a, w, b, mean, scale, groups, True)
    ours = gpu.norm_pool(a, w, b, groups, norm.EPS)
    back = gpu.norm_pool_backward(grad, a, w, b, *ours[1:], groups)
    close((*ours, *back), [t.cpu() for t in (pooled, mean, scale, *into)], dtype)


@pytest.mark.parametrize(("space", "sides"), [((4, 6), (2, 2)), ((5, 7), (2, 2)), ((1, 4), (1, 2)), ((7, 1), (2, 1))])
def test_pools_agree_even_where_there_is_no_largest(space, sides):
    from esper.kasmina.kernels import gpu

    x = drawn(3, 4, *space, 5).relu()
    out = pool._Pool.forward(x, *sides)
    grad = drawn(*out.shape)
    a, g = on_device((x, grad))
    assert torch.equal(gpu.pool(a, sides).cpu(), out)
    assert torch.equal(gpu.pool_backward(g, a, sides).cpu(), pool._PoolBackward.forward(grad, x, *sides))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [6, 64])
def test_deltas(channels, dtype):
    host, f, grad = (drawn(5, 7, 3, channels + n).narrow(-1, 0, channels).to(dtype) for n in range(3))
    weight, bias = drawn(5, 1, channels).to(dtype) / 4, drawn(5, 1).to(dtype)
    graft = torch.tensor([0, 1, 2, 3, 2])
    found = []
    for place, kind in (("cpu", torch.float32), (DEVICE, dtype)):
        rows = [x.to(place, kind).requires_grad_() for x in (host, f, weight, bias)]
        function = fused if place == DEVICE and kind == dtype and found else grafts.any_delta
        out = function(graft.to(place), *rows)
        found.append((out, *torch.autograd.grad(out, rows, grad.to(place, kind))))
    close(found[1], found[0], dtype)


def fused(graft, host, f, weight, bias):
    return grafts._FusedDelta.of(graft, host, f, weight.flatten(1), bias.flatten())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [5, 48, 5000])
def test_routes(width, dtype):
    rows, real = torch.tensor([3, 0, 0, 1, 4]), torch.tensor([True, False, True, False, True])
    sources = torch.tensor([2, -1, -1, 0, 4, -1])
    x, deltas, alpha = drawn(6, 2, width).to(dtype), drawn(5, 2, width).to(dtype), torch.rand(5)
    gives, grad = drawn(5, width, 2).mT.to(dtype), drawn(6, width, 2).mT.to(dtype)
    found = []
    for place, kind, there in (("cpu", torch.float32, None), (DEVICE, dtype, sources.to(DEVICE))):
        leaves = [t.to(place, kind).requires_grad_() for t in (x, deltas)]
        to = routes.Routes(rows.to(place), real.to(place), there)
        stream, same = routes.take(leaves[0], to)
        out = routes.add(same, to, alpha.to(place), leaves[1])
        into = torch.autograd.grad([stream, out], leaves, [gives.to(place, kind), grad.to(place, kind)])
        found.append((stream, out, *into))
    close(found[1], found[0], dtype)
    assert torch.equal(found[1][1][[1, 2, 5]].cpu(), x[[1, 2, 5]])
    assert torch.equal(found[1][3][[1, 3]].cpu(), torch.zeros_like(deltas[:2]))
    if DEVICE != "cpu":
        assert torch.equal(routes.route(rows.to(DEVICE), real.to(DEVICE), x.to(DEVICE)).sources.cpu(), sources)


@pytest.mark.parametrize("width", [7, 900])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_steps(optimizer, width):
    from esper.tolaria import gpu

    config = TrainConfig(optimizer=optimizer, weight_decay=0.1, clip=0.5)

    def stack(device):
        return Stack(lambda: nn.Linear(width, 5), 4, torch.device(device), torch.float32)

    plain, ours = stack("cpu"), stack(DEVICE)
    active, lr = torch.tensor([True, False, True, True]), torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    for scale in (0.001, 1.0, 1.0):
        grad = scale * drawn(4, plain.layout.width)
        step(plain, grad, active, lr, config)
        g, a, rate = on_device((grad, active, lr))
        gpu.step(*ours.tensors.values(), g, ours.norms, a, rate, config, EPS, CLIP_EPS)
    for a, b in zip((*ours.tensors.values(), ours.norms), (*plain.tensors.values(), plain.norms), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 700, 10000])
def test_sums_of_squares(width, dtype):
    from esper.tolaria import gpu

    x = drawn(3, 2, width).to(dtype)
    (a,) = on_device((x,))
    close([gpu.squares(a[:, 1])], [squares(x[:, 1])], torch.float32)


@pytest.mark.parametrize("count", [1, 40, 3000])
def test_weights_of_newborns_are_the_same_to_the_bit(count):
    from esper.kasmina.kernels import gpu

    keys = torch.tensor([1, -1, 2**63 - 1, -(2**63), 12345678901234567])
    names, index = torch.arange(count) * 7919 % 2**32, torch.arange(count) % 100
    bound = torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = gpu.draw(*on_device([keys, names, index]), bound.to(DEVICE))
    assert torch.equal(ours.cpu(), births.draw(keys, names, index, bound))
