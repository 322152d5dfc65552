"""Hosts that need not grow: they have a grown host's seeds from the beginning, with fresh weights."""

import torch
from jaxtyping import Int
from torch import Tensor

from esper.kasmina.lifecycle import empty_slots
from esper.leyline.lifecycle import Stage
from esper.leyline.state import NO_BLUEPRINT, Signals, SlotState, Split
from esper.tolaria.env import EnvConfig, FleetEnv, Good
from esper.tolaria.fleet import Fleet


class StaticEnv(FleetEnv):
    """Every host begins with the seeds of a topology, at the alpha they had there, for good. Whoever falls sick is
    replaced by a bare host."""

    def __init__(self, fleet: Fleet, topology: SlotState, config: EnvConfig, test: Split | None = None) -> None:
        super().__init__(fleet, config, test)
        self.topology = topology

    def flops(self) -> Int[Tensor, " N"]:
        """Nobody asks what its seeds are worth."""
        return self.fleet.flops(counterfactuals=False)

    def reset(self) -> Signals:
        super().reset()
        fleet, then = self.fleet, self.topology
        empty = empty_slots(fleet.num_hosts, len(fleet.slots), fleet.device)
        held = (then.blueprint != NO_BLUEPRINT) & (then.alpha > 0)
        given = {name: getattr(then, name) for name in ("blueprint", "graft", "alpha")}
        given |= {"alpha_target": then.alpha, "alpha_start": then.alpha, "births": torch.ones_like(then.births)}
        given["stage"] = torch.full_like(then.stage, Stage.FOSSILIZED)
        fleet.tend(empty._replace(**{name: torch.where(held, x, getattr(empty, name)) for name, x in given.items()}))
        measured = fleet.evaluate()
        self.good = Good(fleet.state, fleet.vitals, measured)
        return self.first_signals(measured)
