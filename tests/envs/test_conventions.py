"""Environments keep the conventions of Gymnasium, Stable-Baselines3 and our own checker, with every kind of host."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as check_env_for_sb3

from envs_toys import KINDS, action, examples, options_of, random_actions, single_env, vector_env, waiting
from esper.envs import check_vector_env
from esper.envs.checker import same
from esper.envs.observations import masks, observe_life
from esper.leyline.actions import Head, Op

ID = "esper:Growth-v0"


@pytest.mark.parametrize("kind", KINDS)
def test_gymnasium_and_sb3_find_no_fault_in_single_envs(kind):
    env = gymnasium.make(ID, render_mode="rgb_array" if kind == "mlp" else None, **options_of(kind))
    check_env(env.unwrapped, skip_render_check=kind != "mlp")
    check_env_for_sb3(env.unwrapped, warn=True)


@pytest.mark.parametrize("kind", KINDS)
def test_our_checker_finds_no_fault_in_vector_envs(kind):
    check_vector_env(gymnasium.make_vec(ID, num_envs=3, **options_of(kind)).unwrapped, steps=6)


@given(
    st.sampled_from(("mlp", "gpt")),
    st.integers(1, 4),
    st.sampled_from(({"budget": 2.0}, {"budget": 3.7}, {"budget": None, "episode": 3})),
    st.sampled_from((0.0, 0.5, (0.0, 0.1))),
    st.sampled_from(("progress", "sparse", "contribution")),
    st.booleans(),
    st.integers(0, 2**40),
)
@examples(5)
def test_our_checker_finds_no_fault_whatever_the_options(kind, hosts, length, price, reward, terminal, seed):
    options = {**length, "price": price, "reward": reward, "terminal": terminal}
    check_vector_env(vector_env(hosts, kind, **options), steps=6, seed=seed)


@pytest.mark.parametrize("kind", KINDS)
def test_spaces_say_what_hosts_and_heads_there_are(kind):
    envs = vector_env(2, kind)
    space, names = envs.setting.space, envs.observation_names
    assert envs.single_action_space == MultiDiscrete(list(space.sizes))
    assert envs.single_observation_space == Box(-20, 20, (len(names),), np.float32)
    assert envs.action_space.shape == (2, len(Head))
    assert envs.observation_space.shape == (2, len(names))
    assert len(set(names)) == len(names)
    assert {"score", "rent", "time_left", *(f"{slot}.alpha" for slot in space.slots)} <= set(names)
    assert envs.metadata["autoreset_mode"] is envs.autoreset_mode is AutoresetMode.SAME_STEP


def test_an_observation_holds_what_its_names_say():
    envs = vector_env(2, price=0.3, budget=20.0)
    first, infos = envs.reset(seed=0)
    seen = dict(zip(envs.observation_names, first.T, strict=True))
    assert np.allclose(seen["score"], infos["score"])
    assert np.allclose(seen["rent"], 3.0)
    assert np.allclose(seen["time_left"], 1.0)
    assert np.allclose(seen["s1.is_dormant"], 1.0)
    for _ in range(2):
        observations, *_, infos = envs.step(action(envs, "GERMINATE", slot="s1", blueprint="mlp"))
    seen = dict(zip(envs.observation_names, observations.T, strict=True))
    assert np.allclose(seen["time_left"], 1 - infos["spent"], atol=1e-6)
    assert np.allclose(seen["growth"], np.log1p(infos["growth"]))
    assert (infos["growth"] > 0).all()
    assert not seen["s1.is_dormant"].any()
    assert seen["s0.is_dormant"].all()


@pytest.mark.parametrize("kind", ["mlp", "gpt"])
def test_masks_say_the_same_in_all_three_dialects(kind):
    single, envs = single_env(kind), vector_env(3, kind)
    single.reset(seed=0)
    _, infos = envs.reset(seed=0)
    for actions in random_actions(envs, 6):
        assert (envs.action_masks() == infos["action_mask"]).all()
        assert envs.action_masks().dtype == np.bool_
        told = np.array([np.concatenate(row) for row in envs.sample_masks()])
        assert (told == infos["action_mask"]).all()
        assert (single.action_masks() == infos["action_mask"][0]).all()
        assert (np.concatenate(single.sample_mask()) == infos["action_mask"][0]).all()
        *_, over, cut, infos = envs.step(actions)
        single.step(actions[0])
        if over[0] or cut[0]:
            single.reset()


@given(st.integers(0, 10**6))
@examples(4)
def test_a_choice_is_in_the_mask_if_and_only_if_some_legal_action_makes_it(seed):
    envs = vector_env(3, slots=2)
    _, infos = envs.reset(seed=seed)
    ops, slots = len(Op), len(envs.setting.space.slots)
    for actions in random_actions(envs, 5, seed):
        legal, mask = infos["legal"], infos["action_mask"]
        assert legal.shape == (3, ops, slots)
        assert (mask[:, :ops] == legal.any(2)).all()
        assert mask[:, Op.WAIT].all()
        acting = np.delete(legal, Op.WAIT, 1).any(1)
        assert (mask[:, ops : ops + slots] == np.where(acting.any(1, keepdims=True), acting, True)).all()
        assert mask[:, ops + slots :].all()
        before, (*_, infos) = legal, envs.step(actions)
        lives_on = ~infos["_final_info"] if "_final_info" in infos else np.ones(3, dtype=bool)
        op, slot = actions[:, Head.OP], actions[:, Head.SLOT]
        assert (infos["refused"][lives_on] == ~before[np.arange(3), op, slot][lives_on]).all()


def test_sampling_with_masks_plants_seeds_and_is_seldom_refused():
    envs = vector_env(8, budget=20.0)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    refused = grown = 0
    for _ in range(12):
        *_, infos = envs.step(envs.action_space.sample(mask=envs.sample_masks()))
        refused, grown = refused + infos["refused"].sum(), grown + (infos["growth"] > 0).sum()
    assert refused < 0.35 * 96
    assert grown > 48


def test_wrappers_of_gymnasium_see_episodes_end():
    envs = RecordEpisodeStatistics(gymnasium.make_vec(ID, num_envs=3, **options_of("mlp", price=0.0)))
    envs.reset(seed=0)
    episodes = []
    for _ in range(8):
        *_, infos = envs.step(waiting(envs.unwrapped))
        if "episode" in infos:
            episodes += infos["episode"]["l"][infos["_episode"]].tolist()
    assert episodes == [4] * 6


def test_single_envs_can_be_stacked_by_gymnasium_too():
    kwargs = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP}}
    stacked = gymnasium.make_vec(ID, num_envs=2, **kwargs, **options_of("mlp"))
    ours = vector_env(2)
    assert np.array_equal(stacked.reset(seed=3)[0], ours.reset(seed=3)[0])
    for actions in random_actions(ours, 6):
        theirs, mine = stacked.step(actions), ours.step(actions)
        assert all(np.array_equal(a, b) for a, b in zip(theirs[:4], mine[:4], strict=True))
        assert ("final_obs" in theirs[4]) == ("final_obs" in mine[4])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_hosts_learn_where_an_algorithm_collects_without_gradients(mode):
    envs, plain = vector_env(2), vector_env(2)
    plain.reset(seed=0)
    with mode():
        envs.reset(seed=0)
        for chosen in random_actions(envs, 5):
            found = envs.step(chosen)
            assert same(found, plain.step(chosen))
        assert not torch.is_grad_enabled()


def test_observations_stay_within_their_bounds():
    envs = vector_env(2)
    envs.reset(seed=0)
    signals = envs.life.signals._replace(loss=envs.life.signals.loss * 1e30)
    seen = observe_life(envs.life._replace(signals=signals), envs.setting).numpy()
    assert seen.max() == 20
    assert envs.observation_space.contains(seen)


def test_where_only_waiting_is_legal_every_slot_is_allowed():
    """An empty mask of a head is none: libraries sample from it all the same, or fail."""
    space = vector_env(1).setting.space
    legal = torch.zeros(1, len(Op), len(space.slots), dtype=torch.bool)
    legal[:, Op.WAIT] = True
    ops, slots, *_ = masks(legal, space).split(space.sizes, 1)
    assert ops.tolist() == [[True] + [False] * 5]
    assert slots.all()
    legal[:, Op.GERMINATE, 1] = True
    assert masks(legal, space).split(space.sizes, 1)[1].tolist() == [[False, True]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_hosts_may_live_on_a_gpu(kind):
    envs, cpu = vector_env(3, kind, device="cuda", precision="fp32"), vector_env(3, kind)
    there, here = envs.reset(seed=0)[0], cpu.reset(seed=0)[0]
    assert np.allclose(there, here, atol=1e-3)
    for chosen in random_actions(envs, 6):
        observations, rewards, *_, infos = envs.step(chosen)
        assert envs.observation_space.contains(observations)
        assert np.isfinite(rewards).all()
        assert np.array_equal(envs.action_masks(), infos["action_mask"])
    envs.reset(seed=1, options={"reset_mask": np.array([True, False, True])})
