"""Exams are paired, scored on test data, and tell what happened."""

import pytest
import torch

from esper.leyline.errors import EsperError
from esper.leyline.reports import ExamReport
from esper.leyline.state import NO_BLUEPRINT, Split
from esper.simic.exam import Arm, Diary, Replay, sit, verdicts
from esper.simic.play import on_test, play
from esper.tamiyo.policies import FixedPlan, Heuristic, Never, Planned, Policy, RandomLegal, SideBySide
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from esper.tolaria.grown import Grown
from toys import SPECS, toy_task

PLAN = FixedPlan([Planned(1, {"op": "GERMINATE", "slot": "s0", "blueprint": "mlp", "tempo": 3})])


def exam_env(test: Split | None = None, episode: int = 8, num_hosts: int = 4) -> FleetEnv:
    task = toy_task("mlp", 64, 32)
    fleet = Fleet(SPECS["mlp"], task, range(num_hosts), TrainConfig(batch_size=32))
    test = Split(*(x.flip(0)[:20] for x in task.train)) if test is None else test
    return FleetEnv(fleet, EnvConfig(episode=episode), test)


def examined(*policies: Policy) -> ExamReport:
    arms = [Arm(p.name, [sit(exam_env(), p, rent=0.02)], 8, 0.01) for p in policies]
    return verdicts(exam_env().fleet, 0.02, arms[0], arms[1:])


def test_arms_that_do_the_same_fare_the_same_and_the_difference_is_nothing():
    report = examined(PLAN, Never(), FixedPlan(PLAN.plan, name="again"))
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
    report, bare = examined(PLAN, Never()), exam_env().setting.parameters
    alone = play(exam_env(), Never(), 0.02)
    assert report.arms[1].mean == pytest.approx(alone.metric.mean().item())
    assert report.arms[1].params == bare
    assert report.arms[0].params == pytest.approx(bare * (1 + report.arms[0].growth))
    assert report.arms[0].seconds > 0
    assert report.arms[0].growth > 0


def test_nothing_but_the_score_depends_on_test_data():
    """So a policy cannot see it: with other test data it does the same, decision by decision."""
    task = toy_task("mlp", 64, 32)
    right = Split(task.train.x[:20], task.train.y[:20])
    wrong = Split(right.x * -3 + 1, (right.y + 1) % 3)
    for policy in (Heuristic(), RandomLegal()):
        one, other = (sit(exam_env(test), policy, 0.02, told=4) for test in (right, wrong))
        assert one.lives == other.lives
        assert all(torch.equal(a, b) for a, b in zip(one.actions, other.actions, strict=True))
        assert not torch.equal(one.outcome.score, other.outcome.score)
        assert torch.equal(one.outcome.growth, other.outcome.growth)


def test_the_score_is_that_of_the_grown_host_on_test_data():
    """The same as that of the fleet itself, asked just before its lives end."""
    env = exam_env(episode=3)
    outcome = play(env, PLAN, 0.02)
    other = exam_env(episode=9)  # lives on where the first one ends
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
    env = exam_env(episode=4, num_hosts=2)
    env.reset()
    env.fleet.trunk.flat[0] = torch.nan
    step = env.step(torch.zeros(2, 8, dtype=torch.long))
    assert step.terminated.tolist() == [True, False]
    final = on_test(step, env)
    assert final.score[0] == final.metric[0] == pytest.approx(env.setting.chance)
    assert step.test is not None
    assert final.score[1] == step.test.score[1]


def test_lives_are_told_as_they_were():
    one, other = (sit(exam_env(), policy, rent=0.02, told=2) for policy in (PLAN, Never()))
    assert [(life.arm, life.host) for life in (*one.lives, *other.lives)] == [
        ("plan", 0),
        ("plan", 1),
        ("never", 0),
        ("never", 1),
    ]
    grown, never = one.lives[0].epochs, other.lives[0].epochs
    assert [epoch.epoch for epoch in grown] == list(range(8))
    assert [epoch.op for epoch in grown[:3]] == ["WAIT", "GERMINATE", "WAIT"]
    assert grown[0] == never[0], "until it grows, a twin does the same"
    assert grown[1].slots[0].blueprint == "mlp"
    assert grown[1].parameters > never[1].parameters == grown[0].parameters
    assert {epoch.slots[0].stage for epoch in never} == {"DORMANT"}
    assert all(epoch.slots[0].contribution is None for epoch in never)
    assert not other.outcome.growth.any()


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
        examined(PLAN, Never(), FixedPlan(PLAN.plan, name="never"))


