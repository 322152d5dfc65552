"""The layers of hosts and seeds: channels last, no dropout, no batch statistics.

Each names the bounds of its random parameters, so that `birth.py` can draw them for many hosts at once. All other
parameters start as constructed.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from esper.kasmina.kernels import convolve, group_norm, max_pool


class Layer(nn.Module):
    """A module whose random parameters are uniform in ±bound."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds: dict[str, float] = {}

    def draw(self, name: str, shape: tuple[int, ...], bound: float) -> nn.Parameter:
        """A parameter drawn from ±bound, or zeros if the bound is zero."""
        if bound:
            self.bounds[name] = bound
        return nn.Parameter(torch.zeros(shape).uniform_(-bound, bound) if bound else torch.zeros(shape))


class Linear(Layer):
    """A linear map of the channels. `zero` starts it as the zero map."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, zero: bool = False) -> None:
        super().__init__()
        bound = 0.0 if zero else inputs**-0.5
        self.weight = self.draw("weight", (outputs, inputs), bound)
        self.bias = self.draw("bias", (outputs,), bound) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return _linear(x, self.weight, self.bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A linear map of the last axis. With all other axes flattened, a stack of hosts is one batched matmul."""
    return functional.linear(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])


class Conv(Layer):
    """A convolution over one or two axes, with the weight layout of torch's own.

    `depthwise` filters each channel by itself. The output is `stride` times shorter, rounded up.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: tuple[int, ...],
        *,
        stride: int = 1,
        bias: bool = True,
        zero: bool = False,
        depthwise: bool = False,
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.depthwise = kernel, stride, depthwise
        fan_in = math.prod(kernel) * (1 if depthwise else inputs)
        bound = 0.0 if zero else fan_in**-0.5
        self.weight = self.draw("weight", (outputs, 1 if depthwise else inputs, *kernel), bound)
        self.bias = self.draw("bias", (outputs,), bound) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.filtered(x) if self.depthwise else convolve(x, self.weight, self.stride)
        return out if self.bias is None else out + self.bias

    def filtered(self, x: Tensor) -> Tensor:
        padding = [side for k in reversed(self.kernel) for side in (k // 2, k // 2)]
        x = functional.pad(x, [0, 0, *padding])
        for axis, k in enumerate(self.kernel, start=1):
            x = x.unfold(axis, k, self.stride)
        return (x.flatten(-len(self.kernel)) * self.weight.flatten(1)).sum(-1)


class Norm(Layer):
    """Normalises each example: the channels of each position or, with `space`, groups of channels over all positions.

    `zero` starts it as the zero map. `relu` cuts what is negative, in the same pass over memory.
    """

    def __init__(self, channels: int, *, space: bool = False, zero: bool = False, relu: bool = False) -> None:
        super().__init__()
        self.relu = relu
        self.groups = 2 if space and channels % 2 == 0 and channels >= 8 else 1
        self.space = space
        self.weight = nn.Parameter(torch.zeros(channels) if zero else torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        if not self.space:
            out = functional.layer_norm(x, x.shape[-1:], self.weight, self.bias)
            return out.relu() if self.relu else out
        return group_norm(x, self.weight, self.bias, self.groups, self.relu)


class Embedding(Layer):
    """Token and position embeddings, added."""

    def __init__(self, tokens: int, positions: int, channels: int) -> None:
        super().__init__()
        self.token = self.draw("token", (tokens, channels), 0.1)
        self.position = self.draw("position", (positions, channels), 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.embedding(x, self.token) + self.position[: x.shape[-1]]


class CausalAttention(Layer):
    """Self-attention in which a position sees itself and what came before. `zero` starts it as the zero map.

    There are no query, key or value biases: a key bias is cancelled by the softmax.
    """

    def __init__(self, channels: int, *, heads: int = 1, zero: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(channels, 3 * channels, bias=False)
        self.out = Linear(channels, channels, zero=zero)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # B heads L c
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        logits = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        mixed = logits.masked_fill(future, -torch.inf).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Pool(nn.Module):
    """Halves an image's sides, keeping the largest of each 2×2. An odd last row is dropped; a side of 1 is kept."""

    def forward(self, x: Tensor) -> Tensor:
        height, width = (2 if side > 1 else 1 for side in x.shape[1:3])
        return max_pool(x, (height, width)) if height * width > 1 else x


class MeanOverSpace(nn.Module):
    """One vector per example."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1, -2).mean(1)
