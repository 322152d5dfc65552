"""How close does a clone come to the policies it was cloned from? Warm starts of different lengths on fleets of the
first stage of `general`, and the J of clones and originals on fresh hosts.

python benchmark/warm_start.py [--fleets 3 11 12 13] [--passes 60 200] [--device cuda]
"""

from dataclasses import dataclass, replace

import tyro

from esper.recipes.catalogue import general
from esper.recipes.config import Band, Places
from esper.recipes.warm_start import imitate, show
from esper.simic.search import compare
from esper.tamiyo import Controller
from esper.tamiyo.policies import Heuristic, LearnedPolicy, Never
from esper.tolaria import Engine


@dataclass(frozen=True, kw_only=True)
class Question:
    fleets: tuple[int, ...] = (3, 11, 12, 13)
    """Indices of the stage's fleets."""
    passes: tuple[int, ...] = (60, 200)
    """Passes over the recorded episodes."""
    hosts: int = 24
    rng_seed: int = 1
    device: str = "cpu"

    def run(self) -> None:
        engine = Engine.on(self.device)
        plain = general().stages[0]
        fleets = tuple(plain.fleets[i] for i in self.fleets)
        recipe = replace(plain, fleets=fleets, engine=engine, learn=replace(plain.learn, rng_seed=self.rng_seed))
        shown = [show(recipe, Places(fleet, engine), self.controller(engine)) for fleet in fleets]
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
        return Controller(general().stages[0].controller, self.rng_seed).to(engine.place())


if __name__ == "__main__":
    tyro.cli(Question).run()
