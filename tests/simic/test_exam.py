"""Exams are paired, scored on test data, and tell what happened."""

import pytest
import torch

from esper.leyline.errors import EsperError
from esper.leyline.state import Split
from esper.simic.exam import examine
from esper.simic.play import on_test, play
from esper.tamiyo.policies import FixedPlan, Heuristic, Never, Planned, RandomLegal
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from toys import SPECS, toy_task

PLAN = FixedPlan([Planned(1, {"op": "GERMINATE", "slot": "s0", "blueprint": "mlp", "tempo": 3})])


def exam_env(num_hosts: int, group: int, test: Split | None = None, episode: int = 8) -> FleetEnv:
    task = toy_task("mlp", 64, 32)
    fleet = Fleet(SPECS["mlp"], task, range(num_hosts), TrainConfig(batch_size=32))
    test = Split(*(x.flip(0)[:20] for x in task.train)) if test is None else test
    return FleetEnv(fleet, EnvConfig(episode=episode, group=group), test)


def test_arms_that_do_the_same_fare_the_same_and_the_difference_is_nothing():
    report, _ = examine(exam_env(12, 3), [PLAN, Never(), FixedPlan(PLAN.plan, name="again")], rent=0.02)
    own, never, again = report.arms
    assert (again.mean, again.j, again.params) == (own.mean, own.j, own.params)
    assert again.vs is not None
    assert (again.vs.mean, again.vs.low, again.vs.high) == (0, 0, 0)
    assert never.vs is not None
    assert never.vs.mean == pytest.approx(own.j - never.j)
    assert own.vs is None
    assert (report.hosts, report.policy, report.task) == (4, "plan", "toy mlp")


def test_an_arm_is_what_its_hosts_are():
    env = exam_env(8, 2)
    report, _ = examine(env, [PLAN, Never()], rent=0.02)
    alone = play(exam_env(8, 2), Never(), 0.02)
    assert report.arms[1].mean == pytest.approx(alone.metric[1::2].mean().item())
    assert report.arms[1].params == env.setting.parameters
    assert report.arms[0].params == pytest.approx(env.setting.parameters * (1 + report.arms[0].growth))
    assert report.arms[0].growth > 0


def test_nothing_but_the_score_depends_on_test_data():
    """So a policy cannot see it: with other test data it does the same, decision by decision."""
    task = toy_task("mlp", 64, 32)
    right = Split(task.train.x[:20], task.train.y[:20])
    wrong = Split(right.x * -3 + 1, (right.y + 1) % 3)
    policies = [Heuristic(), RandomLegal()]
    one, lives = examine(exam_env(8, 2, right), policies, 0.02, told=4)
    other, others = examine(exam_env(8, 2, wrong), policies, 0.02, told=4)
    assert lives == others
    assert one.arms[0].mean != other.arms[0].mean
    assert one.arms[0].params == other.arms[0].params


def test_the_score_is_that_of_the_grown_host_on_test_data():
    """The same as that of the fleet itself, asked just before its lives end."""
    env = exam_env(4, 1, episode=3)
    outcome = play(env, PLAN, 0.02)
    other = exam_env(4, 1, episode=9)  # lives on where the first one ends
    assert other.test is not None
    play_until(other, PLAN, 3)
    measured = other.fleet.evaluate_on(other.test)
    assert torch.equal(outcome.metric, measured.metric.float())


def play_until(env: FleetEnv, policy: FixedPlan, decisions: int) -> None:
    from esper.tamiyo.features import View, no_history

    signals = env.reset()
    hosts, device = len(signals.age), signals.age.device
    policy.begin(env.setting, hosts, device)
    zeros = torch.zeros(hosts)
    for _ in range(decisions):
        view = View(signals, no_history(hosts, device), env.setting, zeros, zeros + torch.inf)
        signals = env.step(
            policy.decide(view, torch.zeros(hosts, dtype=torch.bool), torch.full((hosts, 99), 0.5))
        ).signals


def test_a_sick_host_is_no_better_than_chance():
    env = exam_env(2, 1, episode=4)
    env.reset()
    env.fleet.trunk.flat[0] = torch.nan
    step = env.step(torch.zeros(2, 8, dtype=torch.long))
    assert step.terminated.tolist() == [True, False]
    final = on_test(step, chance=0.25)
    assert final.score[0] == 0.25
    assert step.test is not None
    assert final.score[1] == step.test.score[1]


def test_lives_are_told_as_they_were():
    report, lives = examine(exam_env(6, 2), [PLAN, Never()], rent=0.02, told=2)
    assert [(life.arm, life.host) for life in lives] == [("plan", 0), ("never", 0), ("plan", 1), ("never", 1)]
    grown, never = lives[0].epochs, lives[1].epochs
    assert [epoch.epoch for epoch in grown] == list(range(8))
    assert [epoch.op for epoch in grown[:3]] == ["WAIT", "GERMINATE", "WAIT"]
    assert grown[0] == never[0], "until it grows, a twin does the same"
    assert grown[1].slots[0].blueprint == "mlp"
    assert grown[1].parameters > never[1].parameters == grown[0].parameters
    assert {epoch.slots[0].stage for epoch in never} == {"DORMANT"}
    assert all(epoch.slots[0].contribution is None for epoch in never)
    assert report.arms[1].growth == 0


def test_an_exam_needs_test_data():
    env = FleetEnv(exam_env(4, 2).fleet, EnvConfig(group=2))
    with pytest.raises(EsperError, match="env must hold test data"):
        examine(env, [PLAN, Never()], rent=0.02)
