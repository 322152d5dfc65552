"""Blend seeds into the stream of their host: the deltas of each graft, and the ramps of alpha.

out = host + alpha * delta. The host's own path stays open, so that layers before the slot always get gradients.
"""

from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esper.leyline.actions import Curve, Graft

STEEPNESS = {Curve.SIGMOID_GENTLE: 6.0, Curve.SIGMOID: 12.0, Curve.SIGMOID_SHARP: 24.0}
"""Slope of each sigmoid curve; before rescaling, a slope of 12 runs from 0.0025 to 0.9975."""


def _sigmoid(progress: Tensor, steepness: float) -> Tensor:
    """Return a logistic curve, rescaled to start at exactly 0 and end at exactly 1."""
    y = torch.sigmoid(steepness * (progress - 0.5))
    ends = _ends(steepness, progress.dtype, progress.device)
    return (y - ends[0]) / (ends[1] - ends[0])


@cache
def _ends(steepness: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the first and last value of a logistic curve. Cached, because a copy to a device synchronizes."""
    return torch.sigmoid(steepness * (torch.tensor([0.0, 1.0], dtype=dtype, device=device) - 0.5))


def bend(progress: Float[Tensor, "*N"], curve: Int[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Return progress mapped through a curve, with one curve for each element."""
    shapes = {
        Curve.LINEAR: progress,
        Curve.COSINE: (1 - torch.cos(torch.pi * progress)) / 2,
        **{curve: _sigmoid(progress, steepness) for curve, steepness in STEEPNESS.items()},
    }
    return torch.stack([shapes[c] for c in Curve]).gather(0, curve[None])[0]


def ramp(
    start: Float[Tensor, "*N"],
    target: Float[Tensor, "*N"],
    progress: Float[Tensor, "*N"],
    style_ramp: Int[Tensor, "*N"],
    curve: Int[Tensor, "*N"],
) -> Float[Tensor, "*N"]:
    """Return alpha between `start` and `target`; it is exactly `target` when progress is 1.

    The curve of the style is applied to progress first, that of the alpha_curve head second.
    """
    bent = bend(bend(progress, style_ramp), curve)
    return torch.where(progress >= 1, target, torch.lerp(start, target, bent))


def delta(graft: Graft, host: Tensor, f: Tensor, g: Tensor | None = None) -> Tensor:
    """Return a seed's delta on its host's stream from the output `f` of its body and, for a gate, the logits `g`."""
    if graft is Graft.MULTIPLY:
        return host * torch.tanh(f)
    if graft is Graft.GATE:
        assert g is not None
        return torch.sigmoid(g) * f
    return f - host if graft is Graft.REPLACE else f


def blend(host: Tensor, delta: Tensor, alpha: float | Tensor) -> Tensor:
    """Return `host + alpha * delta` in the dtype of the host's stream."""
    # A Python number would multiply a half-precision delta unrounded, unlike the tensor of alphas of a fleet.
    alpha = alpha.to(host.dtype) if isinstance(alpha, Tensor) else host.new_full((), alpha)
    return host + alpha * delta.to(host.dtype)
