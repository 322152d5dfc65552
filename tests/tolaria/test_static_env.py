"""Grown topologies, trained from scratch."""

import torch

from esper.leyline.actions import Graft
from esper.leyline.lifecycle import Stage
from esper.tolaria import EnvConfig
from esper.tolaria.static_env import StaticEnv
from planted_fleets import Sown, small_fleet, state_of

WAIT = torch.zeros(3, 8, dtype=torch.long)


def test_hosts_begin_with_the_seeds_that_were_heard():
    """At the alpha they had, fossilized, with fresh weights; silent seeds and counterfactuals are left out.

    A host costs 272 FLOPs an example, forward, and 720 to train; a low_rank seed 64, with a gate 16 more.
    """
    fleet = small_fleet(3)
    heard = {(0, 0): Sown("low_rank", 0.5, 0.7, births=3), (2, 1): Sown("low_rank", 1.0, graft=Graft.GATE)}
    silent = {(0, 1): Sown("mlp"), (2, 0): Sown("mlp", births=2)}
    grown = StaticEnv(fleet, state_of(fleet, heard | silent), EnvConfig(episode=9))
    first = grown.reset().slots
    step = grown.step(WAIT)
    low_rank = fleet.space.blueprints.index("low_rank")
    for slots in (first, step.signals.slots):
        assert slots.blueprint.tolist() == [[low_rank, -1], [-1, -1], [-1, low_rank]]
        assert slots.alpha.tolist() == [[0.5, 0.0], [0.0, 0.0], [0.0, 1.0]]
        fossilized, dormant = int(Stage.FOSSILIZED), int(Stage.DORMANT)
        assert slots.stage.tolist() == [[fossilized, dormant], [dormant, dormant], [dormant, fossilized]]
        assert slots.graft[0, 0] == Graft.ADD
        assert slots.graft[2, 1] == Graft.GATE
    assert step.signals.flops.tolist() == [64 * (720 + 3 * seed) + 40 * (272 + seed) for seed in (64, 0, 64 + 16)]

    fleet.trunk.flat[0] = torch.nan
    step = grown.step(WAIT)
    assert step.terminated.tolist() == [True, False, False]
    assert step.signals.slots.blueprint.tolist() == [[-1, -1], [-1, -1], [-1, low_rank]], "a bare host takes its place"
