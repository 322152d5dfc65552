"""What things are: frozen descriptions of hosts, slots, blueprints and tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from esper.leyline.errors import EsperError, unknown
from esper.leyline.objectives import Objective

__all__ = ["BlueprintSpec", "HostSpec", "SlotSpec", "Stream", "TaskSpec"]


class Stream(StrEnum):
    """What flows between the segments of a host. The last axis is always the channels."""

    VECTOR = "vector"
    """(B, C)"""
    SIGNAL = "signal"
    """(B, L, C)"""
    IMAGE = "image"
    """(B, H, W, C)"""
    TOKENS = "tokens"
    """(B, L, C), where a position may only look back"""

    @classmethod
    def named(cls, name: str) -> "Stream":
        if name not in list(cls):
            raise unknown("stream", name, list(cls))
        return cls(name)


@dataclass(frozen=True)
class HostSpec:
    """A host network: `build_host` makes one from this and a number."""

    kind: str
    """A registered kind of host, such as "cnn1d"."""
    inputs: tuple[int, ...]
    """The shape of one example, channels last."""
    outputs: int
    """Classes, vocabulary or targets."""
    widths: tuple[int, ...]
    """Channels after each segment; there is one slot behind each."""

    def __post_init__(self) -> None:
        for name, sizes in (("inputs", self.inputs), ("widths", self.widths)):
            if not isinstance(sizes, tuple | list) or not sizes or min(sizes) < 1:
                raise EsperError(f"{name} must be one or more positive numbers, not {sizes}")
        if self.outputs < 1:
            raise EsperError(f"outputs must be at least 1, not {self.outputs}")
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "widths", tuple(self.widths))


@dataclass(frozen=True)
class SlotSpec:
    """A place in a host where a seed can live."""

    name: str
    stream: Stream
    shape: tuple[int, ...]
    """The shape of one example of the stream here, channels last."""

    @property
    def channels(self) -> int:
        return self.shape[-1]


@dataclass(frozen=True)
class BlueprintSpec:
    """A kind of seed."""

    name: str
    stream: Stream
    family: str
    """What it is made of: "norm", "linear", "mlp", "conv", "attention", or a word of your own."""
    summary: str = ""


@dataclass(frozen=True)
class TaskSpec:
    """A task: what goes in, what comes out, and how well it was done."""

    name: str
    inputs: tuple[int, ...]
    outputs: int
    objective: Objective
    facts: Mapping[str, float] = field(default_factory=dict)
    """What is known about the task, such as the parameters of a planted teacher."""

    @property
    def chance(self) -> float:
        """The score of a host that has learned nothing."""
        return self.objective.chance(self.outputs)
