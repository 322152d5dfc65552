"""Lives with a budget of compute: what they spend, when they end, and that stacking changes nothing."""

import json
import math

import pytest
import torch

from esper.kasmina.cost import EpochCost, epoch_cost
from esper.leyline.errors import EsperError
from esper.leyline.state import Signals
from esper.leyline.tensor_files import flatten, unflatten
from esper.simic.evaluation import evaluate
from esper.simic.lives import episode
from esper.tamiyo.features import HOST_FEATURES, View, column_names, empty_history, features
from esper.tamiyo.policies import FixedPlan, Heuristic, Never, PlanStep, in_first_half
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv, TrainConfig, load_training, save_training
from esper.tolaria.budget import DECAY, WARMUP, Clock, paced
from esper.tolaria.checkpoint import env_description, env_tensors, restore_env
from esper.tolaria.static_env import StaticEnv
from planted_fleets import Sown, small_fleet, state_of
from toys import SPECS, random_legal, rows_of, toy_task, toy_trainer

BUDGET = 5.3
"""Epochs of a bare host; steps are halves of an epoch."""


def bare_epoch(fleet: Fleet) -> float:
    return fleet.num_steps * fleet.config.batch_size * fleet.costs.host.train


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("kind", SPECS)
def test_the_fleet_equals_its_hosts_on_a_budget(kind, optimizer):
    """Every weight and loss to 1e-9 and all that is spent, until the budget of each is spent, at its own time."""
    config = TrainConfig(batch_size=32, lr=0.01, clip=0.5, optimizer=optimizer)
    task = toy_task(kind, 72, dtype=torch.float64)
    fleet = Fleet(SPECS[kind], task, range(6), config, engine=Engine(precision="fp64"))
    alone = [toy_trainer(kind, rng_seed=n, config=config, dtype=torch.float64, examples=72) for n in range(6)]
    fleet.budget = torch.linspace(2.2, 6.7, 6, dtype=torch.float64) * bare_epoch(fleet)
    for host, budget in zip(alone, fleet.budget.tolist(), strict=True):
        host.budget = budget
    living, ends, generator = set(range(6)), [], torch.Generator().manual_seed(3)
    for decision in range(7):
        actions = random_legal(fleet.legal(), fleet.space.sizes, generator)
        _, train_loss, measured = fleet.decide(actions)
        for n in sorted(living):
            report = alone[n].decide(actions[n].tolist())
            assert alone[n].spent == fleet.spent[n].item()
            assert report.train_loss == pytest.approx(train_loss[n].item(), abs=1e-9)
            assert report.validation_loss == pytest.approx(measured.loss[n].item(), abs=1e-9)
            for name, weights in alone[n].host.named_parameters():
                torch.testing.assert_close(rows_of(fleet, n)[name], weights, rtol=0, atol=1e-9)
            torch.testing.assert_close(fleet.vitals.pull[n], alone[n].vitals.pull[0], rtol=1e-5, atol=1e-9)
            torch.testing.assert_close(
                fleet.vitals.share[n], alone[n].vitals.share[0], rtol=1e-5, atol=1e-9, equal_nan=True
            )
        ends += [decision] * len(living & set(fleet.over.nonzero()[:, 0].tolist()))
        living -= set(fleet.over.nonzero()[:, 0].tolist())
    assert not living
    assert len(set(ends)) > 2, "at different times"
    assert (fleet.state.blueprint >= 0).any(), "some have grown"


