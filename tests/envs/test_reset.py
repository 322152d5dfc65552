"""Resets: seeds, masks of hosts, and lives that follow each other."""

from itertools import pairwise

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given
from hypothesis import strategies as st

from envs_toys import examples, played, random_actions, single_env, vector_env, waiting
from esper.envs.arguments import checked_seeds
from esper.envs.checker import same
from esper.leyline.errors import EsperError


def test_one_seed_counts_up_and_several_are_taken_as_they_are():
    envs = vector_env(3)
    first, _ = envs.reset(seed=7)
    listed, _ = envs.reset(seed=[7, 8, 9])
    turned, _ = envs.reset(seed=[9, 8, 7])
    numpys, _ = envs.reset(seed=np.int64(7))
    assert same(first, listed)
    assert same(first, numpys)
    assert same(first, turned[::-1])
    assert not same(first[0], first[1])
    assert envs.np_random_seed == 7


def test_resets_without_a_seed_go_on_where_the_seed_began():
    envs, again = vector_env(2), vector_env(2)
    chain = [envs.reset(seed=1)[0], envs.reset()[0], envs.reset()[0]]
    assert not same(chain[0], chain[1])
    assert not same(chain[1], chain[2])
    assert same(chain, [again.reset(seed=1)[0], again.reset()[0], again.reset()[0]])


def test_a_reset_is_an_autoreset_that_comes_early():
    envs, early = vector_env(2), vector_env(2)
    lives = [moment for moment in played(envs, np.stack([waiting(envs)] * 4)) if moment.truncated.any()]
    early.reset(seed=0)
    early.step(waiting(early))
    assert same(lives[0].observations, early.reset()[0])


def test_fresh_envs_draw_seeds_of_their_own():
    assert not same(vector_env(1).reset()[0], vector_env(1).reset()[0])
    assert not same(single_env().reset()[0], single_env().reset()[0])


def test_some_hosts_can_have_seeds_of_their_own_and_others_go_on():
    envs, plain = vector_env(3), vector_env(3)
    envs.reset(seed=0)
    plain.reset(seed=0)
    mixed, _ = envs.reset(seed=[None, 50, None])
    following, _ = plain.reset()
    assert same(mixed[[0, 2]], following[[0, 2]])
    assert same(mixed[1], plain.reset(seed=50)[0][0])


@given(st.lists(st.booleans(), min_size=3, max_size=3).filter(any), st.integers(0, 3), st.booleans())
@examples(8)
def test_a_reset_mask_begins_these_lives_and_leaves_the_others_alone(rows, after, seeded):
    envs, plain, rows = vector_env(3), vector_env(3), np.array(rows)
    actions = random_actions(envs, 5, rng_seed=1)
    *_, last = played(envs, actions[:after], seed=2)
    list(played(plain, actions[:after], seed=2))
    observations, infos = envs.reset(seed=9 if seeded else None, options={"reset_mask": rows})
    assert same(observations[~rows], last.observations[~rows])
    assert not any((observations[n] == last.observations[n]).all() for n in rows.nonzero()[0])
    assert np.array_equal(infos["_score"], rows)
    assert not infos["score"][~rows].any()
    if seeded:
        assert same(observations[rows], vector_env(3).reset(seed=9)[0][rows])
    for chosen in actions[after:]:
        a, b = envs.step(chosen), plain.step(chosen)
        assert same(a[0][~rows], b[0][~rows])
        assert same(a[1][~rows], b[1][~rows])


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ([True, False, True], "bool array of shape"),
        (np.array([1, 0, 1]), "bool array of shape"),
        (np.array([True, False]), "bool array of shape"),
        (np.zeros(3, dtype=bool), "at least one True"),
    ],
    ids=["list", "ints", "short", "empty"],
)
def test_masks_that_are_none_are_refused_and_change_nothing(mask, says):
    envs, plain = vector_env(3), vector_env(3)
    envs.reset(seed=0)
    plain.reset(seed=0)
    with pytest.raises(EsperError, match=says):
        envs.reset(seed=5, options={"reset_mask": mask})
    assert same(envs.step(waiting(envs)), plain.step(waiting(envs)))


def test_options_that_do_not_exist_are_refused():
    with pytest.raises(EsperError, match="unknown option of reset 'reset_maks': did you mean 'reset_mask'"):
        vector_env(2).reset(options={"reset_maks": np.ones(2, dtype=bool)})
    env = single_env()
    env.reset(seed=0)
    with pytest.raises(EsperError, match="unknown option of reset"):
        env.reset(options={"difficulty": 3})
    while not any(env.step(waiting(env.vector)[0])[2:4]):
        pass
    with pytest.raises(EsperError, match="unknown option of reset"):
        env.reset(options={"difficulty": 3})


@pytest.mark.parametrize("seed", [-1, 2**63, [1, 2], [1, 2, -3]], ids=str)
def test_seeds_that_are_none_are_refused_and_change_nothing(seed):
    envs, plain = vector_env(3), vector_env(3)
    envs.reset(seed=0)
    plain.reset(seed=0)
    with pytest.raises(EsperError, match="seed must"):
        envs.reset(seed=seed)
    assert same(envs.reset(), plain.reset())


@pytest.mark.parametrize("seed", [[1, 2.5], ["a", "b"], [None, True]], ids=str)
def test_seeds_are_whole_numbers(seed):
    with pytest.raises(EsperError, match="seed must hold whole numbers"):
        checked_seeds(seed, 2)


def test_the_first_reset_is_of_all_hosts():
    with pytest.raises(ResetNeeded, match="reset all hosts once"):
        vector_env(2).reset(options={"reset_mask": np.array([True, False])})


def test_prices_are_drawn_anew_for_every_life_and_by_seed():
    envs = vector_env(6, price=(0.0, 0.02, 0.1))
    moments = list(played(envs, np.stack([waiting(envs)] * 12)))
    prices = np.array([moment.infos["price"] for moment in moments]).round(6)
    assert set(prices.flatten()) == {0.0, 0.02, 0.1}
    for before, moment in pairwise(moments):
        if moment.truncated.any():
            assert same(moment.infos["final_info"]["price"], before.infos["price"])
        else:
            assert same(moment.infos["price"], before.infos["price"])
    assert len({tuple(row) for row in prices}) > 2
    assert np.array_equal(envs.reset(seed=4)[1]["price"], envs.reset(seed=4)[1]["price"])
