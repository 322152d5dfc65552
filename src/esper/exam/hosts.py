"""Hosts of an exam, by purpose: those that are scored serve no choice, and no choice has hosts of another."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch

from esper.exam.config import ExamConfig
from esper.leyline.state import Split
from esper.recipes.config import Band, FleetConfig, Places
from esper.tamiyo.policies import Policy
from esper.tolaria import Engine, FleetEnv

AROUND = (0.5, 1.0, 2.0)
"""Learning rates that plans are chosen at, as multiples of the recipe's."""


class Hosts:
    """Envs with hosts of one setting; all of one size share a fleet, so one must have ended before the next begins."""

    def __init__(self, fleet: FleetConfig, engine: Engine, config: ExamConfig) -> None:
        self.fleet, self.engine, self.config = fleet, engine, config
        self.places = Places(fleet, engine)
        self.example = self.env(1, 1, Band.PLANS, [fleet.train.lr])
        """An env with one host."""
        self.at_once = 2048 if self.example.fleet.device.type == "cuda" else 512
        """Most hosts to train at once when many policies are tried."""

    @staticmethod
    def charged(env: FleetEnv, policies: Sequence[Policy]) -> FleetEnv:
        """Let only hosts whose policy looks at contributions pay for measuring them; host n follows policy n modulo
        their number."""
        reads = [getattr(policy, "reads_contributions", True) for policy in policies]
        hosts = env.fleet.num_hosts // len(reads)
        env.charges_measuring = torch.tensor(reads, device=env.fleet.device).repeat(hosts)
        return env

    @property
    def name(self) -> str:
        """The task and the kind of host."""
        return f"{self.example.fleet.task.name}, {self.example.fleet.spec.label}"

    def env(
        self, hosts: int, group: int, band: int, lr: Sequence[float], test: bool = False, episode: int | None = None
    ) -> FleetEnv:
        """Build an env with hosts of a band, where the n-th host of each group has the n-th learning rate."""
        env = self.places.env(hosts, group, band, self.test_data if test else None, episode)
        env.fleet.learn_at(torch.tensor(list(lr), dtype=torch.float64, device=env.fleet.device).repeat(hosts))
        return env

    @cached_property
    def test_data(self) -> Split:
        return self.fleet.test_data()

    def scored(self, lr: float, episode: int | None = None) -> FleetEnv:
        """Build the env that arms are scored in; its hosts are the same every time."""
        return self.env(self.config.hosts, 1, self.scored_band, [lr], self.config.final, episode)

    @property
    def scored_band(self) -> int:
        """Where the hosts that count are drawn from."""
        return Band.FINAL if self.config.final else Band.DEVELOPMENT

    def forked(self, lr: float, copies: int) -> FleetEnv:
        """Build an env with several copies of each host of `scored`, side by side."""
        return self.env(self.config.hosts, copies, self.scored_band, [lr] * copies, self.config.final)

    def others(self, lr: float, training: int) -> FleetEnv:
        """Build an env with as many other hosts, which only one training meets."""
        return self.env(self.config.hosts, 1, Band.OTHERS + training, [lr], test=True)

    def tuning(self, hosts: int, rates: Sequence[float], training: int = 0, episode: int | None = None) -> FleetEnv:
        """Build an env to choose learning rates in: `hosts` groups with one host for each rate."""
        return self.env(hosts, len(rates), Band.TUNE + training, rates, episode=episode)

    def tournament(self, hosts: int, group: int, round: int) -> FleetEnv:
        """Build the env of one round of a search for plans, at several learning rates."""
        env = self.around.env(hosts, group, Band.PLANS + round)
        env.charges_measuring = False  # plans do not look at contributions
        return env

    @cached_property
    def around(self) -> Places:
        fleet = replace(self.fleet, rates=AROUND, hosts=len(AROUND) * self.fleet.env.group)
        return Places(fleet, self.engine)
