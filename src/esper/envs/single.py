"""The environment of one host."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from esper.envs.arguments import checked_actions, checked_rows
from esper.envs.observations import Info, info_of
from esper.envs.picture import FRAMES, RENDER_FPS, WINDOW, Window, require_known
from esper.envs.vector import GrowthVectorEnv, require_open


class GrowthEnv(gymnasium.Env):
    """One host that grows while it trains; an episode is its whole life.

    It gives bit for bit what the host of the same seed gives in a `GrowthVectorEnv`.

    Args:
        render_mode: None, rgb_array, or human for a window.
        options: The fields of `EnvOptions`, such as task, host, budget and price.

    Raises:
        EsperError: If an option is unknown or cannot be used; the message names it.

    Example:
        ```python
        import gymnasium

        env = gymnasium.make("esper:Growth-v0", task="spirals", budget=12)
        observation, info = env.reset(seed=0)
        action = env.action_space.sample(mask=env.unwrapped.sample_mask())
        observation, reward, terminated, truncated, info = env.step(action)
        ```
    """

    metadata: dict[str, Any] = {"render_modes": [FRAMES, WINDOW], "render_fps": RENDER_FPS}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, **options: Any) -> None:
        require_known(render_mode, self.metadata["render_modes"])
        self.window = Window("Growth-v0") if render_mode == WINDOW else None
        self.vector = GrowthVectorEnv(1, render_mode and FRAMES, **options)
        self.render_mode, self.setting = render_mode, self.vector.setting
        self.action_space = self.vector.single_action_space
        self.observation_space = self.vector.single_observation_space
        self.observation_names = self.vector.observation_names
        self.upcoming: tuple[np.ndarray, Info] | None = None
        """First observation and info of the next life, if the last one has ended."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, Info]:
        """Begin a new life: the first one of a seed, or without one the next of the seed before."""
        require_open(self.vector)
        checked_rows(options, 1)
        super().reset(seed=seed)
        if seed is None and self.vector.life is None:
            seed = int(self.np_random.integers(2**31))
        if seed is None and self.upcoming is not None:
            (observation, info), self.upcoming = self.upcoming, None
            self.vector.begin_film(~self.vector.nobody)
        else:
            observations, infos = self.vector.reset(seed=seed, options=options)
            observation, info = observations[0], info_of(infos, 0)
            self.upcoming = None
        self._show()
        return observation, info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Apply an action and train the host for an epoch.

        Raises:
            InvalidAction: If the action is not in the action space. Nothing has changed then.
            ResetNeeded: If the env was never reset, or if the episode has ended.
        """
        require_open(self.vector)
        if self.upcoming is not None:
            raise ResetNeeded("the episode has ended; call reset before the next step")
        chosen = checked_actions(action, self.setting.space.sizes)
        observations, rewards, terminated, truncated, infos = self.vector.step(chosen[None])
        observation, info = observations[0], info_of(infos, 0)
        if terminated[0] or truncated[0]:
            self.upcoming = observation, info
            observation, info = infos["final_obs"][0], info_of(infos["final_info"], 0)
        self._show()
        return observation, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info

    def action_masks(self) -> np.ndarray:
        """Return which choices of each head some legal action makes, as one flat bool array in head order."""
        return self.vector.action_masks()[0]

    def sample_mask(self) -> tuple[np.ndarray, ...]:
        """Return the masks as `action_space.sample(mask=...)` takes them."""
        return self.vector.sample_masks()[0]

    def render(self) -> np.ndarray | None:
        """Draw the host's life so far: as an array, or, in the mode human, into the window."""
        if self.render_mode == WINDOW:
            return self._show()
        frames = self.vector.render()
        return None if frames is None else frames[0]

    def _show(self) -> None:
        frames = None if self.window is None else self.vector.render()
        if frames is not None and self.window is not None:
            self.window.show(frames[0])

    def close(self) -> None:
        """Close the window."""
        if self.window is not None:
            self.window.close()
        self.vector.close()
