"""One process of a distributed run: 50 steps with two births, then weights, gradients and a rollback are compared."""

import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from conftest_growth import GPT, read_log
from esper.growth import Doubling, Growth, grow


def same_weights(model: nn.Module) -> bool:
    """Whether both processes have the same weights."""
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    every = [torch.zeros_like(mine) for _ in range(2)]
    dist.all_gather(every, mine)
    return torch.equal(every[0], every[1])


def gradients_are_means(model: nn.Module, parallel: nn.Module, x: Tensor) -> bool:
    """Whether a backward pass leaves the mean of what each process has found, for old and new parameters alike."""
    parameters = list(model.parameters())
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(model(x).square().mean(), parameters)])
    dist.all_reduce(expected)
    parallel(x).square().mean().backward()
    found = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    model.zero_grad()
    return torch.allclose(found, expected / 2, atol=1e-6)


def rolled_back_together(growth: Growth, parallel: nn.Module, x: Tensor, rank: int) -> bool:
    """Whether a loss that is not finite on one process takes a birth back on both."""
    growth.undo()
    growth.deepen()
    for step in range(10):
        loss = parallel(x).square().mean()
        loss.backward()
        growth.optimizer.step()
        growth.optimizer.zero_grad()
        growth.step(loss * math.nan if (rank, step) == (1, 0) else loss)
    assert growth.average is not None
    return growth.depth == {"blocks": 2} and growth.log[-1].kind == "rollback" and math.isfinite(growth.average)


def only_the_first_writes(growth: Growth, log: Path, rank: int) -> bool:
    """Whether one process has written everything once, and the other nothing."""
    dist.barrier()
    _, events, points = read_log(log)
    alone = growth.recorder.folder == (log if rank == 0 else None)
    return alone and [e.step for e in events] == [e.step for e in growth.log] and len(points) == len(growth.history)


def main(rank: int, file: str, wrapped_first: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    torch.manual_seed(1)
    model = GPT(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    policy = Doubling((0.03, 0.12))
    parallel = DistributedDataParallel(model) if wrapped_first else None
    growth = grow(parallel or model, optimizer, total=400, policy=policy, blend=5, log=f"{file}-log")
    parallel = parallel or DistributedDataParallel(model)
    generator = torch.Generator().manual_seed(rank)
    births = []
    for step in range(50):
        x = torch.randint(32, (2, 8), generator=generator)
        count = len(growth.births)
        loss = parallel(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        growth.step(loss)
        births += [step] * (len(growth.births) - count)
    steps = [None, None]
    dist.all_gather_object(steps, births)
    checks = [
        steps[0] == steps[1],
        same_weights(model),
        gradients_are_means(model, parallel, x),
        rolled_back_together(growth, parallel, x, rank),
        same_weights(model),
        only_the_first_writes(growth, Path(f"{file}-log"), rank),
    ]
    print(rank, births, checks, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "first")
    os._exit(0)  # threads of gloo that outlive their group can abort the interpreter's own exit
