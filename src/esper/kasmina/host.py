"""The host: a sequence of segments with one or more slots behind each but the last."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from esper.kasmina.blueprints import blueprint_names
from esper.kasmina.slots import Slot
from esper.leyline.actions import TWIN, ActionSpace
from esper.leyline.errors import EsperError
from esper.leyline.specs import HostSpec, SlotSpec, Stream

MIN_CHANNELS = 4
"""Fewest channels of a stream with slots: a norm over fewer lets almost no gradient through."""
BATCH_DEPENDENT = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
STREAM_AXES = {Stream.VECTOR: 1, Stream.SIGNAL: 2, Stream.IMAGE: 3, Stream.TOKENS: 2}


class Host(nn.Module):
    """A network that can grow: segments in sequence, with one or more slots behind each but the last.

    It is an ordinary `nn.Module`: `state_dict`, `to`, `torch.export` and pickling work as for any other. Use
    `build_host` to make one.

    Attributes:
        spec: The kind of host, its inputs, outputs and widths.
        stream: What flows between its segments.
        slot_specs: Name, stream and shape of each slot.
        blocks: Path of the block in front of each slot that twins copy; empty if segments do not end with such a block.

    Args:
        spec: The description that is kept with the host and in its files.
        segments: At least two modules, run in order.
        stream: What flows between them.
        block: Builds the block that each segment but the last ends with, for twins to copy. None: there is none.

    Raises:
        EsperError: If a segment fails on inputs of the spec's shape, gives another stream or too few channels, or
            uses dropout or batch statistics, or does not end with the block.
    """

    def __init__(
        self,
        spec: HostSpec,
        segments: Sequence[nn.Module],
        stream: Stream,
        block: Callable[[SlotSpec], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.stream = spec, stream
        self.segments = nn.ModuleList(segments)
        bare = _slot_specs(spec, segments, stream)
        self.slot_specs = bare if block is None else tuple(replace(slot, block=spec.kind) for slot in bare)
        self.blocks = () if block is None else tuple(self._block_path(s, block(slot)) for s, slot in enumerate(bare))
        self.slots = nn.ModuleList(Slot(slot) for slot in self.slot_specs)

    def forward(self, x: Tensor, alphas: Mapping[int, float | Tensor] | None = None) -> Tensor:
        """Return the predictions for a batch.

        Args:
            x: Examples of shape (B, *inputs): token ids if the stream is of tokens, floating point otherwise.
            alphas: Alphas by slot index, to be used instead of the slots' own.

        Returns:
            Predictions: (B, outputs), or (B, positions, outputs) for tokens.
        """
        return self.after(0, self.segments[0](x), alphas)

    def after(self, slot: int, stream: Tensor, alphas: Mapping[int, float | Tensor] | None = None) -> Tensor:
        """Return the predictions from the stream that reaches a slot, the seed in it included.

        Args:
            slot: Index of the slot.
            stream: Output of the segment in front of it.
            alphas: Alphas by slot index, to be used instead of the slots' own.
        """
        for s in range(slot, len(self.slots)):
            stream = self.slots[s](stream, None if alphas is None else alphas.get(s))
            if (s + 1) % self.spec.slots == 0:
                stream = self.segments[(s + 1) // self.spec.slots](stream)
        return stream

    def _block_path(self, slot: int, block: nn.Module) -> str:
        """Return the path of the block at the end of the segment in front of a slot."""
        path, found = f"segments.{slot // self.spec.slots}", self.segments[slot // self.spec.slots]
        shapes = {name: p.shape for name, p in block.named_parameters()}
        while {name: p.shape for name, p in found.named_parameters()} != shapes:
            if type(found) is not nn.Sequential:
                raise EsperError(f"{path} of host {self.spec.kind!r} does not end with its block: {shapes}")
            path, found = f"{path}.{len(found) - 1}", found[-1]
        return path

    def slot(self, index: int) -> Slot:
        """Return the slot behind the segment of this index."""
        slot = self.slots[index]
        assert isinstance(slot, Slot)
        return slot

    @property
    def space(self) -> ActionSpace:
        """The choices of a controller for this host: its slots and the blueprints registered for its stream."""
        twin = (TWIN,) if self.blocks else ()
        return ActionSpace(tuple(slot.name for slot in self.slot_specs), blueprint_names(self.stream) + twin)

    @property
    def growth(self) -> float:
        """Parameters of all seeds, silent ones included, divided by those of the bare host."""
        return num_parameters(self.slots) / num_parameters(self.segments)


def num_parameters(module: nn.Module) -> int:
    """Return the number of trainable and frozen parameters of a module."""
    return sum(p.numel() for p in module.parameters())


@torch.no_grad()
def _slot_specs(spec: HostSpec, segments: Sequence[nn.Module], stream: Stream) -> tuple[SlotSpec, ...]:
    """Run zeros through all segments but the last to find the shape of the stream at each slot."""
    if len(segments) < 2:
        raise EsperError(f"host {spec.kind!r} has {len(segments)} segments: it needs two, to have a slot between them")
    for module in (module for segment in segments for module in segment.modules()):
        if isinstance(module, BATCH_DEPENDENT):
            raise EsperError(
                f"host {spec.kind!r} uses {type(module).__name__}: hosts may not use dropout or batch statistics"
            )
    x = torch.zeros(2, *spec.inputs, dtype=torch.long if stream is Stream.TOKENS else None)
    slots = []
    for s, segment in enumerate(segments[:-1]):
        which = f"segment {s} of host {spec.kind!r}"
        try:
            x = segment(x)
        except (RuntimeError, IndexError, TypeError) as error:
            raise EsperError(f"{which} fails on inputs {spec.inputs}: {error}") from error
        shape = tuple(x.shape[1:])
        slots += [SlotSpec(f"s{s * spec.slots + k}", stream, shape) for k in range(spec.slots)]
        axes = STREAM_AXES[stream]
        if x.ndim - 1 != axes:
            raise EsperError(f"{which} gives shape {slots[-1].shape}, but stream {stream.value!r} has {axes} axes")
        if slots[-1].channels < MIN_CHANNELS:
            raise EsperError(f"{which} gives {slots[-1].channels} channels: seeds need at least {MIN_CHANNELS}")
    return tuple(slots)
