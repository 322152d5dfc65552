"""One process of a distributed run: 50 steps with two births, then everybody's weights are compared."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from conftest_growth import GPT
from esper.growth import Doubling, grow


def main(rank: int, file: str, wrapped_first: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    torch.manual_seed(1)
    model = GPT(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    policy = Doubling((0.1, 0.4))
    parallel = DistributedDataParallel(model) if wrapped_first else None
    growth = grow(parallel or model, optimizer, total=120, policy=policy, blend=5)
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
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    every = [torch.zeros_like(mine) for _ in range(2)]
    dist.all_gather(every, mine)
    steps = [None, None]
    dist.all_gather_object(steps, births)
    print(rank, len(model.blocks), births, steps[0] == steps[1], torch.equal(every[0], every[1]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "first")
