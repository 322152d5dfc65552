"""Evaluate the hosts of a fleet, and the contribution of each seed by side rows of the same pass."""

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from esper.leyline.state import Split
from esper.tolaria.assignment import Known, rows_of
from esper.tolaria.recording import recorded
from esper.tolaria.schedule import Switch, copied, schedule
from esper.tolaria.stack import by_row
from esper.tolaria.transfer import Packed, pack, resident, unpack

if TYPE_CHECKING:
    from esper.tolaria.fleet import Fleet


class Measured(NamedTuple):
    """Results of every host on the validation data, and the contribution of each seed."""

    loss: Float[Tensor, " N"]
    metric: Float[Tensor, " N"]
    score: Float[Tensor, " N"]
    contribution: Float[Tensor, "N S"]


@torch.no_grad()
def evaluate(
    fleet: "Fleet", data: Split | None = None, switch: Switch | None = None, known: Known | None = None
) -> Measured:
    """Evaluate every host, by a captured program if there is one for the validation data.

    Args:
        fleet: Fleet of the hosts.
        data: Held-out data. None: the validation data, on which contributions are measured, too.
        switch: Mask of seeds to switch: audible ones off, silent ones on; or "bare", which leaves out all seeds. No
            contributions are measured then.
        known: Slots as copied to the CPU, if they are at hand.
    """
    if data is not None and switch is None:
        switch = torch.zeros_like(fleet.state.alpha, dtype=torch.bool)
    assignment = schedule(fleet, known or copied(fleet), measuring=True, switch=switch)
    examples = len(fleet.validation_data.x if data is None else data.x)
    chunks = fleet.memory.chunks(fleet.num_hosts, examples, *rows_of(assignment), training=False)
    inputs = (pack(assignment, fleet.device), chunks)
    if data is not None:
        return measure(fleet, *inputs, resident(data, fleet.device, fleet.engine.compute))
    program = recorded(fleet, "measure", partial(measure, fleet), inputs)
    measured = measure(fleet, *inputs) if program is None else program(inputs)
    return Measured(*(x.clone() for x in measured))


@torch.no_grad()
def measure(fleet: "Fleet", packed: Packed, chunks: int, data: Split | None = None) -> Measured:
    """Evaluate every host on data split into `chunks` parts; the validation data by default."""
    assignment, data = unpack(packed), data or fleet.validation_data
    flats = {name: stack.flat.to(fleet.engine.compute) for name, stack in fleet.network.stacks.items()}
    sums, besides = [], []
    for x, y in zip(*(part.chunk(chunks) for part in data), strict=True):
        out, beside, _ = fleet.network.forward(flats, x.expand(fleet.num_hosts, *x.shape), assignment)
        sums.append(_judged(fleet, out, y))
        besides.append(None if beside is None else _judged(fleet, beside, y)[1])
    size = len(data.x)
    loss, metric = (torch.stack(parts).sum(0) / size for parts in zip(*sums, strict=True))
    score = fleet.objective.score(metric, fleet.num_outputs)
    # Padding rows write into one extra slot, which is dropped.
    contribution = score.new_full((fleet.num_hosts, len(fleet.slots) + 1), torch.nan)
    if len(assignment.beside.rows):
        metrics = torch.stack([b for b in besides if b is not None]).sum(0) / size
        switched = fleet.objective.score(metrics, fleet.num_outputs) - score[assignment.beside.rows]
        worth = torch.where(assignment.beside_speaks, -switched, switched)
        at = torch.where(assignment.beside.real, assignment.beside_slot, len(fleet.slots))
        contribution[assignment.beside.rows, at] = worth
    return Measured(loss, metric, score, contribution[:, :-1])


def _judged(fleet: "Fleet", out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of loss and metric over examples."""
    targets = y.expand(len(out), *y.shape)
    return by_row(fleet.objective.loss, out, targets), by_row(fleet.objective.metric, out, targets)
