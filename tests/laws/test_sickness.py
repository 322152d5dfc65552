"""Law 7: a sick host harms no one; the others are bit-identical, also while it leaves its bucket."""

import pytest
import torch

from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from esper.tolaria.governor import restore, snapshot
from planted_fleets import Sown, small_fleet, sow
from toys import SPECS, random_legal, rows_of, toy_task


def poison_weights(fleet: Fleet, host: int) -> None:
    fleet.trunk.flat[host] = torch.nan


def poison_learning_rate(fleet: Fleet, host: int) -> None:
    fleet.lr[host] = 1e30


def poison_moments(fleet: Fleet, host: int) -> None:
    fleet.trunk.tensors["first"][host] = torch.inf


def poison_seeds(fleet: Fleet, host: int) -> None:
    """Silent or not: huge weights in every seed of the host."""
    for bucket in fleet.buckets.values():
        for row in (bucket.hosts == host).nonzero()[0]:
            bucket.stack.flat[row] = 1e30


POISONS = {1: poison_weights, 2: poison_learning_rate, 4: poison_moments, 5: poison_seeds}
"""Of eight hosts."""
WELL = [host for host in range(8) if host not in POISONS]


def fleet_with_seeds(kind: str) -> tuple[Fleet, torch.Generator]:
    """Eight hosts of mixed stages; those to fall sick share a bucket with others."""
    fleet = Fleet(SPECS[kind], toy_task(kind, 64), range(8), TrainConfig(batch_size=32))
    plant = fleet.space.action("GERMINATE", slot="s0", blueprint="norm")
    fleet.decide(torch.tensor([plant if host != 7 else fleet.space.action() for host in range(8)]))
    generator = torch.Generator().manual_seed(9)
    for _ in range(4):
        fleet.decide(actions_of_the_well(fleet, generator))
    return fleet, generator


def actions_of_the_well(fleet: Fleet, generator: torch.Generator) -> torch.Tensor:
    actions = random_legal(fleet.legal(), fleet.space.sizes, generator)
    actions[list(POISONS)] = 0
    return actions


def assert_well_equal(a: Fleet, b: Fleet) -> None:
    for n in WELL:
        ours, theirs = rows_of(a, n), rows_of(b, n)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("kind", SPECS)
def test_a_sick_host_harms_no_one_and_comes_back(kind):
    well, generator = fleet_with_seeds(kind)
    ill, _ = fleet_with_seeds(kind)
    good = snapshot(ill, ill.evaluate())
    before = {host: {name: p.clone() for name, p in rows_of(ill, host).items()} for host in POISONS}
    for host, poison in POISONS.items():
        poison(ill, host)
    for _ in range(3):
        actions = actions_of_the_well(well, generator)
        well.decide(actions)
        ill.decide(actions)
        assert_well_equal(well, ill)
    insane = [host for host, poison in POISONS.items() if poison is not poison_seeds]
    assert not ill.vitals.sane[insane].any()
    assert ill.vitals.sane[WELL].all()
    sick = torch.tensor([host in POISONS for host in range(8)])
    restore(ill, sick, good)
    ill.lr.fill_(ill.config.lr)
    assert_well_equal(well, ill)
    for now, then in zip((*ill.state, *ill.vitals), (*good.state, *good.vitals), strict=True):
        torch.testing.assert_close(now[sick], then[sick], rtol=0, atol=0, equal_nan=True)
    for name, tensor in ill.trunk.tensors.items():
        assert torch.equal(tensor[sick], good.trunk[name][sick])
    for host in POISONS:
        restored = rows_of(ill, host)
        assert restored.keys() == before[host].keys()
        assert all(torch.equal(restored[name], before[host][name]) for name in restored)
        for kind_of_seed, (hosts, rows) in good.buckets.items():
            for old in (hosts == host).nonzero()[0]:
                (now,) = (ill.buckets[kind_of_seed].hosts == host).nonzero()[0]
                for name, tensor in ill.buckets[kind_of_seed].stack.tensors.items():
                    assert torch.equal(tensor[now], rows[name][old])
    actions = actions_of_the_well(well, generator)
    well.decide(actions)
    ill.decide(actions)
    assert_well_equal(well, ill)
    assert ill.vitals.sane.all()


def test_a_restored_seed_finds_its_own_row():
    """Also where the seeds of its bucket have changed places since the snapshot."""
    fleet = sow(small_fleet(3), {(n, 0): Sown("mlp") for n in range(3)})
    good = snapshot(fleet, fleet.evaluate())
    before = {name: p.clone() for name, p in rows_of(fleet, 1).items()}
    fleet.reset(torch.tensor([True, True, False]), torch.tensor([7, 8, 9]))
    sow(fleet, {(n, 0): Sown("mlp") for n in (1, 2)})
    sow(fleet, {(n, 0): Sown("mlp") for n in range(3)})
    (bucket,) = fleet.buckets.values()
    assert bucket.hosts.tolist() == [1, 0, 2]
    others = {n: {name: p.clone() for name, p in rows_of(fleet, n).items()} for n in (0, 2)}
    restore(fleet, torch.tensor([False, True, False]), good)
    for n, expected in {**others, 1: before}.items():
        found = rows_of(fleet, n)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


DAMAGE = {
    1: lambda flat: flat.mul_(60),  # diverges
    0: lambda flat: flat.zero_(),  # collapses to chance
    4: lambda flat: flat.fill_(torch.inf),  # is not finite
}


def test_the_governor_sees_divergence_collapse_and_what_is_not_finite():
    world = FleetEnv(small_fleet(6, config=TrainConfig(batch_size=32, lr=0.01)), EnvConfig(episode=99))
    wait = torch.zeros(6, 8, dtype=torch.long)
    world.reset()
    for _ in range(6):
        assert not world.step(wait).terminated.any()
    for host, damage in DAMAGE.items():
        damage(world.fleet.trunk.flat[host])
    assert world.step(wait).terminated.tolist() == [n in DAMAGE for n in range(6)]
