"""The kinds of hosts: what comes with Esper, and what you register."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from esper.kasmina.birth import load_newborn
from esper.kasmina.host import Host
from esper.kasmina.layers import CausalAttention, Conv, Embedding, Linear, MeanOverSpace, Norm, Pool
from esper.leyline.errors import EsperError, unknown
from esper.leyline.rng import Purpose, isolated, key
from esper.leyline.specs import HostSpec, Stream

Builder = Callable[[HostSpec], Sequence[nn.Module]]


def mlp(spec: HostSpec) -> list[nn.Module]:
    inputs = torch.Size(spec.inputs).numel()
    first = nn.Sequential(nn.Flatten(), Linear(inputs, spec.widths[0]), nn.ReLU())
    rest = [nn.Sequential(Linear(narrow, wide), nn.ReLU()) for narrow, wide in pairwise(spec.widths)]
    return [first, *rest, Linear(spec.widths[-1], spec.outputs)]


def cnn1d(spec: HostSpec) -> list[nn.Module]:
    channels = (spec.inputs[-1], *spec.widths)
    blocks = [
        nn.Sequential(Conv(a, b, (5,), stride=2, bias=False), Norm(b, space=True, relu=True))
        for a, b in pairwise(channels)
    ]
    return [*blocks, nn.Sequential(MeanOverSpace(), Linear(channels[-1], spec.outputs))]


def cnn2d(spec: HostSpec) -> list[nn.Module]:
    channels = (spec.inputs[-1], *spec.widths)
    blocks = [
        nn.Sequential(Conv(a, b, (3, 3), bias=False), Norm(b, space=True, relu=True), Pool())
        for a, b in pairwise(channels)
    ]
    return [*blocks, nn.Sequential(MeanOverSpace(), Linear(channels[-1], spec.outputs))]


class TransformerBlock(nn.Module):
    """Causal attention and a hidden layer, each beside an open path."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            Norm(width), CausalAttention(width, heads=width // 16 if width >= 16 and width % (width // 16) == 0 else 1)
        )
        self.mlp = nn.Sequential(Norm(width), Linear(width, width), nn.GELU(), Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)


def transformer(spec: HostSpec) -> list[nn.Module]:
    if len(set(spec.widths)) > 1:
        raise EsperError(f"widths of a transformer must all be the same, not {list(spec.widths)}")
    width = spec.widths[0]
    blocks: list[nn.Module] = [TransformerBlock(width) for _ in spec.widths]
    blocks[0] = nn.Sequential(Embedding(spec.outputs, spec.inputs[0], width), blocks[0])
    return [*blocks, nn.Sequential(Norm(width), Linear(width, spec.outputs))]


@dataclass(frozen=True)
class HostKind:
    """How to build the segments of a kind of host, and what flows between them."""

    build: Builder
    stream: Stream
    weak_widths: tuple[int, ...]
    """So narrow that growth can help."""


_kinds: dict[str, HostKind] = {
    "mlp": HostKind(mlp, Stream.VECTOR, (8, 8)),
    "cnn1d": HostKind(cnn1d, Stream.SIGNAL, (8, 8, 8)),
    "cnn2d": HostKind(cnn2d, Stream.IMAGE, (8, 8, 8)),
    "transformer": HostKind(transformer, Stream.TOKENS, (16, 16)),
}


def register_host(kind: str, build: Builder, stream: str, *, weak_widths: tuple[int, ...] = (8, 8)) -> None:
    """Make a kind of host available by name.

    `build(spec)` returns its segments in order; a slot goes behind each but the last.
    """
    if kind in _kinds:
        raise EsperError(f"a host kind named {kind!r} exists already; choose another name")
    _kinds[kind] = HostKind(build, Stream.named(stream), weak_widths)


def unregister_host(kind: str) -> None:
    host_kind(kind)
    del _kinds[kind]


def host_kind(kind: str) -> HostKind:
    if kind not in _kinds:
        raise unknown("host kind", kind, _kinds)
    return _kinds[kind]


def host_kinds() -> tuple[str, ...]:
    return tuple(_kinds)


def weak_host(kind: str, inputs: tuple[int, ...], outputs: int) -> HostSpec:
    """A host of this kind that is deliberately too small for its task."""
    return HostSpec(kind, inputs, outputs, host_kind(kind).weak_widths)


def build_host(spec: HostSpec, rng_seed: int = 0) -> Host:
    """A new host. The same number gives the same weights; the global random state is left alone."""
    kind = host_kind(spec.kind)

    def build() -> Host:
        return Host(spec, list(kind.build(spec)), kind.stream)

    with isolated(0):
        host = build()
    load_newborn(host, build, key(rng_seed, Purpose.HOST_WEIGHTS))
    return host
