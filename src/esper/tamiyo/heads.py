"""Sample masked categorical choices, for many heads at once."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.errors import EsperError


def masked(logits: Float[Tensor, "*N C"], mask: Bool[Tensor, "*N C"]) -> Float[Tensor, "*N C"]:
    """Return log-probabilities over the legal choices, in fp32; an illegal choice gets the lowest finite number."""
    logits = logits.float().masked_fill(~mask, torch.finfo(torch.float32).min)
    return torch.log_softmax(logits, -1)


def check(mask: Bool[Tensor, "*N C"], head: str) -> None:
    """Raise an error if a mask leaves some host no choice. Waits for the device: call it outside of hot loops."""
    if not bool(mask.any(-1).all()):
        raise EsperError(f"head {head!r} has hosts without a single legal choice; its mask must allow at least one")


def entropy(log_probs: Float[Tensor, "*N C"], mask: Bool[Tensor, "*N C"]) -> Float[Tensor, "*N"]:
    """Return the entropy over that of a uniform choice among the legal ones, from 0 to 1; 0 with one legal choice."""
    spread = -(log_probs.exp() * log_probs.masked_fill(~mask, 0.0)).sum(-1)
    choices = mask.sum(-1)
    return torch.where(choices > 1, spread / choices.clamp(min=2).log(), 0.0)


def gumbel(uniform: Float[Tensor, "*N C"]) -> Float[Tensor, "*N C"]:
    """Turn uniform numbers, strictly between 0 and 1, into Gumbel noise: the argmax of log-probabilities plus noise is
    a sample."""
    return -torch.log(-torch.log(uniform.float()))


def sample(log_probs: Float[Tensor, "*N C"], uniform: Float[Tensor, "*N C"]) -> Int[Tensor, "*N"]:
    """Sample a choice from log-probabilities, by uniform numbers strictly between 0 and 1."""
    return (log_probs + gumbel(uniform)).argmax(-1)


def chosen(log_probs: Float[Tensor, "*N C"], choice: Int[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Return the log-probability of each choice."""
    return log_probs.gather(-1, choice[..., None])[..., 0]
