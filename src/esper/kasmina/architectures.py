"""Lay out the segments of the built-in kinds of hosts: perceptrons, CNNs, transformers and residual CNNs."""

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from esper.kasmina.layers import (
    CausalAttention,
    Conv,
    Embedding,
    Linear,
    MeanOverSpace,
    Norm,
    NormPool,
    Params,
    Residual,
    RowLayer,
    run_rows,
    under,
)
from esper.leyline.errors import EsperError
from esper.leyline.specs import HostSpec


def mlp(spec: HostSpec) -> list[nn.Module]:
    """Return a multilayer perceptron: one linear layer with ReLU per width, then a linear head."""
    inputs = torch.Size(spec.inputs).numel()
    first = nn.Sequential(nn.Flatten(), Linear(inputs, spec.widths[0]), nn.ReLU())
    rest = [nn.Sequential(Linear(narrow, wide), nn.ReLU()) for narrow, wide in pairwise(spec.widths)]
    return [first, *rest, Linear(spec.widths[-1], spec.outputs)]


def cnn1d(spec: HostSpec) -> list[nn.Module]:
    """Return a 1-D CNN: one strided convolution with norm and ReLU per width, then mean pooling and a linear head."""
    channels = (spec.inputs[-1], *spec.widths)
    blocks = [
        nn.Sequential(Conv(a, b, (5,), stride=2, bias=False), Norm(b, space=True, relu=True))
        for a, b in pairwise(channels)
    ]
    return [*blocks, nn.Sequential(MeanOverSpace(), Linear(channels[-1], spec.outputs))]


def cnn2d(spec: HostSpec) -> list[nn.Module]:
    """Return a 2-D CNN: one convolution with norm, ReLU and max-pooling per width, then mean pooling and a head."""
    channels = (spec.inputs[-1], *spec.widths)
    blocks = [nn.Sequential(Conv(a, b, (3, 3), bias=False), NormPool(b)) for a, b in pairwise(channels)]
    return [*blocks, nn.Sequential(MeanOverSpace(), Linear(channels[-1], spec.outputs))]


class TransformerBlock(RowLayer):
    """A pre-norm transformer block: causal attention and an MLP, each with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            Norm(width), CausalAttention(width, heads=width // 16 if width >= 16 and width % (width // 16) == 0 else 1)
        )
        self.mlp = nn.Sequential(Norm(width), Linear(width, width), nn.GELU(), Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)

    def rows(self, params: Params, x: Tensor) -> Tensor:
        x = x + run_rows(self.attention, under("attention.", params), x)
        return x + run_rows(self.mlp, under("mlp.", params), x)


def transformer(spec: HostSpec, block: Callable[[int], nn.Module] = TransformerBlock) -> list[nn.Module]:
    """Return a causal transformer: embeddings, one block per width, then a norm and a linear head."""
    if len(set(spec.widths)) > 1:
        raise EsperError(f"widths of a transformer must be equal, not {list(spec.widths)}: repeat one width per block")
    width = spec.widths[0]
    blocks: list[nn.Module] = [block(width) for _ in spec.widths]
    blocks[0] = nn.Sequential(Embedding(spec.outputs, spec.inputs[0], width), blocks[0])
    return [*blocks, nn.Sequential(Norm(width), Linear(width, spec.outputs))]


def gpt_block(width: int) -> nn.Module:
    """Return a pre-norm transformer block whose hidden layer is four times as wide as its stream."""
    heads = width // 16 if width >= 16 and width % (width // 16) == 0 else 1
    return nn.Sequential(
        Residual(Norm(width), CausalAttention(width, heads=heads)),
        Residual(Norm(width), Linear(width, 4 * width), nn.GELU(), Linear(4 * width, width)),
    )


def gpt(spec: HostSpec) -> list[nn.Module]:
    """Return a causal transformer with hidden layers four times as wide as its stream, whose blocks can be copied."""
    return transformer(spec, gpt_block)


def residual_block(channels: int) -> nn.Module:
    """Return a pre-activation residual block of two convolutions."""
    return Residual(
        Norm(channels, space=True, relu=True),
        Conv(channels, channels, (3, 3), bias=False),
        Norm(channels, space=True, relu=True),
        Conv(channels, channels, (3, 3), bias=False),
    )


def resnet(spec: HostSpec) -> list[nn.Module]:
    """Return a residual 2-D CNN: one residual block per width, which can be copied, then mean pooling and a head.

    A new width begins a stage: a convolution changes the channels and, but for the first, halves height and width.
    """
    channels, blocks = (spec.inputs[-1], *spec.widths), []
    for n, (a, b) in enumerate(pairwise(channels)):
        is_new = n == 0 or a != b
        stem = [Conv(a, b, (3, 3), stride=1 if n == 0 else 2, bias=False)] if is_new else []
        blocks.append(nn.Sequential(*stem, residual_block(b)))
    width = channels[-1]
    head = nn.Sequential(Norm(width, space=True, relu=True), MeanOverSpace(), Linear(width, spec.outputs))
    return [*blocks, head]
