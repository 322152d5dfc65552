"""Advantage estimation: GAE, a leave-one-out baseline within groups of hosts, and standardization."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

STD_FLOOR = 1e-6


def gae(
    rewards: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    next_values: Float[Tensor, "T N"],
    ended: Bool[Tensor, "T N"],
    gamma: float,
    lam: float,
) -> Float[Tensor, "T N"]:
    """Return generalized advantage estimates (arXiv:1506.02438, eq. 16) for every decision of every host.

    Args:
        rewards: Reward of each decision.
        values: Critic's value of the state in which each decision was made.
        next_values: Critic's value of the state that each decision led to; 0 where the episode terminated.
        ended: Whether the episode ended after the decision. Advantages do not cross this boundary.
        gamma: Discount per decision.
        lam: GAE's lambda: 0 gives one-step TD errors, 1 gives Monte Carlo returns minus values.
    """
    advantages = rewards + gamma * next_values - values
    decay = gamma * lam * (~ended).to(advantages)  # weight of the advantage `stride` decisions later
    stride = 1
    while stride < len(advantages):  # a parallel scan: each pass doubles how many decisions are summed
        near, later = decay[:-stride], decay[stride:]
        carried = (near * advantages[stride:]).where(near > 0, 0.0)
        advantages = torch.cat([advantages[:-stride] + carried, advantages[-stride:]])
        decay = torch.cat([near * later, torch.zeros_like(decay[-stride:])])
        stride *= 2
    return advantages


def subtract_group_mean(
    advantages: Float[Tensor, "T N"],
    groups: Int[Tensor, " N"],
    comparable: Bool[Tensor, "T N"],
    moment: Int[Tensor, "T N"] | None = None,
) -> Float[Tensor, "T N"]:
    """Subtract from each advantage the mean of the other comparable hosts of its group at the same decision.

    A host that is not comparable, or that has no comparable sibling, keeps its advantage. `moment` numbers the
    decisions of each host; None: all hosts make the same decision at the same time.
    """
    counted, steps = advantages.where(comparable, 0.0), torch.arange(len(advantages), device=groups.device)
    moments = steps[:, None].expand(advantages.shape) if moment is None else moment
    cells = torch.stack([groups.expand(advantages.shape), moments], -1).flatten(0, 1)
    found, cell = cells.unique(dim=0, return_inverse=True)

    def summed(x: Float[Tensor, "T N"]) -> Float[Tensor, "T N"]:
        return x.new_zeros(len(found)).index_add_(0, cell, x.flatten())[cell].view(x.shape)

    sums, counts = summed(counted), summed(comparable.to(advantages))
    baseline = (sums - counted) / (counts - 1).clamp(min=1)
    return torch.where(comparable & (counts > 1), advantages - baseline, advantages)


def standardize(x: Float[Tensor, "*N"], valid: Bool[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Scale the valid entries to zero mean and unit standard deviation, and set the others to 0."""
    count = valid.sum().clamp(min=1)
    mean = x.where(valid, 0.0).sum() / count
    centered = (x - mean).where(valid, 0.0)
    std = (centered.square().sum() / count).sqrt()
    return centered / std.clamp(min=STD_FLOOR)
