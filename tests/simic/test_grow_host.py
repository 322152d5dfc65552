"""A policy that grows one host decides as it does for that host in a fleet."""

import pytest
import torch
from torch import Tensor

import esper
from esper.leyline.errors import EsperError
from esper.leyline.rng import key
from esper.leyline.state import Setting
from esper.simic.evaluation import evaluate, grow_host
from esper.tamiyo.features import View
from esper.tamiyo.policies import FixedPlan, GreedyGradient, Heuristic, LearnedPolicy, PlanStep, Policy
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv, HostTrainer, TrainConfig
from toys import SPECS, toy_task, toy_trainer

EPOCHS, CONFIG, EAGER = 12, TrainConfig(batch_size=32, lr=0.01), esper.LifecycleConfig(training=1)
PLAN = FixedPlan(
    [
        PlanStep(1, {"op": "GERMINATE", "slot": "s1", "blueprint": "norm", "style": "gate"}),
        PlanStep(2, {"op": "GERMINATE", "slot": "s0", "blueprint": "norm"}),
        PlanStep(5, {"op": "PRUNE", "slot": "s1", "alpha_speed": "instant"}),
    ]
)
POLICIES = {
    "heuristic": Heuristic,
    "plan": lambda: PLAN,
    "gradient": GreedyGradient,
    "shipped, greedy": lambda: LearnedPolicy(esper.load_controller(), greedy=True),
    "shipped, sampled": lambda: LearnedPolicy(esper.load_controller()),
}


class Recorded:
    """A policy, and all that it was told and chose."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.name = policy, policy.name
        self.settings: list[Setting] = []
        self.views: list[View] = []
        self.fresh: list[bool] = []
        self.actions: list[list[int]] = []

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        self.settings.append(setting)
        self.policy.begin(setting, num_hosts, device)

    def decide(self, view: View, fresh: Tensor, uniform: Tensor) -> Tensor:
        action = self.policy.decide(view, fresh, uniform)
        self.views.append(view)
        self.fresh += fresh.tolist()
        self.actions += action.tolist()
        return action


def trainer_of(kind: str, rng_seed: int, dtype: torch.dtype = torch.float64) -> HostTrainer:
    return toy_trainer(kind, rng_seed=rng_seed, config=CONFIG, lifecycle=EAGER, examples=64, dtype=dtype)


def in_a_fleet(kind: str, policy: Recorded, rng_seed: int, rent: float, budget: float) -> int:
    """Play an episode of one host in a fleet; return the seed of its weights."""
    task = toy_task(kind, 64, dtype=torch.float64)
    fleet = Fleet(SPECS[kind], task, [0], CONFIG, lifecycle=EAGER, engine=Engine(precision="fp64"))
    env = FleetEnv(fleet, EnvConfig(episode=EPOCHS, rng_seed=8))
    assert not evaluate(env, policy, rent, rng_seed, budget).sick.any()
    return int(key(8, "group", 0, 1))


@pytest.mark.parametrize("kind", ["mlp", "cnn1d"])
@pytest.mark.parametrize("name", POLICIES)
def test_it_decides_as_in_a_fleet_of_one(name, kind):
    """Action by action, and by equal views of the host, whose every feature must agree."""
    options = {"rng_seed": 5, "rent": 0.03, "budget": 4.0}
    fleet, alone = Recorded(POLICIES[name]()), Recorded(POLICIES[name]())
    seed = in_a_fleet(kind, fleet, **options)
    reports = list(grow_host(trainer_of(kind, seed), alone, EPOCHS, **options))
    assert alone.actions == fleet.actions
    assert len({op for op, *_ in alone.actions}) > 1, "it does something"
    assert alone.fresh == [True] + [False] * (EPOCHS - 1)
    assert [report.epoch for report in reports] == list(range(EPOCHS))
    assert len(alone.settings) == 1
    for ours, theirs in zip(alone.settings[0], fleet.settings[0], strict=True):
        assert torch.equal(ours, theirs) if isinstance(ours, Tensor) else ours == theirs
    for ours, theirs in zip(alone.views, fleet.views, strict=True):
        for record in ("signals", "history"):
            for field in getattr(ours, record)._fields:
                pair = (getattr(getattr(view, record), field) for view in (ours, theirs))
                torch.testing.assert_close(*pair, rtol=1e-6, atol=1e-6, equal_nan=True, check_dtype=False)
        assert (ours.rent, ours.budget) == (theirs.rent, theirs.budget)


def test_sampled_actions_follow_the_seed():
    def actions(rng_seed: int) -> list[list[int]]:
        policy = Recorded(LearnedPolicy(esper.load_controller()))
        list(grow_host(trainer_of("mlp", 0, torch.float32), policy, 8, rng_seed=rng_seed))
        return policy.actions

    assert actions(1) == actions(1) != actions(2)


def test_no_growth_beyond_the_budget():
    """Every seed costs something, so with a tiny budget the controller plants none."""

    def growth(budget: float) -> float:
        policy = LearnedPolicy(esper.load_controller())
        reports = grow_host(trainer_of("mlp", 0, torch.float32), policy, EPOCHS, rent=0.0, rng_seed=5, budget=budget)
        return max(report.growth for report in reports)

    assert growth(1e-6) == 0
    assert growth(torch.inf) > 0


def test_a_host_that_was_trained_before_begins_a_new_episode():
    trainer, policy = trainer_of("mlp", 0), Recorded(Heuristic())
    trainer.decide(trainer.space.action())
    assert [report.epoch for report in grow_host(trainer, policy, 4)] == [1, 2, 3, 4]
    assert [int(view.signals.age) for view in policy.views] == [0, 1, 2, 3]


def test_it_trains_only_as_far_as_it_is_asked():
    trainer = trainer_of("mlp", 0)
    reports = grow_host(trainer, Heuristic(), 4)
    assert trainer.epoch == 0
    next(reports)
    assert trainer.epoch == 1


def test_a_diverged_host_is_an_error():
    trainer = trainer_of("mlp", 0)
    reports = grow_host(trainer, Heuristic(), 4)
    next(reports)
    next(trainer.host.parameters()).data.fill_(torch.nan)
    next(reports)
    with pytest.raises(EsperError, match=r"the host diverged in epoch 1: .* smaller TrainConfig\.lr"):
        next(reports)


def test_an_episode_has_at_least_one_epoch():
    with pytest.raises(EsperError, match="epochs must be at least 1, not 0"):
        grow_host(trainer_of("mlp", 0), Heuristic(), 0)


def test_the_shipped_controller_grows_a_host_in_ten_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = esper.load_task("spirals")
    host = esper.weak_host("mlp", task.spec.inputs, task.spec.outputs)
    trainer = esper.HostTrainer(host, task)
    policy = esper.LearnedPolicy(esper.load_controller(), greedy=True)
    for report in esper.grow_host(trainer, policy, epochs=20):
        print(report.epoch, report.op, report.metric, report.parameters)
    esper.save_model("grown.safetensors", trainer.host)

    assert report.epoch == 19
    assert report.growth > 0
    loaded = esper.load_model("grown.safetensors", lambda: esper.build_host(host))
    x = task.validation.x
    assert torch.equal(loaded(x), trainer.host(x))
