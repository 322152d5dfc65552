"""Verdicts by hand."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from esper.exam.records import Interval
from esper.exam.runs import ArmResult, ArmRun
from esper.exam.statistics import iqm_interval, p_value, unpaired_interval
from esper.exam.verdicts import Circumstances, at_the_edge, compare_arms
from esper.leyline.errors import EsperError
from esper.simic.evaluation import Outcome
from esper.tolaria import Fleet, TrainConfig
from toys import SPECS, toy_task


def arm(name: str, j: list[float], **more: Any) -> ArmResult:
    """An arm whose six hosts have this J, twice as much as score, and an outlier among the metrics."""
    given = torch.tensor(j)
    growth, flops, sick = (torch.tensor(x) for x in ([0.0, 1.0] * 3, [10.0, 30.0] * 3, [0.0, 0.0, 1.0] * 2))
    outcome = Outcome(given, 2 * given, torch.tensor([2.0, 0, 1, 100, 3, 0]), growth, flops, sick)
    run = ArmRun(outcome, [], [], toy_fleet().state, seconds=3.0)
    return ArmResult(name, [run], **{"episode": 8, "lr": 0.01, **more})


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
    report = compare_arms(toy_fleet(), 0.02, arm("ours", OURS), others, given=Circumstances("validation"))
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


def test_the_edge_is_either_end_of_a_grid():
    arms = [ArmResult(name, [], 4, lr) for name, lr in {"low": 0.1, "middle": 0.2, "high": 0.4}.items()]
    assert at_the_edge(arms, [0.1, 0.2, 0.4]) == ("low", "high")
    assert at_the_edge(arms, [0.2]) == (), "a single rate is nobody's choice"
