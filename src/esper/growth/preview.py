"""Show what would be grown in a model, before anything changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from esper.growth.chains import Chain, Refusal, find_chains
from esper.growth.compute import Call, as_call, step_flops
from esper.growth.trace import verify
from esper.growth.twins import arrange
from esper.growth.wrappers import unwrapped
from esper.kasmina.cost import seed_cost
from esper.leyline.actions import Graft

if TYPE_CHECKING:
    from esper.growth.garden import Garden


@dataclass(frozen=True)
class PreviewRow:
    """A chain, a seed in a slot, or a part of the model that is left alone."""

    name: str
    kind: str
    """chain, seed or refused."""
    what: str
    """The blocks of a chain, the blueprint of a seed, or the reason of a refusal."""
    shape: tuple[int, ...] | None = None
    """Shape of the stream."""
    parameters: int | None = None
    """Parameters of one more block, or of the seed."""
    flops: int | None = None
    """Operations that one more block, or the seed, adds to a training step."""


@dataclass(frozen=True)
class Preview:
    """A list of what would be grown in a model, and what would not; printed, it is a table."""

    parameters: int
    """Parameters of the model as it is."""
    step_flops: int
    """Operations of a training step as it is."""
    rows: tuple[PreviewRow, ...]

    def __str__(self) -> str:
        head = f"{self.parameters:,} parameters, {_short(self.step_flops)}FLOP a training step"
        cells = [("name", "kind", "what", "stream", "parameters", "FLOPs")]
        for row in self.rows:
            if row.kind == "refused":
                continue
            sizes = (
                f"+{row.parameters:,}",
                f"+{row.flops / max(self.step_flops, 1):.1%}" if row.flops is not None else "",
            )
            cells.append((row.name, row.kind, row.what, "×".join(map(str, row.shape or ())), *sizes))
        widths = [max(len(line[i]) for line in cells) for i in range(6)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in cells]
        refused = [f"not grown: {row.name}, because {row.what}" for row in self.rows if row.kind == "refused"]
        return "\n".join([head, *(lines if len(lines) > 1 else ["nothing would be grown"]), *refused])

    __repr__ = __str__


def preview(model: nn.Module, example: Any, slots: Any = (), *, stream: str | None = None) -> Preview:
    """Show what `grow` would use in a model, with shapes, parameters and operations, and why other parts not.

    Args:
        model: Any module.
        example: Inputs of the model: a tensor, a tuple of positional or a dictionary of keyword arguments.
        slots: Modules behind which seeds could be planted, as for `grow`.
        stream: What flows through the slots, as for `grow`.

    Returns:
        The preview: print it, or read its rows. The model is unchanged, and nothing is computed.

    Raises:
        EsperError: If a slot does not exist or cannot be used.

    Example:
        >>> print(esper.preview(model, torch.zeros(1, 3, 32, 32)))
    """
    from esper.growth.garden import Garden
    from esper.growth.records import GrowthConfig

    inner, call = unwrapped(model), as_call(example)
    named = (slots,) if isinstance(slots, str) else tuple(slots)
    garden = Garden(inner, GrowthConfig(total=1, slots=named, stream=stream))
    garden.see(inner, call)
    chains, refusals = find_chains(inner, garden.modules)
    kept, refused = verify(inner, chains, call)
    return preview_of(inner, call, garden, kept, [*refusals, *refused])


def preview_of(
    model: nn.Module, call: Call, garden: "Garden", chains: Sequence[Chain], refusals: Sequence[Refusal]
) -> Preview:
    """Show what would be grown in a model whose chains and slots have been checked."""
    cost = step_flops(model, call)
    rows = [_chain(model, call, chain, cost) for chain in chains]
    if garden.space is not None:
        rows += [
            PreviewRow(
                place.spec.name,
                "seed",
                name,
                place.spec.shape,
                garden.num_parameters_of(s, name),
                seed_cost(place.spec, name, Graft.ADD).train * _batch(call),
            )
            for s, place in enumerate(garden.places)
            for name in garden.space.blueprints
        ]
    rows += [PreviewRow(refusal.name, "refused", refusal.reason) for refusal in refusals]
    return Preview(sum(p.numel() for p in model.parameters()), cost, tuple(rows))


def _chain(model: nn.Module, call: Call, chain: Chain, cost: int) -> PreviewRow:
    blocks = chain.blocks
    arrange(chain, [*blocks, blocks[-1]])
    try:
        more = step_flops(model, call) - cost
    finally:
        arrange(chain, blocks)
    kind = type(blocks[0]).__name__
    count = f"{len(blocks)} {kind}" if len(blocks) == 1 else f"{len(blocks)} × {kind}"
    return PreviewRow(chain.name, "chain", count, chain.shape, chain.num_parameters, more)


def _batch(call: Call) -> int:
    from torch.utils._pytree import tree_leaves

    from esper.growth.compute import TensorSpec

    shapes = [x.shape for x in tree_leaves(call) if isinstance(x, TensorSpec) and x.shape]
    return shapes[0][0] if shapes else 1


def _short(count: float) -> str:
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {prefix}"
    return f"{count:.0f} "
