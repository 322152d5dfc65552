"""Train MaskablePPO of sb3-contrib and Esper's PPO on the same lives, and compare both with random choices and with
never growing, on the same fresh hosts.

    python benchmark/maskable_ppo.py                                        # MaskablePPO, 3 seeds, on 2 CPU cores
    python benchmark/maskable_ppo.py --learners maskable_ppo esper \\
        --device cuda --hosts 512 --decisions 240000 --limit 60             # both, on a GPU, in less than 8 minutes

Prints J, score and growth on fresh hosts (means over hosts and trainings), the paired differences in J to random
choices and to hosts that never grow, with 95 % intervals over hosts and trainings, and how long a training took.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import tyro

from esper.envs.lives import Lives
from esper.envs.options import EnvOptions
from esper.exam.statistics import Values, paired_interval
from esper.recipes.config import Band
from esper.simic import CollectConfig, LearnConfig, PPOConfig, RentSchedule, RewardConfig, train_controller
from esper.simic.evaluation import Outcome, evaluate
from esper.tamiyo import Controller, ControllerConfig
from esper.tamiyo.policies import LearnedPolicy, Never, Policy, RandomLegal
from esper.tolaria import EnvConfig, FleetEnv

Learner = Literal["maskable_ppo", "esper"]
APART = 1_000_000
"""Between the random seeds of the hosts of two trainings."""


Learn = Callable[[float], tuple[Policy, int]]
"""Trains until a time, and returns the policy and the decisions it learned from."""


class Training(NamedTuple):
    policy: Policy
    seconds: float
    decisions: int


@dataclass(frozen=True, kw_only=True)
class Race:
    learners: tuple[Learner, ...] = ("maskable_ppo",)
    """Who learns."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """A training for each."""
    decisions: int = 60_000
    """Decisions of a training, all hosts together."""
    hosts: int = 64
    """Hosts that learn side by side."""
    horizon: int = 12
    """Decisions of every host between two updates."""
    fresh: int = 256
    """Hosts that the policies are compared on."""
    task: str = "spirals"
    host: str = "mlp"
    widths: tuple[int, ...] = (4, 4)
    examples: int = 1000
    budget: float = 10.0
    """Compute of an episode, in epochs of a bare host."""
    price: float = 0.02
    """Price of growth in J."""
    lr: float = 1e-3
    epochs: int = 4
    minibatches: int = 4
    entropy: float = 0.01
    device: str = "cpu"
    limit: float = float("inf")
    """Seconds after which a training ends, however many decisions it has made. The last column tells."""
    greedy: bool = False
    """Compare the most likely choices instead of sampled ones."""
    options: dict[str, Any] = field(default_factory=dict)
    """Other options of the environment."""

    def run(self) -> None:
        base = {policy.name: self.judge([policy]) for policy in (RandomLegal(), Never())}
        print(
            f"{self.decisions:,} decisions on {self.hosts} hosts, {len(self.seeds)} trainings; {where(self.device)}\n"
        )
        print("| policy | J | to random | to never | score | growth | seconds | decisions/s | decisions |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
        random, never = (found.objective for found in base.values())
        for name, found in base.items():
            print(f"| {name} | {row(found, random, never)} | | | |", flush=True)
        for learner in self.learners:
            trainings = [self.timed(learner, seed) for seed in self.seeds]
            seconds, decisions = (float(np.mean(x)) for x in list(zip(*trainings, strict=True))[1:])
            found = row(self.judge([training.policy for training in trainings]), random, never)
            speed = decisions / seconds
            print(f"| {learner} | {found} | {seconds:.0f} | {speed:,.0f} | {decisions:,.0f} |", flush=True)

    @property
    def trained(self) -> int:
        """Decisions of a training, in whole rollouts."""
        return self.updates * self.hosts * self.horizon

    @property
    def updates(self) -> int:
        return max(1, self.decisions // (self.hosts * self.horizon))

    @property
    def env(self) -> dict[str, Any]:
        """The environment that is learned in."""
        asked = {"task": self.task, "host": self.host, "widths": self.widths, "options": {"examples": self.examples}}
        asked |= {"budget": self.budget, "price": self.price, "device": self.device, "precision": "fp32"}
        return asked | self.options

    def timed(self, learner: Learner, seed: int) -> "Training":
        """Train a policy."""
        learn = {"maskable_ppo": self.maskable_ppo, "esper": self.ours}[learner](seed)
        started = time.perf_counter()
        policy, decisions = learn(started + self.limit)
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return Training(policy, time.perf_counter() - started, decisions)

    def maskable_ppo(self, seed: int) -> "Learn":
        """Prepare a training of MaskablePPO. Its end of an episode is terminal, as in ours: the observation says how
        much is left."""
        from sb3_contrib import MaskablePPO
        from stable_baselines3.common.callbacks import ConvertCallback

        from esper.envs.sb3 import SB3Policy, SB3VecEnv

        envs = SB3VecEnv(self.hosts, seed=APART * (seed + 1), terminal=True, **self.env)
        rollout = self.hosts * self.horizon
        asked: dict[str, Any] = {
            "learning_rate": self.lr,
            "n_epochs": self.epochs,
            "ent_coef": self.entropy,
            "gamma": 1.0,
        }
        asked |= {"n_steps": self.horizon, "batch_size": rollout // self.minibatches, "device": self.device}
        model = MaskablePPO("MlpPolicy", envs, seed=seed, **asked)

        def learn(until: float) -> tuple[Policy, int]:
            in_time = ConvertCallback(lambda *_: time.perf_counter() < until)
            model.learn(self.trained, callback=in_time)
            return SB3Policy(model, deterministic=self.greedy, rng_seed=seed), model.num_timesteps

        return learn

    def ours(self, seed: int) -> "Learn":
        """Prepare a training of our own controller, on the same hosts."""
        asked = EnvOptions(**self.env)
        setting = asked.setting()
        env = Lives(setting.fleet(asked.engine, self.hosts), setting.env, asked.prices)
        rng_seeds = APART * (seed + 1) + torch.arange(self.hosts, device=env.fleet.device)
        env.seed(torch.ones_like(env.fleet.everyone), rng_seeds)
        controller = Controller(ControllerConfig(hidden=128), rng_seed=seed).to(env.fleet.device)
        ppo = PPOConfig(
            lr=self.lr, epochs=self.epochs, minibatches=self.minibatches, entropy_coef=self.entropy, gamma=1.0
        )
        config = LearnConfig(
            updates=self.updates,
            ppo=ppo,
            reward=RewardConfig(gamma=1.0),
            collect=CollectConfig(horizon=self.horizon),
            rent=RentSchedule(start=self.price, end=self.price, updates=0),
            rng_seed=seed,
        )

        def learn(until: float) -> tuple[Policy, int]:
            decisions = 0
            for report in train_controller([env], controller, config):
                decisions += report.decisions
                if time.perf_counter() > until:
                    break
            return LearnedPolicy(controller, greedy=self.greedy), decisions

        return learn

    def judge(self, policies: Sequence[Policy]) -> Outcome:
        """Return what the trainings of a policy reach on the fresh hosts, (trainings, N)."""
        asked = EnvOptions(**self.env)
        setting = asked.setting()
        config = EnvConfig(budget=self.budget, rng_seed=int(Band.DEVELOPMENT))
        envs = [FleetEnv(setting.fleet(asked.engine, self.fresh), config) for _ in policies]
        found = [evaluate(env, policy, self.price) for env, policy in zip(envs, policies, strict=True)]
        return Outcome(*(torch.stack(values) for values in zip(*found, strict=True)))


def row(found: Outcome, random: torch.Tensor, never: torch.Tensor) -> str:
    """Return the cells of a policy: J, its differences to the others, score and growth."""
    apart = [paired_interval(values(found.objective), values(base)) for base in (random, never)]
    told = [f"{found.objective.mean():.3f}"]
    told += [str(interval) if interval.low < interval.high else "" for interval in apart]
    return " | ".join([*told, f"{found.score.mean():.3f}", f"{found.growth.mean():.2f}"])


def values(x: torch.Tensor) -> Values:
    return x.double().cpu().numpy()


def where(device: str) -> str:
    """Return the machine in words."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    tyro.cli(Race).run()
