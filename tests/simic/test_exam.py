"""Exams are paired, scored on test data, and tell what happened."""

import pytest
import torch

from esper.leyline.errors import EsperError
from esper.leyline.reports import ExamReport
from esper.leyline.state import NO_BLUEPRINT, Split
from esper.simic.exam import Arm, Diary, Replay, examine, verdicts
from esper.simic.play import on_test, play
from esper.tamiyo.policies import FixedPlan, Heuristic, Never, Planned, Policy, RandomLegal
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from esper.tolaria.grown import Grown
from toys import SPECS, toy_task

PLAN = FixedPlan([Planned(1, {"op": "GERMINATE", "slot": "s0", "blueprint": "mlp", "tempo": 3})])


def exam_env(num_hosts: int, group: int, test: Split | None = None, episode: int = 8) -> FleetEnv:
    task = toy_task("mlp", 64, 32)
    fleet = Fleet(SPECS["mlp"], task, range(num_hosts), TrainConfig(batch_size=32))
    test = Split(*(x.flip(0)[:20] for x in task.train)) if test is None else test
    return FleetEnv(fleet, EnvConfig(episode=episode, group=group), test)


def examined(env: FleetEnv, policies: list[Policy]) -> ExamReport:
    sitting = examine(env, policies, rent=0.02)
    arms = [Arm(p.name, [o], 8, 0.01) for p, o in zip(policies, sitting.outcomes, strict=True)]
    return verdicts(env.fleet, 0.02, arms[0], arms[1:])


def test_arms_that_do_the_same_fare_the_same_and_the_difference_is_nothing():
    report = examined(exam_env(12, 3), [PLAN, Never(), FixedPlan(PLAN.plan, name="again")])
    own, never, again = report.arms
    assert (again.mean, again.j, again.params) == (own.mean, own.j, own.params)
    assert again.vs is not None
    assert (again.vs.mean, again.vs.low, again.vs.high) == (0, 0, 0)
    assert never.vs is not None
    assert never.vs.mean == pytest.approx(own.j - never.j)
    assert (own.vs, own.chance) == (None, None)
    assert again.chance == 1.0
    assert len(own.scores) == 4
    assert (report.hosts, report.policy, report.task) == (4, "plan", "toy mlp")


def test_an_arm_is_what_its_hosts_are():
    env = exam_env(8, 2)
    report = examined(env, [PLAN, Never()])
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
    one = examine(exam_env(8, 2, right), policies, 0.02, told=4)
    other = examine(exam_env(8, 2, wrong), policies, 0.02, told=4)
    assert one.lives == other.lives
    assert all(torch.equal(a, b) for a, b in zip(one.diary.actions, other.diary.actions, strict=True))
    assert not torch.equal(one.outcomes[0].score, other.outcomes[0].score)
    assert torch.equal(one.outcomes[0].growth, other.outcomes[0].growth)


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
    final = on_test(step, env)
    assert final.score[0] == final.metric[0] == pytest.approx(env.setting.chance)
    assert step.test is not None
    assert final.score[1] == step.test.score[1]


def test_lives_are_told_as_they_were():
    sitting = examine(exam_env(6, 2), [PLAN, Never()], rent=0.02, told=2)
    lives = sitting.lives
    assert [(life.arm, life.host) for life in lives] == [("plan", 0), ("never", 0), ("plan", 1), ("never", 1)]
    grown, never = lives[0].epochs, lives[1].epochs
    assert [epoch.epoch for epoch in grown] == list(range(8))
    assert [epoch.op for epoch in grown[:3]] == ["WAIT", "GERMINATE", "WAIT"]
    assert grown[0] == never[0], "until it grows, a twin does the same"
    assert grown[1].slots[0].blueprint == "mlp"
    assert grown[1].parameters > never[1].parameters == grown[0].parameters
    assert {epoch.slots[0].stage for epoch in never} == {"DORMANT"}
    assert all(epoch.slots[0].contribution is None for epoch in never)
    assert not sitting.outcomes[1].growth.any()


