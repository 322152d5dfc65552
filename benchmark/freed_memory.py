"""Measure what it saves a fleet on a CPU that its process keeps the memory it has freed.

    python benchmark/freed_memory.py [--workload mnist1d small2d] [--hosts 32]

Two processes of each kind take turns: one leaves the C library as it is, one keeps freed memory, as fleets do. Both
make the same random legal decisions on one thread. Figures are per decision, the least of all decisions after the first
half, but for the memory of the process in the end.
"""

import json
import resource
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from unittest.mock import patch

import torch
import tyro

from esper.cli.workloads import WORKLOADS, make_fleet, random_legal
from esper.tolaria import Engine, EnvConfig, FleetEnv

KEEPS = "esper.tolaria.fleet.keep_freed_memory"


@dataclass(frozen=True, kw_only=True)
class Question:
    workload: tuple[str, ...] = ("mnist1d", "small2d")
    hosts: int = 32
    steps: int = 10
    """Steps of a decision."""
    batch: int = 64
    validation: int = 256
    decisions: int = 16
    repeats: int = 2
    """Processes of each kind."""

    def run(self) -> None:
        print("| workload | freed memory | user s | system s | pages faulted in | GB in the end |")
        print("|---|---|--:|--:|--:|--:|", flush=True)
        for name in self.workload:
            told: dict[str, list[list[float]]] = {"returned": [], "kept": []}
            for _ in range(self.repeats):
                for way, results in told.items():
                    call = json.dumps([name, way, self.hosts, self.steps, self.batch, self.validation, self.decisions])
                    out = subprocess.run([sys.executable, __file__, call], stdout=subprocess.PIPE, check=True).stdout
                    results.append(json.loads(out))
            for way, results in told.items():
                user, system, faults, size = (min(column) for column in zip(*results, strict=True))
                print(f"| {name} | {way} | {user:.2f} | {system:.2f} | {faults:,.0f} | {size:.2f} |", flush=True)


def measure(name: str, way: str, hosts: int, steps: int, batch: int, validation: int, decisions: int) -> list[float]:
    """Return user seconds, system seconds and page faults of a decision, and the resident GB in the end."""
    torch.set_num_threads(1)
    if way == "returned":
        with patch(KEEPS):
            fleet = make_fleet(WORKLOADS[name].resized(batch, steps, validation), hosts, Engine())
    else:
        fleet = make_fleet(WORKLOADS[name].resized(batch, steps, validation), hosts, Engine())
    env = FleetEnv(fleet, EnvConfig(staggered=True))
    generator = torch.Generator().manual_seed(1)
    allowed, usage = env.reset().legal, []
    for _ in range(decisions):
        allowed = env.step(random_legal(allowed, fleet.space.sizes, generator)).signals.legal
        now = resource.getrusage(resource.RUSAGE_SELF)
        usage.append((now.ru_utime, now.ru_stime, now.ru_minflt))
    later = usage[decisions // 2 :]
    each = [[b - a for a, b in zip(old, new, strict=True)] for old, new in pairwise(later)]
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize() / 1e9
    return [min(column) for column in zip(*each, strict=True)] + [resident]


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        print(json.dumps(measure(*json.loads(sys.argv[1]))))
    else:
        tyro.cli(Question).run()
