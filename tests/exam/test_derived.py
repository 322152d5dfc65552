"""Arms that depend on what others did."""

from dataclasses import replace

import pytest
import torch

from esper.exam.derived import as_long, from_scratch, grown_on_tuning_hosts, replay, tried_from_scratch
from esper.exam.runs import ArmResult, ArmRun
from esper.exam.sitting import Played
from esper.recipes.config import Band
from esper.simic.evaluation import Outcome, evaluate
from esper.tamiyo.policies import FixedPlan, Heuristic, Never, PlanStep, SideBySide
from small_exams import AT_ONE_RATE, SMALL, sitting, smoke


def plan(slot: str, blueprint: str, tempo: int = 3) -> FixedPlan:
    return FixedPlan([PlanStep(0, {"op": "GERMINATE", "slot": slot, "blueprint": blueprint, "tempo": tempo})])


def test_equal_operations_to_the_nearest_epoch():
    """Eight epochs of an arm's hosts cost 20 in the mean."""
    nothing = torch.zeros(2)
    outcome = Outcome(nothing, nothing, nothing, nothing, torch.tensor([10.0, 30.0]), nothing)
    arm = ArmResult("never", [ArmRun(outcome, [], [], sitting().hosts.example.fleet.state, 0.0)], 8, 0.01)
    assert [as_long(arm, cost) for cost in (20, 50, 51.2, 51.3, 0.1)] == [8, 20, 20, 21, 1]


def test_a_topology_from_scratch_is_its_own_hosts():
    """Three hosts, of which each grows something else; two trainings, of which the second grows the other way round."""
    (fleet,) = smoke().fleets
    one = sitting(AT_ONE_RATE, fleets=(replace(fleet, env=replace(fleet.env, episode=6)),))
    grow = [plan("s0", "norm"), Never(), plan("s1", "mlp")]
    policies = [SideBySide(grow), SideBySide(grow[::-1])]
    ours = one.play("ours", policies, 1e-2)
    static = from_scratch(one, Played(policies, ours, {}, list), "static", 6)
    growths = [run.outcome.growth.tolist() for run in ours.runs]
    assert len({*growths[0]}) == 3, "all three differ"
    assert growths[1] == growths[0][::-1]
    assert [run.outcome.growth.tolist() for run in static.runs] == growths


def test_growth_is_replayed_on_other_hosts_for_every_training():
    one = sitting(AT_ONE_RATE)
    ours = one.play("ours", [Never(), Never()], 1e-2)
    again = [run.outcome.score for run in replay(one, Played([Never(), Never()], ours, {}, list)).runs]
    for n, scores in enumerate(again):
        alone = evaluate(one.hosts.env(3, 1, Band.OTHERS + n, [1e-2], test=True), Never(), 0.02)
        assert torch.equal(scores, alone.score)
    assert not torch.equal(*again)


def test_what_was_grown_is_trained_again_at_a_rate_that_suits_it():
    """Whatever rate it was grown at."""
    one = sitting(replace(SMALL, rates=(1e-9, 1.0), tuned_on=6))
    wrong, right = one.tuner.grid
    policies = [Heuristic(), Never()]
    grown = grown_on_tuning_hosts(one, policies, wrong)
    played = Played(policies, one.play("ours", policies, wrong), {}, lambda: grown)
    assert from_scratch(one, played, "static", 4).lr == right
    tried = tried_from_scratch(one, grown, 4)
    assert [len(rates) for rates in tried] == [2, 2]
    bare = one.tuner.tried([Never()], one.tuner.shared_by(2), training=1)
    assert tried[1] == pytest.approx(bare[0]), "who grew nothing is a bare host, on the same hosts"
