"""Rewards cannot be farmed, and say what they are made of."""

from itertools import pairwise, product

import pytest
import torch

from esper.leyline.errors import EsperError
from esper.simic import RentSchedule, RewardConfig
from esper.simic.rewards import Reward, objective, reward
from small_fleets import make_env


def signals(score, growth):
    env = make_env("mlp", len(score), episode=3)
    start = env.reset()
    return start._replace(score=torch.tensor(score), growth=torch.tensor(growth))


def test_progress_telescopes_to_the_objective_at_the_end():
    gamma, rent = 0.9, torch.tensor([0.1, 0.0])
    path = [signals([0.1 * t, 0.3 - 0.05 * t], [0.5 * t, 1.0]) for t in range(5)]
    none, zero = torch.zeros(2, dtype=torch.bool), torch.zeros(2)
    config = RewardConfig(gamma=gamma)
    total = sum(gamma**t * reward(path[t], path[t + 1], rent, zero, none, config).total for t in range(4))
    expected = gamma**4 * objective(path[4], rent) - objective(path[0], rent)
    torch.testing.assert_close(total, expected)


def test_no_way_of_growing_and_pruning_earns_anything_on_an_unchanged_host():
    """Whatever grows and shrinks in between: the discounted return is never above that of doing nothing."""
    gamma, rent = 0.95, torch.tensor([0.05])
    zero, none = torch.zeros(1), torch.zeros(1, dtype=torch.bool)
    sizes = {growth: signals([0.6], [growth]) for growth in (0.0, 0.4, 2.0)}
    config = RewardConfig(gamma=gamma)

    def earned(path):
        gains = (reward(sizes[a], sizes[b], rent, zero, none, config).total.item() for a, b in pairwise(path))
        return sum(gamma**t * gain for t, gain in enumerate(gains))

    nothing = earned((0.0,) * 6)
    best = max(earned((0.0, *path)) for path in product(sizes, repeat=5))
    assert best <= nothing + 1e-6


def test_sparse_pays_once_and_contribution_pays_those_who_speak():
    before, after = signals([0.5, 0.5], [0.0, 1.0]), signals([0.7, 0.6], [1.0, 1.0])
    rent, ended = torch.tensor([0.1, 0.1]), torch.tensor([False, True])
    sparse = reward(before, after, rent, torch.zeros(2), ended, RewardConfig(family="sparse"))
    assert sparse.total[0] == 0
    assert sparse.total[1].item() == pytest.approx(0.6 - 0.1 * 0.6931, abs=1e-3)
    vitals = after.vitals._replace(contribution=torch.tensor([[0.2, 0.3], [torch.nan, 0.1]]))
    slots = after.slots._replace(alpha=torch.tensor([[1.0, 0.0], [0.0, 0.5]]))
    seeds = after._replace(vitals=vitals, slots=slots)
    paid = reward(before, seeds, rent, torch.zeros(2), ended, RewardConfig(family="contribution"))
    torch.testing.assert_close(paid.contribution, torch.tensor([0.2, 0.1]))
    torch.testing.assert_close(paid.rent, -0.1 * torch.tensor([2.0, 2.0]).log())


@pytest.mark.parametrize("family", ["progress", "sparse", "contribution"])
def test_sickness_costs_the_same_in_every_family(family):
    x = signals([0.5, 0.5], [0.0, 0.0])
    none = torch.zeros(2, dtype=torch.bool)
    config = RewardConfig(family=family)
    well, ill = (reward(x, x, torch.zeros(2), torch.tensor([0.0, p]), none, config) for p in (0.0, 0.25))
    torch.testing.assert_close(well.total - ill.total, torch.tensor([0.0, 0.25]))
    assert isinstance(ill, Reward)


def test_rent_rises_from_start_to_end_and_stays():
    rent = RentSchedule(start=0.0, end=0.04, updates=4)
    assert [rent.at(update) for update in (0, 1, 4, 9)] == [0.0, 0.01, 0.04, 0.04]
    assert RentSchedule(end=0.04, updates=0).at(0) == 0.04
    with pytest.raises(EsperError, match="end must not be negative"):
        RentSchedule(end=-1.0)
