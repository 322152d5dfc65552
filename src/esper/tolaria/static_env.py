"""Train grown topologies from scratch: hosts that have all their seeds from the first epoch."""

import torch

from esper.kasmina.lifecycle import empty_slots
from esper.leyline.lifecycle import Stage
from esper.leyline.state import NO_BLUEPRINT, Signals, SlotState, Split
from esper.tolaria.env import EnvConfig, FleetEnv, Good
from esper.tolaria.fleet import Fleet


class StaticEnv(FleetEnv):
    """An environment whose hosts start with the seeds of a given topology, fossilized, with fresh weights.

    Seeds keep the alpha they had in the topology. A failed host is replaced by a bare one. Measuring
    contributions is not charged: no decision depends on them.
    """

    charges_measuring = False

    def __init__(self, fleet: Fleet, topology: SlotState, config: EnvConfig, test: Split | None = None) -> None:
        super().__init__(fleet, config, test)
        self.topology = topology

    def reset(self) -> Signals:
        """Replace all hosts by fresh ones with the topology's seeds, and return their first signals."""
        super().reset()
        fleet, topology = self.fleet, self.topology
        empty = empty_slots(fleet.num_hosts, len(fleet.slots), fleet.device)
        held = (topology.blueprint != NO_BLUEPRINT) & (topology.alpha > 0)
        given = {name: getattr(topology, name) for name in ("blueprint", "graft", "alpha")}
        given |= {
            "alpha_target": topology.alpha,
            "alpha_start": topology.alpha,
            "births": torch.ones_like(topology.births),
        }
        given["stage"] = torch.full_like(topology.stage, Stage.FOSSILIZED)
        fleet.tend(empty._replace(**{name: torch.where(held, x, getattr(empty, name)) for name, x in given.items()}))
        measured = fleet.evaluate()
        self.state = self.state._replace(good=Good(fleet.state, fleet.vitals, measured))
        return self.first_signals(measured)
