"""Record what a fleet runs as programs: steps, which change its weights, and functions of tensors alone."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor
from torch.utils._pytree import tree_map

from esper.tolaria.capture import Program, Programs

if TYPE_CHECKING:
    from esper.tolaria.fleet import Fleet

T = TypeVar("T")


def recorded(fleet: "Fleet", name: str, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Program | None:
    """Return the captured program for these inputs, or None if this fleet does not capture programs."""
    if fleet.programs is None:
        return None

    def warm_up() -> None:
        changing = [t for stack in fleet.network.stacks.values() for t in (*stack.tensors.values(), stack.norms)]
        changing += [fleet.losses, fleet.pulls, fleet.count]
        before = [t.clone() for t in changing]
        fleet.count.zero_()  # wherever in an epoch a program is recorded, there is a next batch
        function(*tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs))
        for tensor, value in zip(changing, before, strict=True):
            tensor.copy_(value)

    return fleet.programs.find(name, function, inputs, warm_up, kinds=tuple(fleet.network.stacks))


def replayed(programs: Programs | None, name: str, function: Callable[..., T], inputs: tuple[Any, ...]) -> T:
    """Call a function of tensors that changes nothing, by a captured program if there is one.

    On a GPU a replay launches one graph instead of a few hundred small operations.
    """
    warm_up = partial(function, *inputs)
    program = None if programs is None else programs.find(name, function, inputs, warm_up, kinds=())
    if program is None:
        return function(*inputs)
    outputs = program(inputs)  # the next replay overwrites them
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, outputs)
