"""The table of arms."""

from dataclasses import replace

import pytest
import torch

from esper.exam.arms import ARMS, Arm, admitted, always, thorough
from esper.exam.config import QUICK
from esper.exam.sitting import Sitting
from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.recipes.config import Band
from esper.recipes.suite import setting
from esper.simic.search import compare
from esper.tamiyo.policies import FixedPlan, Never, PlanStep
from small_exams import SMALL, sitting, smoke


def test_no_rule_is_never_under_another_name():
    """On most hosts of a setting that exams are held in, every rule plants something."""
    fleet = setting("planted")
    one = Sitting(smoke(), replace(fleet, options={**fleet.options, "examples": 600}), SMALL)
    _, *rules = (arm.policy(one) for arm in ARMS if arm.policy is not None and arm.when in (always, thorough))
    planted = torch.zeros(6 * len(rules), dtype=torch.bool)

    def on_step(actions, step):
        planted.logical_or_(actions[:, Head.OP] == Op.GERMINATE)

    compare(one.hosts.env(6, len(rules), Band.DEVELOPMENT, [0.02] * len(rules)), rules, 0.02, on_step=on_step)
    on_hosts = dict(zip([rule.name for rule in rules], planted.view(6, -1).sum(0).tolist(), strict=True))
    assert {name for name, hosts in on_hosts.items() if hosts <= 3} == set()


def names(config, guests=(), **changes) -> list[str]:
    return [arm.name for arm in admitted(sitting(config, **changes), "ours", guests)]


def test_every_arm_takes_part_when_its_row_says_so():
    rules = ["never", "random", "heuristic"]
    more = ["schedule", "plateau", "gap", "gradient", "least gradient", "oversized"]
    plans, derived = ["best plan", "grid oracle"], ["longer", "static", "static, longer", "replay"]
    assert names(QUICK) == rules
    assert names(SMALL) == [*rules, *more, *plans, *derived]
    assert names(replace(SMALL, plans=0)) == [*rules, *more, *derived]
    assert names(replace(SMALL, thorough=False)) == [*rules, *plans]
    assert names(SMALL, fleets=(setting("planted"),)) == [*rules, *more, *plans, *derived, "right size"]
    assert names(QUICK, fleets=(setting("planted"),)) == rules
    assert names(SMALL, [FixedPlan([], name="idle")])[11] == "idle", "guests come before what depends on others"
    (fleet,) = smoke().fleets
    on_budget = names(SMALL, fleets=(replace(fleet, env=replace(fleet.env, budget=4)),))
    assert on_budget == [*rules, *more, "best plan", "static", "replay"], "all spend the same: nobody trains longer"
    assert all(arm.does for arm in ARMS)


def test_an_arm_has_a_policy_or_a_function_of_its_own():
    for both in ({}, {"policy": lambda sitting: Never(), "play": lambda sitting, played: None}):
        with pytest.raises(EsperError, match="arm 'mine' needs either policy or play"):
            Arm(name="mine", does="nothing", **both)


def test_an_arm_without_what_it_needs_is_refused():
    def play(sitting, played):
        raise AssertionError

    mine = Arm(name="mine", does="nothing", play=play, needs=("static",))
    assert names(SMALL, [mine])[-1] == "mine"
    with pytest.raises(EsperError, match="arm 'mine' needs 'static', which is not played before it"):
        names(QUICK, [mine])


def test_a_guest_that_cannot_play_here_is_refused():
    nowhere = FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": "s9"})], name="nowhere")
    with pytest.raises(EsperError, match="s9"):
        names(QUICK, [nowhere])
