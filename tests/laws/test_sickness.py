"""Law 7: a sick host harms no one; the others are bit-identical, also while it leaves its bucket."""

import pytest
import torch

from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from esper.tolaria.governor import restore, snapshot
from toys import SPECS, random_legal, rows_of, toy_task

SICK = 2


def poison_weights(fleet: Fleet) -> None:
    fleet.trunk.flat[SICK] = torch.nan


def poison_learning_rate(fleet: Fleet) -> None:
    fleet.lr[SICK] = 1e30


def poison_moments(fleet: Fleet) -> None:
    fleet.trunk.tensors["first"][SICK] = torch.inf


def poison_seeds(fleet: Fleet) -> None:
    """Silent or not: huge weights in every seed of the host."""
    for bucket in fleet.buckets.values():
        for row in (bucket.hosts == SICK).nonzero()[0]:
            bucket.stack.flat[row] = 1e30


POISONS = (poison_weights, poison_learning_rate, poison_moments, poison_seeds)


def fleet_with_seeds(kind: str) -> tuple[Fleet, torch.Generator]:
    """Six hosts of mixed stages; the one to fall sick shares a bucket with another."""
    fleet = Fleet(SPECS[kind], toy_task(kind, 64), range(6), TrainConfig(batch_size=32))
    plant = fleet.space.action("GERMINATE", slot="s0", blueprint="norm")
    fleet.decide(torch.tensor([plant, fleet.space.action(), plant, plant, fleet.space.action(), plant]))
    generator = torch.Generator().manual_seed(9)
    for _ in range(4):
        actions = random_legal(fleet.legal(), fleet.space.sizes, generator)
        actions[SICK] = 0
        fleet.decide(actions)
    return fleet, generator


def assert_others_equal(a: Fleet, b: Fleet) -> None:
    for n in set(range(6)) - {SICK}:
        ours, theirs = rows_of(a, n), rows_of(b, n)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("kind", SPECS)
def test_a_sick_host_harms_no_one_and_comes_back(kind, poison):
    well, generator = fleet_with_seeds(kind)
    ill, _ = fleet_with_seeds(kind)
    good = snapshot(ill, ill.evaluate())
    before = {name: p.clone() for name, p in rows_of(ill, SICK).items()}
    poison(ill)
    for _ in range(3):
        actions = random_legal(well.legal(), well.space.sizes, generator)
        actions[SICK] = 0
        well.decide(actions)
        ill.decide(actions)
        assert_others_equal(well, ill)
    if poison is not poison_seeds:
        assert ill.vitals.sane.tolist() == [n != SICK for n in range(6)]
    sick = torch.arange(6) == SICK
    restore(ill, sick, good)
    ill.lr.fill_(ill.config.lr)
    assert_others_equal(well, ill)
    restored = rows_of(ill, SICK)
    assert restored.keys() == before.keys()
    assert all(torch.equal(restored[name], before[name]) for name in before)
    for now, then in zip(ill.state, good.state, strict=True):
        assert torch.equal(now[SICK], then[SICK])
    for name, tensor in ill.trunk.tensors.items():
        assert torch.equal(tensor[SICK], good.trunk[name][SICK])
    for kind_of_seed, (hosts, rows) in good.buckets.items():
        for old in (hosts == SICK).nonzero()[0]:
            (now,) = (ill.buckets[kind_of_seed].hosts == SICK).nonzero()[0]
            for name, tensor in ill.buckets[kind_of_seed].stack.tensors.items():
                assert torch.equal(tensor[now], rows[name][old])
    actions = random_legal(well.legal(), well.space.sizes, generator)
    actions[SICK] = 0
    well.decide(actions)
    ill.decide(actions)
    assert_others_equal(well, ill)
    assert ill.vitals.sane.all()


def env(kind: str = "mlp", **options) -> FleetEnv:
    fleet = Fleet(SPECS[kind], toy_task(kind, 64), range(6), TrainConfig(batch_size=32))
    return FleetEnv(fleet, EnvConfig(**options))


def test_sickness_ends_a_life_and_is_paid_for_once():
    world = env(episode=8, penalty=0.25)
    wait = torch.zeros(6, 8, dtype=torch.long)
    world.reset()
    before = world.step(wait)
    world.fleet.trunk.flat[SICK] = torch.nan
    step = world.step(wait)
    assert step.terminated.tolist() == [n == SICK for n in range(6)]
    assert not step.truncated.any()
    assert step.penalty.tolist() == [0.25 * (n == SICK) for n in range(6)]
    assert step.final.score[SICK] == before.signals.score[SICK]
    assert torch.equal(step.final.score[0], step.signals.score[0])
    assert not step.signals.sibling[SICK]
    assert world.fleet.vitals.sane.all()
    after = world.step(wait)
    assert not after.terminated.any()
    assert not after.penalty.any()
    assert world.fleet.epoch.tolist() == [1 if n == SICK else 3 for n in range(6)]


DAMAGE = {
    "divergence": lambda flat: flat.mul_(60),
    "collapse": lambda flat: flat.zero_(),
    "not finite": lambda flat: flat.fill_(torch.inf),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_governor_sees(damage):
    world = env(episode=99)
    wait = torch.zeros(6, 8, dtype=torch.long)
    world.reset()
    for _ in range(12):
        assert not world.step(wait).terminated.any()
    DAMAGE[damage](world.fleet.trunk.flat[SICK])
    assert world.step(wait).terminated.tolist() == [n == SICK for n in range(6)]
