"""Our own operations on rows compute what torch's autograd computes for each row alone."""

import pytest
import torch
from torch.func import vmap
from torch.nn import functional

from esper.kasmina.blending import delta
from esper.kasmina.kernels import (
    add,
    any_delta,
    convolve,
    convolve_channels,
    grafts,
    group_norm,
    max_pool,
    product,
    products,
    route,
    take,
)
from esper.leyline.actions import Graft


def check(stacked, alone, *inputs):
    """Values and gradients, for rows together, for one row, and for rows under vmap."""
    inputs = [x.double().requires_grad_() for x in inputs]
    out = stacked(*inputs)
    grad = torch.randn_like(out)
    together = torch.autograd.grad(out, inputs, grad)
    mapped = vmap(lambda *row: stacked(*(x[None] for x in row))[0])(*inputs)
    under_vmap = torch.autograd.grad(mapped, inputs, grad)
    for r in range(len(out)):
        row = [x[r].detach().requires_grad_() for x in inputs]
        expected = alone(*row)
        gradients = torch.autograd.grad(expected, row, grad[r])
        single = stacked(*(x[None] for x in row))
        of_single = torch.autograd.grad(single, row, grad[r : r + 1])
        for answer in (out[r], mapped[r], single[0]):
            torch.testing.assert_close(answer, expected)
        for answers in ([g[r] for g in together], [g[r] for g in under_vmap], of_single):
            torch.testing.assert_close(list(answers), list(gradients))


@pytest.mark.parametrize("outputs", [6, 4, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("kernel", "space"), [((5,), (11,)), ((5,), (1,)), ((3, 3), (7, 6)), ((3, 3), (1, 1))])
def test_convolutions(kernel, space, stride, outputs, rng):
    """With more channels than they read, as many, and half as many: each takes the smaller patches."""
    conv = functional.conv1d if len(kernel) == 1 else functional.conv2d

    def plain(x, weight, groups=1):
        return conv(x.movedim(-1, 1), weight, None, stride, kernel[0] // 2, groups=groups).movedim(1, -1)

    x = torch.randn(3, 2, *space, 4, generator=rng)
    dense, filters = torch.randn(3, *kernel, 4, outputs, generator=rng), torch.randn(3, *kernel, 4, generator=rng)
    check(lambda x, w: convolve(x, w, stride), lambda x, w: plain(x, w.movedim((-1, -2), (0, 1))), x, dense)
    check(
        lambda x, w: convolve_channels(x, w, stride),
        lambda x, w: plain(x, w[..., None, :].movedim((-1, -2), (0, 1)), groups=4),
        x,
        filters,
    )


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("space", [(5,), (3, 4), (1, 1), (1, 4)])
def test_norms(space, groups, relu, rng):
    def plain(x, weight, bias):
        out = functional.group_norm(x.movedim(-1, 1).flatten(2).contiguous(), groups, weight, bias)
        out = out.unflatten(2, space).movedim(1, -1)
        return out.relu() if relu else out

    x, weight, bias = torch.randn(3, 2, *space, 8, generator=rng), *torch.randn(2, 3, 8, generator=rng)
    check(lambda *inputs: group_norm(*inputs, groups, relu), plain, x, weight, bias)


@pytest.mark.parametrize("space", [(4, 6), (5, 7), (1, 4), (7, 1)])
def test_pools(space, rng):
    sides = tuple(2 if side > 1 else 1 for side in space)

    def plain(x):
        return functional.max_pool2d(x.movedim(-1, 1).contiguous(), sides).movedim(1, -1)

    check(lambda x: max_pool(x, *sides), plain, torch.randn(3, 2, *space, 5, generator=rng))


@pytest.mark.parametrize("reads", [True, False])
def test_deltas_of_seeds_grafted_in_different_ways(reads, rng, monkeypatch):
    """As on a CPU, which reads the grafts, and in double precision on a GPU, which does not."""
    monkeypatch.setattr(grafts, "reads_rows", lambda graft: reads)
    host, f = torch.randn(2, 3, 2, 5, 4, generator=rng)
    weight, bias = torch.randn(3, 1, 4, generator=rng), torch.randn(3, 1, generator=rng)
    for order in ([0, 1, 2], [2, 2, 1], [3, 1, 3], [1, 2, 3], [0, 0, 0]):
        chosen = torch.tensor(order)
        for r, graft in enumerate(order):
            row = [x[r].detach().double().requires_grad_() for x in (host, f, weight, bias)]
            expected = delta(Graft(graft), *row[:2], functional.linear(row[0], *row[2:]))
            rows = [x.double().requires_grad_() for x in (host, f, weight, bias)]
            out = any_delta(chosen, *rows)
            torch.testing.assert_close(out[r], expected)
            grad = torch.randn_like(out)
            ours = torch.autograd.grad(out, rows, grad)
            theirs = torch.autograd.grad(expected, row, grad[r], materialize_grads=True, allow_unused=True)
            torch.testing.assert_close([x[r] for x in ours], list(theirs))


def test_what_seeds_take_and_add_goes_to_the_rows_of_their_hosts(rng):
    rows, real = torch.tensor([3, 0, 0, 1]), torch.tensor([True, False, True, False])
    x, deltas = (torch.randn(n, 2, 5, generator=rng).double().requires_grad_() for n in (4, 4))
    alpha, gives = torch.rand(4, generator=rng).double(), torch.randn(4, 2, 5, generator=rng).double()
    to = route(rows, real, x)
    stream, same = take(x, to)
    out = add(same, to, alpha, deltas)
    assert torch.equal(stream, x[rows])
    expected = torch.stack([x[0] + alpha[2] * deltas[2], x[1], x[2], x[3] + alpha[0] * deltas[0]])
    assert torch.equal(out, expected)
    grad = torch.randn(4, 2, 5, generator=rng).double()
    into_x, into_deltas = torch.autograd.grad([stream, out], [x, deltas], [gives, grad])
    assert torch.equal(into_x, grad + torch.stack([gives[2], 0 * grad[1], 0 * grad[2], gives[0]]))
    silent = torch.zeros_like(grad[0])
    assert torch.equal(into_deltas, torch.stack([alpha[0] * grad[3], silent, alpha[2] * grad[0], silent]))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "positions"), [(3, 24), (1, 64), (2, 18), (5, 7)])
def test_products_of_many_positions_sum_the_gradients_of_weights_in_parts(rows, positions, biased, rng, monkeypatch):
    """As on a GPU, where a row may have 100,000 positions and a dozen weights."""
    for name, value in (("usable", lambda *tensors: True), ("LONG", 7), ("PART", 2), ("PROGRAMS", 20)):
        monkeypatch.setattr(products, name, value)
    parts = products.num_parts(rows, positions)
    assert positions % parts == 0
    assert parts == {24: 8, 64: 32, 18: 2, 7: 1}[positions]
    x, weight = torch.randn(rows, positions, 3, generator=rng), torch.randn(rows, 4, 3, generator=rng)
    bias = [torch.randn(rows, 4, generator=rng)] if biased else []
    check(
        lambda x, weight, bias=None: product(x, weight, bias),
        lambda x, weight, bias=0.0: x @ weight.mT + bias,
        *(x, weight, *bias),
    )
