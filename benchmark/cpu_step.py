"""Measure the CPU time of one training step of a live fleet, and the optimizer's part of it.

    python benchmark/cpu_step.py [--workload mnist1d] [--hosts 32]

Milliseconds of one thread, the least of all repetitions, so that other work on the machine hardly counts. The seeds are
those after 14 random decisions. The file runs on older versions of the code, too: to compare two of them, run it with
both in turns.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

import torch
import tyro

from esper.cli.workloads import WORKLOADS, make_fleet, random_legal
from esper.leyline.rng import Purpose, key, permutation
from esper.tolaria import Engine, Fleet, training
from esper.tolaria.schedule import copied

OPTIMIZER = "step_all" if hasattr(training, "step_all") else "step"


@dataclass(frozen=True, kw_only=True)
class Question:
    workload: tuple[str, ...] = ("mnist1d",)
    hosts: int = 32
    batch: int | None = None
    """Examples of a batch. None: those of the workload."""
    decisions: int = 14
    repeats: int = 30

    def run(self) -> None:
        torch.set_num_threads(1)
        for name in self.workload:
            fleet = make_fleet(WORKLOADS[name].resized(self.batch, 2, 64), self.hosts, Engine())
            generator = torch.Generator().manual_seed(1)
            for _ in range(self.decisions):
                fleet.decide(random_legal(fleet.legal(), fleet.space.sizes, generator))
            seeds = sum(int((bucket.hosts >= 0).sum()) for bucket in fleet.buckets.values())
            step, optimizer = self.milliseconds(fleet)
            print(f"{name}: {seeds} seeds of {len(fleet.buckets)} kinds, step {step:.2f} ms, optimizer {optimizer:.2f}")

    def milliseconds(self, fleet: Fleet) -> tuple[float, float]:
        """Return the least time of a step, and the least that the optimizer took of one."""
        order = permutation(key(fleet.rng_seeds, Purpose.SHUFFLE, fleet.epoch), len(fleet.train_data.x))
        run, part = training.step_of(fleet, copied(fleet), order, None), 0.0
        original: Callable[..., None] = getattr(training, OPTIMIZER)

        def timed(*given: object) -> None:
            nonlocal part
            start = time.thread_time()
            original(*given)
            part += time.thread_time() - start

        found = []
        with patch.object(training, OPTIMIZER, timed):
            for _ in range(self.repeats):
                part, start = 0.0, time.thread_time()
                fleet.count.zero_()
                run()
                found.append((time.thread_time() - start, part))
        whole, parts = zip(*found, strict=True)
        return 1e3 * min(whole), 1e3 * min(parts)


if __name__ == "__main__":
    tyro.cli(Question).run()
