"""Two small fleets that differ in everything, and a controller that plays on both."""

import pytest

from esper.simic.rollout import CollectConfig, Collector
from esper.tamiyo import Controller
from small_fleets import make_env


@pytest.fixture
def two_fleets():
    """Unequal numbers of hosts, blueprints and decisions; lives end at different times."""
    return [
        make_env("mlp", 4, episode=3, group=2, staggered=True, rng_seed=1),
        make_env("cnn1d", 3, episode=5, staggered=True, rng_seed=2),
    ]


@pytest.fixture
def collector(two_fleets):
    def make(controller: Controller, horizon: int = 7, **options) -> Collector:
        made = Collector(two_fleets, controller, CollectConfig(horizon=horizon, **options), rng_seed=5)
        made.begin(rent=0.02)
        return made

    return make
