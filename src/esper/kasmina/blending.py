"""How a seed is heard: the delta it makes of its host's stream, and how loudly (alpha) over time.

out = host + alpha * delta. The host's own path stays open, so nothing upstream is ever starved.
"""

from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esper.leyline.actions import Curve, Graft

STEEPNESS = {Curve.SIGMOID_GENTLE: 6.0, Curve.SIGMOID: 12.0, Curve.SIGMOID_SHARP: 24.0}
"""Slope parameter of the sigmoid curves; before rescaling, 12 runs from 0.0025 to 0.9975."""


def _sigmoid(progress: Tensor, steepness: float) -> Tensor:
    """A logistic curve, rescaled to start at exactly 0 and end at exactly 1."""
    y = torch.sigmoid(steepness * (progress - 0.5))
    ends = _ends(steepness, progress.dtype, progress.device)
    return (y - ends[0]) / (ends[1] - ends[0])


@cache
def _ends(steepness: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Where a logistic curve starts and ends, copied to a device once: every copy waits for it."""
    return torch.sigmoid(steepness * (torch.tensor([0.0, 1.0], dtype=dtype, device=device) - 0.5))


def bend(progress: Float[Tensor, "*N"], curve: Int[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Progress after each element's own curve."""
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
    """Alpha on its way from `start` to `target`: exactly `target` when progress is 1.

    The style's ramp bends progress first, the alpha_curve second; one that was not chosen is linear.
    """
    bent = bend(bend(progress, style_ramp), curve)
    return torch.where(progress >= 1, target, torch.lerp(start, target, bent))


def delta(graft: Graft, host: Tensor, f: Tensor, g: Tensor | None = None) -> Tensor:
    """What a seed adds to its host's stream, from its body `f` and, for a gate, its logits `g`."""
    if graft is Graft.MULTIPLY:
        return host * torch.tanh(f)
    if graft is Graft.GATE:
        assert g is not None
        return torch.sigmoid(g) * f
    return f


def blend(host: Tensor, delta: Tensor, alpha: float | Tensor) -> Tensor:
    """Return `host + alpha * delta` in the dtype of the host's stream."""
    # A Python number would multiply a half-precision delta unrounded, unlike the tensor of alphas of a fleet.
    alpha = alpha.to(host.dtype) if isinstance(alpha, Tensor) else host.new_full((), alpha)
    return host + alpha * delta.to(host.dtype)
