"""Adapters for Stable-Baselines3 and sb3-contrib. Importing this module needs stable-baselines3."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import MultiDiscrete
from jaxtyping import Bool, Float, Int
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
from torch import Tensor

from esper.envs.observations import info_of, masks, observation_names, observe
from esper.envs.vector import GrowthVectorEnv
from esper.leyline.errors import EsperError
from esper.leyline.rng import isolated, key
from esper.leyline.state import Setting
from esper.tamiyo.features import View


class SB3VecEnv(VecEnv):
    """A `GrowthVectorEnv` as Stable-Baselines3 and sb3-contrib take it; MaskablePPO finds its masks.

    Args:
        num_envs: Number of hosts.
        seed: Random seed of host 0; those of the others count up from it.
        render_mode: None or rgb_array.
        options: The fields of `EnvOptions`, such as task, host, budget and price.

    Raises:
        EsperError: If an option is unknown or cannot be used; the message names it.

    Example:
        ```python
        from sb3_contrib import MaskablePPO

        from esper.envs import SB3VecEnv

        envs = SB3VecEnv(16, task="spirals", budget=12)
        model = MaskablePPO("MlpPolicy", envs, n_steps=16, gamma=1.0, seed=0)
        model.learn(1024)
        ```
    """

    def __init__(
        self, num_envs: int = 1, *, seed: int | None = None, render_mode: str | None = None, **options: Any
    ) -> None:
        self.envs = GrowthVectorEnv(num_envs, render_mode, **options)
        super().__init__(num_envs, self.envs.single_observation_space, self.envs.single_action_space)
        self.actions = np.zeros((num_envs, len(self.envs.setting.space.sizes)), dtype=np.int64)
        if seed is not None:
            self.seed(seed)

    def reset(self) -> VecEnvObs:
        """Begin a new life for every host, with the seeds and options set before."""
        if any(self._options):
            raise EsperError("set_options takes no options for this environment; name them where it is made")
        observations, infos = self.envs.reset(seed=self._seeds)
        self.reset_infos = [info_of(infos, n) for n in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Remember the actions of the next step."""
        self.actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Apply the actions and train every host for an epoch."""
        observations, rewards, terminated, truncated, infos = self.envs.step(self.actions)
        done, told = terminated | truncated, [info_of(infos, n) for n in range(self.num_envs)]
        for n in done.nonzero()[0].tolist():
            self.reset_infos[n] = told[n]
            told[n] = info_of(infos["final_info"], n) | {"terminal_observation": infos["final_obs"][n]}
        for n, info in enumerate(told):
            info["TimeLimit.truncated"] = bool(truncated[n])
        return observations, rewards.astype(np.float32), done, told

    def close(self) -> None:
        """Close the environment."""
        self.envs.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Draw the life of every host so far."""
        return self.envs.render() or [None] * self.num_envs

    def action_masks(self) -> np.ndarray:
        """Return which choices of each head some legal action makes: one flat row for each host, in head order."""
        return self.envs.action_masks()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of the environment, once for each index."""
        return [getattr(self.envs, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Refuse: hosts are made with all they need, and share one fleet."""
        raise EsperError(f"{attr_name} cannot be set on the hosts of a fleet; name it where the environment is made")

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """Call a method of the environment, and return its result for each index."""
        found = getattr(self.envs, method_name)(*args, **kwargs)
        return [None if found is None else found[n] for n in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[gymnasium.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """Return that no host is wrapped."""
        return [False for _ in self._get_indices(indices)]


class SB3Policy:
    """A model of Stable-Baselines3 or sb3-contrib as a policy of fleets: it can be examined, and grow hosts.

    Args:
        model: A trained model, such as MaskablePPO, RecurrentPPO or PPO.
        deterministic: Take the most likely choices instead of sampling.
        rng_seed: Seed of sampled choices.
        name: Name under which reports show the policy.

    Raises:
        EsperError: When a fleet begins, if the model was made for another observation or action space.

    Example:
        ```python
        policy = SB3Policy(MaskablePPO.load("model.zip"))
        reports, lives = esper.hold_exam(esper.recipe("budgeted"), [policy])
        ```
    """

    def __init__(
        self, model: BaseAlgorithm, *, deterministic: bool = False, rng_seed: int = 0, name: str | None = None
    ) -> None:
        self.model, self.deterministic, self.rng_seed = model, deterministic, rng_seed
        self.name = name or type(model).__name__
        self.masked = "action_masks" in signature(model.predict).parameters

    def begin(self, setting: Setting, num_hosts: int, device: torch.device) -> None:
        """Prepare for a fleet of fresh hosts."""
        asked = (len(observation_names(setting)),), tuple(setting.space.sizes)
        space = self.model.action_space
        sizes = tuple(space.nvec.tolist()) if isinstance(space, MultiDiscrete) else None
        made = self.model.observation_space.shape, sizes
        if made != asked:
            raise EsperError(
                f"model must have been made for observations {asked[0]} and actions {asked[1]} of these hosts, not for"
                f" {made[0]} and {made[1]}: train it on hosts with as many slots and the same blueprints"
            )
        self.space, self.state, self.decisions = setting.space, None, 0

    def decide(self, view: View, fresh: Bool[Tensor, " N"], uniform: Float[Tensor, "N A"]) -> Int[Tensor, "N H"]:
        """Return an action for every host, and advance the hidden state."""
        mask = {"action_masks": masks(view.signals.legal, self.space).cpu().numpy()} if self.masked else {}
        start, seen = fresh.cpu().numpy(), observe(view).cpu().numpy()
        with isolated(int(key(self.rng_seed, self.decisions)) % 2**32):  # models draw from torch's global generator
            chosen, self.state = self.model.predict(seen, self.state, start, self.deterministic, **mask)
        self.decisions += 1
        return torch.from_numpy(chosen.astype(np.int64)).to(fresh.device)