def test_a_sick_host_that_is_judged_by_its_loss_is_no_better_than_guessing():
    task = toy_task("transformer", 32, 16)
    fleet = Fleet(SPECS["transformer"], task, range(2), TrainConfig(batch_size=16))
    env = FleetEnv(fleet, EnvConfig(episode=4), task.validation)
    env.reset()
    env.fleet.trunk.flat[0] = torch.nan
    final = on_test(env.step(torch.zeros(2, 8, dtype=torch.long)), env)
    assert final.metric[0] == pytest.approx(env.setting.guess)
    assert final.metric.isfinite().all()


def test_every_arm_needs_a_name_of_its_own():
    with pytest.raises(EsperError, match="2 arms are called 'never'"):
        examined(exam_env(6, 3), [PLAN, Never(), FixedPlan(PLAN.plan, name="never")])


def test_what_comes_after_a_sick_host_is_not_its_doing():
    env = exam_env(2, 1, episode=4)
    diary = Diary(env, [])
    env.reset()
    env.fleet.trunk.flat[0] = torch.nan
    action = torch.tensor([env.setting.space.action("GERMINATE")] * 2)
    diary.note(action, env.step(action))
    diary.note(action, env.step(action))
    assert torch.equal(diary.actions[0], action)
    assert not diary.actions[1][0].any()
    assert torch.equal(diary.actions[1][1], action[1])


def test_an_arm_whose_hosts_are_others_is_not_compared_host_by_host():
    env = exam_env(8, 2)
    one, never = examine(env, [PLAN, Never()], rent=0.02).outcomes
    arms = [Arm("never", [never], 8, 0.01, paired=paired) for paired in (True, False)]
    with_pairs, without = (verdicts(env.fleet, 0.02, Arm("ours", [one], 8, 0.01), [arm]).arms[1] for arm in arms)
    assert with_pairs.vs is not None
    assert without.vs is not None
    assert with_pairs.vs.mean == pytest.approx(without.vs.mean)
    assert with_pairs.vs != without.vs


def test_nobody_asks_what_the_seeds_of_a_grown_host_are_worth():
    sitting = examine(exam_env(8, 2), [PLAN, Never()], rent=0.02)
    env = exam_env(4, 1)
    grown = Grown(env.fleet, sitting.topology(0), env.config, env.test)
    grown.reset()
    assert (grown.flops() < env.fleet.flops()).all()


def test_several_trainings_are_averaged_and_resampled():
    env = exam_env(12, 3)
    one, two, never = examine(env, [PLAN, RandomLegal(), Never()], rent=0.02).outcomes
    report = verdicts(env.fleet, 0.02, Arm("ours", [one, two], 8, 0.01), [Arm("never", [never], 8, 0.01)])
    assert report.trainings == 2
    both = (one.objective.mean() + two.objective.mean()).item() / 2
    assert report.arms[0].j == pytest.approx(both, abs=1e-6)
    difference = report.arms[1].vs
    assert difference is not None
    assert difference.mean == pytest.approx(both - never.objective.mean().item(), abs=1e-6)
    assert difference.low <= difference.mean <= difference.high


def test_what_was_done_can_be_done_again():
    env = exam_env(8, 2)
    sitting = examine(env, [RandomLegal(), Never()], rent=0.02)
    again = play(exam_env(4, 1), Replay(sitting.actions(0)), 0.02)
    assert torch.equal(again.objective, sitting.outcomes[0].objective), "hosts do not depend on their fleet"


def test_a_grown_host_can_be_trained_from_scratch():
    sitting = examine(exam_env(8, 2), [PLAN, Never()], rent=0.02)
    topology = sitting.topology(0)
    assert (topology.blueprint[:, 0] != NO_BLUEPRINT).all()
    env = exam_env(4, 1)
    static = Grown(env.fleet, topology, env.config, env.test)
    signals = static.reset()
    assert (signals.growth > 0).all()
    assert torch.equal(signals.slots.blueprint, topology.blueprint)
    assert torch.equal(signals.slots.alpha, topology.alpha)
    outcome = play(static, Never(), 0.02)
    assert torch.equal(outcome.growth, sitting.outcomes[0].growth)
    assert (outcome.flops > sitting.outcomes[1].flops).all()
    bare = play(Grown(exam_env(4, 1).fleet, sitting.topology(1), env.config, env.test), Never(), 0.02)
    assert torch.equal(bare.score, sitting.outcomes[1].score), "without seeds it is the bare host, to the bit"
