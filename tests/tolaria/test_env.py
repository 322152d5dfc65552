"""Lives in a fleet: they end on time, begin afresh, and siblings differ only by what is done to them."""

import pytest
import torch

from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.tolaria import EnvConfig, Fleet, FleetEnv, GovernorConfig, TrainConfig
from toys import SPECS, random_legal, toy_task

WAIT = torch.zeros(6, 8, dtype=torch.long)


def env(**options) -> FleetEnv:
    fleet = Fleet(SPECS["mlp"], toy_task("mlp", 64), range(6), TrainConfig(batch_size=32))
    return FleetEnv(fleet, EnvConfig(**options))


def test_a_life_lasts_an_episode():
    world = env(episode=3)
    signals = world.reset()
    assert signals.age.tolist() == [0] * 6
    for decision in range(1, 7):
        step = world.step(WAIT)
        over = decision % 3 == 0
        assert step.truncated.all() == over
        assert not step.terminated.any()
        assert step.final.age.tolist() == [(decision - 1) % 3 + 1] * 6
        assert step.signals.age.tolist() == [0 if over else decision % 3] * 6
        assert torch.equal(step.final.score, step.signals.score) != over


def test_hosts_may_be_of_different_age():
    world = env(episode=4, staggered=True)
    assert world.reset().age.tolist() == [0, 1, 2, 3, 0, 1]
    assert world.step(WAIT).truncated.tolist() == [False, False, False, True, False, False]
    assert world.step(WAIT).truncated.tolist() == [False, False, True, False, False, False]


def test_a_fresh_host_has_nothing_of_the_one_before():
    world = env(episode=6)
    world.reset()
    first = world.fleet.trunk.flat.clone()
    plant = torch.tensor([world.fleet.space.action("GERMINATE", slot="s0", blueprint="mlp")] * 6)
    world.step(plant)
    for _ in range(5):
        step = world.step(WAIT)
    assert step.truncated.all()
    assert (step.final.slots.stage[:, 0] == Stage.BLENDING).all() or (step.final.slots.alpha[:, 0] > 0).all()
    assert (step.final.growth > 0).all()
    assert (step.signals.slots.stage == Stage.DORMANT).all()
    assert not step.signals.growth.any()
    assert not world.fleet.buckets
    for name, tensor in world.fleet.trunk.tensors.items():
        assert name == "flat" or not tensor.any()
    assert not any(torch.equal(a, b) for a, b in zip(first, world.fleet.trunk.flat, strict=True))
    assert step.signals.train_loss.isnan().all()


def test_siblings_differ_only_by_what_is_done_to_them():
    world = env(episode=5, group=3)
    world.reset()
    flat = world.fleet.trunk.flat
    assert torch.equal(flat[0], flat[1])
    assert torch.equal(flat[3], flat[5])
    assert not torch.equal(flat[0], flat[3])
    actions = WAIT.clone()
    actions[1] = torch.tensor(world.fleet.space.action("GERMINATE", slot="s0", blueprint="mlp"))
    for _ in range(5):
        step = world.step(actions)
        actions = WAIT
    final = step.final.score
    assert final[0] == final[2]
    assert final[3] == final[4] == final[5]
    assert torch.equal(flat[0], flat[1])


def test_the_same_number_gives_the_same_lives():
    def lives(rng_seed: int) -> list[torch.Tensor]:
        world = env(episode=3, rng_seed=rng_seed, staggered=True)
        world.reset()
        generator = torch.Generator().manual_seed(1)
        scores = []
        for _ in range(7):
            allowed = world.fleet.legal()
            step = world.step(random_legal(allowed, world.fleet.space.sizes, generator))
            scores.append(step.final.loss)
        return scores

    assert all(torch.equal(a, b) for a, b in zip(lives(1), lives(1), strict=True))
    assert not torch.equal(lives(1)[0], lives(2)[0])


def test_growth_is_the_references():
    from toys import germinate, toy_trainer

    world = env(episode=9)
    world.reset()
    alone = toy_trainer("mlp", examples=64)
    action = germinate(alone, "gated_mlp")
    expected = alone.decide(action).growth
    step = world.step(torch.tensor([action] * 6))
    assert step.signals.growth.tolist() == pytest.approx([expected] * 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: env(group=4), r"group \(4\) must divide"),
        (lambda: env(episode=0), "episode must be at least 1"),
        (lambda: env(penalty=-1.0), "penalty must not be negative"),
        (lambda: GovernorConfig(divergence=1.0), "divergence must be above 1"),
        (lambda: GovernorConfig(collapse=0.0), "collapse must lie"),
    ],
)
def test_impossible_settings_name_the_field(call, message):
    with pytest.raises(EsperError, match=message):
        call()
