"""Exams are paired and scored on test data, and record what happened."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from esper.leyline.errors import EsperError
from esper.leyline.reports import Interval
from esper.leyline.state import NO_BLUEPRINT, Split
from esper.simic.evaluation import Outcome, evaluate, on_test
from esper.simic.exam import Arm, ArmRun, EpisodeRecorder, Replay, compare_arms, run_arm
from esper.simic.statistics import iqm_interval, p_value, unpaired_interval
from esper.tamiyo.policies import FixedPlan, Heuristic, Never, PlanStep, RandomLegal, SideBySide
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from esper.tolaria.static_env import StaticEnv
from toys import SPECS, toy_task

PLAN = FixedPlan([PlanStep(1, {"op": "GERMINATE", "slot": "s0", "blueprint": "mlp", "tempo": 3})])


def exam_env(test: Split | None = None, episode: int = 6, num_hosts: int = 4) -> FleetEnv:
    task = toy_task("mlp", 64, 32)
    fleet = Fleet(SPECS["mlp"], task, range(num_hosts), TrainConfig(batch_size=32))
    test = Split(*(x.flip(0)[:20] for x in task.train)) if test is None else test
    return FleetEnv(fleet, EnvConfig(episode=episode), test)


def arm(name: str, j: list[float], **more: Any) -> Arm:
    """An arm whose six hosts have this J, twice as much as score, and an outlier among the metrics."""
    given = torch.tensor(j)
    growth, flops, sick = (torch.tensor(x) for x in ([0.0, 1.0] * 3, [10.0, 30.0] * 3, [0.0, 0.0, 1.0] * 2))
    outcome = Outcome(given, 2 * given, torch.tensor([2.0, 0, 1, 100, 3, 0]), growth, flops, sick)
    run = ArmRun(outcome, [], [], toy_fleet().state, seconds=3.0)
    return Arm(name, [run], **{"episode": 8, "lr": 0.01, **more})


@cache
def toy_fleet() -> Fleet:
    """A fleet whose task has a teacher of 100 parameters."""
    task = toy_task("mlp", 64, 32)
    task = task._replace(spec=replace(task.spec, facts={"teacher_parameters": 100}))
    return Fleet(SPECS["mlp"], task, range(6), TrainConfig(batch_size=32))


OURS = [1.0, 2, 3, 4, 5, 6]
LESS, MORE, LEVEL = ([j + change for j in OURS] for change in (-1, 1, 0))


def test_verdicts_by_hand():
    """The policy is 1 above never and 1 below the oracle on every host: a sign-flip p-value of 2 / 64 each, the second
    and third smallest of five, so that Holm's correction gives 4 * 2 / 64 for both."""
    others = [
        arm("never", LESS, episode=9, lr=0.02),
        arm("grid oracle", MORE, searched=77, plan="0: GERMINATE s0"),
        arm("same", LEVEL),
        arm("replay", LESS, paired=False),
        arm("right size", [10.0] * 6, paired=False),
    ]
    report = compare_arms(toy_fleet(), 0.02, arm("ours", OURS), others, data="validation")
    own, never, oracle, same, replay, right = report.arms
    bare = toy_fleet().trunk.layout.num_parameters
    assert (report.policy, report.task, report.host, report.metric) == ("ours", "toy mlp", "mlp 8-8", "accuracy")
    assert (report.hosts, report.trainings, report.episode, report.rent, report.data) == (6, 1, 8, 0.02, "validation")
    assert report.right_size == 100
    assert report.of_oracle is not None
    part = report.of_oracle
    assert (part.mean, part.low, part.high) == pytest.approx((0.5,) * 3), "of the 2 that the oracle is above never"
    assert (own.mean, own.iqm, own.j) == (pytest.approx(106 / 6), 1.5, 3.5)
    assert own.iqm_interval == iqm_interval(np.array([2.0, 0, 1, 100, 3, 0]))
    assert (own.growth, own.params, own.flops, own.sick, own.seconds) == (0.5, 1.5 * bare, 20, pytest.approx(1 / 3), 3)
    assert (own.scores, own.objectives) == (tuple(2 * j for j in OURS), tuple(OURS))
    assert (own.difference, own.score_difference, own.probability_of_improvement, own.p_value) == (
        None,
        None,
        None,
        None,
    )
    assert (own.excess, own.regret) == (1.5 * bare - 100, 6.5)
    assert (never.difference, never.score_difference) == (Interval(1, 1, 1), Interval(2, 2, 2))
    assert (oracle.difference, same.difference) == (Interval(-1, -1, -1), Interval(0, 0, 0))
    assert never.probability_of_improvement == pytest.approx((21 + 5 / 2) / 36), "above in 21 of 36 pairs, equal in 5"
    assert never.p_value == oracle.p_value == pytest.approx(4 * 2 / 64, abs=0.02)
    assert same.p_value == 1
    assert (never.regret, right.regret, right.excess) == (7.5, 0, own.excess)
    assert [(a.episode, a.lr) for a in report.arms] == [(8, 0.01), (9, 0.02)] + [(8, 0.01)] * 4
    assert [(a.searched, a.plan) for a in (never, oracle)] == [(0, ""), (77, "0: GERMINATE s0")]
    ours, theirs = np.array(OURS), np.array(LESS)
    assert (replay.difference, replay.score_difference) == (
        unpaired_interval(ours, theirs),
        unpaired_interval(2 * ours, 2 * theirs),
    )
    assert [a.paired for a in report.arms] == [True] * 4 + [False] * 2
    alone = compare_arms(toy_fleet(), 0.02, arm("ours", OURS), [arm("replay", LESS, paired=False)])
    assert alone.arms[1].p_value == p_value(ours, theirs, hosts_are_paired=False) > 0.3
    assert (alone.of_oracle, alone.arms[0].regret) == (None, None), "with neither never, oracle nor right size"


