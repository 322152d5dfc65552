"""Register blueprints and look them up by name and stream."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn

from esper.kasmina.blueprints import space, tokens, vector
from esper.kasmina.blueprints.probe import probe
from esper.kasmina.blueprints.twins import twin
from esper.leyline.actions import TWIN
from esper.leyline.errors import EsperError, unknown
from esper.leyline.rng import isolated
from esper.leyline.specs import BlueprintSpec, SlotSpec, Stream

Builder = Callable[[SlotSpec], nn.Module]


@dataclass(frozen=True)
class Blueprint:
    """A kind of seed: its description, and the function that builds its body for a slot."""

    spec: BlueprintSpec
    build: Builder


SPACE = (Stream.SIGNAL, Stream.IMAGE)
BUILT_IN: tuple[tuple[str, str, Builder, tuple[Stream, ...], str], ...] = (
    ("norm", "norm", vector.norm, (Stream.VECTOR,), "the normalized stream with a learned scale"),
    ("low_rank", "linear", vector.low_rank, (Stream.VECTOR,), "a linear map of rank channels / 4"),
    ("mlp", "mlp", vector.mlp, (Stream.VECTOR,), "an MLP with 4 × channels hidden units"),
    ("gated_mlp", "mlp", vector.gated_mlp, (Stream.VECTOR,), "a gated MLP with 2 × channels hidden units"),
    ("norm", "norm", space.norm, SPACE, "the normalized stream with a learned scale"),
    ("attention", "attention", space.attention, SPACE, "squeeze-and-excitation: a learned scale for each channel"),
    ("conv_small", "conv", space.conv_small, SPACE, "a 1×1 convolution"),
    ("conv_light", "conv", space.conv_light, SPACE, "a convolution"),
    ("conv_heavy", "conv", space.conv_heavy, SPACE, "two convolutions with 4 × channels between them"),
    ("depthwise", "conv", space.depthwise, SPACE, "a depthwise convolution, then a 1×1 convolution"),
    ("bottleneck", "conv", space.bottleneck, SPACE, "a bottleneck: a convolution on channels / 2"),
    ("norm", "norm", tokens.norm, (Stream.TOKENS,), "the normalized stream with a learned scale"),
    ("lora", "linear", tokens.lora, (Stream.TOKENS,), "a linear map of rank 4"),
    ("lora_large", "linear", tokens.lora_large, (Stream.TOKENS,), "a linear map of rank 16"),
    ("attention", "attention", tokens.attention, (Stream.TOKENS,), "causal attention with one head"),
    ("mlp_small", "mlp", tokens.mlp_small, (Stream.TOKENS,), "an MLP with as many hidden units as channels"),
    ("mlp", "mlp", tokens.mlp, (Stream.TOKENS,), "an MLP with 4 × channels hidden units"),
)

_catalogue: dict[Stream, dict[str, Blueprint]] = {stream: {} for stream in Stream}
for _name, _family, _build, _streams, _summary in BUILT_IN:
    for _stream in _streams:
        _catalogue[_stream][_name] = Blueprint(BlueprintSpec(_name, _stream, _family, _summary), _build)
_twins = {
    stream: Blueprint(BlueprintSpec(TWIN, stream, TWIN, "a copy of the block in front of the slot"), twin)
    for stream in Stream
}


def register_blueprint(
    name: str, build: Builder, stream: str | Iterable[str], *, family: str = "own", summary: str = ""
) -> None:
    """Make a blueprint available to every host with a stream of its kind.

    The blueprint is tried on small streams first: its seeds must keep the shape of the stream, train all their
    parameters, run under `torch.func.vmap` and use no dropout or batch statistics.

    Args:
        name: The name of the blueprint, unique for each stream.
        build: A function from a `SlotSpec` to a module that maps the stream to a delta of equal shape. Let its last
            layer start at zero, so that a new seed changes nothing.
        stream: The streams it works on: "vector", "signal", "image", "tokens", or several of them.
        family: The kind of layers in it, which tells a controller what it resembles.
        summary: A short description for tables.

    Raises:
        EsperError: If the name is taken, a stream is unknown, or a trial fails; the message gives the reason.

    Example:
        >>> def build(slot):
        ...     layer = nn.Linear(slot.channels, slot.channels)
        ...     nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
        ...     return layer
        >>> register_blueprint("linear", build, "vector", family="linear")
    """
    streams = [Stream.named(s) for s in ([stream] if isinstance(stream, str) else stream)]
    if not streams:
        raise EsperError(f"stream of blueprint {name!r} is empty: name at least one of {', '.join(Stream)}")
    for s in streams:
        if name in _catalogue[s] or name == TWIN:
            raise EsperError(f"a blueprint named {name!r} for {s} streams already exists: choose another name")
        with isolated(0):
            probe(name, build, s)
    for s in streams:
        _catalogue[s][name] = Blueprint(BlueprintSpec(name, s, family, summary), build)


def unregister_blueprint(name: str, stream: str) -> None:
    """Remove a blueprint from those that hosts can grow.

    Args:
        name: The name of the blueprint.
        stream: The stream to remove it from.

    Raises:
        EsperError: If there is no such blueprint for this stream.
    """
    if name == TWIN:
        raise EsperError(f"blueprint {TWIN!r} cannot be removed: use hosts without blocks to copy")
    blueprint(name, stream)
    del _catalogue[Stream.named(stream)][name]


def blueprint(name: str, stream: str) -> Blueprint:
    """Return the blueprint of this name for a stream."""
    known = _catalogue[Stream.named(stream)]
    if name == TWIN:
        return _twins[Stream.named(stream)]
    if name not in known:
        raise unknown(f"blueprint for {stream} streams", name, known)
    return known[name]


def blueprint_names(stream: str) -> tuple[str, ...]:
    """Return the names of all blueprints for a stream, in order of registration.

    Hosts with blocks to copy have one more, "twin".

    Args:
        stream: "vector", "signal", "image" or "tokens".

    Returns:
        The choices of the blueprint head for hosts with this stream.

    Raises:
        EsperError: If the stream is unknown.

    Example:
        >>> blueprint_names("vector")
        ('norm', 'low_rank', 'mlp', 'gated_mlp')
    """
    return tuple(_catalogue[Stream.named(stream)])
