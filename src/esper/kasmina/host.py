"""A host: a chain of segments with a slot behind each but the last."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from esper.kasmina.blueprints import blueprint_names
from esper.kasmina.slots import Slot
from esper.leyline.actions import ActionSpace
from esper.leyline.errors import EsperError
from esper.leyline.specs import HostSpec, SlotSpec, Stream

MIN_CHANNELS = 4
"""Over fewer channels a norm is little more than a sign, and lets no gradient through."""
BATCH_DEPENDENT = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
STREAM_AXES = {Stream.VECTOR: 1, Stream.SIGNAL: 2, Stream.IMAGE: 3, Stream.TOKENS: 2}


class Host(nn.Module):
    """One network being trained: segments, with slots between them."""

    def __init__(self, spec: HostSpec, segments: Sequence[nn.Module], stream: Stream) -> None:
        super().__init__()
        self.spec, self.stream = spec, stream
        self.segments = nn.ModuleList(segments)
        self.slot_specs = _slot_specs(spec, segments, stream)
        self.slots = nn.ModuleList(Slot(slot) for slot in self.slot_specs)

    def forward(self, x: Tensor, alphas: Mapping[int, Tensor] | None = None) -> Tensor:
        """The host's answer; `alphas` asks what it would be with some slots' alpha replaced."""
        *body, head = self.segments
        for s, (segment, slot) in enumerate(zip(body, self.slots, strict=True)):
            x = slot(segment(x), None if alphas is None else alphas.get(s))
        return head(x)

    def slot(self, index: int) -> Slot:
        slot = self.slots[index]
        assert isinstance(slot, Slot)
        return slot

    @property
    def space(self) -> ActionSpace:
        """The choices a controller has with this host, given what is registered by now."""
        return ActionSpace(tuple(slot.name for slot in self.slot_specs), blueprint_names(self.stream))

    @property
    def growth(self) -> float:
        """Parameters of all seeds, silent ones too, over those of the bare host."""
        return num_parameters(self.slots) / num_parameters(self.segments)


def num_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@torch.no_grad()
def _slot_specs(spec: HostSpec, segments: Sequence[nn.Module], stream: Stream) -> tuple[SlotSpec, ...]:
    """The slots behind all segments but the last, with the shapes an example takes there."""
    if len(segments) < 2:
        raise EsperError(f"host {spec.kind!r} needs at least two segments to have a slot between them")
    for module in (module for segment in segments for module in segment.modules()):
        if isinstance(module, BATCH_DEPENDENT):
            raise EsperError(
                f"host {spec.kind!r} uses {type(module).__name__}: no dropout and no batch statistics in hosts"
            )
    x = torch.zeros(2, *spec.inputs, dtype=torch.long if stream is Stream.TOKENS else None)
    slots = []
    for s, segment in enumerate(segments[:-1]):
        try:
            x = segment(x)
        except (RuntimeError, IndexError, TypeError) as error:
            raise EsperError(
                f"host {spec.kind!r} with widths {list(spec.widths)} cannot take inputs of shape {spec.inputs}: its"
                f" segment {s} fails; choose another kind of host or other widths"
            ) from error
        slots.append(SlotSpec(f"s{s}", stream, tuple(x.shape[1:])))
        if x.ndim - 1 != STREAM_AXES[stream]:
            raise EsperError(f"segment {s} of host {spec.kind!r} gives {slots[-1].shape}, which is no {stream} stream")
        if slots[-1].channels < MIN_CHANNELS:
            raise EsperError(
                f"segment {s} of host {spec.kind!r} gives {slots[-1].channels} channels; seeds need {MIN_CHANNELS}"
            )
    return tuple(slots)
