"""Train one host in plain PyTorch for an epoch, its incubating seeds included."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from esper.kasmina.host import Host
from esper.kasmina.lifecycle import incubating
from esper.leyline.rng import Purpose, key, permutation
from esper.tolaria.budget import Pace

if TYPE_CHECKING:
    from esper.tolaria.host_trainer import HostTrainer


def train_epoch(trainer: "HostTrainer", pace: Pace | None = None) -> tuple[float, dict[str, float], Tensor]:
    """Train for one epoch, or for as many steps as the budget allows.

    Returns:
        The mean loss; the mean gradient norm of each optimizer group; and the mean norm of the loss's gradient with
        respect to the stream at each slot.
    """
    x, y = trainer.task.train
    size, optimizer = trainer.config.batch_size, trainer.optimizer
    order = permutation(key(trainer.rng_seed, Purpose.SHUFFLE, trainer.epoch), len(x))
    batches = order[: len(x) // size * size].view(-1, size)
    losses, norms, pulls = [], [], []
    rates = [group["lr"] for group in optimizer.param_groups]
    for n in range(trainer.num_steps if pace is None else int(pace.steps)):
        batch = batches[n % len(batches)]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate if pace is None else rate * float(pace.rate(n))
        loss, pull = gradients(trainer, x[batch], y[batch], teaches=n % trainer.lifecycle.lesson_every == 0)
        losses.append(loss)
        pulls.append(pull)
        norms.append(step(trainer))
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    mean = {name: sum(norm[name] for norm in norms) / len(norms) for name in norms[0]}
    return sum(losses) / len(losses), mean, torch.stack(pulls).mean(0)


def gradients(trainer: "HostTrainer", x: Tensor, y: Tensor, teaches: bool = True) -> tuple[float, Tensor]:
    """Compute the gradients of one batch.

    An incubating seed gets the gradient of the loss with the seed at its alpha target; everything else gets that of
    the host's own loss.

    Args:
        trainer: Trainer of the host.
        x: Examples.
        y: Their targets.
        teaches: Whether incubating seeds get a gradient.

    Returns:
        The loss, and the norm of its gradient with respect to the stream at each slot.
    """
    host, state = trainer.host, trainer.state
    trainer.optimizer.zero_grad()
    with streams_of(host) as streams:
        loss = mean_loss(trainer, x, y)
    for stream in streams:
        stream.retain_grad()
    loss.backward()
    for s in incubating(state)[0].nonzero()[:, 0].tolist() if teaches else ():
        parameters = list(host.slot(s).parameters())
        with frozen_but(host, s):
            out = host.after(s, streams[s].detach(), {s: state.alpha_target[0, s]})
            side = trainer.task.spec.objective.loss(out, y).mean()
        for p, gradient in zip(parameters, torch.autograd.grad(side, parameters), strict=True):
            p.grad = gradient
    return loss.item(), torch.stack([stream.grad.norm() for stream in streams if stream.grad is not None])


def step(trainer: "HostTrainer") -> dict[str, float]:
    """Clip each optimizer group separately, take a step, and return the norms before clipping."""
    norms = {
        group["name"]: nn.utils.clip_grad_norm_(group["params"], trainer.config.clip).item()
        for group in trainer.optimizer.param_groups
    }
    trainer.optimizer.step()
    return norms


def mean_loss(trainer: "HostTrainer", x: Tensor, y: Tensor, alphas: Mapping[int, Tensor] | None = None) -> Tensor:
    """Return the mean loss of examples, with some slots' alpha replaced."""
    return trainer.task.spec.objective.loss(trainer.host(x, alphas), y).mean()


@contextmanager
def streams_of(host: Host) -> Iterator[list[Tensor]]:
    """Yield a list that the streams at all slots are added to while the host runs."""
    streams: list[Tensor] = []
    hooks = [slot.register_forward_pre_hook(lambda _, given: streams.append(given[0])) for slot in host.slots]
    try:
        yield streams
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def frozen_but(host: Host, slot: int) -> Iterator[None]:
    """Let gradients reach no weights but those of the seed in a slot."""
    trained = {p for p in host.parameters() if p.requires_grad}
    others = trained - set(host.slot(slot).parameters())
    for p in others:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in others:
            p.requires_grad_(True)
