"""Measure what silent lessons and measurements of contributions are worth at equal compute: J of the same policies on
hosts that spend more or less of their budget on them.

    python benchmark/cheap_lives.py [--settings spirals-6 planted-4 waves-8 phrases-8] [--hosts 30]

Each row is one `LifecycleConfig`, with the learning rate that was best for it on other hosts. Prints the mean test J,
and its paired difference to the first row, with a 95 % interval.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import tyro

from esper.exam.config import ExamConfig
from esper.exam.hosts import Hosts
from esper.exam.statistics import Values, paired_interval
from esper.kasmina import LifecycleConfig
from esper.leyline.state import Setting
from esper.recipes.config import FleetConfig
from esper.recipes.suite import budgeted
from esper.simic.evaluation import evaluate
from esper.tamiyo.policies import FixedPlan, Heuristic, PlanStep, Policy
from esper.tolaria import Engine


def life(training: int, lesson_every: int = 1, measure_every: int = 4) -> LifecycleConfig:
    """Return a life with some epochs of silent training, lessons at every n-th step, measured every n-th epoch."""
    return LifecycleConfig(
        min_training=min(training, 1), training=training, lesson_every=lesson_every, measure_every=measure_every
    )


LESSONS = {
    "no lessons": life(0),
    "1 epoch, every 4th step": life(1, 4),
    "1 epoch, every 2nd step": life(1, 2),
    "1 epoch, every step": life(1),
    "3 epochs, every 4th step": life(3, 4),
    "3 epochs, every 2nd step": life(3, 2),
    "3 epochs, every step": life(3),
}
"""Ways to teach, for a policy that measures nothing."""
MEASURES = {f"measured every {n} epochs": life(1, 2, n) for n in (1, 2, 4, 8)}
"""Ways to measure, for a policy that keeps what contributes."""


def planting(setting: Setting) -> Policy:
    """Return a plan that fills all slots with the largest seed, one at a time, and keeps them."""
    largest = setting.space.blueprints[int(setting.seed_parameters.sum(0).argmax())]
    steps = [
        PlanStep(n * setting.episode // 8, {"op": "GERMINATE", "slot": slot, "blueprint": largest})
        for n, slot in enumerate(setting.space.slots[:3])
    ]
    return FixedPlan(steps, name="largest seeds")


@dataclass(frozen=True, kw_only=True)
class Question:
    settings: tuple[str, ...] = ("spirals-6", "planted-4", "waves-8", "phrases-8")
    """Settings on a budget, by name."""
    hosts: int = 30
    tuned_on: int = 8
    rates: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """Multiples of the setting's learning rate."""
    price: float = 0.02
    device: str = "cpu"

    def run(self) -> None:
        for name in self.settings:
            (fleet,) = budgeted(name)
            self.compare(name, fleet, LESSONS, planting)
            self.compare(name, fleet, MEASURES, lambda setting: Heuristic())

    def compare(
        self, name: str, fleet: FleetConfig, ways: dict[str, LifecycleConfig], make: Callable[[Setting], Policy]
    ) -> None:
        first: Values | None = None
        for way, lifecycle in ways.items():
            policy, found, rate = self.worth(replace(fleet, lifecycle=lifecycle), make)
            first = found if first is None else first
            apart = paired_interval(found, first)
            print(
                f"| {name} | {policy} | {way} | {found.mean():.4f} | {apart.mean:+.4f} ({apart.low:+.4f} to"
                f" {apart.high:+.4f}) | {rate:g} |",
                flush=True,
            )

    def worth(self, fleet: FleetConfig, make: Callable[[Setting], Policy]) -> tuple[str, Values, float]:
        """Return the name of the policy, J of every host, and the learning rate."""
        config = ExamConfig(hosts=self.hosts, tuned_on=self.tuned_on, rates=self.rates, plans=0, thorough=False)
        hosts = Hosts(fleet, Engine(device=self.device), config)
        policy, grid = make(hosts.example.setting), [rate * fleet.train.lr for rate in self.rates]
        tried = evaluate(hosts.tuning(self.tuned_on, grid), policy, self.price).objective
        best = int(tried.view(-1, len(grid)).mean(0).argmax())
        outcome = evaluate(hosts.scored(grid[best]), policy, self.price)
        return policy.name, outcome.objective.double().cpu().numpy().astype(np.float64), grid[best]


if __name__ == "__main__":
    print("| setting | policy | way | J | against the first | learning rate |\n|---|---|---|--:|--:|--:|")
    tyro.cli(Question).run()
