"""Laws 2 and 3: a newborn is alive, and its host is never starved."""

import pytest
import torch

from esper.kasmina.blueprints import blueprint_names
from esper.kasmina.hosts import host_kind
from esper.leyline.actions import Graft
from esper.tolaria import TrainConfig, host_training
from esper.tolaria.training import train_epoch
from planted_fleets import Sown, small_fleet, sow
from toys import SEEDS, SPECS, plant_in_training, rows_of, toy_trainer

ALIVE = 1e-6


def test_one_of_the_slots_is_a_single_position():
    """Where there is no space to normalise over, seeds die most easily."""
    assert toy_trainer("cnn2d").host.slot_specs[1].shape == (1, 1, 6)


@pytest.mark.parametrize("rng_seed", range(3))
@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize(("kind", "blueprint", "graft"), SEEDS)
def test_every_parameter_of_a_newborn_learns_within_three_steps(kind, blueprint, graft, slot, rng_seed):
    trainer = toy_trainer(kind, dtype=torch.float64, rng_seed=rng_seed)
    plant_in_training(trainer, blueprint, graft, f"s{slot}")
    seed = trainer.host.slot(slot).seed
    assert (seed.blueprint, seed.graft) == (blueprint, graft)
    x, y = (part[:32] for part in trainer.task.train)
    largest: dict[str, float] = {}
    for _ in range(3):
        host_training.gradients(trainer, x, y)
        for name, p in trainer.host.slot(slot).named_parameters():
            assert p.grad is not None
            largest[name] = max(largest.get(name, 0.0), p.grad.abs().max().item())
        host_training.step(trainer)
    dead = [name for name, g in largest.items() if not g > ALIVE * max(largest.values())]
    assert not dead


@pytest.mark.parametrize(("kind", "blueprint", "graft"), SEEDS)
def test_the_host_is_never_starved(kind, blueprint, graft):
    """With grown-up seeds at alpha 1 in every slot, every parameter of the host still gets gradient."""
    trainer = toy_trainer(kind, dtype=torch.float64)
    for slot in trainer.space.slots:
        plant_in_training(trainer, blueprint, graft, slot)
    generator = torch.Generator().manual_seed(3)
    for p in trainer.host.slots.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    x, y = (part[:32] for part in trainer.task.train)
    heard = {s: torch.tensor(1.0) for s in range(len(trainer.space.slots))}
    host_training.mean_loss(trainer, x, y, heard).backward()
    norms = {name: p.grad.norm().item() for name, p in trainer.host.segments.named_parameters() if p.grad is not None}
    assert norms.keys() == dict(trainer.host.segments.named_parameters()).keys()
    assert min(norms.values()) > 1e-4 * max(norms.values())


@pytest.mark.parametrize(("kind", "blueprint", "graft"), SEEDS)
def test_the_hosts_own_path_stays_open(kind, blueprint, graft):
    """A seed that adds nothing, heard at full alpha, leaves the host's gradients as they were."""
    trainer = toy_trainer(kind, dtype=torch.float64)
    x, y = (part[:32] for part in trainer.task.train)
    plant_in_training(trainer, blueprint, graft)
    trunk = list(trainer.host.segments.parameters())
    alone = torch.autograd.grad(host_training.mean_loss(trainer, x, y), trunk)
    heard = torch.autograd.grad(host_training.mean_loss(trainer, x, y, {0: torch.tensor(1.0)}), trunk)
    for a, b in zip(alone, heard, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("kind", SPECS)
def test_in_a_fleet_newborns_learn_and_their_hosts_are_not_starved(kind, alpha):
    """Silent or speaking: within an epoch every parameter of every blueprint in every slot moves, and of its host."""
    names = blueprint_names(host_kind(kind).stream)
    fleet = small_fleet(len(names), kind, config=TrainConfig(batch_size=16, optimizer="sgd", lr=0.1))
    sow(fleet, {(n, s): Sown(name, alpha, graft=Graft.GATE) for n, name in enumerate(names) for s in (0, 1)})
    before = [{name: p.clone() for name, p in rows_of(fleet, n).items()} for n in range(len(names))]
    train_epoch(fleet)
    still = [
        (n, name) for n in range(len(names)) for name, p in rows_of(fleet, n).items() if torch.equal(p, before[n][name])
    ]
    assert not still
