"""Play many random actions, legal and illegal, and check after every one that nothing is invalid and memory is flat.

    python benchmark/env_soak.py [--actions 100000] [--hosts 400]

Raises an AssertionError at the first invalid state, or if more than 8 MB have been added after the first quarter.
"""

import gc
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from esper.envs import GrowthVectorEnv
from esper.envs.checker import Moment, check_moment
from esper.kasmina.lifecycle import problems
from esper.leyline.actions import Head
from esper.tolaria import TrainConfig

PAGE = 4096
ALLOWED = 8
"""Megabytes that may be added."""


@dataclass(frozen=True, kw_only=True)
class Soak:
    actions: int = 100_000
    """Actions of all hosts together."""
    hosts: int = 400
    task: str = "spirals"
    host: str = "mlp"
    widths: tuple[int, ...] = (4, 4)
    slots: int = 1
    budget: float = 30.0
    examples: int = 300
    seed: int = 0

    def run(self) -> None:
        options, train = {"examples": self.examples}, TrainConfig(lr=1e-2, batch_size=16, steps=2)
        asked = {"task": self.task, "host": self.host, "widths": self.widths, "budget": self.budget}
        envs = GrowthVectorEnv(self.hosts, slots=self.slots, train=train, options=options, **asked)
        rng, steps, started = np.random.default_rng(self.seed), max(8, self.actions // self.hosts), time.perf_counter()
        sizes, (_, infos) = envs.setting.space.sizes, envs.reset(seed=self.seed)
        refused = ends = 0
        memory: list[float] = []
        for n in range(steps):
            actions = rng.integers(sizes, size=(self.hosts, len(sizes)))
            legal, moment = infos["legal"], Moment(*envs.step(actions))
            infos = moment.infos
            check_moment(envs, moment)
            self.require_valid(envs, moment, actions, legal)
            refused += int(infos["refused"].sum())
            ends += int((moment.terminated | moment.truncated).sum())
            if n % max(1, steps // 40) == 0:
                gc.collect()
                memory.append(resident())
        memory.append(resident())
        added = memory[-1] - memory[len(memory) // 4]
        print(
            f"{steps * self.hosts:,} actions in {time.perf_counter() - started:.0f} s: {refused:,} refused, {ends:,}"
            f" episodes ended, no invalid state; {memory[-1]:.0f} MB, {added:+.1f} MB after the first quarter"
        )
        assert added < ALLOWED, f"memory grew by {added:.1f} MB: {memory}"

    def require_valid(self, envs: GrowthVectorEnv, moment: Moment, actions: np.ndarray, legal: np.ndarray) -> None:
        """Check the slots of all hosts, and that exactly the illegal actions were refused."""
        found = problems(envs.lives.fleet.state, envs.setting.space.sizes)
        assert not found, found
        assert np.isfinite(moment.rewards).all()
        lives_on = ~(moment.terminated | moment.truncated)
        allowed = legal[np.arange(self.hosts), actions[:, Head.OP], actions[:, Head.SLOT]]
        assert np.array_equal(moment.infos["refused"][lives_on], ~allowed[lives_on])


def resident() -> float:
    """Return the memory of this process in megabytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


if __name__ == "__main__":
    tyro.cli(Soak).run()
