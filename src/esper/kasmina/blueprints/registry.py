"""The catalogue of blueprints: what comes with Esper, and what you register."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn

from esper.kasmina.blueprints import space, tokens, vector
from esper.kasmina.blueprints.probe import probe
from esper.leyline.errors import EsperError, unknown
from esper.leyline.rng import isolated
from esper.leyline.specs import BlueprintSpec, SlotSpec, Stream

Builder = Callable[[SlotSpec], nn.Module]


@dataclass(frozen=True)
class Blueprint:
    """A kind of seed and how to build its body for a slot."""

    spec: BlueprintSpec
    build: Builder


SPACE = (Stream.SIGNAL, Stream.IMAGE)
BUILT_IN: tuple[tuple[str, str, Builder, tuple[Stream, ...], str], ...] = (
    ("norm", "norm", vector.norm, (Stream.VECTOR,), "a learned share of the normalised stream"),
    ("low_rank", "linear", vector.low_rank, (Stream.VECTOR,), "a linear map through a quarter of the channels"),
    ("mlp", "mlp", vector.mlp, (Stream.VECTOR,), "one hidden layer, four times as wide"),
    ("gated_mlp", "mlp", vector.gated_mlp, (Stream.VECTOR,), "one gated hidden layer, twice as wide"),
    ("norm", "norm", space.norm, SPACE, "a learned share of the normalised stream"),
    ("attention", "attention", space.attention, SPACE, "squeeze and excite: rescales whole channels"),
    ("conv_small", "conv", space.conv_small, SPACE, "a 1×1 convolution"),
    ("conv_light", "conv", space.conv_light, SPACE, "one convolution"),
    ("conv_heavy", "conv", space.conv_heavy, SPACE, "two convolutions, four times as wide in between"),
    ("depthwise", "conv", space.depthwise, SPACE, "a filter per channel, then a 1×1 convolution"),
    ("bottleneck", "conv", space.bottleneck, SPACE, "a convolution at half the channels"),
    ("norm", "norm", tokens.norm, (Stream.TOKENS,), "a learned share of the normalised stream"),
    ("lora", "linear", tokens.lora, (Stream.TOKENS,), "a linear map of rank 4"),
    ("lora_large", "linear", tokens.lora_large, (Stream.TOKENS,), "a linear map of rank 16"),
    ("attention", "attention", tokens.attention, (Stream.TOKENS,), "one head of causal attention"),
    ("mlp_small", "mlp", tokens.mlp_small, (Stream.TOKENS,), "one hidden layer, as wide as the stream"),
    ("mlp", "mlp", tokens.mlp, (Stream.TOKENS,), "one hidden layer, four times as wide"),
)

_catalogue: dict[Stream, dict[str, Blueprint]] = {stream: {} for stream in Stream}
for _name, _family, _build, _streams, _summary in BUILT_IN:
    for _stream in _streams:
        _catalogue[_stream][_name] = Blueprint(BlueprintSpec(_name, _stream, _family, _summary), _build)


def register_blueprint(
    name: str, build: Builder, stream: str | Iterable[str], *, family: str = "own", summary: str = ""
) -> None:
    """Make a kind of seed available to every host with such a stream.

    `build(slot)` returns a module that maps the stream to a delta of the same shape; let its last layer start at
    zero. It is tried out first, and refused with the reason if it could not live in a slot.
    """
    streams = [Stream.named(s) for s in ([stream] if isinstance(stream, str) else stream)]
    if not streams:
        raise EsperError(f"stream must name at least one stream for blueprint {name!r}")
    for s in streams:
        if name in _catalogue[s]:
            raise EsperError(f"a blueprint named {name!r} for {s} streams exists already; choose another name")
        with isolated(0):
            probe(name, build, s)
    for s in streams:
        _catalogue[s][name] = Blueprint(BlueprintSpec(name, s, family, summary), build)


def unregister_blueprint(name: str, stream: str) -> None:
    """Take a blueprint out of the catalogue."""
    blueprint(name, stream)
    del _catalogue[Stream.named(stream)][name]


def blueprint(name: str, stream: str) -> Blueprint:
    known = _catalogue[Stream.named(stream)]
    if name not in known:
        raise unknown(f"blueprint for {stream} streams", name, known)
    return known[name]


def blueprint_names(stream: str) -> tuple[str, ...]:
    """The choices of the blueprint head for hosts with this stream, in order of registration."""
    return tuple(_catalogue[Stream.named(stream)])
