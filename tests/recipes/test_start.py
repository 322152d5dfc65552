"""A head start: whoever wins a tournament is imitated, on hosts that serve no other purpose."""

from dataclasses import replace

import pytest
import torch

from esper.leyline.actions import Head, Op
from esper.recipes import recipe
from esper.recipes.config import Band, FleetConfig, StartConfig
from esper.recipes.start import begin
from esper.simic.play import play
from esper.simic.search import compare, random_plans
from esper.tamiyo import Controller, ControllerConfig
from esper.tamiyo.policies import Heuristic, Learned, Never

START = StartConfig(plans=2, hosts=2, best=1, lives=8, epochs=200)
RATES = (0.5, 1.0)


def started(rng_seed: int = 0):
    plain = recipe("smoke")
    (fleet,) = plain.fleets
    fleets = (replace(fleet, options={"examples": 200}, rates=RATES, env=replace(fleet.env, episode=6)),)
    small, learn = ControllerConfig(hidden=32, slot_hidden=16), replace(plain.learn, rng_seed=rng_seed)
    asked = replace(plain, fleets=fleets, controller=small, start=START, learn=learn)
    controller = Controller(small, rng_seed)
    return asked, controller, begin(asked, controller)


def test_the_best_is_imitated_on_other_hosts(monkeypatch):
    built, envs = [], []
    plain = FleetConfig.build_group

    def seen(self, engine, hosts, group, band, *rest):
        built.append((hosts, group, band))
        envs.append(plain(self, engine, hosts, group, band, *rest))
        return envs[-1]

    monkeypatch.setattr(FleetConfig, "build_group", seen)
    asked, controller, decisions = started()
    assert built == [(1, 1, Band.SEARCH), (2, 4, Band.SEARCH), (8, 1, Band.SHOW)]
    slow, fast = (rate * asked.fleets[0].train.lr for rate in RATES)
    assert [env.fleet.lr.tolist() for env in envs] == [[slow], [slow] * 4 + [fast] * 4, [slow, fast] * 4]
    assert decisions == 6 * (2 * 4 + 8)
    (fleet,) = asked.fleets
    env = fleet.build_group(asked.engine, 2, 4, Band.SEARCH)
    tried = [Never(), Heuristic(), *random_plans(env.setting, 2, asked.learn.rng_seed)]
    means = [outcome.objective.mean() for outcome in compare(env, tried, asked.learn.rent.end)]
    best = tried[max(range(4), key=lambda i: means[i])]
    did = {}
    for policy in (best, Learned(controller, greedy=True)):
        actions = []
        fresh = fleet.build_group(asked.engine, 6, 1, Band.DEVELOPMENT)
        play(
            fresh, policy, asked.learn.rent.end, witness=lambda action, step, kept=actions: kept.append(action.clone())
        )
        did[policy.name] = torch.stack(actions)
    mine, theirs = did["learned"], did[best.name]
    grown = theirs[..., Head.OP] == Op.GERMINATE
    assert grown.any(), "there is something to imitate"
    assert (mine[..., Head.OP] == theirs[..., Head.OP]).float().mean() > 0.9
    assert (mine[..., Head.BLUEPRINT] == theirs[..., Head.BLUEPRINT])[grown].float().mean() > 0.9


def test_the_same_seed_starts_the_same_way():
    first, second, other = (started(seed)[1] for seed in (3, 3, 4))
    mine, again, theirs = (list(c.parameters()) for c in (first, second, other))
    assert all(torch.equal(a, b) for a, b in zip(mine, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("name", ["hosts", "best", "lives", "epochs"])
def test_impossible_starts_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        StartConfig(**{name: 0})
