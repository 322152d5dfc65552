"""What a life spends on silent lessons and counterfactuals: as much as is asked for, and charged as it happens."""

import pytest
import torch

from esper.kasmina import LifecycleConfig
from esper.kasmina.cost import epoch_cost
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv, HostTrainer, TrainConfig, host_training
from esper.tolaria.padding import Roomy
from esper.tolaria.schedule import copied
from esper.tolaria.training import step_of
from replays import Replayed, Replays
from toys import CHAINS, SPECS, counting_products, germinate, random_legal, rows_of, toy_task, toy_trainer

CHEAP = LifecycleConfig(lesson_every=2, measure_every=3, min_contribution=-1.0, measure_fossilized=False)


def pair(kind: str, lifecycle: LifecycleConfig, **options) -> tuple[Fleet, list[HostTrainer]]:
    """The same hosts, stacked and alone, with three steps an epoch out of four batches."""
    task, config = toy_task(kind, 128, dtype=torch.float64), TrainConfig(batch_size=32, lr=0.01, steps=3, **options)
    fleet = Fleet(SPECS[kind], task, range(6), config, lifecycle=lifecycle, engine=Engine(precision="fp64"))
    alone = [
        HostTrainer(SPECS[kind], task, config, lifecycle=lifecycle, rng_seed=n, dtype=torch.float64) for n in range(6)
    ]
    return fleet, alone


@pytest.mark.parametrize("budget", [None, 9.5])
@pytest.mark.parametrize("kind", SPECS)
def test_the_fleet_equals_its_hosts_in_cheap_lives(kind, budget):
    """Weights, contributions and what is charged, with lessons on half of the steps, measured every third epoch."""
    fleet, alone = pair(kind, CHEAP)
    if budget is not None:
        epoch = fleet.num_steps * fleet.config.batch_size * fleet.costs.host.train
        fleet.budget = torch.full((6,), budget * epoch, dtype=torch.float64)
        for host in alone:
            host.budget = budget * epoch
    generator, living = torch.Generator().manual_seed(2), set(range(6))
    measured, silent = 0, 0
    for decision in range(1, 13):
        actions = random_legal(fleet.legal(), fleet.space.sizes, generator)
        before = fleet.spent.clone()
        _, train_loss, now = fleet.decide(actions)
        silent += int((fleet.state.stage == Stage.TRAINING).sum())
        for n in sorted(living):
            report = alone[n].decide(actions[n].tolist())
            assert report.flops == (fleet.flops()[n] if budget is None else fleet.spent[n] - before[n])
            assert alone[n].spent == fleet.spent[n].item()
            assert report.train_loss == pytest.approx(train_loss[n].item(), abs=1e-9)
            for name, weights in alone[n].host.named_parameters():
                torch.testing.assert_close(rows_of(fleet, n)[name], weights, rtol=0, atol=1e-9)
            ours, theirs = fleet.vitals.contribution[n].double(), alone[n].vitals.contribution[0].double()
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6, equal_nan=True)
            assert torch.equal(fleet.vitals.healthy[n], alone[n].vitals.healthy[0])
        fresh = ~now.contribution.isnan()
        assert decision % 3 == 0 or not fresh.any(), "no counterfactual rows in other epochs"
        measured += int(fresh.sum())
        living -= set(fleet.over.nonzero()[:, 0].tolist())
    assert silent > 5
    assert measured > 3


@pytest.mark.parametrize("kind", ["mlp", *CHAINS])
def test_what_cheap_lives_are_charged_is_what_torch_counts(kind):
    """Over whole epochs of a plain host, while it teaches a silent seed and while the seed is heard."""
    trainer = toy_trainer(kind, lifecycle=CHEAP, examples=160)  # five steps an epoch
    validation = len(trainer.task.validation.x)
    trainer.budget = 1e9 * trainer.costs.host.train
    trainer.act(germinate(trainer, trainer.space.blueprints[0]))
    for _ in range(8):
        before = trainer.spent
        with counting_products() as counter:
            report = trainer.decide(trainer.space.action())
        plain = validation * int(epoch_cost(trainer.costs, trainer.state).validation)
        assert counter.get_total_flops() == trainer.spent - before + plain
        assert trainer.flops() == counter.get_total_flops()
        assert report.flops == trainer.spent - before
    assert trainer.state.stage[0, 0] in (Stage.HOLDING, Stage.BLENDING)


