"""A growth task with a known optimum: the real lifecycle, ops and gates, but a table says what each seed is worth.

Enumerating all gardens gives the best one, against which a trained controller is measured.
"""

from itertools import product
from types import SimpleNamespace

import pytest
import torch

from esper.kasmina.gates import LifecycleConfig
from esper.kasmina.lifecycle import apply, empty_slots, legal, tick, unmeasured
from esper.leyline.actions import ActionSpace
from esper.leyline.state import NO_BLUEPRINT, Setting, Signals, SlotState
from esper.simic import CollectConfig, LearnConfig, PPOConfig, RentSchedule, train_controller
from esper.simic.evaluation import evaluate
from esper.simic.search import compare, random_plans
from esper.tamiyo import Controller
from esper.tamiyo.policies import LearnedPolicy, Never, RandomLegal
from esper.tolaria import EnvConfig, FleetEnv
from esper.tolaria.env import Step

WORTH = torch.tensor([[-0.10, 0.01, -0.05], [0.02, -0.20, 0.30]])
"""Score that each blueprint adds in each slot at alpha 1."""
SIZE = torch.tensor([0.2, 1.0, 2.0])
"""Growth that each blueprint adds."""
BASE, RENT, EPISODE = 0.5, 0.05, 12


class Garden(FleetEnv):
    """Env without training: the score is the base plus the worth of active seeds."""

    def __init__(self, num_hosts: int, group: int = 1) -> None:
        everyone = torch.ones(num_hosts, dtype=torch.bool)
        names = {"task": SimpleNamespace(name="garden"), "spec": SimpleNamespace(label="table")}
        self.fleet = SimpleNamespace(num_hosts=num_hosts, device=torch.device("cpu"), everyone=everyone, **names)
        self.config = EnvConfig(episode=EPISODE, group=group)
        self.groups = torch.arange(num_hosts) // group
        self.space, self.gates = ActionSpace(("s0", "s1"), ("a", "b", "c")), LifecycleConfig(embargo=1)
        self.setting = Setting(
            space=self.space,
            episode=EPISODE,
            chance=0.0,
            guess=1.0,
            parameters=100,
            families=("norm", "mlp", "conv"),
            seed_parameters=SIZE.expand(2, 3),
        )

    def reset(self) -> Signals:
        self.slots = empty_slots(self.fleet.num_hosts, 2)
        self.state = SimpleNamespace(generation=torch.zeros_like(self.groups))
        self.age = torch.zeros_like(self.groups)
        return self.look()

    def look(self) -> Signals:
        state, planted = self.slots, self.slots.blueprint != NO_BLUEPRINT
        at = torch.arange(2), state.blueprint.clamp(min=0)
        worth = WORTH[at].where(planted, torch.nan)
        score = BASE + (worth * state.alpha).nansum(1)
        self.vitals = unmeasured(state)._replace(contribution=worth, pull=torch.ones_like(worth))
        return Signals(
            score=score,
            metric=score,
            loss=1 - score,
            train_loss=1 - score,
            growth=SIZE[at[1]].where(planted, 0.0).sum(1),
            flops=torch.ones_like(score),
            age=self.age,
            sibling=torch.ones_like(self.age, dtype=torch.bool),
            legal=legal(state, self.vitals, self.gates),
            slots=state,
            vitals=self.vitals,
        )

    def step(self, actions: torch.Tensor) -> Step:
        state, refused = apply(self.slots, actions, self.vitals, self.gates, self.space)
        self.slots, self.age = tick(state, self.vitals, self.gates), self.age + 1
        final, over = self.look(), self.age >= EPISODE
        signals = final
        if over.any():
            empty = empty_slots(len(over), 2)
            self.slots = SlotState(*(torch.where(over[:, None], a, b) for a, b in zip(empty, self.slots, strict=True)))
            self.state.generation = self.state.generation + over
            self.age = torch.where(over, 0, self.age)
            signals = self.look()
        return Step(signals, final, torch.zeros_like(final.score), refused, torch.zeros_like(over), over)


def best_possible() -> float:
    """Return J of the best garden at full alpha."""
    gardens = product((None, 0, 1, 2), repeat=2)
    return max(
        BASE
        + sum(WORTH[s, b].item() for s, b in enumerate(garden) if b is not None)
        - RENT * torch.tensor(sum(SIZE[b].item() for b in garden if b is not None)).log1p().item()
        for garden in gardens
    )


def test_the_best_garden_is_known_and_a_search_of_plans_comes_near():
    assert best_possible() == pytest.approx(BASE + 0.30 - RENT * torch.tensor(3.0).log().item())
    assert evaluate(Garden(2), Never(), RENT).objective.mean().item() == pytest.approx(BASE)
    garden = Garden(2)
    found = compare(Garden(200, group=200), random_plans(garden.setting, 200), RENT)
    best = max(outcome.objective.mean() for outcome in found)
    assert best_possible() - 0.03 < best <= best_possible() + 1e-6


@pytest.mark.slow
def test_the_planted_garden_is_found():
    """With rent only one seed pays; most germinations, and most ops, harm."""
    controller = Controller(rng_seed=1)
    config = LearnConfig(
        updates=28,
        ppo=PPOConfig(lr=2e-3, entropy_coef=0.01, entropy_end=0.001, anneal=20, epochs=4),
        collect=CollectConfig(horizon=EPISODE),
        rent=RentSchedule(start=RENT, end=RENT),
        rng_seed=2,
    )
    for _ in train_controller([Garden(64)], controller, config):
        pass
    found = {p.name: evaluate(Garden(256), p, RENT).objective for p in (LearnedPolicy(controller), RandomLegal())}
    assert found["random"].mean() < BASE, "random growth is worse than none"
    reached = (found["learned"].mean().item() - BASE) / (best_possible() - BASE)
    assert reached > 0.9
    alone = evaluate(Garden(1), LearnedPolicy(controller, greedy=True), RENT)
    assert alone.growth.item() == pytest.approx(2.0), "the one seed that pays, and nothing else"