def test_what_comes_after_a_sick_host_is_not_its_doing():
    env = exam_env(episode=4, num_hosts=2)
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
    one, never = (sit(exam_env(), policy, rent=0.02) for policy in (PLAN, Never()))
    arms = [Arm("never", [never], 8, 0.01, paired=paired) for paired in (True, False)]
    fleet = exam_env().fleet
    with_pairs, without = (verdicts(fleet, 0.02, Arm("ours", [one], 8, 0.01), [arm]).arms[1] for arm in arms)
    assert with_pairs.vs is not None
    assert without.vs is not None
    assert with_pairs.vs.mean == pytest.approx(without.vs.mean)
    assert with_pairs.vs != without.vs


def test_nobody_asks_what_the_seeds_of_a_grown_host_are_worth():
    env = exam_env()
    grown = Grown(env.fleet, sit(exam_env(), PLAN, rent=0.02).topology, env.config, env.test)
    grown.reset()
    assert (grown.flops() < env.fleet.flops()).all()


def test_several_trainings_are_averaged_and_resampled():
    one, two, never = (sit(exam_env(), policy, rent=0.02) for policy in (PLAN, RandomLegal(), Never()))
    report = verdicts(exam_env().fleet, 0.02, Arm("ours", [one, two], 8, 0.01), [Arm("never", [never], 8, 0.01)])
    assert report.trainings == 2
    assert report.arms[0].seconds == one.seconds, "of the first: whoever comes later finds everything recorded"
    both = (one.outcome.objective.mean() + two.outcome.objective.mean()).item() / 2
    assert report.arms[0].j == pytest.approx(both, abs=1e-6)
    difference = report.arms[1].vs
    assert difference is not None
    assert difference.mean == pytest.approx(both - never.outcome.objective.mean().item(), abs=1e-6)
    assert difference.low <= difference.mean <= difference.high


def test_what_was_done_can_be_done_again():
    sitting = sit(exam_env(), RandomLegal(), rent=0.02)
    again = play(exam_env(), Replay(sitting.actions), 0.02)
    assert torch.equal(again.objective, sitting.outcome.objective)


def test_a_host_does_not_depend_on_what_is_done_to_others():
    """So arms that act alike on a host are paired to the bit, whatever else they do."""
    both = play(exam_env(), SideBySide([PLAN, Never()]), 0.02)
    for i, policy in enumerate((PLAN, Never())):
        alone = sit(exam_env(), policy, 0.02).outcome
        assert torch.equal(both.objective[i::2], alone.objective[i::2])


def test_a_grown_host_can_be_trained_from_scratch():
    grown, never = (sit(exam_env(), policy, rent=0.02) for policy in (PLAN, Never()))
    topology = grown.topology
    assert (topology.blueprint[:, 0] != NO_BLUEPRINT).all()
    env = exam_env()
    static = Grown(env.fleet, topology, env.config, env.test)
    signals = static.reset()
    assert (signals.growth > 0).all()
    assert torch.equal(signals.slots.blueprint, topology.blueprint)
    assert torch.equal(signals.slots.alpha, topology.alpha)
    outcome = play(static, Never(), 0.02)
    assert torch.equal(outcome.growth, grown.outcome.growth)
    assert (outcome.flops > never.outcome.flops).all()
    bare = play(Grown(exam_env().fleet, never.topology, env.config, env.test), Never(), 0.02)
    assert torch.equal(bare.score, never.outcome.score), "without seeds it is the bare host, to the bit"
