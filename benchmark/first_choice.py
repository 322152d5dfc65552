"""What do controllers plant first, and does it depend on the size of the host? Prints for each of them the probability
of planting, and its likeliest slot and blueprint, for the true number of parameters and for others.

python benchmark/first_choice.py [mnist1d-8] [--images cifar10.npz --text tale.txt] [--sizes 500 2000] \
    [--runs runs/g1 ...]
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import tyro
from torch import Tensor

from esper.leyline.actions import Op
from esper.recipes.config import Band, FleetConfig
from esper.recipes.suite import chosen
from esper.simic import lives
from esper.tamiyo import Controller
from esper.tamiyo.controller_files import load_controller
from esper.tamiyo.features import View
from esper.tamiyo.network import Observation, describe, look
from esper.tolaria import Engine


@dataclass(frozen=True, kw_only=True)
class Question:
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Settings of the suite, as `esper exam --tasks` takes them."""
    images: Path | None = None
    text: Path | None = None
    sizes: tuple[int, ...] = (500,)
    """Numbers of parameters to show to the controllers, besides the true one."""
    runs: tuple[Path, ...] = tuple(sorted(Path(__file__).parent.glob("controllers/p?")))

    def run(self) -> None:
        for fleet in chosen(self.names, self.images, self.text):
            view = newborn(fleet)
            for size in (view.setting.parameters, *self.sizes):
                told = view._replace(setting=view.setting._replace(parameters=size))
                print(f"{fleet.task}, {fleet.host} {fleet.widths}, as if it had {size:,} parameters")
                for path in self.runs:
                    print(f"  {path.name}: {first(load_controller(path), told)}", flush=True)


def newborn(fleet: FleetConfig) -> View:
    env = replace(fleet, rates=(1.0,)).build_group(Engine(), 4, 1, Band.DEVELOPMENT)
    state = lives.newborn(env, rent=0.02)
    return state.view(env.setting, torch.full_like(state.rent, torch.inf))


@torch.no_grad()
def first(controller: Controller, view: View) -> str:
    """Mean probabilities over hosts."""
    table = describe(view.setting)
    features, legal, paid = look(view)
    hosts = len(legal)
    seen = Observation(features, legal, paid, table.expand(hosts, *table.shape))
    x, slots = controller.read(features, seen.exists)
    x, _ = controller.remember_one(x, controller.blank(hosts, x.device))
    plant = torch.full((hosts,), int(Op.GERMINATE))
    op = mean(controller.op_log_probs(x, legal)[0])[Op.GERMINATE]
    where = mean(controller.slot_log_probs(x, slots, legal, plant)[0])
    slot = int(where.argmax())
    what = mean(controller.rest_log_probs(x, slots, seen, plant, torch.full((hosts,), slot))[0][0])
    space, seed = view.setting.space, int(what.argmax())
    size = view.setting.seed_parameters[slot, seed]
    return (
        f"plants {op:.2f}, in {space.slots[slot]} {where[slot]:.2f}, "
        f"{space.blueprints[seed]} {what[seed]:.2f} ({size:.2f} hosts large)"
    )


def mean(log_probs: Tensor) -> Tensor:
    return log_probs.exp().mean(0)


if __name__ == "__main__":
    tyro.cli(Question).run()
