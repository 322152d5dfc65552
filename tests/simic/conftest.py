"""Two small, different fleets, and rollouts of one controller on both."""

from functools import cache

import pytest
from torch import Tensor
from torch.utils._pytree import tree_map_only

from esper.simic import RewardConfig
from esper.simic.rollout import Rollout, collect
from esper.tamiyo import Controller
from esper.tolaria import FleetEnv
from small_fleets import begun, controller_for, make_env


def two_fleets() -> list[FleetEnv]:
    """Fleets with different numbers of hosts, blueprints and decisions, and staggered episodes."""
    return [
        make_env("mlp", 4, episode=3, group=2, staggered=True, rng_seed=1),
        make_env("cnn1d", 3, episode=5, staggered=True, rng_seed=2),
    ]


@cache
def _collected(recurrent: bool) -> tuple[Rollout, Rollout]:
    controller = controller_for(recurrent)
    fleets = begun(two_fleets(), controller, rent=0.02, rng_seed=5, horizon=7)
    first, second = (collect(fleets, controller, 0.02, RewardConfig()) for _ in range(2))
    assert not second.start[0].all(), "some episodes continue"
    assert second.start[1:].any(), "some begin"
    assert not second.ended[-1].all(), "some are cut by the horizon"
    return first, second


@pytest.fixture
def rollouts():
    """Two consecutive rollouts of seven hosts and seven decisions, and the controller that acted."""

    def copied(recurrent: bool = True) -> tuple[Rollout, Rollout, Controller]:
        first, second = tree_map_only(Tensor, lambda x: x.clone(), _collected(recurrent))
        return first, second, controller_for(recurrent)

    return copied
