"""Plant twins in a growing model, blend them in, and take them back."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from esper.growth.chains import Chain
from esper.growth.optimizers import join_as_copies, leave
from esper.growth.records import Birth
from esper.growth.twins import arrange, attach, copy_block, detach, set_alpha, settle
from esper.growth.wrappers import is_compiled

if TYPE_CHECKING:
    from esper.growth.growth import Growth


def plant_twins(
    growth: "Growth", chain: Chain, counts: Sequence[int], step: int, blend: int, done: bool = False
) -> Birth:
    """Plant twins behind the blocks of a chain, silent, with copies of the optimizer's state."""
    detach_done(growth)
    before, alpha = chain.blocks, _silence(chain)
    blocks: list[nn.Module] = []
    twins: list[nn.Module] = []
    copies: dict[nn.Parameter, nn.Parameter] = {}
    for block, count in zip(before, counts, strict=True):
        blocks.append(block)
        for _ in range(count):
            twin = copy_block(block, growth.model)
            pairs = zip(twin.parameters(), block.parameters(), strict=True)
            copies |= {new: old for new, old in pairs if new is not old}
            twins.append(twin)
            blocks.append(twin)
    join_as_copies(growth.optimizer, copies)
    for twin in twins:
        attach(twin, alpha)
    arrange(chain, blocks)
    birth = Birth(chain, twins, before, list(counts), list(copies), step, blend)
    growth.births.append(birth)
    growth.changes.append(birth)
    growth.structure_changed(joined=birth.parameters)
    if done:
        settle_birth(growth, birth, quiet=True)
    else:
        set_alpha(twins, min(1.0, (growth.steps - step) / blend))
    return birth


def move_blends(growth: "Growth") -> None:
    """Set the alpha of all twins that are being blended in."""
    for birth in growth.births:
        if not birth.done:
            alpha = min(1.0, (growth.steps - birth.step) / birth.blend)
            set_alpha(birth.twins, alpha)
            if alpha >= 1:
                settle_birth(growth, birth)


def settle_birth(growth: "Growth", birth: Birth, quiet: bool = False) -> None:
    """End a blend: the twins are heard in full, and are plain blocks where nothing is compiled."""
    for twin in birth.twins:
        settle(twin)
    birth.done = True
    if growth.meter.is_eager and not is_compiled(growth.model):
        detach_done(growth)
    if not quiet:
        growth.note("blended", birth.chain.name)


def finish_births(growth: "Growth") -> None:
    """Give twins that are still being blended in their full weight, and make all of them plain blocks."""
    for birth in growth.births:
        if not birth.done:
            set_alpha(birth.twins, 1.0)
            settle_birth(growth, birth)
    detach_done(growth)


def detach_done(growth: "Growth") -> None:
    """Make twins that are blended in plain blocks."""
    for twin in (twin for birth in growth.births if birth.done for twin in birth.twins):
        detach(twin)


def remove_birth(growth: "Growth", birth: Birth) -> None:
    """Take twins out of the model and out of its optimizer."""
    for twin in birth.twins:
        detach(twin)
    leave(growth.optimizer, birth.parameters)
    arrange(birth.chain, birth.before)
    growth.births.remove(birth)
    growth.structure_changed(left=birth.parameters)


def _silence(chain: Chain) -> Tensor:
    like = next(chain.blocks[0].parameters())
    return torch.zeros((), dtype=torch.float32, device=like.device)
