"""Law 9: stopping is invisible. Saved, loaded by another process of thought, and gone on with, to the bit."""

import dataclasses

import pytest
import torch

from esper.leyline.errors import FileError
from esper.leyline.tensor_files import read, write
from esper.simic import CollectConfig, LearnConfig, PPOConfig, RentSchedule
from esper.simic.checkpoint import RUN_FORMAT, load_training_run, save_training_run
from esper.simic.train import Training
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv, TrainConfig
from small_fleets import controller_for, make_env
from toys import SPECS, toy_task

CONFIG = LearnConfig(
    updates=4,
    ppo=PPOConfig(entropy_end=0.0, anneal=3, weight_decay=0.01),
    collect=CollectConfig(horizon=4),
    rent=RentSchedule(end=0.05, updates=3),
    rng_seed=3,
)


def begin(recurrent: bool = True, config: LearnConfig = CONFIG) -> Training:
    """Lives end at different times, inside rollouts and across them."""
    envs = [
        make_env("mlp", 4, episode=7, group=2, staggered=True, rng_seed=1),
        make_env("cnn1d", 3, episode=5, staggered=True, rng_seed=2),
    ]
    return Training(envs, controller_for(recurrent), config)


def told(reports):
    return [dataclasses.replace(r, seconds={}) for r in reports]


@pytest.mark.parametrize("recurrent", [True, False])
def test_a_stop_changes_no_number(recurrent, tmp_path):
    """After any update, in the middle of lives and of seeds' lives."""
    whole = begin(recurrent)
    reports = []
    for update in range(4):
        save_training_run(tmp_path / f"{update}", whole)
        reports += told([whole.step()])
        if update == 0:
            assert any(env.fleet.buckets for env in whole.fleets.envs)
            assert any((state.signals.age > 0).any() for state in whole.fleets.states)
    for stop in (1, 2, 3):
        resumed = begin(recurrent)
        load_training_run(tmp_path / f"{stop}", resumed)
        assert resumed.update == stop
        assert told(resumed.step() for _ in range(4 - stop)) == reports[stop:]
        for a, b in zip(whole.controller.parameters(), resumed.controller.parameters(), strict=True):
            assert torch.equal(a, b)
        for ours, theirs in zip(whole.fleets.envs, resumed.fleets.envs, strict=True):
            assert torch.equal(ours.fleet.trunk.flat, theirs.fleet.trunk.flat)
            assert ours.fleet.buckets.keys() == theirs.fleet.buckets.keys()


def test_what_is_loaded_is_what_was_saved(tmp_path):
    training, again = begin(), begin()
    for _ in range(2):
        training.step()
    training.watch.starved["tempo"], training.watch.alert = 4, 2
    training.watch.since["tempo"], training.watch.astray = 7, 1
    training.fleets.envs[0].state.births.add_(3)
    save_training_run(tmp_path / "first", training)
    load_training_run(tmp_path / "first", again)
    save_training_run(tmp_path / "second", again)
    (tensors, description), (others, other) = (read(tmp_path / name, RUN_FORMAT) for name in ("first", "second"))
    assert description == other
    assert tensors.keys() == others.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, others[name], rtol=0, atol=0, equal_nan=True, msg=name)


def test_a_run_may_go_on_for_longer_than_was_asked(tmp_path):
    training = begin()
    training.step()
    save_training_run(tmp_path / "run", training)
    longer = begin(config=dataclasses.replace(CONFIG, updates=9))
    load_training_run(tmp_path / "run", longer)
    assert (longer.update, longer.config.updates) == (1, 9)


OTHERS = {
    "controller": lambda: begin(recurrent=False),
    "config": lambda: begin(config=dataclasses.replace(CONFIG, rng_seed=4)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_training_is_refused_and_not_changed(what, tmp_path):
    training = begin()
    training.step()
    save_training_run(tmp_path / "run", training)
    other = OTHERS[what]()
    weights = [p.clone() for p in other.controller.parameters()]
    with pytest.raises(FileError, match="holds another"):
        load_training_run(tmp_path / "run", other)
    assert other.update == 0
    assert all(torch.equal(a, b) for a, b in zip(weights, other.controller.parameters(), strict=True))


@pytest.mark.parametrize("name", ["controller/op.0.weight", "memory/cell", "live/0/signals/slots/alpha", "generator"])
def test_a_file_that_lacks_something_is_refused(name, tmp_path):
    training = begin()
    training.step()
    save_training_run(tmp_path / "run", training)
    tensors, description = read(tmp_path / "run", RUN_FORMAT)
    del tensors[name]
    write(tmp_path / "run", RUN_FORMAT, tensors, description)
    with pytest.raises(FileError, match="run"):
        load_training_run(tmp_path / "run", begin())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_stop_changes_no_more_than_the_order_of_sums(tmp_path):
    """Sums have no fixed order there, so two runs differ, too: the next update's numbers agree to 2 %."""

    def begun() -> Training:
        engine = Engine(device="cuda")
        fleet = Fleet(SPECS["cnn1d"], toy_task("cnn1d", 64, 32), range(6), TrainConfig(batch_size=32), engine=engine)
        env = FleetEnv(fleet, EnvConfig(episode=5, group=2, staggered=True))
        return Training([env], controller_for().to("cuda"), CONFIG)

    first = begun()
    for _ in range(2):
        first.step()
    save_training_run(tmp_path / "run", first)
    second = begun()
    load_training_run(tmp_path / "run", second)
    for a, b in zip(first.controller.parameters(), second.controller.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(first.fleets.envs[0].fleet.trunk.flat, second.fleets.envs[0].fleet.trunk.flat)
    ours, theirs = first.step(), second.step()
    assert theirs.memory is not None
    assert theirs.memory >= sum(p.nbytes for p in second.controller.parameters())
    assert ours.ops == theirs.ops
    assert theirs.objective == pytest.approx(ours.objective, rel=0.02)
    assert theirs.policy_loss == pytest.approx(ours.policy_loss, rel=0.02, abs=1e-3)