@pytest.mark.parametrize("measured", [True, False])
def test_fossilized_seeds_are_measured_and_paid_for_only_if_that_is_asked_for(measured):
    """In a host, by torch's count, and in a fleet alike."""
    lifecycle = LifecycleConfig(training=1, min_contribution=-1.0, measure_fossilized=measured)
    trainer = toy_trainer("mlp", lifecycle=lifecycle)
    fleet = Fleet(SPECS["mlp"], trainer.task, [0] * 2, trainer.config, lifecycle=lifecycle)
    epoch = fleet.num_steps * fleet.config.batch_size * fleet.costs.host.train
    trainer.budget, fleet.budget = 99.0 * epoch, torch.full((2,), 99.0 * epoch, dtype=torch.float64)
    plant = fleet.space.action("GERMINATE", slot="s0", blueprint="low_rank", tempo="3")
    keep, wait = fleet.space.action("FOSSILIZE", slot="s0"), fleet.space.action()
    for action in (plant, *[wait] * 6, keep):
        trainer.decide(action)
        fleet.decide(torch.tensor([action] * 2))
    assert trainer.state.stage[0, 0] == fleet.state.stage[0, 0] == Stage.FOSSILIZED
    before, spent, known = trainer.spent, fleet.spent, fleet.vitals.contribution[0, 0].clone()
    with counting_products() as counter:
        trainer.decide(wait)
    fleet.decide(torch.tensor([wait] * 2))
    plain = len(trainer.task.validation.x) * int(epoch_cost(trainer.costs, trainer.state).validation)
    assert trainer.spent - before == counter.get_total_flops() - plain
    assert (fleet.spent - spent).tolist() == [trainer.spent - before] * 2
    assert torch.equal(fleet.vitals.contribution[0, 0], known) != measured


