"""Rule-based policies do what they say, legally, and the heuristic brings seeds all the way."""

import pytest
import torch

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.simic.play import play
from esper.tamiyo.features import View, no_history
from esper.tamiyo.policies import (
    FixedPlan,
    GapTrigger,
    GreedyGradient,
    Heuristic,
    Learned,
    Never,
    Planned,
    Plateau,
    RandomLegal,
    Schedule,
)
from small_fleets import controller_for, make_env

POLICIES = {
    "never": Never,
    "random": RandomLegal,
    "heuristic": Heuristic,
    "schedule": Schedule,
    "plateau": Plateau,
    "gap": GapTrigger,
    "gradient": GreedyGradient,
    "least gradient": lambda: GreedyGradient(against=True),
    "learned": lambda: Learned(controller_for()),
    "greedy": lambda: Learned(controller_for(), greedy=True),
    "plan": lambda: FixedPlan([Planned(1, {"op": "GERMINATE", "slot": "s0"})]),
}


class Watched:
    """A policy, and all that it decided."""

    def __init__(self, policy):
        self.policy, self.name, self.actions, self.stages, self.legal = policy, "watched", [], [], []

    def begin(self, *arguments):
        self.policy.begin(*arguments)

    def decide(self, view, fresh, uniform):
        action = self.policy.decide(view, fresh, uniform)
        hosts = torch.arange(len(action))
        self.legal.append(view.signals.legal[hosts, action[:, Head.OP], action[:, Head.SLOT]])
        self.actions.append(action)
        self.stages.append(view.signals.slots.stage)
        return action


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("kind", ["mlp", "cnn1d"])
def test_every_policy_decides_legally_for_a_whole_life(name, kind):
    policy = Watched(POLICIES[name]())
    outcome = play(make_env(kind, 4, episode=9), policy, rent=0.02)
    assert torch.stack(policy.legal).all()
    assert len(policy.actions) == 9
    assert outcome.objective.isfinite().all()
    assert (outcome.flops > 0).all()
    ops = torch.stack(policy.actions)[..., Head.OP]
    if name == "never":
        assert (ops == Op.WAIT).all()
        assert not outcome.growth.any()
    elif name in ("heuristic", "schedule", "plan"):
        assert (ops == Op.GERMINATE).any()


def test_the_heuristic_passes_the_gates_and_fossilizes():
    policy = Watched(Heuristic(tempo=3))
    outcome = play(make_env("mlp", 8, episode=24), policy, rent=0.0)
    assert (torch.stack(policy.actions)[..., Head.OP] == Op.FOSSILIZE).any()
    assert (policy.stages[-1] == Stage.FOSSILIZED).any()
    assert outcome.growth.max() > 0


def test_a_plan_waits_for_its_time_and_is_followed_once():
    plan = [
        Planned(2, {"op": "GERMINATE", "slot": "s1", "blueprint": "mlp"}),
        Planned(4, {"op": "GERMINATE", "slot": "s0"}),
    ]
    policy = Watched(FixedPlan(plan))
    play(make_env("mlp", 3, episode=8), policy, rent=0.0)
    ops = torch.stack(policy.actions)[:, 0, Head.OP]
    slots = torch.stack(policy.actions)[:, 0, Head.SLOT]
    assert ops.nonzero()[:, 0].tolist() == [2, 4]
    assert slots[[2, 4]].tolist() == [1, 0]


def test_a_line_of_a_plan_needs_an_op():
    env = make_env("mlp", 2, episode=3)
    with pytest.raises(EsperError, match="needs an op"):
        FixedPlan([Planned(0, {"slot": "s0"})]).begin(env.setting, 2, torch.device("cpu"))


def test_the_same_policy_on_the_same_hosts_gives_the_same_outcome():
    outcomes = [play(make_env("mlp", 4, episode=5), RandomLegal(), rent=0.02, rng_seed=3) for _ in range(2)]
    for a, b in zip(*outcomes, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("against", [False, True])
def test_the_greedy_rule_plants_where_the_loss_pulls_hardest_or_least(against):
    env = make_env("mlp", 6, episode=12)
    env.reset()
    env.step(torch.tensor([env.setting.space.action()] * 6))
    step = env.step(torch.tensor([env.setting.space.action()] * 6))
    pull = step.signals.vitals.pull
    assert (pull > 0).all()
    rule = GreedyGradient(against=against)
    rule.begin(env.setting, 6, torch.device("cpu"))
    flat = torch.zeros(6)
    view = View(step.signals, no_history(6, torch.device("cpu")), env.setting, flat, flat + torch.inf)
    action = rule.decide(view, torch.zeros(6, dtype=torch.bool), torch.full((6, 99), 0.5))
    assert (action[:, Head.OP] == Op.GERMINATE).all()
    assert torch.equal(action[:, Head.SLOT], pull.argmin(1) if against else pull.argmax(1))


def test_gardeners_plant_in_the_order_they_are_told():
    policy = Watched(Schedule(every=1, slots=("s1", "s0"), blueprint="mlp"))
    play(make_env("mlp", 2, episode=4), policy, rent=0.0)
    actions = torch.stack(policy.actions)[:2, 0]
    assert actions[:, Head.OP].tolist() == [Op.GERMINATE, Op.GERMINATE]
    assert actions[:, Head.SLOT].tolist() == [1, 0]
    only = Watched(Schedule(every=1, slots=("s1",), blueprint="mlp"))
    play(make_env("mlp", 2, episode=4), only, rent=0.0)
    planted = torch.stack(only.actions)[..., Head.OP] == Op.GERMINATE
    assert planted.sum(0).tolist() == [1, 1], "other slots are left alone"


def test_an_unknown_slot_is_named():
    env = make_env("mlp", 2, episode=4)
    with pytest.raises(EsperError, match="s9"):
        Schedule(slots=("s9",)).begin(env.setting, 2, torch.device("cpu"))


@pytest.mark.parametrize("name", ["heuristic", "schedule", "plateau", "gap", "gradient", "least gradient"])
def test_rules_plant_nothing_that_has_no_time_left_to_pay(name):
    rule = POLICIES[name]()
    rule.wants = lambda view: torch.ones_like(view.signals.age, dtype=torch.bool)  # at every moment
    watched = Watched(rule)
    play(make_env("mlp", 4, episode=8), watched, rent=0.02)
    planted = [(actions[:, Head.OP] == Op.GERMINATE).any().item() for actions in watched.actions]
    assert any(planted[:4])
    assert not any(planted[4:])
