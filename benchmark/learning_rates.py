"""Which learning rate suits hosts that never grow, and which the heuristic? The settings of exams stand near the first.

python benchmark/learning_rates.py [all | learned | mnist1d digits-4 ...] [--text tale.txt] [--device cuda]
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from esper.exam.config import ExamConfig
from esper.exam.sitting import Sitting
from esper.recipes.catalogue import general
from esper.recipes.config import FleetConfig
from esper.recipes.suite import images, settings, text
from esper.tamiyo.policies import Heuristic, Never
from esper.tolaria import Engine


@dataclass(frozen=True, kw_only=True)
class Question:
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Settings of the suite, as `esper exam --tasks` takes them; `learned` for what the recipe general learns from."""
    images: Path | None = None
    text: Path | None = None
    rates: tuple[float, ...] = ExamConfig().rates
    hosts: int = 8
    device: str = "cpu"

    def fleets(self) -> list[FleetConfig]:
        own = [build(path) for build, path in ((images, self.images), (text, self.text)) if path]
        named = (general().fleets if name == "learned" else settings(name) for name in self.names)
        return [*(fleet for some in named for fleet in some), *own]

    def run(self) -> None:
        engine = Engine.on(self.device)
        recipe, config = replace(general(), engine=engine), ExamConfig(rates=self.rates)
        for fleet in self.fleets():
            tuner = Sitting(recipe, fleet, config).tuner
            print(f"{fleet.task} {fleet.options}, {fleet.host} {fleet.widths}, {fleet.env.episode} epochs:")
            tried = tuner.tried([Never(), Heuristic()], self.hosts)
            for policy, found in zip(("never", "heuristic"), tried, strict=True):
                by_rate = (f"{lr:.3g} {j:.3f}" for lr, j in zip(tuner.grid, found, strict=True))
                print(f"  {policy:9}  {'   '.join(by_rate)}", flush=True)


if __name__ == "__main__":
    tyro.cli(Question).run()
