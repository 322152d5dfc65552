"""Which seeds pay, and which do controllers plant? Prints for every slot and blueprint of a setting the size of the
seed (in hosts), how far a host with only this seed from the beginning ends above one that never grows, in score and in
J, and how many of them controllers plant in an episode; on development hosts and validation data.

python benchmark/what_pays.py digits-6 [--fleets 14 15] [--images cifar10.npz --text tale.txt] [--widths 4 8 16] \
    [--device cuda]
"""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro
from torch import Tensor

from esper.exam.holding import within_memory
from esper.leyline.actions import Head, Op
from esper.recipes.catalogue import general
from esper.recipes.config import Band, FleetConfig
from esper.recipes.suite import chosen
from esper.simic.search import compare, single_plans
from esper.tamiyo.controller_files import load_controller
from esper.tamiyo.policies import Heuristic, LearnedPolicy, Never
from esper.tolaria import Engine


@dataclass(frozen=True, kw_only=True)
class Question:
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Settings of the suite, as `esper exam --tasks` takes them."""
    fleets: tuple[int, ...] = ()
    """Of the recipe `general`, by number."""
    images: Path | None = None
    text: Path | None = None
    widths: tuple[int, ...] = ()
    """Widths of the hosts, instead of the settings' own."""
    hosts: int = 8
    runs: tuple[Path, ...] = tuple(sorted(Path(__file__).parent.glob("controllers/p?")))
    """Folders or files of controllers."""
    device: str = "cpu"

    def run(self) -> None:
        for fleet in (
            *(general().fleets[number] for number in self.fleets),
            *chosen(self.names, self.images, self.text),
        ):
            self.ask(replace(fleet, widths=self.widths or fleet.widths))

    def ask(self, fleet: FleetConfig) -> None:
        engine = within_memory(Engine.on(self.device))
        example = fleet.build_group(engine, 1, 1, Band.DEVELOPMENT).setting
        learned = [LearnedPolicy(load_controller(path).to(engine.place())) for path in self.runs]
        plans = single_plans(example, (0,))
        policies = [Never(), Heuristic(), *plans, *learned]
        planted: Counter[tuple[int, int]] = Counter()

        def on_step(actions: Tensor, step: object) -> None:
            ours = actions.view(-1, len(policies), actions.shape[1])[:, -len(learned) :].flatten(0, 1)
            births = ours[ours[:, Head.OP] == Op.GERMINATE][:, [Head.SLOT, Head.BLUEPRINT]]
            planted.update((slot, blueprint) for slot, blueprint in births.tolist())

        env = fleet.build_group(engine, self.hosts, len(policies), Band.DEVELOPMENT)
        found = compare(env, policies, general().learn.rent.end, on_step=on_step)
        never, space = found[0], example.space
        print(f"\n{fleet.task}, {fleet.host} {fleet.widths}, {example.parameters:,} parameters, {self.hosts} hosts")
        print("policy        score       J  growth")
        ours = [torch.stack(x).mean(0) for x in zip(*found[-len(learned) :], strict=True)]
        for who, outcome in (("never", never), ("heuristic", found[1]), ("learned", type(never)(*ours))):
            print(
                f"{who:<10}" + "".join(f"{x.mean():8.3f}" for x in (outcome.score, outcome.objective, outcome.growth))
            )
        print("slot  blueprint          size  score above never        J  (s.e.)  planted in a life")
        lives = self.hosts * len(learned)
        for plan, outcome in zip(plans, found[2:], strict=False):
            seed = plan.plan[0].action
            at = space.slots.index(seed["slot"]), space.blueprints.index(seed["blueprint"])
            score, j = outcome.score - never.score, outcome.objective - never.objective
            print(
                f"{seed['slot']:<6}{seed['blueprint']:<15}{example.seed_parameters[at]:8.2f}{score.mean():+19.3f}"
                f"{j.mean():+9.3f}   {j.std() / len(j) ** 0.5:.3f}{planted[at] / lives:15.2f}",
                flush=True,
            )


if __name__ == "__main__":
    tyro.cli(Question).run()
