"""TorchRL's own wrappers collect rollouts, with final observations and masks."""

import gymnasium
import numpy as np
import pytest
import torch

from envs_toys import options_of, random_actions, vector_env

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
torchrl = pytest.importorskip("torchrl.envs")


def wrapped(hosts: int = 2, **changes):
    envs = gymnasium.make_vec("esper:Growth-v0", num_envs=hosts, **options_of("mlp", **changes))
    return torchrl.GymWrapper(envs, categorical_action_encoding=True)


def test_rollouts_are_those_of_the_vector_env():
    envs, ours = wrapped(), vector_env(2)
    actions = random_actions(ours, 7)
    envs.set_seed(0)
    played = iter(torch.from_numpy(actions))

    def policy(tensordict):
        return tensordict.set("action", next(played))

    rollout = envs.rollout(7, policy=policy, break_when_any_done=False)
    ours.reset(seed=0)
    observations, infos = ours.reset()  # set_seed has reset the env already
    for t, chosen in enumerate(actions):
        now = rollout[:, t]
        assert np.array_equal(now["observation"].numpy(), observations)
        assert np.array_equal(now["action_mask"].numpy(), infos["action_mask"])
        assert np.array_equal(now["age"].numpy(), infos["age"])
        observations, rewards, terminated, truncated, infos = ours.step(chosen)
        over = terminated | truncated
        last = np.stack([infos["final_obs"][n] if over[n] else observations[n] for n in range(2)])
        assert np.array_equal(now["next", "observation"].numpy(), last)
        ages = [infos["final_info"]["age"][n] if over[n] else infos["age"][n] for n in range(2)]
        assert now["next", "age"].tolist() == ages
        assert np.array_equal(now["next", "reward"][:, 0].numpy(), rewards.astype(np.float32))
        assert np.array_equal(now["next", "terminated"][:, 0].numpy(), terminated)
        assert np.array_equal(now["next", "truncated"][:, 0].numpy(), truncated)
    assert rollout["next", "done"].any()


@pytest.mark.parametrize("hosts", [0, 2])
def test_environments_can_be_made_by_name(hosts):
    env = torchrl.GymEnv("esper:Growth-v0", **options_of("mlp"))
    torchrl.check_env_specs(env)
    rollout = env.rollout(10)
    assert rollout["next", "done"][-1]
    assert rollout["observation"].shape[-1] == 75


def test_collectors_and_masks_work_together():
    from torchrl.collectors import Collector

    envs = torchrl.TransformedEnv(wrapped(3), torchrl.ActionMask())
    collector = Collector(envs, envs.rand_action, frames_per_batch=12, total_frames=24)
    batches = list(collector)
    assert [batch.numel() for batch in batches] == [12, 12]
    for batch in batches:
        masks = batch["action_mask"].flatten(0, -2).split(ours_sizes(envs), -1)
        actions = batch["action"].flatten(0, -2)
        for head, mask in enumerate(masks):
            assert mask.gather(-1, actions[:, head : head + 1]).all()
    collector.shutdown()


def ours_sizes(envs) -> list[int]:
    return list(vector_env(1).setting.space.sizes)