class LastSteps:
    """Remembers what a step of each host cost at the end of its latest life."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.cost = fleet, torch.zeros(fleet.num_hosts, dtype=torch.float64)

    def __call__(self, ended: torch.Tensor) -> None:
        now = self.fleet.config.batch_size * epoch_cost(self.fleet.costs, self.fleet.state).step
        self.cost = torch.where(ended, now.double(), self.cost)


@pytest.mark.parametrize("kind", SPECS)
def test_a_life_spends_its_budget_to_the_step(kind):
    """Within one step: half a step, or less than one where growth has made the first of the last epoch dearer."""
    fleet = small_fleet(8, kind)
    last = LastSteps(fleet)
    env = FleetEnv(fleet, EnvConfig(budget=BUDGET), on_end=last)
    budget, lengths = BUDGET * bare_epoch(fleet), []
    spent, lived = torch.zeros(8, dtype=torch.float64), torch.zeros(8, dtype=torch.long)
    signals, generator = env.reset(), torch.Generator().manual_seed(5)
    for _ in range(14):
        step = env.step(random_legal(signals.legal, fleet.space.sizes, generator))
        spent, lived, signals = spent + step.final.flops, lived + 1, step.signals
        ended, failed = step.truncated, step.terminated
        spent, lived = spent.where(~failed, 0.0), lived.where(~failed, 0)
        assert ((spent - budget).abs() < last.cost)[ended].all()
        assert ((budget - spent) <= 0.5 * last.cost)[ended].all(), "nobody stops early"
        assert (spent[~ended] < budget).all()
        lengths += lived[ended].tolist()
        spent, lived = spent.where(~ended, 0.0), lived.where(~ended, 0)
        assert torch.equal(fleet.spent, spent), "what a fresh host has spent is nothing"
        assert torch.equal(signals.age, lived)
    assert min(lengths) < 6, "who grows has fewer epochs"


def test_what_is_left_is_spent_in_the_last_epoch():
    """Four steps an epoch of 10 FLOPs; measuring costs 25 where there are seeds: it is not paid for at the end."""
    budget = torch.tensor([100.0] * 6, dtype=torch.float64)
    spent = torch.tensor([0.0, 54.0, 55.0, 56.0, 30.0, 34.0], dtype=torch.float64)
    measuring = torch.tensor([0, 0, 0, 0, 25, 25])
    none, ones = torch.zeros(6).long(), torch.ones(6).long()
    cost = EpochCost(torch.full((6,), 2), none, ones, measuring)
    pace = paced(Clock(budget, 5, 4), spent, cost, ones)
    assert pace.is_last.tolist() == [False, False, False, True, False, True]
    assert pace.steps.tolist() == [4, 4, 4, 4, 4, 7]
    assert pace.charged.tolist() == [40, 40, 40, 40, 65, 70], "as many steps as are left, to the nearest"
    assert pace.share.tolist() == pytest.approx([0, 0.54, 0.55, 0.56, 0.3, 0.34])


def test_the_learning_rate_follows_the_share_that_is_spent():
    budget, cost = torch.tensor([1000.0], dtype=torch.float64), EpochCost(*(torch.tensor([n]) for n in (1, 0, 1, 1)))

    def rate(spent: float, count: int = 0) -> float:
        known = torch.tensor([spent], dtype=torch.float64)
        return paced(Clock(budget, 4, 10), known, cost, torch.tensor([0])).rate(count).item()

    assert rate(0) == pytest.approx(4 / 1000 / WARMUP), "the first step is not lost"
    assert rate(0, 2) == pytest.approx(12 / 1000 / WARMUP)
    assert rate(16) == rate(500) == rate(799) == 1.0
    assert rate(900) == pytest.approx(0.1 / DECAY)
    assert rate(900, 5) == pytest.approx(0.08 / DECAY)


def test_an_epoch_pauses_where_it_is_asked_to():
    """Four steps an epoch of 10 FLOPs, and pauses at 25 and 70: with the step that reaches them."""
    budget = torch.tensor([100.0] * 7, dtype=torch.float64)
    spent = torch.tensor([0.0, 20.0, 24.0, 30.0, 60.0, 66.0, 95.0], dtype=torch.float64)
    one, none = torch.ones(7).long(), torch.zeros(7).long()
    pauses = torch.tensor([[25.0], [70.0]], dtype=torch.float64).expand(2, 7)
    pace = paced(Clock(budget, 5, 4, pauses=pauses), spent, EpochCost(2 * one, none, one, none), none)
    assert pace.steps.tolist() == [3, 1, 1, 4, 1, 1, 1]
    assert pace.is_last.tolist() == [False, False, False, False, False, False, True]
    late = torch.tensor([[97.0]], dtype=torch.float64).expand(1, 7)
    pace = paced(Clock(budget, 5, 4, pauses=late), spent, EpochCost(2 * one, none, one, none), none)
    assert pace.is_last.tolist() == [False, False, False, False, True, True, True], "the end is no pause"


def test_siblings_that_fall_behind_go_on_with_the_newest_episode_of_their_group():
    """Generations 1 and 1, 3 and 1, 2 and 3: who ends goes on with one more, or with its sibling's."""
    env = FleetEnv(small_fleet(6), EnvConfig(budget=3, group=2))
    env.reset()
    env.state = env.state._replace(generation=torch.tensor([1, 1, 3, 1, 2, 3]))
    assert env.upcoming.tolist() == [2, 2, 4, 3, 3, 4]
    ended = torch.tensor([True, False, True, True, False, True])
    state, _ = env.succeed(env.state, ended, ended)
    assert state.generation.tolist() == [2, 1, 4, 3, 2, 4]


