"""Slots: places behind modules of a user's model, in which seeds are planted and blended in."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from esper.growth.compute import Call, fake_call, fake_tensors
from esper.kasmina.blending import blend
from esper.kasmina.blueprints import blueprint, blueprint_names
from esper.kasmina.host import MIN_CHANNELS, STREAM_AXES
from esper.kasmina.slots import Seed
from esper.leyline.actions import Graft
from esper.leyline.errors import EsperError, unknown
from esper.leyline.specs import SlotSpec, Stream

SEED = "esper_seed"
"""Name of a seed as a child of the module that it stands behind."""
HOOK = "_esper_graft"
CHANNELS_LAST = (nn.Linear, nn.LayerNorm, nn.RMSNorm)
"""Layers after which the channels of an image are its last axis."""
SIGNAL_LAYERS = (nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.modules.pooling._MaxPoolNd)
"""Layers that make a stream with three axes a signal, (B, C, L); otherwise it holds tokens, (B, L, C)."""


@dataclass(frozen=True, eq=False)
class Place:
    """A slot of a user's model: the module it lies behind, and the stream through it."""

    module: nn.Module
    spec: SlotSpec
    """Name, stream and shape, channels last."""
    channels_first: bool


class Planted(nn.Module):
    """A seed in a slot of a user's model: the stream plus alpha times the seed's delta.

    Alpha is a tensor, so that a compiled model reads its present value and is not compiled again.
    """

    def __init__(self, seed: Seed, channels_first: bool) -> None:
        super().__init__()
        self.alpha: Tensor
        self.seed, self.channels_first, self.is_silent = seed, channels_first, True
        self.register_buffer("alpha", torch.zeros(()), persistent=False)

    def set_alpha(self, alpha: float) -> None:
        """Set the weight of the seed's delta."""
        self.alpha.fill_(alpha)
        self.is_silent = alpha == 0

    def forward(self, stream: Tensor) -> Tensor:
        host = stream.movedim(1, -1) if self.channels_first else stream
        mixed = blend(host, self.seed(host), self.alpha)
        return torch.where(self.alpha > 0, mixed.movedim(-1, 1) if self.channels_first else mixed, stream)


