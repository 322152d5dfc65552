"""Read from the recipe of a run, as plain data, what is trained in it and for how long."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from esper.leyline.errors import EsperError


@dataclass(frozen=True)
class Stage:
    """A part of a run with fleets of its own."""

    updates: int
    """Number of updates."""
    hosts: int
    """Number of hosts that are trained at the same time, in all fleets."""
    fleets: tuple[str, ...]
    """The task and the host of each fleet, such as "mnist1d, cnn1d 4-4-4"."""
    tasks: tuple[str, ...]
    """The tasks, each once."""


@dataclass(frozen=True)
class Setting:
    """What a run is about: its stages, and the device."""

    stages: tuple[Stage, ...]
    device: str = ""
    continues: bool = False
    """Whether the run goes on from another one."""

    @property
    def updates(self) -> int:
        """Number of updates in all stages together."""
        return sum(stage.updates for stage in self.stages)

    def at(self, made: int) -> tuple[int, int]:
        """Return the index of the stage that comes after so many updates, and the updates before it."""
        before = 0
        for index, stage in enumerate(self.stages[:-1]):
            if made < before + stage.updates:
                return index, before
            before += stage.updates
        return len(self.stages) - 1, before


def setting_of(recipe: Mapping[str, Any], environment: Mapping[str, Any]) -> Setting:
    """Return what a run is about.

    Args:
        recipe: The recipe as it stands in config.json, also that of an older version.
        environment: What stands in environment.json.

    Raises:
        EsperError: The recipe lacks its fleets or its number of updates.
    """
    try:
        stages = tuple(_stage(part) for part in (*recipe.get("pretrain", ()), recipe))
        continues = bool(recipe.get("warm_start", {}).get("run"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise EsperError(f"the recipe of the run is damaged: {error!r} while reading its fleets and updates") from None
    device, workers = str(environment.get("device") or ""), environment.get("workers", 1)
    return Setting(stages, f"{device} ({workers} workers)" if device and workers != 1 else device, continues)


def _stage(part: Mapping[str, Any]) -> Stage:
    fleets = part["fleets"]
    labels = [f"{fleet['task']}, {fleet['host']} {'-'.join(map(str, fleet['widths']))}" for fleet in fleets]
    return Stage(
        updates=int(part["learn"]["updates"]),
        hosts=sum(int(fleet["hosts"]) for fleet in fleets),
        fleets=tuple(labels),
        tasks=tuple(dict.fromkeys(str(fleet["task"]) for fleet in fleets)),
    )