@pytest.mark.parametrize("every", [1, 2, 3])
def test_recorded_programs_teach_silent_seeds_at_the_steps_that_are_charged(every):
    """Steps with and without lessons have inputs of one shape where buckets are padded, and take turns."""
    lifecycle, trained = LifecycleConfig(lesson_every=every), []
    for recorded in (False, True):
        fleet = Fleet(SPECS["mlp"], toy_task("mlp", 72), range(6), TrainConfig(batch_size=16), lifecycle=lifecycle)
        fleet.padding = Roomy(6)
        fleet.programs = Replays() if recorded else None
        fleet.decide(torch.tensor([fleet.space.action("GERMINATE", slot="s0", blueprint="mlp")] * 6))
        fleet.decide(torch.tensor([fleet.space.action()] * 6))
        (stack,) = [bucket.stack for bucket in fleet.buckets.values()]
        trained.append((stack.flat.clone(), stack.tensors["steps"].clone(), fleet.state.stage.clone()))
    for plain, replayed in zip(*trained, strict=True):
        assert torch.equal(plain, replayed)
    assert int(trained[0][1][:6].min()) == 2 * -(-fleet.num_steps // every)


class Warmed(Replays):
    """Recorded programs whose functions run once before, as CUDA requires."""

    def _record(self, name, function, inputs, warm_up, kinds) -> Replayed:
        warm_up()
        return super()._record(name, function, inputs, warm_up, kinds)


def test_recording_at_the_end_of_an_epoch_changes_nothing():
    """A profile records steps when all batches of the last epoch have been taken."""
    fleet = Fleet(SPECS["mlp"], toy_task("mlp", 72), range(6), TrainConfig(batch_size=16))
    fleet.programs = Warmed()
    fleet.decide(torch.tensor([fleet.space.action()] * 6))
    assert int(fleet.count) == fleet.num_steps
    before = fleet.trunk.flat.clone()
    fleet.programs = Warmed()
    order = torch.arange(len(fleet.train_data[0])).expand(6, -1)
    step_of(fleet, copied(fleet), order, None)
    assert fleet.programs.misses == 1
    assert int(fleet.count) == fleet.num_steps
    assert torch.equal(fleet.trunk.flat, before)


def test_a_contribution_stands_until_it_is_measured_again():
    fleet, _ = pair("mlp", LifecycleConfig(measure_every=3))
    plant = torch.tensor([fleet.space.action("GERMINATE", slot="s0", blueprint="mlp")] * 6)
    wait = torch.tensor([fleet.space.action()] * 6)
    seen = []
    for action in (plant, *[wait] * 7):
        fleet.decide(action)
        seen.append(fleet.vitals.contribution[:, 0].clone())
    assert seen[0].isnan().all()
    assert seen[1].isnan().all()
    assert seen[2].isfinite().all()
    assert torch.equal(seen[2], seen[3])
    assert torch.equal(seen[2], seen[4])
    assert not torch.equal(seen[4], seen[5])
    fleet.decide(wait)
    fleet.decide(torch.tensor([fleet.space.action("PRUNE", slot="s0", alpha_speed="instant")] * 6))
    assert fleet.vitals.contribution.isnan().all(), "of a seed that is gone, nothing is known"


def test_without_measurements_nothing_is_charged_for_them_and_nothing_is_known():
    fleet, _ = pair("mlp", LifecycleConfig(measure_every=0))
    env = FleetEnv(fleet, EnvConfig(budget=30.0))
    env.reset()
    plant = torch.tensor([fleet.space.action("GERMINATE", slot="s0", blueprint="low_rank")] * 6)
    for action in (plant, *[torch.tensor([fleet.space.action()] * 6)] * 6):
        step = env.step(action)
    assert step.final.vitals.contribution.isnan().all()
    cost = fleet.num_steps * fleet.config.batch_size * fleet.costs.host.train
    assert step.final.flops[0] == cost * step.final.pace[0]
    assert step.final.pace[0] > 1


@pytest.mark.parametrize("kind", SPECS)
def test_without_silent_training_seeds_are_heard_at_once(kind):
    fleet, _ = pair(kind, LifecycleConfig(min_training=0, training=0))
    plant = torch.tensor([fleet.space.action("GERMINATE", slot="s0", blueprint=fleet.space.blueprints[0])] * 6)
    fleet.decide(plant)
    assert (fleet.state.stage[:, 0] == Stage.BLENDING).all()
    assert (fleet.state.alpha[:, 0] > 0).all()


def test_epochs_of_a_few_steps_draw_from_all_examples(monkeypatch):
    """Three of four batches an epoch: in a few epochs, every example has been seen."""
    trainer = pair("mlp", LifecycleConfig())[1][0]
    seen, original = set(), host_training.gradients

    def listen(trainer, x, y, teaches):
        seen.update(map(tuple, x.tolist()))
        return original(trainer, x, y, teaches)

    monkeypatch.setattr(host_training, "gradients", listen)
    host_training.train_epoch(trainer)
    assert len(seen) == 96
    trainer.epoch += 1
    host_training.train_epoch(trainer)
    trainer.epoch += 1
    host_training.train_epoch(trainer)
    assert len(seen) > 120


def test_impossible_lives_are_refused():
    with pytest.raises(EsperError, match="lesson_every must be at least 1, not 0; set training to 0"):
        LifecycleConfig(lesson_every=0)
    with pytest.raises(EsperError, match="measure_every must be at least 0, not -1"):
        LifecycleConfig(measure_every=-1)
    with pytest.raises(EsperError, match="steps must be at least 1, not 0"):
        TrainConfig(steps=0)
    with pytest.raises(EsperError, match=r"steps \(7\) of batch_size 32 exceed the 192 training examples"):
        toy_trainer("mlp", config=TrainConfig(batch_size=32, steps=7))
