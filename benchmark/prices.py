"""Measure how much one controller grows at several prices of growth, on the same fresh hosts.

    python benchmark/prices.py runs/budgeted/run [--settings spirals-6 planted-4] [--prices 0 0.02 0.1]

At each price the learning rate is the best on other hosts. Prints mean growth, test score and J, and the paired
difference in growth to the price before, with 95 % intervals.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from esper.exam.config import ExamConfig
from esper.exam.hosts import Hosts
from esper.exam.statistics import Values, paired_interval
from esper.recipes.suite import BUDGETED, budgeted
from esper.simic.evaluation import Outcome, evaluate
from esper.tamiyo.controller_files import load_controller
from esper.tamiyo.policies import LearnedPolicy
from esper.tolaria import Engine


@dataclass(frozen=True, kw_only=True)
class Question:
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs, or controller files."""
    settings: tuple[str, ...] = tuple(BUDGETED)
    prices: tuple[float, ...] = (0.0, 0.02, 0.1)
    hosts: int = 30
    tuned_on: int = 8
    rates: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    """Multiples of the setting's learning rate."""
    device: str = "cpu"

    def run(self) -> None:
        print("| setting | price | growth | against the price before | score | J | learning rate |")
        print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
        config = ExamConfig(hosts=self.hosts, tuned_on=self.tuned_on, rates=self.rates, plans=0, thorough=False)
        engine = Engine(device=self.device)
        policies = [LearnedPolicy(load_controller(path).to(engine.place())) for path in self.runs]
        for name in self.settings:
            (fleet,) = budgeted(name)
            hosts, before = Hosts(fleet, engine, config), None
            grid = [rate * fleet.train.lr for rate in self.rates]
            for price in self.prices:
                tried = [evaluate(hosts.tuning(self.tuned_on, grid), policy, price).objective for policy in policies]
                lr = grid[int(sum(tried).view(-1, len(grid)).mean(0).argmax())]  # pyright: ignore
                found = [evaluate(hosts.scored(lr), policy, price) for policy in policies]
                growth = rows(found, "growth")
                apart = "" if before is None else str(paired_interval(growth, before))
                means = (rows(found, field).mean() for field in ("score", "objective"))
                told = [f"{price:g}", f"{growth.mean():.3f}", apart, *(f"{mean:.4f}" for mean in means), f"{lr:g}"]
                print(f"| {name} | {' | '.join(told)} |", flush=True)
                before = growth


def rows(found: list[Outcome], field: str) -> Values:
    """Return a field of the outcomes of all trainings, (trainings, N)."""
    return np.stack([getattr(outcome, field).double().cpu().numpy() for outcome in found])


if __name__ == "__main__":
    tyro.cli(Question).run()