def test_several_trainings_count_as_one_arm():
    """Two trainings with mean J 3.5 and 5.5; the reported time is that of the first, which includes warm-up."""
    (one,), (two,) = (arm("ours", j).runs for j in (OURS, [j + 2 for j in OURS]))
    ours = arm("ours", OURS)._replace(runs=[one, two._replace(seconds=1.0)])
    report = compare_arms(toy_fleet(), 0.02, ours, [arm("never", LESS)])
    assert (report.trainings, report.hosts) == (2, 6)
    assert (report.arms[0].j, report.arms[0].seconds, report.arms[1].difference) == (4.5, 3.0, Interval(2, 1, 3))
    assert report.arms[0].objectives == (*OURS, *(j + 2 for j in OURS))


def test_every_arm_needs_a_name_of_its_own():
    with pytest.raises(EsperError, match="2 arms are called 'never'"):
        compare_arms(toy_fleet(), 0.02, arm("ours", OURS), [arm("never", LESS), arm("never", MORE)])


def test_nothing_but_the_score_depends_on_test_data():
    """A policy cannot see test data: with other test data it makes identical decisions."""
    task = toy_task("mlp", 64, 32)
    right = Split(task.train.x[:20], task.train.y[:20])
    wrong = Split(right.x * -3 + 1, (right.y + 1) % 3)
    for policy in (Heuristic(), RandomLegal()):
        one, other = (run_arm(exam_env(test), policy, 0.02, num_recorded=4) for test in (right, wrong))
        assert one.lives == other.lives
        assert all(torch.equal(a, b) for a, b in zip(one.actions, other.actions, strict=True))
        assert not torch.equal(one.outcome.score, other.outcome.score)
        assert torch.equal(one.outcome.growth, other.outcome.growth)


def test_the_score_is_that_of_the_grown_host_on_test_data():
    """The outcome equals an evaluation of the fleet on test data just before its episodes end."""
    env = exam_env(episode=3)
    outcome = evaluate(env, PLAN, 0.02)
    other = exam_env(episode=9)  # continues where the first one ends
    assert other.test is not None
    play_until(other, PLAN, 3)
    measured = other.fleet.evaluate_on(other.test)
    assert torch.equal(outcome.metric, measured.metric.float())


def play_until(env: FleetEnv, policy: FixedPlan, decisions: int) -> None:
    from esper.tamiyo.features import View, empty_history

    signals = env.reset()
    hosts, device = len(signals.age), signals.age.device
    policy.begin(env.setting, hosts, device)
    zeros = torch.zeros(hosts)
    for _ in range(decisions):
        view = View(signals, empty_history(hosts, device), env.setting, zeros, zeros + torch.inf)
        signals = env.step(
            policy.decide(view, torch.zeros(hosts, dtype=torch.bool), torch.full((hosts, 99), 0.5))
        ).signals


def test_lives_are_told_as_they_were():
    one, other = (run_arm(exam_env(), policy, rent=0.02, num_recorded=2) for policy in (PLAN, Never()))
    assert [(life.arm, life.host) for life in (*one.lives, *other.lives)] == [
        ("plan", 0),
        ("plan", 1),
        ("never", 0),
        ("never", 1),
    ]
    grown, never = one.lives[0].epochs, other.lives[0].epochs
    assert [epoch.epoch for epoch in grown] == list(range(6))
    assert [epoch.op for epoch in grown[:3]] == ["WAIT", "GERMINATE", "WAIT"]
    assert grown[0] == never[0], "until it grows, a host equals its pair"
    assert grown[1].slots[0].blueprint == "mlp"
    assert grown[1].parameters > never[1].parameters == grown[0].parameters
    assert {epoch.slots[0].stage for epoch in never} == {"DORMANT"}
    assert all(epoch.slots[0].contribution is None for epoch in never)
    assert not other.outcome.growth.any()
    assert one.topology.alpha[0].tolist() == [slot.alpha for slot in grown[-1].slots], "as they were at the very end"
    assert one.topology.seed_age[0].tolist() == [5, 0]