def test_episodes_of_siblings_with_equal_numbers_are_equal_whenever_they_begin():
    env = FleetEnv(small_fleet(4), EnvConfig(budget=3, group=2))
    env.reset()
    plant = torch.tensor(env.fleet.space.action("GERMINATE", slot="s0", blueprint="mlp"))
    actions = torch.zeros(4, 8, dtype=torch.long)
    actions[3] = plant
    born, ends = {n: [env.fleet.trunk.flat[n].clone()] for n in range(4)}, []
    for _ in range(6):
        step = env.step(actions)
        actions = torch.zeros(4, 8, dtype=torch.long)
        ends.append(step.truncated.tolist())
        assert step.signals.sibling.all()
        for n in step.truncated.nonzero()[:, 0].tolist():
            born[n].append(env.fleet.trunk.flat[n].clone())
    assert ends[2][:3] == [True, True, True]
    assert any(end[3] for end in ends[:2]), "the grown one is done before"
    for first in (0, 2):
        for a, b in zip(born[first][:3], born[first + 1][:3], strict=True):
            assert torch.equal(a, b)
    assert len({tuple(flat.tolist()) for lives in (born[0], born[2]) for flat in lives[:3]}) == 6


def test_arms_spend_the_same():
    fleet = small_fleet(6)
    env = FleetEnv(fleet, EnvConfig(budget=7))
    plan = FixedPlan([PlanStep(1, {"op": "GERMINATE", "slot": "s0", "blueprint": "low_rank"})])
    budget = 7 * bare_epoch(fleet)
    for policy in (Never(), Heuristic(), plan):
        outcome = evaluate(env, policy, 0.0)
        assert not outcome.sick.any()
        dearest = 32 * (720 + 2 * 3072)  # a step with two mlp seeds, the dearest there are
        assert ((outcome.flops - budget).abs() <= 0.5 * dearest).all()
        assert outcome.growth.any() == (policy.name != "never")
        if policy.name == "never":
            assert outcome.flops.tolist() == [budget] * 6


def test_a_life_in_the_middle_of_its_budget_goes_on_to_the_bit():
    def run(env: FleetEnv, decisions: int, generator: torch.Generator) -> list[torch.Tensor]:
        seen = []
        for _ in range(decisions):
            step = env.step(random_legal(env.fleet.legal(), env.fleet.space.sizes, generator))
            seen += [step.final.loss, step.final.flops, step.truncated, env.fleet.trunk.flat.clone()]
        return seen

    whole, stopped, resumed = (FleetEnv(small_fleet(6), EnvConfig(budget=4.6)) for _ in range(3))
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    for env in (whole, stopped, resumed):
        env.reset()
    run(whole, 3, generators[0])
    run(stopped, 3, generators[1])
    assert len(set(stopped.fleet.spent.tolist())) > 2, "at different points of their budgets"
    tensors = {name: x.clone() for name, x in env_tensors(stopped).items()}
    restore_env("memory", resumed, tensors, json.loads(json.dumps(env_description(stopped))))
    for a, b in zip(run(whole, 5, generators[0]), run(resumed, 5, generators[1]), strict=True):
        assert torch.equal(a, b)


def test_a_policy_sees_that_most_decisions_are_possible():
    env = FleetEnv(small_fleet(2), EnvConfig(budget=2.4))
    assert env.setting.episode == 3
    assert len(list(episode(env, Never(), 0.0))) == 3


