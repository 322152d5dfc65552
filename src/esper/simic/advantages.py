"""How much better than expected each decision turned out."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

STD_FLOOR = 1e-6


def gae(
    rewards: Float[Tensor, "T N"],
    values: Float[Tensor, "T N"],
    after: Float[Tensor, "T N"],
    ended: Bool[Tensor, "T N"],
    gamma: float,
    lam: float,
) -> Float[Tensor, "T N"]:
    """Generalised advantage estimates, host by host.

    `after` is the value of where each decision led: 0 where a life is over for good, else what was expected there.
    Nothing is carried over the end of a life.
    """
    advantages = rewards + gamma * after - values
    reach = gamma * lam * (~ended).to(advantages)  # how much of what comes so many decisions later counts here
    apart = 1
    while apart < len(advantages):  # each round sums over twice as many decisions
        near, later = reach[:-apart], reach[apart:]
        gained = (near * advantages[apart:]).where(near > 0, 0.0)
        advantages = torch.cat([advantages[:-apart] + gained, advantages[-apart:]])
        reach = torch.cat([near * later, torch.zeros_like(reach[-apart:])])
        apart *= 2
    return advantages


def against_siblings(
    advantages: Float[Tensor, "T N"], groups: Int[Tensor, " N"], comparable: Bool[Tensor, "T N"]
) -> Float[Tensor, "T N"]:
    """Advantages minus the mean of the other comparable hosts of the group at the same decision."""
    counted = advantages.where(comparable, 0.0)
    shape = (len(advantages), int(groups.max()) + 1)
    sums = advantages.new_zeros(shape).index_add_(1, groups, counted)[:, groups]
    counts = advantages.new_zeros(shape).index_add_(1, groups, comparable.to(advantages))[:, groups]
    others = (sums - counted) / (counts - 1).clamp(min=1)
    return torch.where(comparable & (counts > 1), advantages - others, advantages)


def standardized(x: Float[Tensor, "*N"], valid: Bool[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Zero mean and unit deviation over what is valid; the rest becomes 0."""
    count = valid.sum().clamp(min=1)
    mean = x.where(valid, 0.0).sum() / count
    apart = (x - mean).where(valid, 0.0)
    std = (apart.square().sum() / count).sqrt()
    return apart / std.clamp(min=STD_FLOOR)