def test_a_sick_host_that_is_judged_by_its_loss_is_no_better_than_guessing():
    task = toy_task("transformer", 32, 16)
    fleet = Fleet(SPECS["transformer"], task, range(2), TrainConfig(batch_size=16))
    env = FleetEnv(fleet, EnvConfig(episode=4), task.validation)
    env.reset()
    env.fleet.trunk.flat[0] = torch.nan
    final = on_test(env.step(torch.zeros(2, 8, dtype=torch.long)), env)
    assert final.metric[0] == pytest.approx(env.setting.guess)
    assert final.metric.isfinite().all()


def test_what_comes_after_a_sick_host_is_not_its_doing():
    env = exam_env(episode=4, num_hosts=2)
    recorder, steps = EpisodeRecorder(env, [0, 1]), []
    env.reset()
    env.fleet.trunk.flat[0] = torch.nan
    action = torch.tensor([env.setting.space.action("GERMINATE", blueprint="mlp")] * 2)
    for _ in range(2):
        steps.append(env.step(action))
        recorder.record(action, steps[-1])
    assert torch.equal(recorder.actions[0], action)
    assert not recorder.actions[1][0].any()
    assert torch.equal(recorder.actions[1][1], action[1])
    assert (steps[1].final.slots.blueprint[:, 0] != NO_BLUEPRINT).all(), "its replacement grows"
    assert recorder.final.blueprint[0].tolist() == [NO_BLUEPRINT, NO_BLUEPRINT]
    assert torch.equal(recorder.final.blueprint[1], steps[1].final.slots.blueprint[1])
    sick, healthy = recorder.episodes()
    assert [len(sick), len(healthy)] == [1, 2], "an episode is recorded until it ends"
    told, now = healthy[1], steps[1].final
    for name, field in {"train_loss": "train_loss", "validation_loss": "loss", "metric": "metric"}.items():
        assert getattr(told, name) == getattr(now, field)[1]
    assert (told.epoch, told.op, told.refused) == (1, "GERMINATE", True)
    assert (told.score, told.growth, told.flops) == (now.score[1], now.growth[1], now.flops[1])
    assert told.parameters == round(env.setting.parameters * (1 + now.growth[1].item()))
    assert (told.slots[0].stage, told.slots[0].blueprint) == ("TRAINING", "mlp")
    assert told.slots[0].contribution == now.vitals.contribution[1, 0]


def test_nobody_asks_what_the_seeds_of_a_grown_host_are_worth():
    env = exam_env()
    grown = StaticEnv(env.fleet, run_arm(exam_env(), PLAN, rent=0.02).topology, env.config, env.test)
    grown.reset()
    assert (grown.flops() < env.fleet.flops()).all()


def test_what_was_done_can_be_done_again():
    run = run_arm(exam_env(), RandomLegal(), rent=0.02)
    again = evaluate(exam_env(), Replay(run.actions), 0.02)
    assert all(torch.equal(a, b) for a, b in zip(again, run.outcome, strict=True))


def test_a_host_does_not_depend_on_what_is_done_to_others():
    """Arms that act alike on a host are paired to the bit, whatever they do on other hosts."""
    both = evaluate(exam_env(), SideBySide([PLAN, Never()]), 0.02)
    for i, policy in enumerate((PLAN, Never())):
        alone = run_arm(exam_env(), policy, 0.02).outcome
        assert torch.equal(both.objective[i::2], alone.objective[i::2])


def test_a_grown_host_can_be_trained_from_scratch():
    grown, never = (run_arm(exam_env(), policy, rent=0.02) for policy in (PLAN, Never()))
    topology = grown.topology
    assert (topology.blueprint[:, 0] != NO_BLUEPRINT).all()
    env = exam_env()
    static = StaticEnv(env.fleet, topology, env.config, env.test)
    signals = static.reset()
    assert (signals.growth > 0).all()
    assert torch.equal(signals.slots.blueprint, topology.blueprint)
    assert torch.equal(signals.slots.alpha, topology.alpha)
    outcome = evaluate(static, Never(), 0.02)
    assert torch.equal(outcome.growth, grown.outcome.growth)
    assert (outcome.flops > never.outcome.flops).all()
    bare = evaluate(StaticEnv(exam_env().fleet, never.topology, env.config, env.test), Never(), 0.02)
    assert torch.equal(bare.score, never.outcome.score), "without seeds it is the bare host, to the bit"
