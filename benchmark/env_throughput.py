"""Measure the vector environment against its fleet alone, with the same random actions.

    python benchmark/env_throughput.py [--hosts 64 256] [--device cuda]

Both train the same hosts side by side, in turns so that other load on the machine affects both. Prints decisions per
second of each (medians of the rounds) and the share of the fleet's speed that is left, in which observations, masks,
infos, rewards and their way to numpy are counted.
"""

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
import tyro

from esper.envs import GrowthVectorEnv
from esper.envs.lives import Lives


@dataclass(frozen=True, kw_only=True)
class Question:
    tasks: tuple[str, ...] = ("spirals-6", "waves-8", "glyphs-8", "phrases-8")
    """Settings on a budget, as `esper exam --budgeted` knows them, or tasks."""
    hosts: tuple[int, ...] = (64,)
    rounds: int = 15
    """Rounds of each; the first two warm up."""
    steps: int = 8
    """Decisions of every host in a round."""
    device: str = "cpu"

    def run(self) -> None:
        print(f"| task | hosts | fleet, decisions/s | vector env, decisions/s | share |  ({self.device})")
        print("|---|--:|--:|--:|--:|", flush=True)
        for task in self.tasks:
            for hosts in self.hosts:
                self.ask(task, hosts)

    def ask(self, task: str, hosts: int) -> None:
        envs, fleet = (GrowthVectorEnv(hosts, task=task, device=self.device) for _ in range(2))
        rng, sizes = np.random.default_rng(0), envs.setting.space.sizes
        envs.reset(seed=0)
        fleet.reset(seed=0)
        alone, seconds = fleet.lives, dict[str, list[float]](env=[], fleet=[])
        for _ in range(self.rounds):
            actions = rng.integers(sizes, size=(self.steps, hosts, len(sizes)))
            seconds["fleet"].append(self.timed(lambda chosen: bare(alone, chosen), actions))
            seconds["env"].append(self.timed(envs.step, actions))
        speed = {who: hosts * self.steps / median(found[2:] or found) for who, found in seconds.items()}
        share = speed["env"] / speed["fleet"]
        print(f"| {task} | {hosts} | {speed['fleet']:,.0f} | {speed['env']:,.0f} | {share:.1%} |", flush=True)

    def timed(self, step: Any, actions: np.ndarray) -> float:
        started = time.perf_counter()
        for chosen in actions:
            step(chosen)
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter() - started


def bare(fleet: Lives, actions: np.ndarray) -> None:
    """Let the fleet decide, and nothing else."""
    fleet.step(torch.from_numpy(actions).to(fleet.fleet.device))


if __name__ == "__main__":
    tyro.cli(Question).run()
