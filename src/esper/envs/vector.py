"""The vector environment: a fleet whose hosts are the sub-environments."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.error import ClosedEnvironmentError, InvalidAction, ResetNeeded
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool
from torch import Tensor

from esper.envs.lives import Lives
from esper.envs.observations import BOUND, Info, arrays, facts, marked, masks, observation_names, observe, split_mask
from esper.envs.options import EnvOptions
from esper.envs.picture import RENDER_FPS, Film
from esper.leyline.errors import EsperError, unknown
from esper.leyline.state import Setting
from esper.simic.lives import LifeState
from esper.simic.rewards import reward
from esper.tamiyo.features import View, empty_history, remember
from esper.tolaria.env import Step, choose


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
        "render_modes": ["rgb_array"],
        "render_fps": RENDER_FPS,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }
    autoreset_mode = AutoresetMode.SAME_STEP

    def __init__(self, num_envs: int = 1, render_mode: str | None = None, **options: Any) -> None:
        if num_envs < 1:
            raise EsperError(f"num_envs must be at least 1, not {num_envs}")
        self.asked, self.num_envs, self.render_mode = EnvOptions.of(options), num_envs, render_mode
        config = self.asked.setting()
        self.lives = Lives(config.fleet(self.asked.engine, num_envs), config.env, self.asked.prices)
        self.film = None if render_mode is None else Film(render_mode, self.setting, num_envs)
        self.life: LifeState | None = None
        self.no_cap = torch.full((num_envs,), torch.inf, device=self.lives.fleet.device)
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

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, Info]:
        """Begin a new life for every host, or for those of a mask.

        Args:
            seed: Random seed of host 0, those of the others count up from it; or one for each host. None goes on with
                the next lives of the seeds that the hosts have.
            options: May hold `reset_mask`: which hosts begin anew, as a bool array.
        """
        self._require_open()
        rows, seeds = self._rows(options), self._seeds(seed)
        super().reset(seed=seeds[0] if isinstance(seed, int) else None)
        if self.life is None:
            if not rows.all():
                raise ResetNeeded("reset all hosts once, without options['reset_mask'], before some of them")
            drawn = self.np_random.integers(2**31, size=self.num_envs)
            seeds = [int(own) if given is None else given for given, own in zip(seeds, drawn, strict=True)]
        seeded = np.array([given is not None for given in seeds]) & rows
        self.lives.seed(self._tensor(seeded), self._tensor(np.array([given or 0 for given in seeds], dtype=np.int64)))
        self._begin(self._tensor(rows))
        known = arrays({"": observe(self._view(self._living)), **facts(self._living, self.nobody, self.setting.space)})
        return known.pop(""), marked(known, rows)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Info]:
        """Apply an action to every host and train all of them for an epoch.

        Returns:
            Observations, rewards, terminated, truncated and infos. Where an episode has ended, observation and info
            are those of the fresh host; `infos["final_obs"]` and `infos["final_info"]` hold those of the last one.

        Raises:
            InvalidAction: If the actions are not in the action space. Nothing has changed then.
            ResetNeeded: If the env was never reset.
        """
        self._require_open()
        before, chosen = self._living, self._tensor(checked(actions, self.setting.space.sizes, self.num_envs))
        step = self.lives.step(chosen)
        ended = step.terminated | step.truncated
        self.life = after = before.followed_by(step.signals, ended, self.lives.drawn_prices())
        earned = reward(before.signals, step.final, before.rent, step.penalty, ended, self.asked.rewards).total
        told = {"obs": observe(self._view(after)), "reward": earned.double()}
        told |= {"terminated": step.terminated, "truncated": step.truncated}
        known = arrays(told | facts(after, step.refused & ~ended, self.setting.space))
        obs, rewards, terminated, truncated = (known.pop(name) for name in told)
        if self.asked.terminal:
            terminated, truncated = terminated | truncated, np.zeros_like(truncated)
        if self.film is not None:
            self.film.add(before, chosen, step)
        info = marked(known, np.ones(self.num_envs, dtype=bool))
        over = terminated | truncated
        return obs, rewards, terminated, truncated, info | self._final(before, step, over)

    def _final(self, before: LifeState, step: Step, over: np.ndarray) -> Info:
        """Return the last observations and infos of the lives that ended; nothing if none did."""
        if not over.any():
            return {}
        last = before.followed_by(step.final, self.nobody, before.rent)
        known = arrays({"": observe(self._view(last)), **facts(last, step.refused, self.setting.space)})
        final = np.full(self.num_envs, None, dtype=object)
        for n in over.nonzero()[0]:
            final[n] = known[""][n].copy()
        del known[""]
        return {
            **{"final_obs": final, "_final_obs": over.copy()},
            **{"final_info": marked(known, over), "_final_info": over.copy()},
        }

    def action_masks(self) -> np.ndarray:
        """Return which choices of each head some legal action makes: one flat row for each host, in head order."""
        return masks(self._living.signals.legal, self.setting.space).cpu().numpy().copy()

    def sample_masks(self) -> tuple[Any, ...]:
        """Return the masks as `action_space.sample(mask=...)` takes them."""
        return split_mask(self.action_masks(), self.setting.space)

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Draw the life of every host so far; None without a render mode."""
        return None if self.film is None else self.film.frames()

    def begin_film(self, rows: Bool[Tensor, " N"]) -> None:
        """Draw the present lives of some hosts from now on, not the ones before."""
        if self.film is not None:
            self.film.begin(rows)

    def _view(self, life: LifeState) -> View:
        return life.view(self.setting, self.no_cap)

    @property
    def _living(self) -> LifeState:
        if self.life is None:
            raise ResetNeeded("call reset before step, action_masks and render")
        return self.life

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the env is closed; make a new one")

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).to(self.lives.fleet.device)

    def _begin(self, rows: Bool[Tensor, " N"]) -> None:
        """Begin new lives in some rows."""
        old = self.life
        signals = self.lives.reset() if old is None else self.lives.restart(rows)
        history = remember(empty_history(self.num_envs, rows.device), signals, torch.ones_like(rows))
        new = LifeState(signals, history, self.lives.drawn_prices(), torch.ones_like(rows))
        self.life = new if old is None else choose(rows, new, old)
        self.begin_film(rows)

    def _rows(self, options: dict[str, Any] | None) -> np.ndarray:
        """Return which hosts a reset is about."""
        for name in options or {}:
            if name != "reset_mask":
                raise unknown("option of reset", name, ["reset_mask"])
        rows = (options or {}).get("reset_mask", np.ones(self.num_envs, dtype=bool))
        if not isinstance(rows, np.ndarray) or rows.dtype != np.bool_ or rows.shape != (self.num_envs,):
            raise EsperError(f"options['reset_mask'] must be a bool array of shape ({self.num_envs},), not {rows!r}")
        if not rows.any():
            raise EsperError("options['reset_mask'] must hold at least one True; it holds none")
        return rows

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        """Return the random seed of each host; None where it goes on with its own."""
        if isinstance(seed, int | np.integer):
            seed = [int(seed) + n for n in range(self.num_envs)]
        seeds: list[int | None] = [None] * self.num_envs if seed is None else list(seed)
        if len(seeds) != self.num_envs:
            raise EsperError(f"seed must be one number, or one for each of the {self.num_envs} hosts, not {len(seeds)}")
        for value in seeds:
            if value is not None and not (isinstance(value, int | np.integer) and 0 <= value < 2**63):
                raise EsperError(f"seed must hold whole numbers from 0 to below 2**63, or None, not {value!r}")
        return seeds


def checked(actions: object, sizes: Sequence[int], num_envs: int | None = None) -> np.ndarray:
    """Return actions of hosts, or of one, as int64. Raises InvalidAction if they are not in the action space."""
    given, shape = np.asarray(actions), (len(sizes),) if num_envs is None else (num_envs, len(sizes))
    if given.dtype.kind not in "iu":
        raise InvalidAction(f"actions must be whole numbers (a numpy integer type), not {given.dtype}")
    if given.shape != shape:
        raise InvalidAction(f"actions must have shape {shape}, one choice for each head, not {given.shape}")
    if not ((given >= 0) & (given < np.array(sizes))).all():
        raise InvalidAction(f"actions must be from 0 to below {list(sizes)}, head by head, not {given.tolist()}")
    return given.astype(np.int64)