@pytest.mark.parametrize("budget", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_budget_is_refused(budget):
    with pytest.raises(EsperError, match="budget must be a positive number of epochs"):
        EnvConfig(budget=budget)
    with pytest.raises(EsperError, match="staggered does not work with budget"):
        EnvConfig(budget=2, staggered=True)


def test_a_policy_sees_what_is_spent_and_what_an_epoch_costs():
    """A host that waits, and one with a silent low_rank seed: 160 FLOPs, with 96 for what is behind its slot."""
    fleet = small_fleet(2)
    env = FleetEnv(fleet, EnvConfig(budget=4))
    first = env.reset()
    assert first.spent.tolist() == [0, 0]
    assert first.pace.tolist() == [1, 1]
    actions = torch.zeros(2, 8, dtype=torch.long)
    actions[1] = torch.tensor(fleet.space.action("GERMINATE", slot="s1", blueprint="low_rank"))
    step = env.step(actions)
    silent = (64 * (720 + 160 + 96) + 40 * (48 + 64)) / (64 * 720)  # a silent lesson, and what is behind the slot
    assert step.signals.spent.tolist() == pytest.approx([1 / 4, silent / 4])
    assert step.signals.pace.tolist() == pytest.approx([1, silent])
    rows, names = features(view_of(env, step.signals)).host, column_names(HOST_FEATURES)
    assert rows[:, names.index("time_left")].tolist() == pytest.approx([3 / 4, 1 - silent / 4])
    left = [3.0, 4 * (1 - silent / 4) / silent]
    assert rows[:, names.index("decisions_left")].tolist() == pytest.approx([math.log1p(x) / 3 for x in left])
    halves = [in_first_half(view_of(env, step.signals._replace(spent=torch.full((2,), x)))) for x in (0.49, 0.5)]
    assert [half.tolist() for half in halves] == [[True, True], [False, False]]


def view_of(env: FleetEnv, signals: Signals) -> View:
    none = torch.zeros(2)
    return View(signals, empty_history(2, torch.device("cpu")), env.setting, none, none + torch.inf)


def test_lives_counted_in_epochs_have_no_budget():
    env = FleetEnv(small_fleet(2), EnvConfig(episode=4))
    signals = env.reset()
    assert (signals.spent, signals.pace) == (None, None)
    assert not any("spent" in name or "pace" in name for name in flatten(signals, "signals"))
    on_budget = FleetEnv(small_fleet(2), EnvConfig(budget=4)).reset()
    again = unflatten(on_budget, "signals", flatten(on_budget, "signals"))
    assert torch.equal(again.pace, on_budget.pace)


def test_hosts_from_scratch_do_not_pay_for_measuring():
    """An epoch of theirs costs 720 FLOPs an example and three passes of each seed; nothing for validation."""
    fleet = small_fleet(2)
    topology = state_of(fleet, {(0, 0): Sown("low_rank", 1.0), (0, 1): Sown("mlp", 1.0)})
    env = StaticEnv(fleet, topology, EnvConfig(budget=9))
    first, step = env.reset(), env.step(torch.zeros(2, 8, dtype=torch.long))
    cost = [64 * (720 + 3 * (64 + 1024)), 64 * 720]
    assert step.final.flops.tolist() == cost
    assert first.pace.tolist() == pytest.approx([cost[0] / cost[1], 1])
    FleetEnv(fleet, EnvConfig(budget=9)).reset()
    assert fleet.charges_measuring, "the next env on the fleet charges it again"


def test_a_saved_host_goes_on_with_what_is_left_of_its_budget(tmp_path):
    trainer, again = toy_trainer("mlp"), toy_trainer("mlp")
    trainer.budget = 3.5 * 192 * trainer.costs.host.train
    wait = trainer.space.action()
    for _ in range(2):
        trainer.decide(wait)
    save_training(tmp_path / "host.safetensors", trainer)
    load_training(tmp_path / "host.safetensors", again)
    assert again.spent == trainer.spent > 0
    for _ in range(2):
        assert again.decide(wait) == trainer.decide(wait)
    assert again.spent == trainer.spent == pytest.approx(trainer.budget)
