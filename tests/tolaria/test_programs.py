"""Lives of hosts whose fleet replays captured programs are those of hosts whose fleet does not."""

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from esper.tolaria.padding import Roomy
from replays import Replays
from toys import SPECS, bits, random_legal, toy_task

STEPS = 9


def lived(kind: str, budget: float | None, programs: Replays | None) -> list[list[Tensor]]:
    """Copies of all that every step returns and leaves behind, over lives that end at different times."""
    fleet = Fleet(SPECS[kind], toy_task(kind, 72), range(6), TrainConfig(batch_size=16, steps=3))
    fleet.padding, fleet.programs = Roomy(6), programs
    env = FleetEnv(fleet, EnvConfig(episode=4, budget=budget, group=2, staggered=budget is None))
    generator, signals, seen = torch.Generator().manual_seed(0), env.reset(), []
    for _ in range(STEPS):
        step = env.step(random_legal(signals.legal, fleet.space.sizes, generator))
        told = tree_leaves((signals, step, env.state, fleet.state, fleet.vitals, fleet.spent, fleet.trunk.flat))
        seen.append([x.clone() for x in told if isinstance(x, Tensor)])
        signals = step.signals
    return seen


@pytest.mark.parametrize("budget", [None, 3.0])
@pytest.mark.parametrize("kind", SPECS)
def test_hosts_whose_fleet_replays_programs_live_as_all_others(kind, budget):
    """Signals of the step before are looked at again: no program may have overwritten them."""
    programs = Replays()
    plain, replayed = lived(kind, budget, None), lived(kind, budget, programs)
    for before, after in zip(plain, replayed, strict=True):
        assert len(before) == len(after) > 40
        for a, b in zip(before, after, strict=True):
            assert torch.equal(bits(a), bits(b)) if a.is_floating_point() else torch.equal(a, b)
    assert programs.hits > STEPS
