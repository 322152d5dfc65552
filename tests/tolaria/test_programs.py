"""Lives of hosts whose fleet replays captured programs are those of hosts whose fleet does not."""

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv, GovernorConfig, TrainConfig
from esper.tolaria.capture import Programs
from esper.tolaria.padding import Roomy
from replays import OnOneDevice, Replayed, Replays
from toys import SPECS, bits, random_legal, toy_task

STEPS = 9


def growing(kind: str, budget: float | None) -> FleetEnv:
    fleet = Fleet(SPECS[kind], toy_task(kind, 72), range(6), TrainConfig(batch_size=16, steps=3))
    return FleetEnv(fleet, EnvConfig(episode=4, budget=budget, group=2, staggered=budget is None))


def lived(kind: str, budget: float | None, programs: Replays | None) -> list[list[Tensor]]:
    """Copies of all that every step returns and leaves behind, over lives that end at different times."""
    env = growing(kind, budget)
    fleet = env.fleet
    fleet.padding, fleet.programs = Roomy(6), programs
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


class Watched(Replays):
    """Watches functions of tensors for what no program may do, before it replays them."""

    def find(self, name, function, inputs, warm_up, kinds) -> Replayed | None:
        if not kinds:
            with OnOneDevice("cpu"):
                function(*inputs)
        return super().find(name, function, inputs, warm_up, kinds)


@pytest.mark.parametrize("budget", [None, 3.0])
@pytest.mark.parametrize("kind", SPECS)
def test_functions_that_are_replayed_read_no_numbers_and_bring_none_to_the_device(kind, budget):
    lived(kind, budget, None)  # tables are made once
    watched = Watched()
    lived(kind, budget, watched)
    assert {name for name, *_ in watched.recorded} >= {"begin", "end of an epoch", "first signals"}


def test_envs_with_other_thresholds_on_one_fleet_keep_their_own():
    """Captured programs belong to the fleet, thresholds to the env."""
    strict, ends = GovernorConfig(collapse=0.999, lead=0.001, divergence=1.000001), []
    for programs in (None, Replays()):
        env = growing("mlp", None)
        env.fleet.programs = programs
        other = FleetEnv(env.fleet, EnvConfig(episode=4, group=2, governor=strict))
        waits = torch.tensor([env.fleet.space.action()] * 6)
        for each in (env, other):
            each.reset()
            ends.append(sum(int(each.step(waits).terminated.sum()) for _ in range(3)))
    assert ends[:2] == ends[2:]
    assert ends[0] < ends[1]


class Checked(Programs):
    """Captured programs, of which those of functions of tensors are compared with the functions."""

    compared = 0

    def find(self, name, function, inputs, warm_up, kinds):
        program = super().find(name, function, inputs, warm_up, kinds)
        if program is not None and not kinds:
            expected, found = tree_leaves(warm_up()), tree_leaves(program(inputs))
            for a, b in zip(expected, found, strict=True):
                if isinstance(a, Tensor):
                    assert torch.equal(bits(a), bits(b)) if a.is_floating_point() else torch.equal(a, b)
            self.compared += 1
        return program


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("budget", [None, 3.0])
@pytest.mark.parametrize("kind", SPECS)
def test_a_gpu_replays_what_the_functions_compute(kind, budget):
    """Over lives that end at different times."""
    engine, config = Engine(device="cuda"), TrainConfig(batch_size=16, steps=3)
    fleet = Fleet(SPECS[kind], toy_task(kind, 72), range(6), config, engine=engine)
    fleet.programs = programs = Checked()
    env = FleetEnv(fleet, EnvConfig(episode=4, budget=budget, group=2, staggered=budget is None))
    generator, signals = torch.Generator().manual_seed(0), env.reset()
    for _ in range(STEPS):
        actions = random_legal(signals.legal.cpu(), fleet.space.sizes, generator)
        signals = env.step(actions.cuda()).signals
    assert not programs.failed
    assert programs.compared > 2 * STEPS
