"""Episodes end on time, fresh hosts replace old ones, and hosts of a group differ only by their actions."""

from itertools import combinations

import pytest
import torch

from esper.kasmina import LifecycleConfig
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.leyline.state import Split
from esper.tolaria import EnvConfig, FleetEnv, GovernorConfig
from planted_fleets import small_fleet
from toys import random_legal, toy_task

WAIT = torch.zeros(6, 8, dtype=torch.long)


def env(**options) -> FleetEnv:
    return FleetEnv(small_fleet(6), EnvConfig(**options))


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


def test_siblings_are_of_one_age():
    assert env(episode=2, group=2, staggered=True).reset().age.tolist() == [0, 0, 1, 1, 0, 0]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b)


def test_lives_that_end_by_sickness_and_by_time():
    """Two groups of two, episodes of four decisions.

    Host 1 fails at the second decision, its replacement at the third, host 2 at the last. All others end on time.
    """
    world = FleetEnv(small_fleet(4), EnvConfig(episode=4, group=2, penalty=0.25))
    fleet, wait = world.fleet, WAIT[:4]
    flat = fleet.trunk.flat
    world.reset()
    born = flat.clone()
    assert same(born[0], born[1])
    assert same(born[2], born[3])
    assert not same(born[0], born[2])

    actions = wait.clone()
    actions[1] = torch.tensor(fleet.space.action("GERMINATE", slot="s0", blueprint="mlp"))
    before = world.step(actions)
    flat[1] = torch.nan
    step = world.step(wait)
    assert step.terminated.tolist() == [False, True, False, False]
    assert not step.truncated.any()
    assert step.penalty.tolist() == [0.0, 0.25, 0.0, 0.0]
    final, good = step.final, before.signals
    assert final.growth[1] > 0
    assert final.age.tolist() == [2, 2, 2, 2]
    assert final.sibling.all()
    measured = [(final.score, good.score), (final.metric, good.metric), (final.loss, good.loss)]
    for ours, theirs in (*measured, *zip((*final.slots, *final.vitals), (*good.slots, *good.vitals), strict=True)):
        torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=0, equal_nan=True)
    assert same(final.score[[0, 2, 3]], step.signals.score[[0, 2, 3]])
    assert not same(final.loss[[0, 2, 3]], good.loss[[0, 2, 3]])

    assert step.signals.age.tolist() == [2, 2, 2, 2]
    assert step.signals.sibling.tolist() == [True, False, True, True]
    assert step.signals.growth[1] == 0
    assert step.signals.flops.bool().tolist() == [True, False, True, True]
    assert step.signals.train_loss.isnan().tolist() == [False, True, False, False]
    assert world.state.history.first_loss.isinf().tolist() == [False, True, False, False]
    assert fleet.vitals.sane.all()
    first = flat[1].clone()
    assert not any(same(first, other) for other in (*born, *flat[[0, 2, 3]]))

    flat[1] = torch.nan
    again = world.step(wait)
    assert again.terminated.tolist() == [False, True, False, False]
    assert again.final.loss[1] == step.signals.loss[1]
    assert not same(flat[1], first)

    flat[2] = torch.nan
    end = world.step(wait)
    assert end.terminated.tolist() == [False, False, True, False]
    assert end.truncated.tolist() == [True, True, False, True]
    assert end.penalty.tolist() == [0.0, 0.0, 0.25, 0.0]
    assert end.final.age.tolist() == [4, 4, 4, 4]
    assert end.final.sibling.tolist() == [True, False, True, True]
    assert end.signals.age.tolist() == [0, 0, 0, 0]
    assert end.signals.sibling.all()
    assert world.state.history.first_loss.isinf().all()
    assert same(flat[0], flat[1])
    assert same(flat[2], flat[3])
    assert not any(same(a, b) for a, b in combinations([flat[0], flat[2], born[0], born[2]], 2))
    assert not world.step(wait).penalty.any()


def test_a_death_leaves_what_is_known_of_the_others_alone():
    """The last good epoch of a host with an audible seed, after another host was replaced."""
    world = FleetEnv(small_fleet(2, lifecycle=LifecycleConfig(training=1)), EnvConfig(episode=9))
    wait, flat = WAIT[:2], world.fleet.trunk.flat
    world.reset()
    world.step(torch.tensor([world.fleet.space.action("GERMINATE", slot="s1", blueprint="mlp", tempo="3"), [0] * 8]))
    world.step(wait)
    flat[1] = torch.nan
    before = world.step(wait)
    assert before.terminated.tolist() == [False, True]
    assert before.signals.slots.alpha[0, 1] > 0.5
    flat[0] = torch.nan
    final = world.step(wait).final
    assert final.loss[0] == before.signals.loss[0]
    assert same(final.vitals.contribution[0, 1], before.signals.vitals.contribution[0, 1])


def test_the_test_score_is_that_of_the_life_that_ends():
    """It equals that of a copy of the host that is not replaced."""
    task = toy_task("mlp", 20)
    test = Split(task.train.x + 1, task.train.y)
    ends, lives = (FleetEnv(small_fleet(2), EnvConfig(episode=episode), test) for episode in (2, 9))
    for world in (ends, lives):
        world.reset()
        assert world.step(WAIT[:2]).test is None
    found = ends.step(WAIT[:2]).test
    lives.step(WAIT[:2])
    assert found is not None
    assert same(found.loss, lives.fleet.evaluate(test).loss)


def test_the_same_number_gives_the_same_lives():
    def lives(rng_seed: int) -> torch.Tensor:
        world = env(episode=3, rng_seed=rng_seed, staggered=True)
        world.reset()
        generator = torch.Generator().manual_seed(1)
        losses = []
        for _ in range(4):
            step = world.step(random_legal(world.fleet.legal(), world.fleet.space.sizes, generator))
            losses.append(step.final.loss)
        return torch.stack(losses)

    once, again, other = lives(1), lives(1), lives(2)
    assert torch.equal(once, again)
    assert (once != other).all()


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
