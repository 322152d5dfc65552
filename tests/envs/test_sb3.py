"""Stable-Baselines3 and sb3-contrib train on fleets, and what they learn sits our exam."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO, RecurrentPPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy as evaluate_unmasked
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecMonitor

from envs_toys import options_of, random_actions, vector_env
from esper import hold_exam
from esper.envs import SB3Policy, SB3VecEnv
from esper.envs.observations import info_of
from esper.envs.options import EnvOptions
from esper.leyline.actions import Head
from esper.leyline.errors import EsperError
from esper.simic.evaluation import evaluate
from esper.tolaria import FleetEnv
from small_exams import AT_ONE_RATE, smoke

pytestmark = pytest.mark.filterwarnings("ignore:We recommend using a `batch_size`")
SMALL = {"n_steps": 4, "batch_size": 8, "n_epochs": 1, "gamma": 1.0, "seed": 0, "device": "cpu"}


def sb3_env(hosts: int = 2, **changes) -> SB3VecEnv:
    return SB3VecEnv(hosts, seed=3, **options_of("mlp", **changes))


def test_its_numbers_are_those_of_the_vector_env():
    ours, theirs = vector_env(3, price=(0.0, 0.1)), sb3_env(3, price=(0.0, 0.1))
    first, infos = ours.reset(seed=3)
    assert np.array_equal(theirs.reset(), first)
    assert theirs.reset_infos[1]["price"] == infos["price"][1]
    ends = 0
    for actions in random_actions(ours, 8):
        observations, rewards, terminated, truncated, infos = ours.step(actions)
        seen, earned, done, told = theirs.step(actions)
        assert np.array_equal(seen, observations)
        assert np.array_equal(earned, rewards.astype(np.float32))
        assert np.array_equal(done, terminated | truncated)
        for n, info in enumerate(told):
            assert info["TimeLimit.truncated"] == truncated[n]
            expected = info_of(infos["final_info"] if done[n] else infos, n)
            assert all(np.array_equal(info[name], value) for name, value in expected.items())
            if done[n]:
                assert np.array_equal(info["terminal_observation"], infos["final_obs"][n])
                assert np.array_equal(theirs.reset_infos[n]["action_mask"], infos["action_mask"][n])
                ends += 1
    assert ends >= 3


def test_masks_are_found_by_maskable_ppo():
    envs = sb3_env(3)
    envs.reset()
    assert is_masking_supported(envs)
    assert np.array_equal(get_action_masks(envs), envs.action_masks())
    assert envs.env_method("action_masks", indices=[1])[0].shape == (31,)
    assert envs.has_attr("observation_names")
    assert not envs.has_attr("nothing")
    assert envs.get_attr("observation_names", indices=0) == [envs.envs.observation_names]
    assert envs.env_method("close") == [None] * 3


def test_what_a_fleet_cannot_do_is_refused():
    envs = sb3_env()
    with pytest.raises(EsperError, match="budget cannot be set on the hosts of a fleet"):
        envs.set_attr("budget", 3)
    envs.set_options({"reset_mask": np.array([True, False])})
    with pytest.raises(EsperError, match="set_options takes no options"):
        envs.reset()
    assert envs.env_is_wrapped(Monitor) == [False, False]


def test_frames_are_tiled():
    envs = SB3VecEnv(2, render_mode="rgb_array", **options_of("mlp"))
    envs.reset()
    envs.step(np.zeros((2, 8), dtype=int))
    frame = envs.render()
    assert frame.ndim == 3
    assert frame.size > envs.get_images()[0].size
    silent = sb3_env()
    silent.reset()
    assert silent.get_images() == [None, None]
    envs.close()


@pytest.mark.parametrize(("algorithm", "network"), [(PPO, "MlpPolicy"), (RecurrentPPO, "MlpLstmPolicy")])
def test_algorithms_without_masks_train_too(algorithm, network):
    envs = VecMonitor(sb3_env())
    model = algorithm(network, envs, **SMALL).learn(16)
    assert model.num_timesteps == 16
    assert len(model.ep_info_buffer) >= 2
    lengths = evaluate_unmasked(model, VecMonitor(sb3_env()), n_eval_episodes=3, return_episode_rewards=True)[1]
    assert len(lengths) == 3


def trained(**changes) -> MaskablePPO:
    return MaskablePPO("MlpPolicy", sb3_env(**changes), **SMALL).learn(16)


def test_maskable_ppo_trains_saves_and_is_evaluated(tmp_path):
    model, again = trained(), trained()
    for a, b in zip(model.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(a, b), "the same seeds give the same policy"
    model.save(tmp_path / "model")
    loaded = MaskablePPO.load(tmp_path / "model", device="cpu")
    mean, _ = evaluate_policy(loaded, VecMonitor(sb3_env()), n_eval_episodes=3)
    assert np.isfinite(mean)


def test_a_learned_policy_decides_as_its_model_does_and_chooses_what_masks_allow():
    model, options = trained(), EnvOptions(**options_of("mlp"))
    setting = options.setting()

    def fresh() -> FleetEnv:
        return FleetEnv(setting.fleet(options.engine, 3), setting.env)

    chosen = []
    policy = SB3Policy(model, deterministic=True, name="theirs")
    assert policy.name == "theirs"
    evaluate(fresh(), policy, 0.02, on_step=lambda actions, step: chosen.append(actions))
    envs = sb3_env(3)
    seen = envs.reset()
    first = model.predict(seen, deterministic=True, action_masks=envs.action_masks())[0]
    assert chosen[0].shape == first.shape
    fleets, state = [fresh() for _ in range(3)], torch.get_rng_state()
    sampled = [
        evaluate(env, SB3Policy(model, rng_seed=seed), 0.02).objective
        for env, seed in zip(fleets, (0, 0, 1), strict=True)
    ]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(sampled[0], sampled[1])
    assert not torch.equal(sampled[0], sampled[2])


def test_a_policy_sees_what_it_was_trained_on():
    """The vector env and a fleet show the same host in the same way."""
    seen = []

    class Watched(MaskablePPO):
        def predict(self, observation, state=None, start=None, deterministic=False, action_masks=None):
            seen.append((observation, action_masks))
            return super().predict(observation, state, start, deterministic, action_masks)

    model = Watched("MlpPolicy", sb3_env(), **SMALL)
    envs = vector_env(2)
    envs.reset(seed=3)
    policy = SB3Policy(model)
    policy.begin(envs.setting, 2, torch.device("cpu"))
    fresh = torch.ones(2, dtype=torch.bool)
    observations = envs.reset(seed=3)[0]
    for _ in range(3):
        view = envs.life.view(envs.setting, torch.full_like(envs.life.rent, torch.inf))
        actions = policy.decide(view, fresh, torch.zeros(2, 0))
        assert np.array_equal(seen[-1][0], observations)
        assert np.array_equal(seen[-1][1], envs.action_masks())
        assert actions.shape == (2, len(Head))
        observations, *_ = envs.step(actions.numpy())


def test_recurrent_policies_remember_and_forget():
    model = RecurrentPPO("MlpLstmPolicy", sb3_env(), **SMALL)
    envs = vector_env(2)
    envs.reset(seed=0)
    policy = SB3Policy(model, deterministic=True)
    policy.begin(envs.setting, 2, torch.device("cpu"))
    view = envs.life.view(envs.setting, torch.full_like(envs.life.rent, torch.inf))
    first, nobody = torch.ones(2, dtype=torch.bool), torch.zeros(2, dtype=torch.bool)
    policy.decide(view, first, torch.zeros(2, 0))
    once = policy.state[0].copy()
    policy.decide(view, nobody, torch.zeros(2, 0))
    assert not np.allclose(policy.state[0], once)
    policy.decide(view, torch.tensor([True, False]), torch.zeros(2, 0))
    assert np.allclose(policy.state[0][:, 0], once[:, 0])
    assert not np.allclose(policy.state[0][:, 1], once[:, 1])


def test_models_for_other_hosts_are_refused():
    setting = vector_env(2, widths=(4, 4, 4)).setting
    with pytest.raises(EsperError, match=r"made for observations \(100,\) and actions .* not for \(75,\)"):
        SB3Policy(trained()).begin(setting, 2, torch.device("cpu"))


def test_a_learned_policy_sits_the_exam_as_an_arm():
    recipe = smoke()
    (fleet,) = recipe.fleets
    asked = {"widths": fleet.widths, "options": fleet.options, "episode": 4, "budget": None}
    model = trained(**asked)
    config = replace(AT_ONE_RATE, thorough=False, plans=0)
    reports, lives = hold_exam(recipe, [SB3Policy(model)], config)
    arms = {arm.name for arm in reports[0].arms}
    assert "MaskablePPO" in arms
    assert {"never", "random"} <= arms
    assert [life.arm for life in lives].count("MaskablePPO") == 1
    guests = hold_exam(recipe, [SB3Policy(model, name="trained")], config, guests=[SB3Policy(model, name="guest")])[0]
    assert "guest" in {arm.name for arm in guests[0].arms}
