"""The vector env gives bit for bit what its fleet gives, and what single envs give."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envs_toys import KINDS, examples, options_of, played, random_actions, single_env, vector_env, waiting
from esper.envs.checker import same
from esper.envs.lives import Lives
from esper.envs.observations import BOUND, info_of
from esper.envs.options import EnvOptions
from esper.leyline.actions import Head, Op
from esper.simic.lives import LifeState, newborn
from esper.simic.rewards import RewardConfig, objective, reward
from esper.tamiyo.features import features
from esper.tolaria.env import Step


def fleet_of(hosts: int, first_seed: int, **options: object) -> Lives:
    asked = EnvOptions(**options)
    setting = asked.setting()
    fleet = Lives(setting.fleet(asked.engine, hosts), setting.env, asked.prices)
    fleet.seed(torch.ones(hosts, dtype=torch.bool), torch.arange(hosts) + first_seed)
    return fleet


def observed(fleet: Lives, life: LifeState) -> np.ndarray:
    seen = features(life.view(fleet.setting, torch.full_like(life.rent, torch.inf)))
    return torch.cat([seen.host, seen.slots.flatten(1)], 1).clamp(-BOUND, BOUND).numpy()


def assert_is_the_fleets(envs, moment, life: LifeState, step: Step, earned: torch.Tensor, fleet: Lives) -> None:
    """Observations, rewards, ends and infos of one step are those of the fleet."""
    ended = (step.terminated | step.truncated).numpy()
    assert np.array_equal(moment.observations, observed(fleet, life))
    assert np.array_equal(moment.rewards, earned.double().numpy())
    assert np.array_equal(moment.terminated, step.terminated.numpy())
    assert np.array_equal(moment.truncated, step.truncated.numpy())
    for name in ("score", "metric", "growth", "flops", "spent"):
        assert np.array_equal(moment.infos[name], getattr(life.signals, name).double().numpy()), name
    assert np.array_equal(moment.infos["j"], objective(life.signals, life.rent).double().numpy())
    assert np.array_equal(moment.infos["price"], life.rent.double().numpy())
    assert np.array_equal(moment.infos["age"], life.signals.age.numpy())
    assert np.array_equal(moment.infos["legal"], life.signals.legal.numpy())
    assert np.array_equal(moment.infos["refused"], step.refused.numpy() & ~ended)
    if ended.any():
        final = moment.infos["final_info"]
        assert np.array_equal(final["score"][ended], step.final.score.double().numpy()[ended])
        assert np.array_equal(final["refused"][ended], step.refused.numpy()[ended])
        assert np.array_equal(final["spent"][ended], step.final.spent.double().numpy()[ended])


@pytest.mark.parametrize("kind", KINDS)
def test_the_vector_env_is_its_fleet_bit_for_bit(kind):
    envs, fleet = vector_env(3, kind, price=(0.0, 0.1)), fleet_of(3, 5, **options_of(kind, price=(0.0, 0.1)))
    actions = random_actions(envs, 7)
    first, *moments = played(envs, actions, seed=5)
    fleet_life = newborn(fleet, fleet.drawn_prices())
    fleet_life = fleet_life._replace(rent=fleet.drawn_prices())
    assert np.array_equal(first.observations, observed(fleet, fleet_life))
    ends = 0
    for moment, chosen in zip(moments, actions, strict=True):
        before, step = fleet_life, fleet.step(torch.from_numpy(chosen))
        ended = step.terminated | step.truncated
        earned = reward(before.signals, step.final, before.rent, step.penalty, ended, RewardConfig(gamma=1.0)).total
        fleet_life = before.followed_by(step.signals, ended, fleet.drawn_prices())
        assert_is_the_fleets(envs, moment, fleet_life, step, earned, fleet)
        ends += int(ended.sum())
    assert ends >= 3


@given(st.sampled_from(KINDS), st.integers(2, 4), st.integers(0, 10**9), st.integers(0, 10**9))
@examples(6)
def test_the_vector_env_is_its_single_envs_bit_for_bit(kind, hosts, seed, rng_seed):
    envs = vector_env(hosts, kind, price=(0.0, 0.1))
    actions = random_actions(envs, 6, rng_seed)
    first, *moments = played(envs, actions, seed)
    for n in range(hosts):
        env = single_env(kind, price=(0.0, 0.1))
        observation, info = env.reset(seed=seed + n)
        assert same(observation, first.observations[n])
        assert same(info, info_of(first.infos, n))
        for chosen, moment in zip(actions[:, n], moments, strict=True):
            observation, earned, terminated, truncated, info = env.step(chosen)
            assert same(earned, float(moment.rewards[n]))
            assert (terminated, truncated) == (moment.terminated[n], moment.truncated[n])
            if terminated or truncated:
                assert same(observation, moment.infos["final_obs"][n])
                assert same(info, info_of(moment.infos["final_info"], n))
                observation, info = env.reset()
            assert same(observation, moment.observations[n])
            assert same(info, info_of(moment.infos, n))


def test_a_life_does_not_depend_on_what_its_neighbours_do():
    quiet, busy = vector_env(3), vector_env(3)
    actions = random_actions(quiet, 8)
    others = actions.copy()
    others[:, 1:] = random_actions(quiet, 8, rng_seed=1)[:, 1:]
    for a, b in zip(played(quiet, actions), played(busy, others), strict=True):
        assert same(a.observations[0], b.observations[0])
        assert a.rewards[0] == b.rewards[0]


@pytest.mark.parametrize("kind", ["mlp", "resnet"])
def test_an_illegal_action_is_waiting_but_for_the_report(kind):
    envs, waits = vector_env(3, kind), vector_env(3, kind)
    actions = random_actions(envs, 12)
    envs.reset(seed=0)
    waits.reset(seed=0)
    refusals = 0
    for chosen in actions:
        legal = envs.life.signals.legal.numpy()
        illegal = ~legal[np.arange(3), chosen[:, Head.OP], chosen[:, Head.SLOT]]
        meant = np.where(illegal[:, None], 0, chosen)
        told, known = envs.step(chosen), waits.step(meant)
        refused, nothing = told[4].pop("refused"), known[4].pop("refused")
        if "final_info" in told[4]:
            refused = refused | told[4]["final_info"].pop("refused")
            known[4]["final_info"].pop("refused")
        assert np.array_equal(refused, illegal)
        assert not nothing.any()
        assert same(told, known)
        refusals += int(illegal.sum())
    assert refusals > 5


def test_an_episode_is_truncated_when_its_budget_is_spent_and_terminated_if_asked_for():
    envs, terminal = vector_env(2), vector_env(2, terminal=True)
    for a, b in zip(played(envs, random_actions(envs, 8)), played(terminal, random_actions(envs, 8)), strict=True):
        assert not b.truncated.any()
        assert np.array_equal(a.terminated | a.truncated, b.terminated)
        assert same(a.observations, b.observations)
        if a.truncated.any():
            assert (a.infos["final_info"]["spent"][a.truncated] >= 1 - 1e-9).all()


def test_rewards_add_up_to_the_rise_of_j():
    envs = vector_env(3, price=0.2)
    moments = list(played(envs, random_actions(envs, 8)))
    begun, total, ends = moments[0].infos["j"], np.zeros(3), 0
    for moment in moments[1:]:
        total += moment.rewards
        for n in (moment.terminated | moment.truncated).nonzero()[0]:
            failed = 0.1 * moment.terminated[n]
            assert total[n] == pytest.approx(moment.infos["final_info"]["j"][n] - begun[n] - failed, abs=1e-6)
            total[n], begun[n], ends = 0.0, moment.infos["j"][n], ends + 1
    assert ends >= 3


def test_a_host_that_fails_is_terminated_and_the_others_notice_nothing():
    envs, healthy = vector_env(3, budget=6.0), vector_env(3, budget=6.0)
    envs.reset(seed=0)
    healthy.reset(seed=0)
    first, known = envs.step(waiting(envs)), healthy.step(waiting(envs))
    envs.lives.fleet.trunk.flat[1] = torch.nan
    observations, rewards, terminated, truncated, infos = envs.step(waiting(envs))
    assert terminated.tolist() == [False, True, False]
    assert not truncated.any()
    assert envs.observation_space.contains(observations)
    final = infos["final_info"]
    assert infos["final_obs"][1] in envs.single_observation_space
    assert final["score"][1] == first[4]["score"][1], "a failed host is reported with its last good epoch"
    assert rewards[1] == pytest.approx(-0.1)
    assert infos["age"].tolist() == [2, 0, 2]
    assert infos["spent"][1] == 0
    plain = healthy.step(waiting(envs))
    rows = np.array([0, 2])
    assert same(observations[rows], plain[0][rows])
    assert same(rewards[rows], plain[1][rows])
    assert np.isfinite(observations).all()
    assert known[3].sum() == 0
    lives = [envs.step(waiting(envs)) for _ in range(6)]
    assert sum(moment[3][1] for moment in lives) == 1, "the host that follows lives a whole life"
    assert lives[-1][3][1]


def test_planting_is_visible_in_the_next_observation():
    envs = vector_env(1)
    envs.reset(seed=0)
    observations, *_ = envs.step(np.array([envs.setting.space.action(Op.GERMINATE, slot="s0", blueprint="norm")]))
    seen = dict(zip(envs.observation_names, observations[0], strict=True))
    assert seen["seeds"] == 0.5
    assert seen["s0.births"] > 0
    assert seen["s1.births"] == 0
