"""Twins: copies of blocks, planted behind them and blended in without changing an output bit at birth."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from esper.growth.chains import INDEX_NAME, Chain, stream_in, stream_of
from esper.leyline.errors import EsperError

ALPHA = "_esper_alpha"
HOOK = "_esper_blend"
DONE = "_esper_done"
"""Attributes of a twin until it is detached: its weight, the hook that blends it in, whether it has arrived."""


def blend(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Mix a twin's output with its input: input + alpha * (output - input). At alpha 0 that is the input, bit for bit.

    Alpha is a tensor, so that a compiled model reads its present value and is not compiled again. For the same reason
    a compiled twin keeps this hook at alpha 1 until the structure changes anyway; outside of compiled code it does
    nothing then.
    """
    if not torch.compiler.is_compiling() and module.__dict__[DONE]:
        return None
    alpha: Tensor = getattr(module, ALPHA)
    x, y = stream_of(args, kwargs), stream_in(output)
    assert x is not None
    assert y is not None
    x = x.to(y.dtype)
    mixed = torch.where(alpha > 0, torch.lerp(x, y, alpha.to(y.dtype)), x)  # lerp is exact at alpha 1
    return mixed if isinstance(output, Tensor) else type(output)((mixed, *output[1:]))


def copy_block(block: nn.Module, model: nn.Module) -> nn.Module:
    """Copy a block. What it shares with the rest of the model (parameters, buffers, submodules) stays shared."""
    own_modules = {id(m) for m in block.modules()}
    outside = [m for m in model.modules() if id(m) not in own_modules]
    shared: dict[int, Any] = {}
    for holder in outside:
        for thing in (*holder._parameters.values(), *holder._buffers.values(), *holder._modules.values()):
            if thing is not None and thing is not block:
                shared[id(thing)] = thing
    own = [*block.modules(), *block.parameters(), *block.buffers()]
    memo = {id(thing): thing for thing in own if id(thing) in shared and thing is not block}
    try:
        return copy.deepcopy(block, memo)
    except RuntimeError as error:
        raise EsperError(f"a block of class {type(block).__name__} cannot be copied: {error}") from error


def attach(twin: nn.Module, alpha: Tensor) -> None:
    """Blend a twin into the model's stream with weight `alpha`, from the next forward pass on."""
    twin.register_buffer(ALPHA, alpha, persistent=False)
    handle = twin.register_forward_hook(blend, with_kwargs=True)
    twin.__dict__ |= {HOOK: handle, DONE: False}


def set_alpha(twins: Iterable[nn.Module], alpha: float) -> None:
    """Set the weight of twins. They share one tensor unless the model was moved or cast since they were planted."""
    tensors = [twin._buffers[ALPHA] for twin in twins]
    for tensor in {id(t): t for t in tensors if t is not None}.values():
        tensor.fill_(alpha)


def settle(twin: nn.Module) -> None:
    """Let a twin be heard in full: its alpha is 1."""
    twin.__dict__[DONE] = True


def detach(twin: nn.Module) -> None:
    """Make a twin a plain block: no hook, no buffer."""
    handle = twin.__dict__.pop(HOOK, None)
    twin.__dict__.pop(DONE, None)
    if handle is not None:
        handle.remove()
    twin._buffers.pop(ALPHA, None)
    twin._non_persistent_buffers_set.discard(ALPHA)


def arrange(chain: Chain, blocks: Sequence[nn.Module]) -> None:
    """Replace a chain's blocks in their container, renumber them, and update attributes that store its length."""
    container = chain.container
    children = list(container)
    start = next(i for i, child in enumerate(children) if child is chain.blocks[0])
    first_of = _first_of(chain.blocks, blocks)
    children[start : start + len(chain.blocks)] = blocks
    for holder, name in chain.depths:
        old = getattr(holder, name)
        if isinstance(old, int):
            setattr(holder, name, len(children))
        else:
            setattr(
                holder, name, [*old[:start], *(old[start + i] for i in first_of), *old[start + len(chain.blocks) :]]
            )
    container._modules.clear()
    for i, child in enumerate(children):
        container._modules[str(i)] = child
    chain.blocks = list(blocks)
    _renumber(children)


def _first_of(old: Sequence[nn.Module], new: Sequence[nn.Module]) -> list[int]:
    """For each new block, the place of the old block that it is or stands behind."""
    places, last = {id(block): i for i, block in enumerate(old)}, 0
    found = []
    for block in new:
        last = places.get(id(block), last)
        found.append(last)
    return found


def _renumber(children: Iterable[nn.Module]) -> None:
    for i, child in enumerate(children):
        for module in child.modules():
            if isinstance(module.__dict__.get(INDEX_NAME), int):
                setattr(module, INDEX_NAME, i)
