"""On a task where growth pays, a controller trained from scratch beats never growing, paired by host."""

import pytest

from esper.leyline.specs import HostSpec
from esper.simic import CollectConfig, LearnConfig, PPOConfig, RentSchedule, train_controller
from esper.simic.evaluation import evaluate
from esper.tamiyo import Controller
from esper.tamiyo.policies import LearnedPolicy, Never, RandomLegal
from esper.tasks import load_task
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig

RENT = 0.02


def spirals(num_hosts: int, group: int, rng_seed: int) -> FleetEnv:
    """Hosts of 4 and 4 units: too small for three spiral arms, large enough with a seed or two."""
    task = load_task("spirals", examples=640)
    spec = HostSpec("mlp", task.spec.inputs, task.spec.outputs, (4, 4))
    fleet = Fleet(spec, task, range(num_hosts), TrainConfig(lr=1e-2))
    return FleetEnv(fleet, EnvConfig(episode=16, group=group, rng_seed=rng_seed))


@pytest.mark.slow
def test_it_learns_to_grow():
    controller = Controller(rng_seed=1)
    config = LearnConfig(
        updates=6,
        ppo=PPOConfig(lr=4e-3, entropy_coef=0.02, epochs=4),
        collect=CollectConfig(horizon=16),
        rent=RentSchedule(end=RENT, updates=8),
        rng_seed=1,
    )
    reports = list(train_controller([spirals(64, 8, rng_seed=11)], controller, config))
    assert reports[-1].ops["GERMINATE"] > 64, "at least once per episode"
    outcomes = {
        p.name: evaluate(spirals(40, 1, rng_seed=99), p, RENT)
        for p in (LearnedPolicy(controller), Never(), RandomLegal())
    }
    for other in ("never", "random"):
        gain = outcomes["learned"].objective - outcomes[other].objective
        assert gain.mean() - 1.96 * gain.std() / len(gain) ** 0.5 > 0
