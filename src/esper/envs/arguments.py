"""Check what users pass to `reset` and `step`, before anything changes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.error import InvalidAction

from esper.leyline.errors import EsperError, unknown


def checked_actions(actions: object, sizes: Sequence[int], num_envs: int | None = None) -> np.ndarray:
    """Return actions of hosts, or of one, as int64.

    Raises:
        InvalidAction: If they are not in the action space.
    """
    given, shape = np.asarray(actions), (len(sizes),) if num_envs is None else (num_envs, len(sizes))
    if given.dtype.kind not in "iu":
        raise InvalidAction(f"actions must be whole numbers (a numpy integer type), not {given.dtype}")
    if given.shape != shape:
        raise InvalidAction(f"actions must have shape {shape}, one choice for each head, not {given.shape}")
    if not ((given >= 0) & (given < np.array(sizes))).all():
        raise InvalidAction(f"actions must be from 0 to below {list(sizes)}, head by head, not {given.tolist()}")
    return given.astype(np.int64)


def checked_rows(options: dict[str, Any] | None, num_envs: int) -> np.ndarray:
    """Return which hosts a reset is about.

    Raises:
        EsperError: If there are other options than `reset_mask`, or if that is no mask of hosts.
    """
    for name in options or {}:
        if name != "reset_mask":
            raise unknown("option of reset", name, ["reset_mask"])
    rows = (options or {}).get("reset_mask", np.ones(num_envs, dtype=bool))
    if not isinstance(rows, np.ndarray) or rows.dtype != np.bool_ or rows.shape != (num_envs,):
        raise EsperError(f"options['reset_mask'] must be a bool array of shape ({num_envs},), not {rows!r}")
    if not rows.any():
        raise EsperError("options['reset_mask'] must hold at least one True; it holds none")
    return rows


def checked_seeds(seed: Any, num_envs: int) -> list[int | None]:
    """Return the random seed of each host; None where it goes on with its own.

    Raises:
        EsperError: If there are more or fewer than hosts, or if one is not a whole number from 0.
    """
    if isinstance(seed, int | np.integer):
        seed = [int(seed) + n for n in range(num_envs)]
    seeds: list[int | None] = [None] * num_envs if seed is None else list(seed)
    if len(seeds) != num_envs:
        raise EsperError(f"seed must be one number, or one for each of the {num_envs} hosts, not {len(seeds)}")
    for value in seeds:
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if value is not None and not (whole and 0 <= value < 2**63):
            raise EsperError(f"seed must hold whole numbers from 0 to below 2**63, or None, not {value!r}")
    return [None if value is None else int(value) for value in seeds]
