"""Check vector environments, as `gymnasium.utils.env_checker.check_env` checks single ones."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from gymnasium.error import InvalidAction
from gymnasium.vector import AutoresetMode, VectorEnv


class Moment(NamedTuple):
    """Everything that a vector env returns at once."""

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: dict[str, Any]


def check_vector_env(envs: VectorEnv, *, steps: int = 30, seed: int = 0) -> None:
    """Check that a vector env keeps the conventions of Gymnasium, and those of same-step autoreset and masks.

    Shapes, dtypes, autoreset, final observations and infos, masks, seeding, `reset_mask`, refusal of bad actions, and
    that nothing returned is changed later.

    Args:
        envs: Environment to check, of any class; it must offer `action_masks` and `sample_masks`, as `GrowthVectorEnv`.
        steps: Steps to play for each check; episodes should end within them.
        seed: Random seed of the episodes and of the actions.

    Raises:
        AssertionError: If a convention is broken; the message says which.

    Example:
        ```python
        check_vector_env(gymnasium.make_vec("esper:Growth-v0", num_envs=4, task="spirals", budget=6))
        ```
    """
    _check_spaces(envs)
    played, kept = [], []
    for moment in _play(envs, steps, seed):
        check_moment(envs, moment)
        _check_masks(envs, moment.infos["action_mask"])
        played.append(moment)
        kept.append(deepcopy(moment))
    assert same(kept, played), "what was returned must not change later"
    assert any((moment.terminated | moment.truncated).any() for moment in played), (
        f"no episode ended within {steps} steps: check shorter episodes, or with more steps"
    )
    assert same(kept, list(_play(envs, steps, seed))), "the same seed and actions must give the same numbers"
    _require_no_shared_memory(played)
    _check_seeds(envs, played[0], seed)
    _check_reset_mask(envs, seed)
    _check_bad_actions(envs, seed)


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal, NaN included."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) and a.dtype == object:
        return same(list(a), list(b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return type(a) is type(b) and a == b


def _play(envs: VectorEnv, steps: int, seed: int) -> Iterator[Moment]:
    """Yield what random legal choices lead to."""
    observations, infos = envs.reset(seed=seed)
    none = np.zeros(envs.num_envs, dtype=bool)
    yield Moment(observations, np.zeros(envs.num_envs), none, none.copy(), infos)
    envs.action_space.seed(seed)
    for _ in range(steps):
        mask = envs.unwrapped.sample_masks()  # pyright: ignore[reportAttributeAccessIssue]
        yield Moment(*envs.step(envs.action_space.sample(mask=mask)))


def _check_spaces(envs: VectorEnv) -> None:
    mode = envs.metadata.get("autoreset_mode")
    assert mode is AutoresetMode.SAME_STEP, f"metadata['autoreset_mode'] must be AutoresetMode.SAME_STEP, not {mode!r}"
    assert getattr(envs.unwrapped, "autoreset_mode", None) is mode, "the attribute autoreset_mode must agree"
    n = envs.num_envs
    for space, single in (
        (envs.observation_space, envs.single_observation_space),
        (envs.action_space, envs.single_action_space),
    ):
        assert space.shape == (n, *(single.shape or ())), f"{space} must be {n} times {single}"
        assert space.dtype == single.dtype, f"{space} must have the dtype of {single}"


def check_moment(envs: VectorEnv, moment: Moment) -> None:
    """Check shapes, types and marks of what one step or reset has returned."""
    n, (obs, rewards, terminated, truncated, infos) = envs.num_envs, moment
    assert envs.observation_space.contains(obs), "observations must be in observation_space"
    assert np.isfinite(obs).all(), "observations must be finite"
    for name, array, dtype in (
        ("rewards", rewards, np.float64),
        ("terminated", terminated, np.bool_),
        ("truncated", truncated, np.bool_),
    ):
        assert isinstance(array, np.ndarray), f"{name} must be an array, not {type(array).__name__}"
        assert array.dtype == dtype, f"{name} must have type {dtype.__name__}, not {array.dtype}"
        assert array.shape == (n,), f"{name} must have shape ({n},), not {array.shape}"
    over = terminated | truncated
    for name in ("final_obs", "final_info"):
        assert (name in infos) == over.any(), f"infos must hold {name} exactly when an episode has ended"
        assert not over.any() or (infos[f"_{name}"] == over).all(), f"_{name} must mark the episodes that have ended"
    for row in over.nonzero()[0]:
        assert envs.single_observation_space.contains(infos["final_obs"][row]), "final_obs must be observations"
    _check_marks(infos, n)
    mask, choices = infos["action_mask"], envs.single_action_space.nvec.sum()  # pyright: ignore[reportAttributeAccessIssue]
    assert mask.dtype == np.bool_, f"action_mask must hold bools, not {mask.dtype}"
    assert mask.shape == (n, choices), f"action_mask must have shape ({n}, {choices}), not {mask.shape}"


def _check_masks(envs: VectorEnv, known: np.ndarray) -> None:
    """Check that the masks of the env are those of its last infos."""
    flat, split = envs.unwrapped.action_masks(), envs.unwrapped.sample_masks()  # pyright: ignore[reportAttributeAccessIssue]
    assert same(flat, known), "action_masks() must return the action_mask of the last infos"
    told = np.array([np.concatenate(row) for row in split])
    assert np.array_equal(told, known), "sample_masks() must return the action_mask of the last infos"


def _check_marks(infos: dict[str, Any], hosts: int) -> None:
    for name in infos:
        if name.startswith("_"):
            assert infos[name].dtype == np.bool_, f"{name} must mark hosts with bools, not {infos[name].dtype}"
            assert infos[name].shape == (hosts,), f"{name} must mark {hosts} hosts, not {infos[name].shape}"
        else:
            assert f"_{name}" in infos, f"infos must say with _{name} of which hosts {name} is known"
        if isinstance(infos[name], dict):
            _check_marks(infos[name], hosts)


def _memory(x: Any) -> Iterator[np.ndarray]:
    """Yield all arrays in a result."""
    if isinstance(x, np.ndarray):
        yield from (part for part in x if part is not None) if x.dtype == object else [x]
    elif isinstance(x, dict):
        for value in x.values():
            yield from _memory(value)
    elif isinstance(x, tuple):
        for value in x:
            yield from _memory(value)


def _require_no_shared_memory(played: list[Moment]) -> None:
    owners: dict[int, int] = {}
    for n, moment in enumerate(played):
        for array in _memory(moment):
            whole = array if array.base is None else array.base
            assert owners.setdefault(id(whole), n) == n, "what two calls return must not share memory"


def _check_seeds(envs: VectorEnv, first: Moment, seed: int) -> None:
    listed, _ = envs.reset(seed=[seed + n for n in range(envs.num_envs)])  # pyright: ignore[reportArgumentType]
    assert same(listed, first.observations), "seed s must be the seeds s, s + 1, ... of the hosts"
    following, _ = envs.reset()
    assert not same(following, listed), "a reset without a seed must go on with other episodes"
    others, _ = envs.reset(seed=seed + envs.num_envs)
    assert not same(others, listed), "other seeds must give other episodes"


def _check_reset_mask(envs: VectorEnv, seed: int) -> None:
    if envs.num_envs < 2:
        return
    rows, wait = np.arange(envs.num_envs) % 2 == 0, np.zeros(envs.action_space.shape or (), dtype=np.int64)
    envs.reset(seed=seed)
    before, *_ = envs.step(wait)
    plain = envs.step(wait)
    envs.reset(seed=seed)
    envs.step(wait)
    fresh, infos = envs.reset(options={"reset_mask": rows.copy()})
    after = envs.step(wait)
    assert same(fresh[~rows], before[~rows]), "reset_mask must leave the observations of the other hosts alone"
    assert not same(fresh[rows], before[rows]), "reset_mask must begin new episodes"
    assert same(infos["_action_mask"], rows), "infos of a reset must be about the hosts of reset_mask"
    pairs = zip(after[:4], plain[:4], strict=True)
    assert all(same(now[~rows], then[~rows]) for now, then in pairs), (
        "hosts outside of reset_mask must go on as if nothing had happened"
    )


def _check_bad_actions(envs: VectorEnv, seed: int) -> None:
    envs.reset(seed=seed)
    good = np.zeros(envs.action_space.shape or (), dtype=np.int64)
    for bad in (good[:, :-1], good[:-1], good + 0.5, good - 1, good + 1000, good[0]):
        try:
            envs.step(bad)
        except InvalidAction:
            continue
        raise AssertionError(f"actions of shape {bad.shape} and type {bad.dtype} must raise InvalidAction: {bad}")
    after = envs.step(good)
    envs.reset(seed=seed)
    assert same(after, envs.step(good)), "refused actions must change nothing"
