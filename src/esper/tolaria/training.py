"""Train the hosts of a fleet for an epoch, side rows of silent seeds included."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from esper.kasmina.kernels import where
from esper.leyline.rng import Purpose, key, permutation
from esper.tolaria.assignment import Assignment, Kind, Known, hosts_by_kind, rows_of
from esper.tolaria.budget import Pace
from esper.tolaria.optimizer import Update, step_all
from esper.tolaria.recording import recorded
from esper.tolaria.schedule import copied, schedule
from esper.tolaria.stack import by_row, squares
from esper.tolaria.transfer import Packed, pack, unpack, upload

if TYPE_CHECKING:
    from esper.tolaria.fleet import Fleet

Norms = dict[Kind | None, Float[Tensor, " R"]]
"""Mean gradient norms of the rows of each bucket; those of the trunk under None."""


def train_epoch(
    fleet: "Fleet", known: Known | None = None, pace: Pace | None = None
) -> tuple[Float[Tensor, " N"], Norms, Float[Tensor, "N S"]]:
    """Train every host for one epoch, or for as many steps as its budget allows.

    Returns:
        Mean losses; mean gradient norms of parameters; and mean norms of the loss's gradient with respect to the
        streams at slots.
    """
    known = known or copied(fleet)
    fleet.count.zero_()
    order = permutation(key(fleet.rng_seeds, Purpose.SHUFFLE, fleet.epoch), len(fleet.train_data[0]))
    losses, pulls = fleet.losses.zero_(), fleet.pulls.zero_()
    norms: Norms = {name: stack.norms.zero_() for name, stack in fleet.network.stacks.items()}
    num_steps = fleet.num_steps if pace is None else int(pace.steps.max())  # waits for the device
    every = fleet.lifecycle.lesson_every
    steps = [step_of(fleet, known, order, pace)]
    if every > 1 and known.silent.any():
        steps.append(step_of(fleet, known, order, pace, lessons=False))
    for n in range(num_steps):
        steps[0 if n % every == 0 else -1]()
    if pace is None:
        return losses / num_steps, {name: norm / num_steps for name, norm in norms.items()}, pulls / num_steps
    hosts = {kind: upload(np.maximum(bucket.hosts, 0), fleet.device) for kind, bucket in fleet.buckets.items()}
    made = {None: pace.steps} | {kind: pace.steps[rows] for kind, rows in hosts.items()}
    means = {name: norm / made[name].to(norm.dtype) for name, norm in norms.items()}
    return losses / pace.steps, means, pulls / pace.steps[:, None]


def step_of(fleet: "Fleet", known: Known, order: Tensor, pace: Pace | None, lessons: bool = True) -> Callable[[], None]:
    """Return a function that trains every host on its next batch, by a captured program if there is one.

    Steps with and without lessons may have inputs of the same shapes, and take turns: each has its own program.
    """
    assignment = schedule(fleet, known, measuring=False, lessons=lessons)
    chunks = fleet.memory.chunks(fleet.num_hosts, fleet.config.batch_size, *rows_of(assignment))
    inputs = (pack(assignment, fleet.device), order, chunks, pace)
    program = recorded(fleet, "train" if lessons else "train without lessons", partial(train_step, fleet), inputs)
    if program is None:
        return partial(train_step, fleet, unpack(inputs[0]), *inputs[1:])
    program.load(inputs)
    return program.graph.replay


def train_step(
    fleet: "Fleet", assignment: Assignment | Packed, order: Tensor, chunks: int, pace: Pace | None = None
) -> None:
    """Train every host on its next batch, clipping row by row, and add to the sums of losses and norms.

    Hosts that have made all steps that their pace allows are not trained.
    """
    assignment = unpack(assignment) if isinstance(assignment, Packed) else assignment
    size = fleet.config.batch_size
    count, batches = fleet.count, len(fleet.train_data[0]) // size
    at = count if pace is None else count % batches  # a last epoch may go on from the beginning
    batch = order.index_select(1, at * size + torch.arange(size, device=fleet.device))
    running = fleet.everyone if pace is None else pace.running(count)
    stacks = fleet.network.stacks
    flats = {name: stack.flat.to(fleet.engine.compute).detach().requires_grad_() for name, stack in stacks.items()}
    gradients: list[Tensor] = []
    pulled = torch.zeros_like(fleet.pulls)
    for part in batch.chunk(chunks, dim=1):
        x, y = (data[part] for data in fleet.train_data)
        out, beside, streams = fleet.network.forward(flats, x, assignment)
        loss = by_row(fleet.objective.loss, out, y) / size
        total = loss.sum()
        if beside is not None:
            side = by_row(fleet.objective.loss, beside, y[assignment.beside.rows]) / size
            total = total + side.where(assignment.beside.real, 0.0).sum()
        wanted = [*flats.values(), *streams]
        (*new,) = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
        pulled += torch.stack([squares(g) for g in new[len(flats) :]], 1)
        new = new[: len(flats)]
        gradients = [a + b for a, b in zip(gradients, new, strict=True)] if gradients else new
        fleet.losses += loss.detach() if pace is None else loss.detach().where(running, 0.0)
    fleet.pulls += pulled.sqrt() if pace is None else pulled.sqrt().where(running[:, None], 0.0)
    here = [b for slot in assignment.slots for b in slot.buckets]
    active = {None: running} | {b.kind: b.learns for b in here}
    rate = {None: fleet.lr} | {b.kind: b.lr for b in here}
    if pace is not None:
        factor, rows = pace.rate(count), hosts_by_kind(assignment)
        rate = {name: lr * (factor if name is None else factor[rows[name]]) for name, lr in rate.items()}
        trains = {None: running} | {kind: running[hosts] for kind, hosts in rows.items()}
        active = {name: trains[name] & learns for name, learns in active.items()}
        gradients = [where(trains[name], g, 0.0) for name, g in zip(stacks, gradients, strict=True)]
    named = zip(stacks.items(), gradients, strict=True)
    updates = [Update(stack, gradient, active[name], rate[name]) for (name, stack), gradient in named]
    step_all(updates, fleet.config, fleet.network.lanes)
    count += 1
