"""Build twins: copies of the block in front of their slot.

A twin takes the place of the stream, out = x + alpha · (twin(x) − x), and starts with the weights and the optimizer
moments of the block that it copies.
"""

from collections.abc import Callable

from torch import nn

from esper.leyline.errors import EsperError
from esper.leyline.specs import SlotSpec

blocks: dict[str, Callable[[SlotSpec], nn.Module]] = {}
"""What builds the block in front of a slot, for each kind of host that has blocks to copy."""


def twin(slot: SlotSpec) -> nn.Module:
    if slot.block not in blocks:
        raise EsperError(f"slot {slot.name!r} has no block in front of it that could be copied: use another blueprint")
    return blocks[slot.block](slot)
