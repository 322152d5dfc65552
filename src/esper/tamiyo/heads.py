"""Categorical choices under masks, for many heads at once."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.leyline.errors import EsperError


def masked(logits: Float[Tensor, "*N C"], mask: Bool[Tensor, "*N C"]) -> Float[Tensor, "*N C"]:
    """Log-probabilities over the legal choices, in single precision; an illegal one gets the lowest number there is."""
    logits = logits.float().masked_fill(~mask, torch.finfo(torch.float32).min)
    return torch.log_softmax(logits, -1)


def check(mask: Bool[Tensor, "*N C"], head: str) -> None:
    """Refuse masks that leave no choice. Reads the device: call it outside of hot loops."""
    if not bool(mask.any(-1).all()):
        raise EsperError(f"head {head!r} has hosts without a single legal choice")


def entropy(log_probs: Float[Tensor, "*N C"], mask: Bool[Tensor, "*N C"]) -> Float[Tensor, "*N"]:
    """From 0 to 1: divided by that of a uniform choice. One legal choice gives 0."""
    spread = -(log_probs.exp() * log_probs.masked_fill(~mask, 0.0)).sum(-1)
    choices = mask.sum(-1)
    return torch.where(choices > 1, spread / choices.clamp(min=2).log(), 0.0)


def gumbel(uniform: Float[Tensor, "*N C"]) -> Float[Tensor, "*N C"]:
    """Noise from uniform numbers strictly between 0 and 1: the largest of log-probability plus noise is a sample."""
    return -torch.log(-torch.log(uniform.float()))


def sample(log_probs: Float[Tensor, "*N C"], uniform: Float[Tensor, "*N C"]) -> Int[Tensor, "*N"]:
    """A choice with these probabilities."""
    return (log_probs + gumbel(uniform)).argmax(-1)


def chosen(log_probs: Float[Tensor, "*N C"], choice: Int[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    return log_probs.gather(-1, choice[..., None])[..., 0]
