"""Cut rollouts into sequences of decisions, each within one episode, that a recurrent controller learns from."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.simic.rollout import Rollout
from esper.tamiyo.features import Features
from esper.tamiyo.network import Choice, HiddenState, Observation


class Sequences(NamedTuple):
    """Q sequences of decisions cut from a rollout, each within one episode, padded to the longest length L."""

    seen: Observation
    old: Choice
    """Choices, log-probabilities and values recorded while acting."""
    advantage: Float[Tensor, "L Q"]
    returns: Float[Tensor, "L Q"]
    """Targets of the value."""
    valid: Bool[Tensor, "L Q"]
    """False where padded."""
    memory: HiddenState
    """Hidden state before the first decision of each sequence."""


def sequence_indices(
    rollout: Rollout, whole: bool
) -> tuple[Int[Tensor, "L Q"], Int[Tensor, "L Q"], Bool[Tensor, "L Q"]]:
    """Return decision and host indices of each episode's part of a rollout, and a mask that is False for padding.

    If not `whole`, every decision is a sequence by itself.
    """
    start = rollout.start.clone()
    start[0] = True
    if not whole:
        start[:] = True
    host, first = start.T.nonzero().unbind(1)
    last = torch.cat([first[1:].where(host[1:] == host[:-1], len(start)), first.new_tensor([len(start)])])
    length = last - first
    steps = torch.arange(int(length.max()), device=first.device)[:, None]
    valid = steps < length
    return (first + steps).where(valid, first), host.expand_as(valid), valid


def to_sequences(
    rollout: Rollout, advantage: Float[Tensor, "T N"], returns: Float[Tensor, "T N"], whole: bool, blank: HiddenState
) -> Sequences:
    """Cut a rollout into sequences, each with its initial hidden state.

    Args:
        rollout: Decisions of all hosts.
        advantage: Advantage of each decision.
        returns: Value target of each decision.
        whole: Keep each episode's part together, for a recurrent policy; otherwise every decision stands alone.
        blank: Hidden state with which episodes begin.
    """
    t, n, valid = sequence_indices(rollout, whole)

    def at(x: Tensor) -> Tensor:
        return x[t, n]

    seen = Observation(Features(*map(at, rollout.seen.features)), *map(at, rollout.seen[1:]))
    continued = (t[0] == 0) & ~rollout.start[0, n[0]]
    memory = HiddenState(
        *(torch.where(continued[:, None], old[n[0]], new[n[0]]) for old, new in zip(rollout.memory, blank, strict=True))
    )
    return Sequences(seen, Choice(*map(at, rollout.choice)), at(advantage), at(returns), valid, memory)


def finished(rollout: Rollout, sequences: Sequences, recurrent: bool) -> Sequences:
    """Return the sequences of episodes that end within the rollout; all, if none does.

    On a budget hosts that grow have shorter episodes, and a recording holds the beginning of another.
    """
    ends_later = rollout.ended.flip(0).cumsum(0).flip(0) > 0
    if not bool(rollout.ended.any()) or bool(ends_later.all()):
        return sequences
    t, n, _ = sequence_indices(rollout, recurrent)
    return select(sequences, ends_later[t[0], n[0]].nonzero()[:, 0])


def select(sequences: Sequences, index: Int[Tensor, " Q"]) -> Sequences:
    """Return the sequences with these indices."""

    def at(x: Tensor) -> Tensor:
        return x[:, index]

    seen = Observation(Features(*map(at, sequences.seen.features)), *map(at, sequences.seen[1:]))
    memory = HiddenState(*(x[index] for x in sequences.memory))
    old = Choice(*map(at, sequences.old))
    return Sequences(seen, old, at(sequences.advantage), at(sequences.returns), at(sequences.valid), memory)
