"""Should PPO stay near the clone it begins as? One head start on some fleets of the recipe general, then the same
updates from it at several strengths of the anchor, and what comes out on fresh hosts, paired.

python benchmark/anchor.py [--fleets 3 11 12 13] [--coefs 0 0.1 1] [--updates 6] [--device cuda]
"""

from copy import deepcopy
from dataclasses import dataclass, replace

import torch
import tyro

from esper.recipes.catalogue import general
from esper.recipes.config import Band
from esper.recipes.start import begin
from esper.simic.search import compare
from esper.simic.train import train
from esper.tamiyo import Controller
from esper.tamiyo.policies import Learned
from esper.tolaria import Engine


@dataclass(frozen=True, kw_only=True)
class Question:
    fleets: tuple[int, ...] = (3, 11, 12, 13)
    """Places in the recipe's list."""
    coefs: tuple[float, ...] = (0, 0.1, 1)
    updates: int = 6
    hosts: int = 32
    rng_seed: int = 1
    device: str = "cpu"

    def run(self) -> None:
        plain, engine = general(), Engine.on(self.device)
        learn = replace(plain.learn, updates=self.updates, rng_seed=self.rng_seed)
        fleets = tuple(plain.fleets[i] for i in self.fleets)
        recipe = replace(plain, fleets=fleets, engine=engine, learn=learn)
        clone = Controller(recipe.controller, self.rng_seed).to(engine.place())
        begin(recipe, clone)
        arms = [clone]
        for coef in self.coefs:
            arms.append(deepcopy(clone))
            ppo = replace(learn.ppo, anchor_coef=coef, anneal=self.updates, minibatches=8)
            envs = [fleet.build(engine) for fleet in fleets]
            anchor = clone if coef else None
            reports = train(envs, arms[-1], replace(learn, ppo=ppo), anchor)
            print(f"anchor {coef:g}: J {[round(report.objective or 0, 3) for report in reports]}", flush=True)
        gains = []
        for fleet in fleets:
            env = fleet.build_group(engine, self.hosts, len(arms), Band.DEVELOPMENT)
            found = [arm.objective for arm in compare(env, list(map(Learned, arms)), recipe.learn.rent.end)]
            gains.append(torch.stack(found[1:]) - found[0])
            told = (f"{j.mean():.3f}" for j in found)
            print(f"{fleet.task} {fleet.options}, {fleet.host} {fleet.widths}: clone, then anchored {', '.join(told)}")
        for coef, gain in zip(self.coefs, torch.cat(gains, 1), strict=True):
            half = 1.96 * gain.std() / len(gain) ** 0.5
            print(f"anchor {coef:g}: {gain.mean():+.4f} ± {half:.4f} above the clone", flush=True)


if __name__ == "__main__":
    tyro.cli(Question).run()
