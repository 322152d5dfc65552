"""Two small fleets that differ in everything, and what a controller does with both."""

from functools import cache

import pytest
from torch.utils._pytree import tree_map

from esper.simic import RewardConfig
from esper.simic.rollout import CollectConfig, Collector, Rollout, collect
from esper.tamiyo import Controller
from esper.tolaria import FleetEnv
from small_fleets import controller_for, make_env


def two_fleets() -> list[FleetEnv]:
    """Unequal numbers of hosts, blueprints and decisions; lives end at different times."""
    return [
        make_env("mlp", 4, episode=3, group=2, staggered=True, rng_seed=1),
        make_env("cnn1d", 3, episode=5, staggered=True, rng_seed=2),
    ]


@cache
def _played(recurrent: bool) -> tuple[Rollout, Rollout]:
    controller = controller_for(recurrent)
    fleets = Collector(two_fleets(), controller, CollectConfig(horizon=7), rng_seed=5)
    fleets.begin(rent=0.02)
    first, second = (collect(fleets, controller, 0.02, RewardConfig()) for _ in range(2))
    assert not second.start[0].all(), "some lives go on"
    assert second.start[1:].any(), "and some begin"
    assert not second.ended[-1].all(), "and some are cut"
    return first, second


@pytest.fixture
def rollouts():
    """Two in a row, of seven hosts and seven decisions, and the controller that played them."""

    def copied(recurrent: bool = True) -> tuple[Rollout, Rollout, Controller]:
        first, second = tree_map(lambda x: x.clone(), _played(recurrent))
        return first, second, controller_for(recurrent)

    return copied
