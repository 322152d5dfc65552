"""Define the layers of hosts and seeds: channels last, without dropout or batch statistics.

Each layer records the bounds of its random parameters, so that `birth.py` can draw them for many hosts at once. All
other parameters start as constructed.
"""

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from esper.kasmina.kernels import (
    along,
    causal_attention,
    convolve,
    convolve_channels,
    group_norm,
    layer_norm,
    norm_pool,
    product,
)
from esper.leyline.errors import EsperError

Params = dict[str, Tensor]


class Layer(nn.Module):
    """A module whose random parameters are drawn uniformly from ±bound."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds: dict[str, float] = {}

    def draw(self, name: str, shape: tuple[int, ...], bound: float) -> nn.Parameter:
        """Return a new parameter drawn uniformly from ±bound, and record the bound. A bound of 0 gives zeros."""
        if bound:
            self.bounds[name] = bound
        return nn.Parameter(torch.zeros(shape).uniform_(-bound, bound) if bound else torch.zeros(shape))


class RowLayer(Layer):
    """A layer that can run many copies of itself at once, one per row. Called alone, it runs a single row."""

    def rows(self, params: Params, x: Tensor) -> Tensor:
        """Apply each row of parameters, (R, ...), to its own row of x, (R, B, ...), and return (R, B, ...)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.rows({name: p[None] for name, p in self.named_parameters()}, x[None])[0]


class Linear(RowLayer):
    """A linear map of the channels. With `zero`, its weights start at zero."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, zero: bool = False) -> None:
        super().__init__()
        bound = 0.0 if zero else inputs**-0.5
        self.weight = self.draw("weight", (outputs, inputs), bound)
        self.bias = self.draw("bias", (outputs,), bound) if bias else None

    def rows(self, params: Params, x: Tensor) -> Tensor:
        return product(x.flatten(1, -2), params["weight"], params.get("bias")).unflatten(1, x.shape[1:-1])

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.flatten(0, -2), self.weight, self.bias).unflatten(0, x.shape[:-1])


class Conv(RowLayer):
    """A convolution over one or two axes with zero padding. Its weight is (*kernel, inputs, outputs), channels last.

    With `depthwise`, each channel is filtered separately and the weight is (*kernel, channels). With `zero`, weights
    start at zero. Each axis of the output is `stride` times shorter, rounded up.
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
        self.stride, self.depthwise = stride, depthwise
        fan_in = math.prod(kernel) * (1 if depthwise else inputs)
        bound = 0.0 if zero else fan_in**-0.5
        self.weight = self.draw("weight", (*kernel, *([] if depthwise else [inputs]), outputs), bound)
        self.bias = self.draw("bias", (outputs,), bound) if bias else None

    def rows(self, params: Params, x: Tensor) -> Tensor:
        weight, bias = params["weight"], params.get("bias")
        if not self.depthwise:
            return convolve(x, weight, self.stride, bias)
        out = convolve_channels(x, weight, self.stride)
        return out if bias is None else out + along(bias, out)


class Norm(RowLayer):
    """A layer norm over the channels of each position or, with `space`, a group norm over all positions.

    With `zero`, its scale starts at zero. With `relu`, a ReLU follows in the same pass over memory.
    """

    def __init__(self, channels: int, *, space: bool = False, zero: bool = False, relu: bool = False) -> None:
        super().__init__()
        self.groups = 2 if space and channels % 2 == 0 and channels >= 8 else 1
        self.space, self.relu = space, relu
        self.weight = nn.Parameter(torch.zeros(channels) if zero else torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def rows(self, params: Params, x: Tensor) -> Tensor:
        weight, bias = params["weight"], params["bias"]
        if self.space:
            return group_norm(x, weight, bias, self.groups, self.relu)
        out = layer_norm(x, weight, bias)
        return out.relu() if self.relu else out


class NormPool(Norm):
    """A group norm of images over all positions, a ReLU and a 2×2 max-pooling, in one pass over memory.

    An odd last row or column is dropped; a side of 1 is kept.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, space=True, relu=True)

    def rows(self, params: Params, x: Tensor) -> Tensor:
        return norm_pool(x, params["weight"], params["bias"], self.groups)


class Embedding(RowLayer):
    """The sum of a token embedding and a position embedding."""

    def __init__(self, tokens: int, positions: int, channels: int) -> None:
        super().__init__()
        self.token = self.draw("token", (tokens, channels), 0.1)
        self.position = self.draw("position", (positions, channels), 0.1)

    def rows(self, params: Params, x: Tensor) -> Tensor:
        table, position = params["token"], params["position"][:, None, : x.shape[-1]]
        first = torch.arange(len(table), device=x.device).view(-1, *[1] * (x.ndim - 1)) * table.shape[1]
        return functional.embedding(x + first, table.flatten(0, 1)) + position

    def forward(self, x: Tensor) -> Tensor:
        return functional.embedding(x, self.token) + self.position[: x.shape[-1]]


class CausalAttention(RowLayer):
    """Causal self-attention. With `zero`, its output projection starts at zero.

    Queries, keys and values have no bias: the softmax cancels that of the keys.
    """

    def __init__(self, channels: int, *, heads: int = 1, zero: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(channels, 3 * channels, bias=False)
        self.out = Linear(channels, channels, zero=zero)

    def rows(self, params: Params, x: Tensor) -> Tensor:
        return self.out.rows(under("out.", params), self.mixed(self.qkv.rows(under("qkv.", params), x)))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 3:
            raise EsperError(f"attention needs examples, positions and channels, not the shape {tuple(x.shape)}")
        return self.out(self.mixed(self.qkv(x)))

    def mixed(self, qkv: Tensor) -> Tensor:
        """Mix the values of (..., L, 3 * C) for all heads of all examples, those of other rows included, at once."""
        return causal_attention(qkv.flatten(0, -3), self.heads).view(*qkv.shape[:-1], -1)


class MeanOverSpace(RowLayer):
    """The mean over all positions, which gives one vector per example."""

    def rows(self, params: Params, x: Tensor) -> Tensor:
        return x.flatten(2, -2).mean(2)


class Residual(nn.Sequential):
    """Layers in sequence, whose output is added to their input."""

    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU)


def run_rows(module: nn.Module, params: Params, x: Tensor) -> Tensor:
    """Run copies of a module, each with its own parameters on its own inputs: (R, B, ...) to (R, B, ...).

    Esper's own layers have a method for this; other modules run under vmap.
    """
    kind = type(module)
    if kind in (nn.Sequential, Residual):
        before = x
        for name, child in module.named_children():
            x = run_rows(child, under(f"{name}.", params), x)
        return (before + x).contiguous() if kind is Residual else x  # what follows may round by its layout
    if kind in ELEMENTWISE:
        return module(x)
    if "rows" in vars(kind) and isinstance(module, RowLayer):  # a subclass may override forward
        return module.rows(params, x)
    return vmap(lambda p, row: functional_call(module, p, (row,)))(params, x)


def under(prefix: str, params: Params) -> Params:
    """Return the parameters whose names start with a prefix, without the prefix."""
    return {name.removeprefix(prefix): p for name, p in params.items() if name.startswith(prefix)}
