"""Turn seeds into plain torch modules, so that a finished model needs no Esper.

A linear seed behind a linear layer or a convolution is folded into its weights. Any other seed becomes a
`torch.fx.GraphModule` of torch's own layers, which follows its module in an `nn.Sequential`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvTransposeNd
from torch.optim import Optimizer

from esper.growth.optimizers import copied, leave, replace
from esper.growth.slots import Place, Planted, planted_at, uproot
from esper.kasmina.blueprints.space import SqueezeExcite
from esper.kasmina.blueprints.vector import GatedMLP
from esper.kasmina.kernels.norm import EPS
from esper.kasmina.layers import CausalAttention, Conv, Linear, MeanOverSpace, Norm
from esper.leyline.actions import Graft


def fold_seeds(model: nn.Module, optimizer: Optimizer, places: Sequence[Place]) -> None:
    """Make all seeds of a model plain parts of it; silent ones are removed."""
    for place in places:
        planted = planted_at(place)
        if planted is None:
            continue
        uproot(place)
        if float(planted.alpha) == 0 or _fold(model, place.module, planted):
            leave(optimizer, planted.parameters())
        else:
            follow(model, optimizer, place, planted)


def _fold(model: nn.Module, module: Any, planted: Planted) -> bool:
    """Fold a linear seed into the weights of the layer before it; return whether that was possible."""
    seed, alpha = planted.seed, float(planted.alpha)
    found = _matrix(seed.f) if seed.graft is Graft.ADD else None
    linear = isinstance(module, nn.Linear | nn.modules.conv._ConvNd) and not isinstance(module, _ConvTransposeNd)
    if found is None or not linear or type(module).forward not in _FORWARDS:
        return False
    matrix, shift = found
    shared = [
        p for p in module.parameters() if sum(p is q for m in model.modules() for q in m._parameters.values()) > 1
    ]
    if shared or (module.bias is None and shift is not None):
        return False
    with torch.no_grad():
        weight, bias = module.weight.double(), None if module.bias is None else module.bias.double()
        folded = weight + alpha * (matrix @ weight.flatten(1)).view_as(weight)
        if bias is not None:
            moved = matrix @ bias + (0 if shift is None else shift)
            module.bias.copy_(bias + alpha * moved)  # pyright: ignore[reportOptionalMemberAccess]
        module.weight.copy_(folded)
    return True


_FORWARDS = {kind.forward for kind in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)}
"""Forward passes that are the product with `weight` plus `bias`, and nothing else."""


def _matrix(f: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Return a seed as a matrix and a shift over its channels in double precision, if it is linear."""
    layers = list(f) if type(f) is nn.Sequential else [f]
    if not all(type(layer) is Linear for layer in layers):
        return None
    matrix: Tensor | None = None
    shift: Tensor | None = None
    for layer in layers:
        assert isinstance(layer, Linear)
        weight = layer.weight.detach().double()
        bias = None if layer.bias is None else layer.bias.detach().double()
        carried = None if shift is None else weight @ shift
        shift = bias if carried is None else carried if bias is None else carried + bias
        matrix = weight if matrix is None else weight @ matrix
    assert matrix is not None
    return matrix, shift


def follow(model: nn.Module, optimizer: Optimizer, place: Place, planted: Planted) -> None:
    """Put a seed behind its module as a plain module, with the same parameters in the optimizer."""
    translation = Translation(len(place.spec.shape) - 1)
    plain = PlainSeed(planted, translation)
    behind = fx.GraphModule(plain, _Tracer().trace(plain), "Seed")
    behind.train(place.module.training)
    for old, (new, reorder) in translation.moved.items():
        state = optimizer.state.get(old, {})
        replace(optimizer, old, new, {k: reorder(x) if _is_like(x, old) else copied(x) for k, x in state.items()})
    both = nn.Sequential(place.module, behind)
    for parent in [m for m in model.modules() if m is not both]:
        for name, child in parent._modules.items():
            if child is place.module:
                parent._modules[name] = both


def _is_like(x: Any, parameter: nn.Parameter) -> bool:
    return isinstance(x, Tensor) and x.shape == parameter.shape


class _Tracer(fx.Tracer):
    """Keeps torch's layers and the user's modules, and traces through everything of Esper."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) is not nn.Sequential and not type(m).__module__.startswith("esper.")


class PlainSeed(nn.Module):
    """A seed as torch's own layers: the stream plus alpha times its delta. `torch.fx` traces it."""

    def __init__(self, planted: Planted, translation: "Translation") -> None:
        super().__init__()
        seed = planted.seed
        self.alpha, self.graft, self.channels_first = float(planted.alpha), seed.graft, planted.channels_first
        self.f = translation.plain(seed.f)
        self.g = None if seed.g is None else translation.plain(seed.g)

    def forward(self, stream: Any) -> Any:
        host = stream.movedim(1, -1) if self.channels_first else stream
        change = self.f(host)
        if self.graft is Graft.MULTIPLY:
            change = host * torch.tanh(change)
        elif self.g is not None:
            change = torch.sigmoid(self.g(host)) * change
        mixed = host + self.alpha * change.to(host.dtype)
        return mixed.movedim(-1, 1) if self.channels_first else mixed