def graft(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
    """Add a seed's delta to the output of the module it stands behind; a forward hook.

    A silent seed is left out: nothing of it, not even a NaN, can reach the model. Its cost is counted all the same.
    """
    planted = module._modules[SEED]
    assert isinstance(planted, Planted)
    left_out = planted.is_silent and not torch.compiler.is_compiling() and not isinstance(output, FakeTensor)
    return None if left_out else planted(output)


def plant(place: Place, planted: Planted) -> None:
    """Put a seed behind a module, silent until its alpha is set."""
    place.module._modules[SEED] = planted
    place.module.__dict__[HOOK] = place.module.register_forward_hook(graft)


def uproot(place: Place) -> None:
    """Remove the seed behind a module."""
    place.module.__dict__.pop(HOOK).remove()
    del place.module._modules[SEED]


def planted_at(place: Place) -> Planted | None:
    """Return the seed behind a module."""
    found = place.module._modules.get(SEED)
    assert found is None or isinstance(found, Planted)
    return found


def named_modules(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """Find modules by exact name, by the end of their name, or by a regular expression for all of it.

    A slot behind a sequence lies behind its last module, which has the same output.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    found: dict[str, nn.Module] = {}
    for pattern in patterns:
        matches = [n for n in modules if n == pattern] or [n for n in modules if n.endswith(f".{pattern}")]
        matches = matches or [n for n in modules if _fits(pattern, n)]
        if not matches:
            raise unknown("slot", pattern, modules)
        for name in matches:
            module = modules[name]
            while isinstance(module, nn.Sequential) and len(module):
                module = module[-1]
            found[name] = module
    if len({id(module) for module in found.values()}) < len(found):
        raise EsperError(f"slots name one module twice: {', '.join(found)}; name each place once")
    return found


def _fits(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        return False


def find_places(
    model: nn.Module, modules: dict[str, nn.Module], call: Call, stream: str | None = None
) -> tuple[Place, ...]:
    """Run the model on fake tensors to find the stream behind each named module.

    Raises:
        EsperError: If a module is not called, or seeds do not fit behind it.
    """
    seen: dict[str, list[tuple[Any, Any]]] = {name: [] for name in modules}
    handles = [
        module.register_forward_hook(
            lambda _module, args, kwargs, output, name=name: seen[name].append(((*args, *kwargs), output)),
            with_kwargs=True,
        )
        for name, module in modules.items()
    ]
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad(), fake_tensors(model, mode):
            args, kwargs = fake_call(call)
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    signals = any(isinstance(m, nn.Conv1d) for m in model.modules())
    places = tuple(
        _place(name, module, seen[name], stream, _convolves(model.get_submodule(name), signals))
        for name, module in modules.items()
    )
    kinds = {place.spec.stream for place in places}
    if len(kinds) > 1:
        raise EsperError(f"slots lie in different streams ({', '.join(sorted(kinds))}): choose slots of one kind")
    return places


def _convolves(module: nn.Module, signals: bool) -> bool:
    """Whether a module gives signals rather than tokens; one without weights gives what the model works on."""
    weights = any(True for _ in module.parameters())
    return any(isinstance(m, SIGNAL_LAYERS) for m in module.modules()) if weights else signals


def _place(name: str, module: nn.Module, calls: list[tuple[Any, Any]], stream: str | None, convolves: bool) -> Place:
    if not calls:
        raise EsperError(f"slot {name!r} cannot be used: the model does not call this module")
    if any(len(inputs) != 1 or not isinstance(output, Tensor) for inputs, output in calls):
        raise EsperError(
            f"slot {name!r} cannot be used: its module takes several inputs or returns no tensor; name a layer inside"
            " it that maps one tensor to another"
        )
    streams = [output for _, output in calls]
    if not all(x.is_floating_point() for x in streams):
        raise EsperError(f"slot {name!r} cannot be used: its module returns {streams[0].dtype}, not floating point")
    shapes = {tuple(x.shape[1:]) for x in streams}
    if len(shapes) > 1:
        raise EsperError(f"slot {name!r} cannot be used: its stream changes shape within one pass, {sorted(shapes)}")
    shape = shapes.pop()
    kind, first = _stream(name, module, shape, stream, convolves)
    shape = (*shape[1:], shape[0]) if first else shape
    if shape[-1] < MIN_CHANNELS:
        raise EsperError(f"slot {name!r} cannot be used: seeds need {MIN_CHANNELS} channels, and it has {shape[-1]}")
    return Place(module, SlotSpec(name, kind, shape), first)


def _stream(
    name: str, module: nn.Module, shape: tuple[int, ...], asked: str | None, convolves: bool
) -> tuple[Stream, bool]:
    """Return what flows behind a module, and whether its channels come first."""
    by_axes = {1: Stream.VECTOR, 2: Stream.SIGNAL if convolves else Stream.TOKENS, 3: Stream.IMAGE}
    if len(shape) not in by_axes:
        raise EsperError(f"slot {name!r} cannot be used: its stream of shape {shape} is no vector, sequence or image")
    kind = by_axes[len(shape)] if asked is None else Stream.named(asked)
    if STREAM_AXES[kind] != len(shape):
        raise EsperError(f"slot {name!r} cannot be used: its stream of shape {shape} is not of kind {kind.value!r}")
    return kind, kind in (Stream.SIGNAL, Stream.IMAGE) and not isinstance(module, CHANNELS_LAST)


def seed_choices(stream: Stream, asked: Sequence[str]) -> tuple[str, ...]:
    """Return the blueprints that may be planted, in the order of the catalogue or of the user."""
    for name in asked:
        blueprint(name, stream)
    return tuple(asked) or blueprint_names(stream)


def num_seed_parameters(spec: SlotSpec, name: str) -> int:
    """Count the parameters of a seed without allocating them."""
    with torch.device("meta"):
        return sum(p.numel() for p in Seed(spec, name, Graft.ADD).parameters())
