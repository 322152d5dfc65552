"""Record what a fleet runs as programs, which change nothing while they are recorded."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._pytree import tree_map

from esper.tolaria.capture import Program

if TYPE_CHECKING:
    from esper.tolaria.fleet import Fleet


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
