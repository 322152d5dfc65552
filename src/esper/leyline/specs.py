"""Describe hosts, slots, blueprints and tasks as frozen records."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from esper.leyline.errors import EsperError, unknown
from esper.leyline.objectives import Objective

__all__ = ["BlueprintSpec", "HostSpec", "SlotSpec", "Stream", "TaskSpec"]


class Stream(StrEnum):
    """The kind of tensor that flows between the segments of a host. The last axis is always the channels.

    Example:
        >>> Stream("image") is Stream.IMAGE
        True
    """

    VECTOR = "vector"
    """Vectors, (B, C)."""
    SIGNAL = "signal"
    """1-D signals, (B, L, C)."""
    IMAGE = "image"
    """Images, (B, H, W, C)."""
    TOKENS = "tokens"
    """Token sequences, (B, L, C), in which a position depends on itself and earlier ones only."""

    @classmethod
    def named(cls, name: str) -> "Stream":
        """Return the stream of this name, or raise an error that lists all."""
        if name not in list(cls):
            raise unknown("stream", name, list(cls))
        return cls(name)


@dataclass(frozen=True)
class HostSpec:
    """The description of a host network, from which `build_host` builds one.

    Raises:
        EsperError: If inputs or widths are empty or not positive, or there are no outputs.

    Example:
        >>> spec = HostSpec("cnn1d", inputs=(40, 1), outputs=10, widths=(8, 8, 8))
        >>> host = build_host(spec, rng_seed=0)
    """

    kind: str
    """The kind of host, such as "cnn1d"; `host_kinds()` lists all."""
    inputs: tuple[int, ...]
    """The shape of one example, channels last."""
    outputs: int
    """The number of classes, tokens of the vocabulary, or regression targets."""
    widths: tuple[int, ...]
    """The number of channels behind each segment; each is followed by a slot."""
    slots: int = 1
    """Slots behind each segment but the last."""

    def __post_init__(self) -> None:
        for name, sizes in (("inputs", self.inputs), ("widths", self.widths)):
            if not isinstance(sizes, tuple | list) or not sizes or min(sizes) < 1:
                raise EsperError(f"{name} must be one or more positive numbers, not {sizes!r}")
        for name in ("outputs", "slots"):
            if getattr(self, name) < 1:
                raise EsperError(f"{name} must be at least 1, not {getattr(self, name)}")
        object.__setattr__(self, "inputs", tuple(self.inputs))
        object.__setattr__(self, "widths", tuple(self.widths))

    @property
    def label(self) -> str:
        """The kind and widths of the host, such as `mlp 8-8`."""
        return f"{self.kind} {'-'.join(map(str, self.widths))}"


@dataclass(frozen=True)
class SlotSpec:
    """The description of a slot of a host, from which blueprints build seeds that fit."""

    name: str
    """The name of the slot, such as "s0"; unique in its host."""
    stream: Stream
    """The kind of tensor that flows through the slot."""
    shape: tuple[int, ...]
    """The shape of the stream at the slot for one example, channels last."""
    block: str | None = None
    """The kind of host whose blocks can be copied into the slot as twins; None if there is no block in front of it."""

    @property
    def channels(self) -> int:
        """The number of channels of the stream at the slot."""
        return self.shape[-1]


@dataclass(frozen=True)
class BlueprintSpec:
    """The description of a blueprint, a kind of seed."""

    name: str
    stream: Stream
    family: str
    """The kind of layers in it: "norm", "linear", "mlp", "conv", "attention", or a name of your own."""
    summary: str = ""
    """A short description for tables."""


@dataclass(frozen=True)
class TaskSpec:
    """The description of a task: the shapes of its data and its objective.

    Example:
        >>> TaskSpec("parity", inputs=(8,), outputs=2, objective=CLASSIFICATION)
    """

    name: str
    """The name of the task in reports."""
    inputs: tuple[int, ...]
    """The shape of one example, channels last."""
    outputs: int
    """The number of classes, tokens of the vocabulary, or regression targets."""
    objective: Objective
    """The loss, metric and score of the task."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Known numbers about the task, such as `teacher_parameters`, the size of the network that labelled its data."""

    @property
    def chance(self) -> float:
        """The score of guessing."""
        return self.objective.chance(self.outputs)