class ChannelsFirst(nn.Module):
    """A layer of torch's that wants its channels first, on a stream with channels last."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x.movedim(-1, 1)).movedim(1, -1)


class PlainMean(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.flatten(1, -2).mean(1)


class PlainScale(nn.Module):
    """A learned scale for each channel of a signal or an image."""

    def __init__(self, scale: nn.Module, axes: int) -> None:
        super().__init__()
        self.scale, self.axes = scale, axes

    def forward(self, x: Any) -> Any:
        scale = self.scale(x)
        for _ in range(self.axes):
            scale = scale.unsqueeze(1)
        return x * scale


class PlainGatedMLP(nn.Module):
    def __init__(self, up: nn.Module, gate: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.up, self.gate, self.down = up, gate, down

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class PlainAttention(nn.Module):
    def __init__(self, qkv: nn.Module, out: nn.Module, heads: int) -> None:
        super().__init__()
        self.qkv, self.out, self.heads = qkv, out, heads

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Translation:
    """Says the layers of a seed in torch's own, with the same parameters.

    Args:
        axes: Axes of the stream between batch and channels.
    """

    def __init__(self, axes: int) -> None:
        self.axes = axes
        self.moved: dict[nn.Parameter, tuple[nn.Parameter, Callable[[Tensor], Tensor]]] = {}
        """Weights whose axes have another order in torch, with the new parameter and how to reorder."""

    def plain(self, module: nn.Module) -> nn.Module:
        """Return a module that computes the same. What is not of Esper stays as it is."""
        kind = type(module)
        if kind is nn.Sequential:
            return nn.Sequential(*(self.plain(child) for child in module.children()))
        return _PLAIN[kind](self, module) if kind in _PLAIN else module

    def linear(self, layer: Linear) -> nn.Module:
        outputs, inputs = layer.weight.shape
        plain = nn.Linear(inputs, outputs, bias=layer.bias is not None, device="meta")
        return _with(plain, layer.weight, layer.bias)

    def conv(self, layer: Conv) -> nn.Module:
        def reorder(weight: Tensor) -> Tensor:
            """Bring (*kernel, inputs, outputs), or (*kernel, channels), into torch's order."""
            moved = weight.movedim(-1, 0)[:, None] if layer.depthwise else weight.movedim((-1, -2), (0, 1))
            return moved.contiguous()

        weight = nn.Parameter(reorder(layer.weight.detach()), layer.weight.requires_grad)
        self.moved[layer.weight] = weight, reorder
        kernel, groups = tuple(weight.shape[2:]), len(weight) if layer.depthwise else 1
        make: Any = nn.Conv1d if len(kernel) == 1 else nn.Conv2d
        around = tuple(size // 2 for size in kernel)
        plain = make(weight.shape[1] * groups, len(weight), kernel, layer.stride, around, groups=groups, device="meta")
        return ChannelsFirst(_with(plain, weight, layer.bias))

    def norm(self, layer: Norm) -> nn.Module:
        channels = len(layer.weight)
        if layer.space:
            norm = ChannelsFirst(_with(nn.GroupNorm(layer.groups, channels, EPS), layer.weight, layer.bias))
        else:
            norm = _with(nn.LayerNorm(channels, EPS), layer.weight, layer.bias)
        return nn.Sequential(norm, nn.ReLU()) if layer.relu else norm

    def attention(self, layer: CausalAttention) -> nn.Module:
        return PlainAttention(self.plain(layer.qkv), self.plain(layer.out), layer.heads)

    def gated(self, layer: GatedMLP) -> nn.Module:
        return PlainGatedMLP(self.plain(layer.up), self.plain(layer.gate), self.plain(layer.down))

    def scale(self, layer: SqueezeExcite) -> nn.Module:
        return PlainScale(self.plain(layer.scale), self.axes)


def _with(layer: Any, weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Module:
    layer.weight, layer.bias = weight, bias
    return layer


_PLAIN: dict[type[nn.Module], Callable[[Translation, Any], nn.Module]] = {
    Linear: Translation.linear,
    Conv: Translation.conv,
    Norm: Translation.norm,
    MeanOverSpace: lambda _, layer: PlainMean(),
    CausalAttention: Translation.attention,
    GatedMLP: Translation.gated,
    SqueezeExcite: Translation.scale,
}
