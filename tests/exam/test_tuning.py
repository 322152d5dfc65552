"""Learning rates are chosen for every arm alike."""

from dataclasses import replace

import pytest
import torch

from esper.exam.derived import grown_on_tuning_hosts
from esper.exam.hosts import Hosts
from esper.exam.runs import run_arm
from esper.exam.tuning import Tuner
from esper.leyline.state import NO_BLUEPRINT
from esper.recipes.config import Band
from esper.simic.evaluation import evaluate
from esper.simic.search import compare
from esper.tamiyo.policies import FixedPlan, Heuristic, Never, Oversized, PlanStep
from esper.tolaria import Engine
from small_exams import SMALL, sitting, smoke


def test_no_choice_is_made_on_hosts_that_count():
    """Rates and plans are tried, and topologies grown, on hosts that are for this alone; each training's on its own."""
    one, rates = sitting(), (1e-3, 1e-2)
    one.tuner.grid = list(rates)
    rules, band = [Never(), Heuristic()], Band.TUNE + 1
    by_hand = [
        [evaluate(one.hosts.env(2, 1, band, [rate]), rule, one.rent, 0).objective.mean().item() for rate in rates]
        for rule in rules
    ]
    assert one.tuner.tried(rules, 2, training=1) == by_hand
    grown = grown_on_tuning_hosts(one, [Never(), Heuristic()], 1e-2)[1]
    alone = run_arm(one.hosts.env(one.tuner.shared_by(2), 1, band, [1e-2]), Heuristic(), one.rent)
    assert (alone.topology.blueprint != NO_BLUEPRINT).any()
    assert all(torch.equal(a, b) for a, b in zip(grown, alone.topology, strict=True))
    ground = one.hosts.tournament(3, 2, 1)
    assert (ground.config.rng_seed, ground.config.group, ground.test) == (7 + Band.PLANS + 1, 2, None)
    assert ground.fleet.lr.tolist() == pytest.approx([0.005, 0.005, 0.01, 0.01, 0.02, 0.02])


def test_the_learning_rate_is_the_one_that_does_best():
    """Of one that is right and one that moves nothing."""
    one = sitting(replace(SMALL, rates=(1e-9, 1.0), tuned_on=6))
    assert one.tuner.tuned([[Never()], [Heuristic()]]) == [smoke().fleets[0].train.lr] * 2


class Told(Tuner):
    """A tuner that is told what policies would find."""

    def __init__(self, found):
        one = sitting(replace(SMALL, rates=(0.5, 1.0, 2.0)))
        super().__init__(one.hosts, one.rent, one.rng_seed, one.tell, {})
        self.found, self.asked_for = found, []

    def tried(self, policies, hosts, episode=None, training=0):
        self.asked_for.append((hosts, training))
        return self.found[training][: len(policies)]


def test_all_trainings_of_an_arm_have_a_say_in_its_learning_rate():
    found = [[[0.5, 0.6, 0.4], [0.1, 0.2, 0.3], [0.3, 0.2, 0.1]], [[0.9, 0.5, 0.1], [0.1, 0.4, 0.4], [0.1, 0.2, 0.3]]]
    tuner = Told(found)
    low, middle, high = tuner.grid
    assert tuner.tuned([[Never()], [Never()], [Never()]]) == [middle, high, low]
    assert tuner.tuned([[Never(), Never()], [Never(), Never()]]) == [low, high]
    half = SMALL.tuned_on / 2
    assert tuner.asked_for == [(SMALL.tuned_on, 0), (half, 0), (half, 1)], "so many lives for each rate of each arm"


def test_a_choice_is_made_once():
    tuner, made = Told([[[0.1, 0.2, 0.3]]]), []
    for _ in range(2):
        assert tuner.chosen("why", lambda: made.append(1) or [7.0]) == [7.0]
    assert made == [1]
    assert tuner.choices == {f"{tuner.hosts.name}: why": [7.0]}


class FewAtOnce(Hosts):
    """Hosts of which twelve are trained at once."""

    def __init__(self):
        super().__init__(smoke().fleets[0], Engine(), SMALL)
        self.at_once, self.built = 12, []

    def tuning(self, hosts, rates, training=0, episode=None):
        self.built.append((hosts, len(rates)))
        return super().tuning(hosts, rates, training, episode)


def test_no_more_hosts_at_once_than_there_is_room_for():
    """In parts, whoever leaves nothing to chance finds the same."""
    one, few, policies = sitting(), FewAtOnce(), [Never(), Heuristic(), Oversized()]
    in_parts = Tuner(few, one.rent, one.rng_seed, one.tell, {})
    assert in_parts.tried(policies, 2) == one.tuner.tried(policies, 2)
    assert few.built == [(2, 6), (2, 3)]


def test_a_policy_that_remembers_is_tuned_as_it_is():
    """Every learning rate has a copy of its own: with one rate three times, all three do the same."""
    one, policy = sitting(), FixedPlan([PlanStep(2, {"op": "GERMINATE", "slot": "s0"})])
    alone = evaluate(one.hosts.env(2, 1, Band.TUNE, [0.01]), policy, 0.02)
    three = compare(one.hosts.env(2, 3, Band.TUNE, [0.01] * 3), [policy] * 3, 0.02)
    assert all(torch.equal(o.growth, alone.growth) for o in three)
    assert alone.growth.any()
