"""Law 4: incubation is silent and harmless."""

from functools import cache
from itertools import product

import pytest
import torch

from esper.kasmina import LifecycleConfig
from esper.kasmina.blueprints import blueprint_names
from esper.kasmina.hosts import host_kind
from esper.kasmina.kernels import add, route
from esper.leyline.actions import GRAFTS, Graft
from esper.leyline.lifecycle import Stage
from esper.tolaria import Fleet, TrainConfig, host_training
from esper.tolaria.host_measuring import Evaluation
from esper.tolaria.training import train_epoch
from planted_fleets import Sown, small_fleet, sow
from toys import SEEDS, SPECS, bits, germinate, plant_in_training, same_bits, toy_task, toy_trainer

PATIENT = LifecycleConfig(min_training=8, training=8)


def trunk(trainer) -> dict[str, torch.Tensor]:
    return dict(trainer.host.segments.named_parameters())


@cache
def learned_alone(kind: str) -> tuple[dict[str, torch.Tensor], Evaluation]:
    """The weights of a host without a seed, and how it does, after one epoch."""
    trainer = toy_trainer(kind, examples=96)
    host_training.train_epoch(trainer)
    return trunk(trainer), trainer.evaluate()


def test_what_is_heard_of_a_silent_row_changes_no_bit_of_a_stream():
    """Not even that of -0.0, whatever the delta and alpha."""
    stream = torch.tensor([[0.0, -0.0, 1.0, -1e-45]])
    deltas, alpha = torch.tensor([[torch.inf, torch.nan, 3.0, 3.0]]), torch.tensor([0.5])
    for speaks in (False, True):
        heard = add(stream, route(torch.tensor([0]), torch.tensor([speaks]), stream), alpha, deltas)
        assert torch.equal(bits(heard), bits(stream)) != speaks


@pytest.mark.parametrize("poison", [None, 1e30, torch.nan])
@pytest.mark.parametrize(("kind", "blueprint", "graft"), SEEDS)
def test_a_host_learns_as_if_its_silent_seed_were_not_there(kind, blueprint, graft, poison):
    holder = toy_trainer(kind, examples=96)
    plant_in_training(holder, blueprint, graft)
    if poison is not None:
        for p in holder.host.slot(0).parameters():
            p.data.fill_(poison)
    before = [p.clone() for p in holder.host.slot(0).parameters()]
    host_training.train_epoch(holder)
    learned, measured = learned_alone(kind)
    assert same_bits(learned, trunk(holder))
    assert measured == holder.evaluate()
    after = list(holder.host.slot(0).parameters())
    assert poison is not None or not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


POISONS = (None, 1e30, torch.nan)


@pytest.mark.parametrize("kind", SPECS)
def test_in_a_fleet_a_host_learns_as_if_its_silent_seed_were_not_there(kind):
    """Hosts with every blueprint in either slot, well and poisoned, against the same hosts without seeds."""
    names = blueprint_names(host_kind(kind).stream)
    seeds = list(product(names, (0, 1), POISONS))
    alone, holder = (small_fleet(len(seeds), kind) for _ in range(2))
    sow(holder, {(n, slot): Sown(name, graft=Graft(n % 3)) for n, (name, slot, _) in enumerate(seeds)})
    for bucket in holder.buckets.values():
        for row, host in enumerate(bucket.hosts.tolist()):
            if host >= 0 and (poison := seeds[host][2]) is not None:
                bucket.stack.flat[row] = poison
    losses = [train_epoch(fleet)[0] for fleet in (alone, holder)]
    assert torch.equal(*losses)
    assert same_bits(alone.trunk.tensors, holder.trunk.tensors)
    assert torch.equal(alone.evaluate().loss, holder.evaluate().loss)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECS)
def test_after_eight_silent_epochs_switching_on_costs_no_more_than_noise(kind):
    """A loss of 0.02 is a tenth of what a straight-through zero costs here, and five times what a side row does."""
    seeds = list(product(blueprint_names(host_kind(kind).stream), GRAFTS))
    task, config = toy_task(kind, 256, validation=512), TrainConfig(batch_size=32)
    fleet = Fleet(SPECS[kind], task, [0] * len(seeds), config, lifecycle=PATIENT)
    fleet.decide(torch.tensor([germinate(fleet, blueprint, graft) for blueprint, graft in seeds]))
    for _ in range(7):
        fleet.decide(torch.tensor([fleet.space.action()] * len(seeds)))
    assert (fleet.state.stage[:, 0] == Stage.TRAINING).all()
    for n in range(len(seeds)):
        host, (x, y) = fleet.host(n), task.validation
        with torch.no_grad():
            off = task.spec.objective.loss(host(x), y)
            on = task.spec.objective.loss(host(x, {0: fleet.state.alpha_target[n, 0]}), y)
            delta = host.slot(0).seed(torch.ones(1, *host.slot_specs[0].shape))
        assert delta.abs().max() > 0
        assert (on - off).mean() <= 0.02, seeds[n]
