"""Rows of a stack: each is trained as if it had an optimizer of its own."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from esper.tolaria import TrainConfig
from esper.tolaria import optimizer as optimizers
from esper.tolaria.lanes import Lanes
from esper.tolaria.optimizer import Update, step, step_all
from esper.tolaria.stack import Stack
from toys import same_bits

CONFIGS = {
    "adamw": TrainConfig(weight_decay=0.1, clip=2.0, betas=(0.8, 0.95)),
    "sgd": TrainConfig(weight_decay=0.1, clip=2.0, optimizer="sgd", momentum=0.7),
}
ACTIVE = [[True, False, True], [True, True, True], [True, True, False], [True, True, True]]
"""Who takes each of four steps: the second row is born late, the third rests once."""
RATES = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)


def make_stack(rows: int = 3, room: int = 0) -> Stack:
    return Stack(lambda: nn.Linear(3, 2), rows, torch.device("cpu"), torch.float64, room)


def optimizer_of(parameters: list[nn.Parameter], lr: float, config: TrainConfig) -> torch.optim.Optimizer:
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=config.momentum, weight_decay=config.weight_decay)
    return torch.optim.AdamW(parameters, lr, betas=config.betas, weight_decay=config.weight_decay)


@pytest.mark.parametrize("optimizer", CONFIGS)
def test_a_step_is_torchs_own_row_by_row(optimizer, rng):
    """With its own clipping, learning rate and step count; inactive rows stay bit-identical; norms are summed."""
    config, stack = CONFIGS[optimizer], make_stack()
    stack.bear(torch.arange(3), torch.arange(3))
    alone = [
        {name: nn.Parameter(p[row].clone()) for name, p in stack.layout.views(stack.flat).items()} for row in (0, 1, 2)
    ]
    optimizers = [optimizer_of(list(p.values()), lr, config) for p, lr in zip(alone, RATES.tolist(), strict=True)]
    norms = torch.zeros(3, dtype=torch.float64)
    for active in ACTIVE:
        scale = torch.tensor([0.1, 100.0, 1.0], dtype=torch.float64)
        grads = {
            name: torch.randn(3, *shape, generator=rng, dtype=torch.float64) * scale.view(3, *[1] * len(shape))
            for name, shape in stack.layout.shapes.items()
        }
        resting = {name: tensor.clone() for name, tensor in stack.tensors.items()}
        step(stack, stack.layout.flatten(grads), torch.tensor(active), RATES, config)
        for row, (parameters, one) in enumerate(zip(alone, optimizers, strict=True)):
            for name, p in parameters.items():
                p.grad = grads[name][row].clone()
            norms[row] += nn.utils.clip_grad_norm_(parameters.values(), config.clip)
            if active[row]:
                one.step()
            else:
                assert all(torch.equal(tensor[row], resting[name][row]) for name, tensor in stack.tensors.items())
            for name, p in stack.layout.views(stack.flat).items():
                torch.testing.assert_close(p[row], parameters[name].detach(), rtol=1e-12, atol=1e-12)
    assert stack.tensors["steps"].tolist() == [4, 3, 3]
    torch.testing.assert_close(stack.norms, norms, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("optimizer", CONFIGS)
def test_stacks_that_take_a_step_together_do_so_as_each_alone(optimizer, dtype, rng, monkeypatch):
    """To the bit, and those too large for it as well. One stack has more memory than rows."""
    config = replace(CONFIGS[optimizer], betas=(0.9, 0.99))  # 0.99**25 in doubles depends on how many are computed
    monkeypatch.setattr(optimizers, "SMALL", 500)
    sizes, cpu = [(13, 1, 0), (5, 4, 9), (3, 30, 0), (1, 1, 0)], torch.device("cpu")
    twice = [[Stack(lambda n=n: nn.Linear(7, n), rows, cpu, dtype, room) for rows, n, room in sizes] for _ in "ab"]
    assert [stack.flat.numel() > 500 for stack in twice[0]] == [False, False, True, False]
    for stack in (*twice[0], *twice[1]):
        stack.bear(torch.arange(len(stack)), torch.arange(len(stack)))
        stack.tensors["steps"].copy_(torch.arange(len(stack)) + 18)
    for _ in range(20):
        updates = [
            Update(
                stack,
                10 * torch.rand(1, generator=rng) * torch.randn(stack.flat.shape, generator=rng, dtype=dtype),
                torch.rand(len(stack), generator=rng) < 0.7,
                torch.rand(len(stack), generator=rng, dtype=torch.float64),
            )
            for stack in twice[0]
        ]
        step_all(updates, config, Lanes(torch.device("cpu")))
        for stack, update in zip(twice[1], updates, strict=True):
            step(stack, *update[1:], config)
    for ours, theirs in zip(*twice, strict=True):
        assert ours.tensors["steps"].any()
        assert same_bits(ours.tensors, theirs.tensors)
        assert torch.equal(ours.norms, theirs.norms)


@pytest.mark.parametrize("room", [0, 8])
def test_rows_are_born_cleared_and_moved_with_their_moments(room, rng):
    stack = make_stack(room=room)
    for tensor in stack.tensors.values():
        tensor.copy_(torch.rand(tensor.shape, generator=rng, dtype=torch.float64))
    before = {name: tensor.clone() for name, tensor in stack.tensors.items()}
    stack.bear(torch.tensor([1]), torch.tensor([5]))
    other = make_stack(1)
    other.bear(torch.tensor([0]), torch.tensor([5]))
    for name, tensor in stack.tensors.items():
        assert torch.equal(tensor[[0, 2]], before[name][[0, 2]])
        assert torch.equal(tensor[1], other.tensors[name][0])
    assert stack.flat[1].any()
    assert not any(stack.tensors[name][1].any() for name in ("first", "second", "steps"))
    stack.resize(torch.tensor([2, 0]), 5)
    assert len(stack) == len(stack.flat) == len(stack.norms) == 5
    for name, tensor in stack.tensors.items():
        assert torch.equal(tensor[:2], before[name][[2, 0]])
        assert not tensor[2:].any()
    stack.resize(torch.tensor([1]), 2)
    for name, tensor in stack.tensors.items():
        assert torch.equal(tensor[0], before[name][0])
        assert not tensor[1:].any()
