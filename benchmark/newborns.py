"""Should newborn seeds learn faster than their hosts? Mean J of the heuristic with several boosts of a seed's learning
rate in its first three epochs, at each rate of a grid, on the same hosts.

python benchmark/newborns.py [mnist1d digits-4 ...] [--boosts 1 2 4] [--device cuda]
"""

from dataclasses import dataclass, replace
from typing import Annotated

import tyro

from esper.exam.config import ExamConfig
from esper.exam.sitting import Sitting
from esper.recipes.catalogue import general
from esper.recipes.suite import settings
from esper.tamiyo.policies import Heuristic
from esper.tolaria import Engine


@dataclass(frozen=True, kw_only=True)
class Question:
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ("mnist1d-8", "digits-4")
    """Settings of the suite, as `esper exam --tasks` takes them."""
    boosts: tuple[float, ...] = (1, 2, 4)
    rates: tuple[float, ...] = (0.25, 0.5, 1, 2)
    hosts: int = 16
    device: str = "cpu"

    def run(self) -> None:
        recipe = replace(general(), engine=Engine.on(self.device))
        config = ExamConfig(rates=self.rates)
        for fleet in (fleet for name in self.names for fleet in settings(name)):
            print(f"{fleet.task}, {fleet.host} {fleet.widths}:")
            for boost in self.boosts:
                boosted = replace(fleet, train=replace(fleet.train, newborn_boost=boost))
                tuner = Sitting(recipe, boosted, config).tuner
                (found,) = tuner.tried([Heuristic()], self.hosts)
                by_rate = (f"{lr:.3g} {j:.3f}" for lr, j in zip(tuner.grid, found, strict=True))
                print(f"  boost {boost:g}:  {'   '.join(by_rate)}", flush=True)


if __name__ == "__main__":
    tyro.cli(Question).run()
