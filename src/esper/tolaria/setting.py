"""Tell a controller what all hosts of one spec have in common."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from esper.kasmina.blueprints import blueprint
from esper.kasmina.cost import CostTable, PassCost
from esper.kasmina.host import num_parameters
from esper.kasmina.slots import build_seed
from esper.leyline.actions import ActionSpace, Graft
from esper.leyline.specs import SlotSpec, TaskSpec
from esper.leyline.state import NO_BLUEPRINT, Setting, SlotState

TRAIN = PassCost._fields.index("train")
SeedTable = Int[Tensor, "S K G"]


def tabulate(slots: Sequence[SlotSpec], space: ActionSpace, value: Callable[[SlotSpec, str, Graft], int]) -> SeedTable:
    """Return a value of every possible seed, by slot, blueprint and graft."""
    return torch.tensor(
        [[[value(slot, name, graft) for graft in Graft] for name in space.blueprints] for slot in slots]
    )


def seed_sizes(slots: Sequence[SlotSpec], space: ActionSpace) -> SeedTable:
    """Return the number of parameters of every possible seed."""
    return tabulate(slots, space, lambda slot, name, graft: num_parameters(build_seed(slot, name, graft)))


def parameters_of_seeds(sizes: SeedTable, state: SlotState) -> Int[Tensor, "N S"]:
    """Return the number of parameters of the seed in each slot; 0 where there is none."""
    slot = torch.arange(len(sizes), device=sizes.device)
    return sizes[slot, state.blueprint.clamp(min=0), state.graft].where(state.blueprint != NO_BLUEPRINT, 0)


def make_setting(
    task: TaskSpec,
    slots: Sequence[SlotSpec],
    space: ActionSpace,
    sizes: SeedTable,
    bare: int,
    episode: int,
    costs: CostTable | None = None,
) -> Setting:
    """Return the setting of hosts with `bare` parameters before growth, for episodes of `episode` decisions.

    `sizes` are the parameters of every possible seed; `costs` their FLOPs, if episodes have a budget.
    """
    stream = slots[0].stream
    return Setting(
        space=space,
        episode=episode,
        chance=task.objective.chance(task.outputs),
        guess=task.objective.guess(task.outputs),
        parameters=bare,
        families=tuple(blueprint(name, stream).spec.family for name in space.blueprints),
        seed_parameters=sizes[:, :, Graft.ADD] / bare,
        seed_costs=None if costs is None else costs.seeds[TRAIN, :, :, Graft.ADD] / costs.host.train,
    )
