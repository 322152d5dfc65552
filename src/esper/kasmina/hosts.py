"""Build hosts by kind: the built-in kinds, and those that users register."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from esper.kasmina.architectures import cnn1d, cnn2d, gpt, gpt_block, mlp, residual_block, resnet, transformer
from esper.kasmina.birth import load_newborn
from esper.kasmina.blueprints.twins import blocks
from esper.kasmina.host import Host
from esper.leyline.errors import EsperError, unknown
from esper.leyline.rng import Purpose, isolated, key
from esper.leyline.specs import HostSpec, Stream

Builder = Callable[[HostSpec], Sequence[nn.Module]]


@dataclass(frozen=True)
class HostKind:
    """How to build one kind of host, the stream between its segments, and the inputs it takes."""

    build: Builder
    stream: Stream
    weak_widths: tuple[int, ...]
    """Widths of a host that is small enough for growth to help."""
    axes: tuple[str, ...] | None = None
    """Names of the axes of one example, as error messages show them. None: any shape."""
    block: Callable[[int], nn.Module] | None = None
    """Builds the block that every segment but the last ends with, for a number of channels; None: no twins."""


_kinds: dict[str, HostKind] = {
    "mlp": HostKind(mlp, Stream.VECTOR, (8, 8)),
    "cnn1d": HostKind(cnn1d, Stream.SIGNAL, (8, 8, 8), ("length", "channels")),
    "cnn2d": HostKind(cnn2d, Stream.IMAGE, (8, 8, 8), ("height", "width", "channels")),
    "transformer": HostKind(transformer, Stream.TOKENS, (16, 16), ("context",)),
    "gpt": HostKind(gpt, Stream.TOKENS, (32, 32), ("context",), gpt_block),
    "resnet": HostKind(resnet, Stream.IMAGE, (8, 16), ("height", "width", "channels"), residual_block),
}


def _declare(kind: str, made: HostKind) -> None:
    """Make a kind available, and its blocks to twins."""
    _kinds[kind] = made
    if (build := made.block) is not None:
        blocks[kind] = lambda slot: build(slot.channels)


for _name, _kind in list(_kinds.items()):
    _declare(_name, _kind)


def register_host(
    kind: str,
    build: Builder,
    stream: str,
    *,
    weak_widths: tuple[int, ...] = (8, 8),
    block: Callable[[int], nn.Module] | None = None,
) -> None:
    """Make a kind of host available to `build_host` under a name.

    Args:
        kind: The new name.
        build: A function from a `HostSpec` to the segments of a host, in order. A slot is put behind each segment but
            the last. Segments may not use dropout or batch statistics.
        stream: What flows between the segments: "vector", "signal", "image" or "tokens". Tokens are integers.
        weak_widths: The widths that `weak_host` gives to hosts of this kind.
        block: A function from a number of channels to the block that every segment but the last ends with. Its output
            has the shape of its input, and hosts can then grow twins, which are copies of it.

    Raises:
        EsperError: If the name is taken or the stream is unknown.

    Example:
        >>> register_host("two_layers", lambda spec: [nn.Linear(4, 8), nn.Linear(8, spec.outputs)], "vector")
        >>> host = build_host(HostSpec("two_layers", inputs=(4,), outputs=3, widths=(8,)))
    """
    if kind in _kinds:
        raise EsperError(f"a host kind named {kind!r} already exists: choose another name")
    _declare(kind, HostKind(build, Stream.named(stream), weak_widths, block=block))


def unregister_host(kind: str) -> None:
    """Remove a kind of host from those that `build_host` knows.

    Args:
        kind: The name it was registered under.

    Raises:
        EsperError: If there is no such kind.
    """
    host_kind(kind)
    del _kinds[kind]
    blocks.pop(kind, None)


def host_kind(kind: str) -> HostKind:
    """Return the registered kind of this name."""
    if kind not in _kinds:
        raise unknown("host kind", kind, _kinds)
    return _kinds[kind]


def host_kinds() -> tuple[str, ...]:
    """Return the names of all kinds of hosts, in order of registration.

    Example:
        >>> host_kinds()
        ('mlp', 'cnn1d', 'cnn2d', 'transformer', 'gpt', 'resnet')
    """
    return tuple(_kinds)


def weak_host(kind: str, inputs: tuple[int, ...], outputs: int) -> HostSpec:
    """Return the spec of a host that is deliberately too small for most tasks, so that growth can help.

    Args:
        kind: A registered kind of host.
        inputs: The shape of one example, channels last.
        outputs: The number of classes, tokens of the vocabulary, or regression targets.

    Returns:
        A spec with the kind's `weak_widths`, for `build_host`.

    Raises:
        EsperError: If the kind is unknown or takes no inputs of this shape.

    Example:
        >>> weak_host("cnn1d", (40, 1), 10).widths
        (8, 8, 8)
    """
    spec = HostSpec(kind, inputs, outputs, host_kind(kind).weak_widths)
    check_inputs(spec)
    return spec


def check_inputs(spec: HostSpec) -> None:
    """Raise an error if hosts of this kind take no inputs of this shape."""
    axes = host_kind(spec.kind).axes
    if axes is None or len(axes) == len(spec.inputs):
        return
    others = [name for name, kind in _kinds.items() if kind.axes is None or len(kind.axes) == len(spec.inputs)]
    raise EsperError(
        f"host kind {spec.kind!r} needs inputs of shape {_shape(axes)}, not {_shape(spec.inputs)}:"
        f" use another kind ({', '.join(others)}) or another task"
    )


def check_examples(spec: HostSpec, x: Tensor) -> None:
    """Raise an error if hosts of this kind take token ids and these examples are none, or the reverse."""
    tokens = host_kind(spec.kind).stream is Stream.TOKENS
    if tokens == x.is_floating_point():
        kinds = {True: "token ids (integers)", False: "numbers (floating point)"}
        raise EsperError(
            f"host kind {spec.kind!r} needs {kinds[tokens]} of shape {_shape(spec.inputs)}, not {kinds[not tokens]}"
            f" of shape {_shape(x.shape[1:])}: use another host kind or another task"
        )


def _shape(axes: Sequence[object]) -> str:
    return f"({', '.join(map(str, axes))}{',' * (len(axes) == 1)})"


def build_host(spec: HostSpec, rng_seed: int = 0) -> Host:
    """Build a host with random initial weights and empty slots.

    Args:
        spec: The kind of host, its inputs, outputs and widths.
        rng_seed: Determines the weights. The global random generators are neither read nor changed.

    Returns:
        A host in training mode, in float32, on the CPU.

    Raises:
        EsperError: If the kind is unknown, takes no inputs of this shape, or cannot be built with these widths.

    Example:
        >>> host = build_host(HostSpec("mlp", inputs=(2,), outputs=3, widths=(8, 8)), rng_seed=1)
        >>> host(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """
    check_inputs(spec)
    kind = host_kind(spec.kind)

    def build() -> Host:
        return Host(spec, list(kind.build(spec)), kind.stream, blocks.get(spec.kind))

    with isolated(0):
        host = build()
    load_newborn(host, build, key(rng_seed, Purpose.HOST_WEIGHTS))
    return host
