"""What does a controller gain and lose in a later stage of the recipe `general`? Trains it on some of the stage's
fleets, and prints J on fresh hosts of each of them, and of settings that it is never trained on: before the stage,
after the warm start, and after some updates.

python benchmark/unpack.py
python benchmark/continued_training.py [--fleets 10 11 12] [--updates 8] [--plans 0] [--run-dir runs/controllers/p4]
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from esper.recipes.catalogue import recipe as named
from esper.recipes.config import Band, FleetConfig, Recipe
from esper.recipes.warm_start import begin
from esper.simic.search import compare
from esper.simic.train import train_controller
from esper.tamiyo import Controller
from esper.tamiyo.controller_files import load_controller
from esper.tamiyo.policies import Heuristic, LearnedPolicy, Never
from esper.telemetry.folder import RunFolder
from esper.tolaria import Engine, EnvConfig, TrainConfig

PERCEPTRONS: tuple[tuple[str, dict[str, int | float | str], tuple[int, ...], float], ...] = (
    ("digits", {}, (8, 8), 2e-2),
    ("digits", {}, (6, 6, 6), 2e-2),
    ("digits", {}, (16, 16), 2e-2),
    ("glyphs", {"variants": 1, "side": 10}, (12, 12), 2e-2),
    ("glyphs", {"variants": 3, "side": 16}, (20, 20), 2e-2),
    ("mnist1d", {}, (24, 24), 1e-2),
    ("waves", {"noise": 0.1}, (4, 4), 2e-2),
)
"""Settings that no controller was trained on: an unknown task, or another size of host or task."""
UNFAMILIAR = tuple(
    FleetConfig(
        task=task,
        options=options,
        host="mlp",
        widths=widths,
        train=TrainConfig(lr=lr, batch_size=64),
        env=EnvConfig(episode=16),
    )
    for task, options, widths, lr in PERCEPTRONS
)


@dataclass(frozen=True, kw_only=True)
class Question:
    fleets: tuple[int, ...] = (10, 11, 12, 13, 17, 18, 19)
    """Indices of the stage's fleets; those with MLP hosts are quick."""
    stage: int = 1
    """Index of the stage of `general`."""
    run_dir: str = "runs/controllers/p1"
    """Run to continue from."""
    plans: int = 45
    """Random plans to search among in settings that it was not trained on; 0: no search and no cloning."""
    best: int = 3
    """Number of winners to clone; the number of recorded episodes stays the same."""
    updates: int = 8
    group: int = 48
    """Hosts of each fleet to train on."""
    hosts: int = 24
    """Hosts to compare on."""
    rng_seed: int = 11
    device: str = "cpu"

    def run(self) -> None:
        plain, engine = named("general").stages[self.stage], Engine.on(self.device)
        fleets = tuple(replace(plain.fleets[i], hosts=self.group) for i in self.fleets)
        lives = plain.warm_start.lives * plain.warm_start.best // self.best
        start = replace(plain.warm_start, run=self.run_dir, plans=self.plans, best=self.best, lives=lives)
        ppo = replace(plain.learn.ppo, anneal=self.updates, minibatches=16)
        learn = replace(plain.learn, updates=self.updates, ppo=ppo, rng_seed=self.rng_seed)
        known = Recipe.revived(RunFolder.open(Path(self.run_dir)).config()).learned_from
        recipe = replace(plain, fleets=fleets, known=known, warm_start=start, learn=learn, engine=engine)
        before = load_controller(self.run_dir).to(engine.place())
        begin(recipe, after := Controller(recipe.controller).to(engine.place()))
        cloned = deepcopy(after)
        for report in train_controller([fleet.build(engine) for fleet in fleets], after, learn):
            print(f"update {report.update}: J {report.objective:.4f}, KL {report.approx_kl:.3f}", flush=True)
        arms = {"never": Never(), "heuristic": Heuristic()}
        arms |= {"before": LearnedPolicy(before), "cloned": LearnedPolicy(cloned), "after": LearnedPolicy(after)}
        print("| setting | " + " | ".join(arms) + " | after − before |\n|---|" + "--:|" * (len(arms) + 1))
        for fleet in (*fleets, *UNFAMILIAR):
            self.compare(recipe.learn.rent.end, fleet, arms, engine)

    def compare(self, rent: float, fleet: FleetConfig, arms: dict, engine: Engine) -> None:
        env = fleet.build_group(engine, self.hosts, len(arms), Band.DEVELOPMENT)
        found = dict(zip(arms, compare(env, list(arms.values()), rent, self.rng_seed), strict=True))
        gain = found["after"].objective - found["before"].objective
        half = 1.96 * gain.std() / len(gain) ** 0.5
        told = " | ".join(f"{arm.objective.mean():.3f}" for arm in found.values())
        variant = f" ({fleet.variant})" if fleet.variant else ""
        name = f"{fleet.task}{variant}, {fleet.host} {'-'.join(map(str, fleet.widths))}"
        print(f"| {name} | {told} | {gain.mean():+.3f} ± {half:.3f} |", flush=True)


if __name__ == "__main__":
    tyro.cli(Question).run()
