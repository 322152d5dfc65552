"""Fleets whose seeds are put in place by hand, without a life that leads there."""

from collections.abc import Mapping
from typing import NamedTuple

from esper.kasmina.lifecycle import empty_slots
from esper.leyline.actions import Graft
from esper.leyline.lifecycle import Stage
from esper.leyline.state import SlotState
from esper.tolaria import Fleet, TrainConfig
from toys import SPECS, toy_task


class Sown(NamedTuple):
    """A seed: in TRAINING if its alpha is 0, else in HOLDING."""

    blueprint: str
    alpha: float = 0.0
    target: float = 1.0
    graft: Graft = Graft.ADD
    births: int = 1


def small_fleet(num_hosts: int, kind: str = "mlp", examples: int = 64, **options) -> Fleet:
    config = options.pop("config", TrainConfig(batch_size=32))
    return Fleet(SPECS[kind], toy_task(kind, examples, 40), range(num_hosts), config, **options)


def state_of(fleet: Fleet, seeds: Mapping[tuple[int, int], Sown]) -> SlotState:
    """The slots of a fleet with these seeds by host and slot, and no others."""
    state = empty_slots(fleet.num_hosts, len(fleet.slots))
    for at, seed in seeds.items():
        state.stage[at] = Stage.HOLDING if seed.alpha else Stage.TRAINING
        state.blueprint[at] = fleet.space.blueprints.index(seed.blueprint)
        state.alpha[at], state.alpha_target[at] = seed.alpha, seed.target
        state.graft[at], state.births[at] = int(seed.graft), seed.births
    return state


def sow(fleet: Fleet, seeds: Mapping[tuple[int, int], Sown]) -> Fleet:
    """Give a fleet newborn seeds, by host and slot."""
    fleet.tend(state_of(fleet, seeds))
    return fleet
