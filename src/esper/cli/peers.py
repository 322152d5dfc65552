"""Policies of sb3-contrib for `esper bench ppo`; importing this module needs sb3-contrib."""

import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn


class Nothing(gymnasium.Env):
    """Environment with random observations, rewards and masks, and episodes of a fixed length."""

    def __init__(self, seen: int, heads: list[int], decisions: int, rng_seed: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-10, 10, (seen,), np.float32)
        self.action_space = gymnasium.spaces.MultiDiscrete(heads)
        self.heads, self.decisions, self.age = heads, decisions, 0
        self.random = np.random.default_rng(rng_seed)

    def see(self) -> np.ndarray:
        return self.random.standard_normal(self.observation_space.shape, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.age = 0
        return self.see(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.age += 1
        return self.see(), float(self.random.standard_normal()), self.age == self.decisions, False, {}

    def action_masks(self) -> np.ndarray:
        masks = [self.random.random(size) > 0.5 for size in self.heads]
        for mask in masks:
            mask[0] = True
        return np.concatenate(masks)


class Wide(BaseFeaturesExtractor):
    def __init__(self, space: gymnasium.spaces.Box, features_dim: int) -> None:
        super().__init__(space, features_dim)
        self.layer = nn.Linear(space.shape[0], features_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()


def peer(
    who: str, minibatches: int, *, hosts: int, decisions: int, heads: list[int], seen: int, hidden: int
) -> tuple[Callable[[], object], float]:
    """Return an update that is ready to run, and the milliseconds of one decision for all hosts."""
    env = DummyVecEnv([lambda n=n: Nothing(seen, heads, decisions, n) for n in range(hosts)])
    recurrent = who == "sb3_recurrent"
    size: dict[str, Any] = {
        "features_extractor_class": Wide,
        "features_extractor_kwargs": {"features_dim": hidden},
        "net_arch": [] if recurrent else [hidden],
    }
    if recurrent:
        size |= {"lstm_hidden_size": hidden, "shared_lstm": True, "enable_critic_lstm": False}
    make = RecurrentPPO if recurrent else MaskablePPO
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = make(
            "MlpLstmPolicy" if recurrent else "MlpPolicy",
            env,
            n_steps=decisions,
            batch_size=hosts * decisions // minibatches,
            n_epochs=1,
            policy_kwargs=size,
            device="cpu",
            seed=0,
        )
    _, callback = model._setup_learn(hosts * decisions)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=decisions)
    model.train()
    x = torch.as_tensor(model._last_obs)
    with torch.no_grad():
        if recurrent:
            starts = torch.zeros(hosts)
            acting = _median_ms(lambda: model.policy(x, model._last_lstm_states, starts))
        else:
            masks = np.stack([e.get_wrapper_attr("action_masks")() for e in env.envs])
            acting = _median_ms(lambda: model.policy(x, action_masks=masks))
    return model.train, acting


def _median_ms(run: Callable[[], object], repeats: int = 100) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times) * 1e3
