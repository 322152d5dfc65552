"""Our checker of vector envs finds every fault, one env at a time."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from gymnasium.error import InvalidAction
from gymnasium.vector import AutoresetMode

from envs_toys import options_of, vector_env
from esper.envs import GrowthVectorEnv, check_vector_env
from esper.leyline.actions import Op

FAULTS: dict[str, tuple[type[GrowthVectorEnv], str]] = {}


def fault(says: str) -> Callable[[type[GrowthVectorEnv]], type[GrowthVectorEnv]]:
    """Enter a broken env into the table, with what the checker must say of it."""

    def enter(broken: type[GrowthVectorEnv]) -> type[GrowthVectorEnv]:
        FAULTS[broken.__name__] = broken, says
        return broken

    return enter


class Changed(GrowthVectorEnv):
    """An env whose steps and resets are changed by `after`."""

    def reset(self, **asked: Any) -> Any:
        observations, infos = super().reset(**asked)
        return self.after([observations, infos])

    def step(self, actions: Any) -> Any:
        return self.after(list(super().step(actions)))

    def after(self, found: list[Any]) -> Any:
        return tuple(found)


@fault("metadata['autoreset_mode'] must be")
class SaysItResetsLater(GrowthVectorEnv):
    metadata = GrowthVectorEnv.metadata | {"autoreset_mode": AutoresetMode.NEXT_STEP}


@fault("must agree")
class SaysTwoThings(GrowthVectorEnv):
    autoreset_mode = AutoresetMode.DISABLED


@fault("must be 2 times")
class MixesUpSpaces(GrowthVectorEnv):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.observation_space = self.single_observation_space


@fault("must have the dtype of")
class MixesUpTypes(GrowthVectorEnv):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.single_observation_space = deepcopy(self.single_observation_space)
        self.single_observation_space.dtype = np.dtype(np.float64)


@fault("observations must be in observation_space")
class ObservesTooMuch(Changed):
    def after(self, found: list[Any]) -> Any:
        return (found[0] * 1000, *found[1:])


@fault("observations must be in observation_space")
class ObservesInDoublePrecision(Changed):
    def after(self, found: list[Any]) -> Any:
        return (found[0].astype(np.float64), *found[1:])


@fault("observations must be")
class ObservesNaN(Changed):
    def after(self, found: list[Any]) -> Any:
        found[0][:, 0] = np.nan
        return tuple(found)


@fault("rewards must be an array")
class ReturnsLists(Changed):
    def after(self, found: list[Any]) -> Any:
        return tuple(found) if len(found) == 2 else (found[0], found[1].tolist(), *found[2:])


@fault("rewards must have type float64")
class RewardsInSinglePrecision(Changed):
    def after(self, found: list[Any]) -> Any:
        return tuple(found) if len(found) == 2 else (found[0], found[1].astype(np.float32), *found[2:])


@fault("terminated must have type bool")
class EndsInNumbers(Changed):
    def after(self, found: list[Any]) -> Any:
        return tuple(found) if len(found) == 2 else (*found[:2], found[2].astype(int), *found[3:])


@fault("truncated must have shape (2,)")
class EndsInColumns(Changed):
    def after(self, found: list[Any]) -> Any:
        return tuple(found) if len(found) == 2 else (*found[:3], found[3][:, None], found[4])


@fault("infos must hold final_obs exactly when")
class ForgetsFinalObservations(Changed):
    def after(self, found: list[Any]) -> Any:
        found[-1].pop("final_obs", None)
        return tuple(found)


@fault("infos must hold final_info exactly when")
class ForgetsFinalInfos(Changed):
    def after(self, found: list[Any]) -> Any:
        found[-1].pop("final_info", None)
        return tuple(found)


@fault("_final_obs must mark the episodes that have ended")
class MarksTheWrongEpisodes(Changed):
    def after(self, found: list[Any]) -> Any:
        if "_final_obs" in found[-1]:
            found[-1]["_final_obs"] = ~found[-1]["_final_obs"]
        return tuple(found)


@fault("final_obs must be observations")
class KeepsTheWrongObservations(Changed):
    def after(self, found: list[Any]) -> Any:
        if "final_obs" in found[-1]:
            found[-1]["final_obs"] = np.array([np.zeros(3), np.zeros(3)])
        return tuple(found)


@fault("infos must say with _score of which hosts")
class DoesNotMarkInfos(Changed):
    def after(self, found: list[Any]) -> Any:
        del found[-1]["_score"]
        return tuple(found)


@fault("_score must mark hosts with bools")
class MarksWithNumbers(Changed):
    def after(self, found: list[Any]) -> Any:
        found[-1]["_score"] = found[-1]["_score"].astype(int)
        return tuple(found)


@fault("_score must mark 2 hosts")
class MarksTooMany(Changed):
    def after(self, found: list[Any]) -> Any:
        found[-1]["_score"] = np.ones(5, dtype=bool)
        return tuple(found)


@fault("infos must say with _score of which hosts")
class DoesNotMarkFinalInfos(Changed):
    def after(self, found: list[Any]) -> Any:
        if "final_info" in found[-1]:
            del found[-1]["final_info"]["_score"]
        return tuple(found)


@fault("action_mask must hold bools")
class MasksWithNumbers(Changed):
    def after(self, found: list[Any]) -> Any:
        found[-1]["action_mask"] = found[-1]["action_mask"].astype(np.int8)
        return tuple(found)


@fault("action_mask must have shape")
class MasksOneHead(Changed):
    def after(self, found: list[Any]) -> Any:
        found[-1]["action_mask"] = found[-1]["action_mask"][:, : len(Op)]
        return tuple(found)


@fault("action_masks() must return the action_mask of the last infos")
class MasksDiffer(GrowthVectorEnv):
    def action_masks(self) -> np.ndarray:
        return ~super().action_masks()


@fault("sample_masks() must return the action_mask of the last infos")
class SampleMasksDiffer(GrowthVectorEnv):
    def sample_masks(self) -> Any:
        return tuple(tuple(np.ones_like(part) for part in row) for row in super().sample_masks())


@fault("the same seed and actions must give the same numbers")
class IsNotDeterministic(Changed):
    def after(self, found: list[Any]) -> Any:
        self.noise = getattr(self, "noise", 0.0) + 1e-6
        return tuple(found) if len(found) == 2 else (found[0], found[1] + self.noise, *found[2:])


@fault("what was returned must not change later")
class OverwritesObservations(Changed):
    def after(self, found: list[Any]) -> Any:
        if not hasattr(self, "kept"):
            self.kept = found[0]
        self.kept[:] = found[0]
        return (self.kept.copy() if len(found) == 5 else self.kept, *found[1:])


@fault("what two calls return must not share memory")
class SharesMemory(Changed):
    def after(self, found: list[Any]) -> Any:
        if len(found) == 2:
            self.zeros = np.zeros(2, dtype=bool)
            return tuple(found)
        return (*found[:2], self.zeros, *found[3:])


@fault("seed s must be the seeds s, s + 1, ...")
class GivesAllHostsOneSeed(Changed):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=[seed] * 2 if isinstance(seed, int) else seed, options=options)


@fault("a reset without a seed must go on with other episodes")
class RepeatsEpisodes(Changed):
    last = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.last = self.last if seed is None else seed
        return super().reset(seed=self.last, options=options)


@fault("other seeds must give other episodes")
class IgnoresSeeds(Changed):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else 7 if isinstance(seed, int) else [7, 8], options=options)


@fault("reset_mask must leave the observations of the other hosts alone")
class ResetsEveryone(Changed):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


@fault("reset_mask must begin new episodes")
class ResetsNobody(Changed):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if not options:
            found = super().reset(seed=seed)
        else:
            found = self.last[0].copy(), {name: x.copy() for name, x in self.first.items()}
        return found

    def after(self, found: list[Any]) -> Any:
        self.last, self.first = [found[0].copy(), {}], getattr(self, "first", found[-1])
        return tuple(found)


@fault("infos of a reset must be about the hosts of reset_mask")
class TellsOfEveryone(Changed):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        observations, infos = super().reset(seed=seed, options=options)
        infos["_action_mask"] = np.ones(2, dtype=bool)
        return observations, infos


@fault("hosts outside of reset_mask must go on as if nothing had happened")
class DisturbsTheOthers(Changed):
    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        found = super().reset(seed=seed, options=options)
        if options:
            self.lives.fleet.trunk.flat[1] *= -1
        return found


@fault("must raise InvalidAction")
class AcceptsAnything(GrowthVectorEnv):
    def step(self, actions: Any) -> Any:
        actions = np.asarray(actions)
        fits = actions.shape == self.action_space.shape and (actions < 3).all() and (actions >= 0).all()
        return super().step(actions.astype(int) if fits else np.zeros(self.action_space.shape, dtype=int))


@fault("refused actions must change nothing")
class GoesOnWhenRefusing(GrowthVectorEnv):
    def step(self, actions: Any) -> Any:
        try:
            return super().step(actions)
        except InvalidAction:
            super().step(np.zeros(self.action_space.shape, dtype=int))
            raise


@pytest.mark.parametrize("name", FAULTS)
def test_the_checker_finds(name):
    broken, says = FAULTS[name]
    with pytest.raises(AssertionError) as found:
        check_vector_env(broken(2, **options_of("mlp", budget=2.0)), steps=4)
    assert says in str(found.value)


def test_episodes_must_end_while_they_are_checked():
    with pytest.raises(AssertionError, match="no episode ended within 3 steps"):
        check_vector_env(vector_env(2, budget=30.0), steps=3)
