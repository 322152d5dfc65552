"""The vector environment: a fleet whose hosts are the sub-environments."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool
from torch import Tensor

from esper.envs.arguments import checked_actions, checked_rows, checked_seeds
from esper.envs.describing import StepDescriber
from esper.envs.lives import Lives
from esper.envs.observations import (
    BOUND,
    Info,
    arrays,
    as_bytes,
    described,
    marked,
    masks,
    observation_names,
    rows_of,
    split_mask,
    widened,
)
from esper.envs.options import EnvOptions
from esper.envs.picture import FRAMES, RENDER_FPS, Film, require_known
from esper.leyline.errors import EsperError
from esper.leyline.state import Setting
from esper.simic.lives import LifeState
from esper.tamiyo.features import empty_history, remember
from esper.tolaria.env import choose

FEWEST = 2
"""Hosts in a fleet: torch multiplies one matrix in another order than several, which changes the last bits of a life.
A single env has an idle companion, and gives what its host gives in any fleet."""


class GrowthVectorEnv(VectorEnv):
    """Hosts that grow while they train, as one vector environment; one fleet trains them all.

    An action is one choice for each head of `ActionSpace`, and is followed by one epoch of every host. An illegal
    action is refused: the host waits, and `info["refused"]` says so. An episode is a host's whole life: it is truncated
    when its budget is spent, and terminated if the host fails. A fresh host takes its place in the same step.

    Args:
        num_envs: Number of hosts.
        render_mode: None or rgb_array.
        options: The fields of `EnvOptions`, such as task, host, budget and price.

    Raises:
        EsperError: If an option is unknown or cannot be used; the message names it.

    Example:
        ```python
        import gymnasium

        envs = gymnasium.make_vec("esper:Growth-v0", num_envs=64, task="spirals", budget=12)
        observations, infos = envs.reset(seed=0)
        actions = envs.action_space.sample(mask=envs.unwrapped.sample_masks())
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        ```
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [FRAMES],
        "render_fps": RENDER_FPS,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }
    autoreset_mode = AutoresetMode.SAME_STEP

    @torch.inference_mode(False)
    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **options: Any) -> None:
        if not isinstance(num_envs, int) or num_envs < 1:
            raise EsperError(f"num_envs must be a whole number from 1, not {num_envs!r}")
        require_known(render_mode, self.metadata["render_modes"])
        self.asked, self.num_envs, self.render_mode = EnvOptions.of(options), num_envs, render_mode
        config = self.asked.setting()
        self.lives = Lives(config.fleet(self.asked.engine, max(num_envs, FEWEST)), config.env, self.asked.prices)
        self.describer = StepDescriber(self.setting, self.asked.rewards, self.lives.fleet.programs)
        self.film = None if render_mode is None else Film(self.setting, num_envs)
        self.life: LifeState | None = None
        self.nobody = torch.zeros_like(self.lives.fleet.everyone)
        self.single_action_space = MultiDiscrete(list(self.setting.space.sizes))
        self.single_observation_space = Box(-BOUND, BOUND, (len(self.observation_names),), np.float32)
        self.action_space = MultiDiscrete(np.tile(self.single_action_space.nvec, (num_envs, 1)))  # a Box takes no masks
        self.observation_space = batch_space(self.single_observation_space, num_envs)

    @property
    def setting(self) -> Setting:
        """The choices of every head, the length of an episode, and what seeds cost."""
        return self.lives.setting

    @property
    def observation_names(self) -> tuple[str, ...]:
        """The name of each column of an observation: `score`, or `s0.alpha` of a slot."""
        return observation_names(self.setting)

    @torch.inference_mode(False)
    def reset(
        self, *, seed: int | np.integer | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, Info]:
        """Begin a new life for every host, or for those of a mask.

        Args:
            seed: Random seed of host 0, those of the others count up from it; or one for each host. None goes on with
                the next lives of the seeds that the hosts have.
            options: May hold `reset_mask`: which hosts begin anew, as a bool array.
        """
        require_open(self)
        rows, seeds = checked_rows(options, self.num_envs), checked_seeds(seed, self.num_envs)
        super().reset(seed=seeds[0] if isinstance(seed, int | np.integer) else None)
        if self.life is None:
            if not rows.all():
                raise ResetNeeded("reset all hosts once, without options['reset_mask'], before some of them")
            drawn = self.np_random.integers(2**31, size=self.num_envs)
            seeds = [int(own) if given is None else given for given, own in zip(seeds, drawn, strict=True)]
        seeded = np.array([given is not None for given in seeds]) & rows
        numbers, fleet = np.array([given or 0 for given in seeds], dtype=np.int64), self.lives.fleet
        self.lives.seed(rows_of(seeded, fleet), rows_of(numbers, fleet))
        known = described(self._begin(rows_of(rows, fleet)), self.nobody, self.setting)
        observations, info = self._part(arrays(as_bytes(known)), 0)
        return observations, marked(info, rows)

    @torch.inference_mode(False)  # hosts learn, also where an algorithm collects without gradients
    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Info]:
        """Apply an action to every host and train all of them for an epoch.

        Returns:
            Observations, rewards, terminated, truncated and infos. Where an episode has ended, observation and info
            are those of the fresh host; `infos["final_obs"]` and `infos["final_info"]` hold those of the last one.

        Raises:
            InvalidAction: If the actions are not in the action space. Nothing has changed then.
            ResetNeeded: If the env was never reset.
        """
        before, allowed = self._living, checked_actions(actions, self.setting.space.sizes, self.num_envs)
        chosen = rows_of(allowed, self.lives.fleet)
        step = self.lives.step(chosen)
        ended, prices = step.terminated | step.truncated, self.lives.drawn_prices()
        rent = torch.where(ended, prices, before.rent)
        description = self.describer(before, step, rent)
        self.life = LifeState(step.signals, description.history, rent, ended)
        known = arrays(description.known)
        outcome = (known.pop(name)[: self.num_envs] for name in ("terminated", "truncated", "reward"))
        terminated, truncated, rewards = map(widened, outcome)
        if self.asked.terminal:
            terminated, truncated = terminated | truncated, np.zeros_like(truncated)
        if self.film is not None:
            self.film.add(before, chosen, step)
        obs, info = self._part(known, 0)
        info = marked(info, np.ones(self.num_envs, dtype=bool))
        return obs, rewards, terminated, truncated, info | self._final(known, terminated | truncated)

    def _part(self, known: dict[str, np.ndarray], first: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return observations and facts of the hosts from a row on."""
        rows = slice(first, first + self.num_envs)
        return known["obs"][rows].copy(), {name: widened(x[rows]) for name, x in known.items() if name != "obs"}

    def _final(self, known: dict[str, np.ndarray], over: np.ndarray) -> Info:
        """Return the last observations and infos of the lives that ended, which stand behind those of all hosts."""
        if not over.any():
            return {}
        observations, last = self._part(known, self.lives.fleet.num_hosts)
        final = np.full(self.num_envs, None, dtype=object)
        for n in over.nonzero()[0]:
            final[n] = observations[n].copy()
        return {
            **{"final_obs": final, "_final_obs": over.copy()},
            **{"final_info": marked(last, over), "_final_info": over.copy()},
        }

    def action_masks(self) -> np.ndarray:
        """Return which choices of each head some legal action makes: one flat row for each host, in head order."""
        return masks(self._living.signals.legal[: self.num_envs], self.setting.space).cpu().numpy().copy()

    def sample_masks(self) -> tuple[Any, ...]:
        """Return the masks as `action_space.sample(mask=...)` takes them."""
        return split_mask(self.action_masks(), self.setting.space)

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Draw the life of every host so far; None without a render mode."""
        film, _ = self.film, self._living
        return None if film is None else film.frames()

    def begin_film(self, rows: Bool[Tensor, " N"]) -> None:
        """Draw the present lives of some hosts from now on, not the ones before."""
        if self.film is not None:
            self.film.begin(rows[: self.num_envs])

    @property
    def _living(self) -> LifeState:
        require_open(self)
        if self.life is None:
            raise ResetNeeded("call reset before step, render and the masks of actions")
        return self.life

    def _begin(self, rows: Bool[Tensor, " N"]) -> LifeState:
        """Begin new lives in some rows."""
        old = self.life
        signals = self.lives.reset() if old is None else self.lives.restart(rows)
        history = remember(empty_history(len(rows), rows.device), signals, torch.ones_like(rows))
        new = LifeState(signals, history, self.lives.drawn_prices(), torch.ones_like(rows))
        self.life = new if old is None else choose(rows, new, old)
        self.begin_film(rows)
        return self.life


def require_open(envs: VectorEnv) -> None:
    """Raise ClosedEnvironmentError if an env has been closed."""
    if envs.closed:
        raise ClosedEnvironmentError("the env is closed; make a new one")
