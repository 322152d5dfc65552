"""Evaluation: one episode of every host, its outcome, and what the policy observes."""

import math

import pytest
import torch

from esper.leyline.state import Split
from esper.simic.evaluation import Outcome, evaluate
from esper.tamiyo.policies import FixedPlan, PlanStep, draws
from esper.tolaria import EnvConfig, Fleet, FleetEnv, TrainConfig
from toys import SPECS, toy_task

RENT, PENALTY = 0.5, 0.25


class Poison(FixedPlan):
    """Germinates in every host at its second decision, and sets the weights of host 0 to NaN at its fourth."""

    def __init__(self, env: FleetEnv) -> None:
        super().__init__([PlanStep(1, {"op": "GERMINATE", "slot": "s0", "blueprint": "mlp"})])
        self.env, self.told, self.steps = env, [], []

    def decide(self, view, fresh, uniform):
        if len(self.told) == 3:
            self.env.fleet.trunk.flat[0] = torch.nan
        self.told.append((view, fresh, uniform))
        return super().decide(view, fresh, uniform)


def played(test: Split | None = None) -> tuple[FleetEnv, Poison, Outcome]:
    """Evaluate three hosts for six decisions; host 0 fails and is replaced for the last two."""
    fleet = Fleet(SPECS["mlp"], toy_task("mlp", 64, 32), range(3), TrainConfig(batch_size=32))
    env = FleetEnv(fleet, EnvConfig(episode=6, penalty=PENALTY), test)
    policy = Poison(env)
    found = evaluate(env, policy, RENT, rng_seed=5, budget=7.0, on_step=lambda action, step: policy.steps.append(step))
    return env, policy, found


def costs(policy: Poison, host: int, decisions: int) -> float:
    return sum(float(step.final.flops[host]) for step in policy.steps[:decisions])


def test_outcomes_by_hand():
    """A failed host counts with its last good epoch, minus the penalty; its replacement does not count."""
    _, policy, found = played()
    sick, last = policy.steps[3].final, policy.steps[5].final
    assert [step.terminated.tolist() for step in policy.steps].index([True, False, False]) == 3
    assert found.sick.tolist() == [1, 0, 0]
    assert found.growth.tolist() == [sick.growth[0], *last.growth[1:]]
    assert found.metric.tolist() == [sick.metric[0].float(), *last.metric[1:].float()]
    for host, (end, penalty, lived) in enumerate([(sick, PENALTY, 4), (last, 0, 6), (last, 0, 6)]):
        score = float(end.score[host])
        assert found.score[host] == pytest.approx(score)
        j = score - RENT * math.log(1 + float(end.growth[host])) - penalty
        assert found.objective[host] == pytest.approx(j, abs=1e-6)
        assert found.flops[host] == costs(policy, host, lived)
    growths = {round(float(step.final.flops[1])) for step in policy.steps}
    assert len(growths) > 1, "epochs differ in what they cost"
    assert sick.growth[0] > 0, "there is rent to pay"
    assert not math.isclose(last.score[0], sick.score[0], abs_tol=0.01), "the host in its place does otherwise"


def test_on_test_data_the_sick_are_no_better_than_chance():
    task = toy_task("mlp", 64, 32)
    env, policy, found = played(Split(*(x.flip(0)[:20] for x in task.train)))
    sick, last = policy.steps[3], policy.steps[5]
    assert last.test is not None
    assert not torch.equal(last.test.score, last.final.score), "test data is not validation data"
    chance = env.setting.chance
    assert found.score.tolist() == pytest.approx([chance, *last.test.score[1:].tolist()])
    assert found.metric.tolist() == pytest.approx([chance, *last.test.metric[1:].tolist()])
    j = chance - RENT * math.log(1 + float(sick.final.growth[0])) - PENALTY
    assert found.objective[0] == pytest.approx(j, abs=1e-6)
    assert found.objective[1] == pytest.approx(
        float(last.test.score[1]) - RENT * math.log(1 + float(last.final.growth[1])), abs=1e-6
    )


def test_what_a_policy_is_told():
    env, policy, _ = played()
    assert [fresh.tolist() for _, fresh, _ in policy.told] == [
        [True, True, True],
        *[[False, False, False]] * 3,
        [True, False, False],
        [False, False, False],
    ]
    for decision, (view, _, drawn) in enumerate(policy.told):
        assert view.rent.tolist() == [RENT] * 3
        assert view.budget.tolist() == [7.0] * 3
        assert view.signals.age[1] == decision
        assert drawn.shape == (3, draws(env.setting))
    numbers = torch.cat([drawn for _, _, drawn in policy.told])
    assert len(numbers.unique(dim=0)) == 6 * 3, "other ones for every decision and host"
