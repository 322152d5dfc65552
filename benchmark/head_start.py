"""How much of what it was shown does a clone keep? Head starts of different lengths on fleets of the recipe general,
and what they earn on hosts of their own, beside their models.

python benchmark/head_start.py [--fleets 3 11 12 13] [--passes 60 200] [--device cuda]
"""

from dataclasses import dataclass, replace

import tyro

from esper.recipes.catalogue import general
from esper.recipes.config import Band
from esper.recipes.warm_start import imitate, show
from esper.simic.search import compare
from esper.tamiyo import Controller
from esper.tamiyo.policies import Heuristic, LearnedPolicy, Never
from esper.tolaria import Engine


@dataclass(frozen=True, kw_only=True)
class Question:
    fleets: tuple[int, ...] = (3, 11, 12, 13)
    """Places in the recipe's list."""
    passes: tuple[int, ...] = (60, 200)
    """Over what was shown."""
    hosts: int = 24
    rng_seed: int = 1
    device: str = "cpu"

    def run(self) -> None:
        engine = Engine.on(self.device)
        plain = general()
        fleets = tuple(plain.fleets[i] for i in self.fleets)
        recipe = replace(plain, fleets=fleets, engine=engine, learn=replace(plain.learn, rng_seed=self.rng_seed))
        shown = [show(recipe, fleet, self.controller(engine)) for fleet in fleets]
        clones = []
        for passes in self.passes:
            clones.append(self.controller(engine))
            last = imitate(replace(recipe, warm_start=replace(recipe.warm_start, epochs=passes)), clones[-1], shown)
            known = {name: round(p, 2) for name, p in last.likelihood.items() if p is not None}
            print(f"{passes} passes: held-out loss {last.held_out_loss:.2f}, probabilities {known}", flush=True)
        for fleet, (best, *_) in zip(fleets, shown, strict=True):
            arms = [Never(), Heuristic(), *best, *map(LearnedPolicy, clones)]
            env = fleet.build_group(engine, self.hosts, len(arms), Band.DEVELOPMENT)
            names = ["never", "heuristic", *["shown"] * len(best), *(f"{passes} passes" for passes in self.passes)]
            found = compare(env, arms, recipe.learn.rent.end, self.rng_seed)
            told = (f"{name} {arm.objective.mean():.3f}" for name, arm in zip(names, found, strict=True))
            print(f"{fleet.task} {fleet.options}, {fleet.host} {fleet.widths}: {', '.join(told)}", flush=True)

    def controller(self, engine: Engine) -> Controller:
        return Controller(general().controller, self.rng_seed).to(engine.place())


if __name__ == "__main__":
    tyro.cli(Question).run()
