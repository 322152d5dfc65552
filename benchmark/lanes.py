"""Measure a live training step with kinds of seeds one after the other, and side by side on several lanes of a GPU.

    python3 benchmark/lanes.py [--workloads small2d tiny2d --hosts 64 256 --lanes 0 8 0 8]

Every number of lanes trains the same hosts from the same weights; prints one line of JSON for each, which says whether
three steps gave the bits of the first, and what the memory was and was estimated to be.
"""

import json
from dataclasses import dataclass

import torch
import tyro
from torch import Tensor

from esper.cli.workloads import WORKLOADS, make_fleet, random_legal, timed
from esper.leyline.rng import Purpose, key, permutation
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv
from esper.tolaria.assignment import rows_of
from esper.tolaria.capture import Programs
from esper.tolaria.lanes import Lanes
from esper.tolaria.schedule import copied, schedule
from esper.tolaria.training import step_of


@dataclass(frozen=True, kw_only=True)
class Question:
    workloads: tuple[str, ...] = ("small2d", "cifar", "tokens", "tiny2d", "mnist1d")
    hosts: tuple[int, ...] = (64, 64, 64, 256, 256)
    lanes: tuple[int, ...] = (0, 1, 2, 4, 8, 24, 0)
    decisions: int = 12
    """Random decisions before the measurement."""

    def run(self) -> None:
        for name, hosts in zip(self.workloads, self.hosts, strict=True):
            fleet = live(name, hosts, self.decisions)
            begin = [t.clone() for t in weights(fleet)]
            reference: Tensor | None = None
            for lanes in self.lanes:
                for now, then in zip(weights(fleet), begin, strict=True):
                    now.copy_(then)
                ms, peak, bits = measured(fleet, lanes)
                reference = bits if reference is None else reference
                told = {"workload": name, "hosts": hosts, "lanes": lanes, "ms": round(ms, 3), "peak_gb": round(peak, 2)}
                told |= {"estimated_gb": round(estimated(fleet), 2), "same_bits": torch.equal(bits, reference)}
                print(json.dumps(told), flush=True)


def live(name: str, hosts: int, decisions: int) -> Fleet:
    """Return a fleet whose seeds are those of random decisions."""
    engine = Engine(device="cuda", precision="bf16", memory_budget=100 << 30)
    env = FleetEnv(make_fleet(WORKLOADS[name], hosts, engine), EnvConfig(staggered=True))
    generator, legal = torch.Generator("cuda").manual_seed(1), env.reset().legal
    for _ in range(decisions):
        legal = env.step(random_legal(legal, env.fleet.space.sizes, generator)).signals.legal
    return env.fleet


def weights(fleet: Fleet) -> list[Tensor]:
    """Return all that a step changes."""
    return [t for stack in fleet.network.stacks.values() for t in stack.tensors.values()]


def estimated(fleet: Fleet) -> float:
    """Return the memory that a step should take, in GB."""
    rows = rows_of(schedule(fleet, copied(fleet), measuring=False))
    state, example = fleet.memory.needs(fleet.num_hosts, *rows, training=True)
    return (state + fleet.config.batch_size * example) / 2**30


def measured(fleet: Fleet, lanes: int) -> tuple[float, float, Tensor]:
    """Return the milliseconds of a step, the peak of memory in GB, and the weights after three steps, as bits."""
    fleet.network.lanes, fleet.programs = Lanes(fleet.device, lanes), Programs()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    order = permutation(key(fleet.rng_seeds, Purpose.SHUFFLE, fleet.epoch), len(fleet.train_data[0]))
    step = step_of(fleet, copied(fleet), order, None)

    def again() -> None:
        fleet.count.zero_()
        step()

    for _ in range(3):
        again()
    bits = torch.cat([stack.flat.flatten() for stack in fleet.network.stacks.values()]).view(torch.int32).clone()
    seconds = timed(again, fleet.device, 0.5).seconds
    return 1e3 * seconds, torch.cuda.max_memory_allocated() / 2**30, bits


if __name__ == "__main__":
    tyro.cli(Question).run()
