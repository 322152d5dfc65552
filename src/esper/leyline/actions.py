"""Define the actions of a controller: ops, heads, their choices, and which op uses which head."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, TypeVar

from esper.leyline.errors import EsperError, unknown

T = TypeVar("T")


class Head(IntEnum):
    """One factor of an action; a controller makes one choice for each head."""

    OP = 0
    SLOT = 1
    BLUEPRINT = 2
    STYLE = 3
    TEMPO = 4
    ALPHA_TARGET = 5
    ALPHA_SPEED = 6
    ALPHA_CURVE = 7


class Op(IntEnum):
    """The verb of an action: what is done to a slot.

    Attributes:
        heads: The heads whose choices the op uses, the op head included. Choices of other heads are ignored.

    Example:
        >>> Head.BLUEPRINT in Op.GERMINATE.heads
        True
    """

    heads: frozenset[Head]

    def __new__(cls, *heads: Head) -> "Op":
        op = int.__new__(cls, len(cls.__members__))
        op._value_ = len(cls.__members__)
        op.heads = frozenset({Head.OP, *heads})
        return op

    WAIT = ()
    GERMINATE = (Head.SLOT, Head.BLUEPRINT, Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET)
    SET_ALPHA_TARGET = (
        Head.SLOT,
        Head.STYLE,
        Head.ALPHA_TARGET,
        Head.ALPHA_SPEED,
        Head.ALPHA_CURVE,
    )
    PRUNE = (Head.SLOT, Head.ALPHA_SPEED, Head.ALPHA_CURVE)
    FOSSILIZE = (Head.SLOT,)
    ADVANCE = (Head.SLOT,)


class Graft(IntEnum):
    """How a seed's output becomes a delta on its host's stream: added, as a factor, through a learned gate, or in the
    stream's place."""

    ADD = 0
    MULTIPLY = 1
    GATE = 2
    REPLACE = 3
    """The stream fades over to the seed's output: for twins, whatever style is chosen."""


class Curve(IntEnum):
    """A monotone curve from 0 to 1 along which alpha moves to its target."""

    LINEAR = 0
    COSINE = 1
    SIGMOID_GENTLE = 2
    SIGMOID = 3
    SIGMOID_SHARP = 4


class Style(NamedTuple):
    """A graft, and the curve of the ramp on which alpha first rises."""

    graft: Graft
    ramp: Curve


STYLES = {
    "add": Style(Graft.ADD, Curve.LINEAR),
    "add_sigmoid": Style(Graft.ADD, Curve.SIGMOID),
    "multiply": Style(Graft.MULTIPLY, Curve.LINEAR),
    "gate": Style(Graft.GATE, Curve.SIGMOID),
}
GRAFTS = tuple(dict.fromkeys(style.graft for style in STYLES.values()))
"""The grafts that a style can choose."""
TWIN = "twin"
"""The blueprint that copies the block in front of its slot."""
TEMPOS = {"3": 3, "5": 5, "8": 8}
"""Epochs in which a new seed's alpha rises from 0 to its target, by choice."""
ALPHA_TARGETS = {"0.5": 0.5, "0.7": 0.7, "1.0": 1.0}
ALPHA_SPEEDS = {"instant": 0, "3": 3, "5": 5, "8": 8}
"""Epochs that a later change of alpha takes, by choice."""

FIXED_CHOICES: dict[Head, tuple[str, ...]] = {
    Head.OP: tuple(op.name for op in Op),
    Head.STYLE: tuple(STYLES),
    Head.TEMPO: tuple(TEMPOS),
    Head.ALPHA_TARGET: tuple(ALPHA_TARGETS),
    Head.ALPHA_SPEED: tuple(ALPHA_SPEEDS),
    Head.ALPHA_CURVE: tuple(curve.name.lower() for curve in Curve),
}
"""The choices of the heads that do not depend on the host."""
PLAIN_CHOICE = {Head.ALPHA_TARGET: "1.0"}
"""Defaults of `ActionSpace.action` for heads whose default is not their first choice."""


@dataclass(frozen=True)
class ActionSpace:
    """The choices of every head for one kind of host.

    It defines the order of slots and blueprints everywhere. `Host.space` and `Fleet.space` hold the right one.

    Args:
        slots: Names of the slots, in order.
        blueprints: Names of the blueprints, in order.

    Raises:
        EsperError: If slots or blueprints are empty or repeat a name.

    Example:
        >>> space = ActionSpace(slots=("s0", "s1"), blueprints=("norm", "mlp"))
        >>> space.action("GERMINATE", slot="s1", blueprint="mlp", tempo=5)
        (1, 1, 1, 0, 1, 2, 0, 0)
    """

    slots: tuple[str, ...]
    blueprints: tuple[str, ...]

    def __post_init__(self) -> None:
        for head, names in self.choices.items():
            if not names:
                raise EsperError(f"{head.name.lower()}s is empty: name at least one")
            if len(set(names)) < len(names):
                raise EsperError(f"{head.name.lower()}s repeats a name: {', '.join(names)}; give each name once")

    @property
    def choices(self) -> dict[Head, tuple[str, ...]]:
        """The names of the choices of each head, in head order."""
        own = {Head.SLOT: self.slots, Head.BLUEPRINT: self.blueprints}
        return {head: (FIXED_CHOICES | own)[head] for head in Head}

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of choices of each head, in head order."""
        return tuple(len(names) for names in self.choices.values())

    @property
    def twin(self) -> int:
        """The index of the blueprint that copies blocks; the number of blueprints if there is none."""
        return self.blueprints.index(TWIN) if TWIN in self.blueprints else len(self.blueprints)

    def action(self, op: Op | str = Op.WAIT, **choices: object) -> tuple[int, ...]:
        """Return an action as one choice index per head.

        Args:
            op: The op, or its name.
            **choices: Choices by head, such as `slot="s0"` or `alpha_target=0.5`: a name, a number or an enum member.
                A head that is left out takes its first choice, and alpha_target takes 1.0.

        Returns:
            One index for each head, in head order.

        Raises:
            EsperError: If a head or a choice is unknown.

        Example:
            >>> host.space.action("GERMINATE", slot="s0", blueprint="mlp")
        """
        named = {name.upper(): choice for name, choice in choices.items()}
        for name in named:
            if name not in Head.__members__ or name == Head.OP.name:
                raise unknown("head", name.lower(), (head.name.lower() for head in Head))
        named[Head.OP.name] = op
        return tuple(
            self._index(head, names, named.get(head.name, PLAIN_CHOICE.get(head, names[0])))
            for head, names in self.choices.items()
        )

    @staticmethod
    def _index(head: Head, names: tuple[str, ...], choice: object) -> int:
        name = choice.name if isinstance(choice, Enum) else str(choice)
        name = name.lower() if isinstance(choice, Curve) else name
        if name not in names:
            raise unknown(f"choice of head {head.name.lower()}", name, names)
        return names.index(name)


def per_head(values: Mapping[str, T]) -> tuple[T, ...]:
    """Return the values of a mapping from head names in head order, or raise an error if it lacks a head."""
    known = [head.name.lower() for head in Head]
    for name in values:
        if name not in known:
            raise unknown("head", name, known)
    missing = [name for name in known if name not in values]
    if missing:
        raise EsperError(f"every head needs a value: add {', '.join(missing)}")
    return tuple(values[name] for name in known)
