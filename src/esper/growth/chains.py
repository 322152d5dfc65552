"""Find chains: runs of like blocks in `nn.ModuleList` and `nn.Sequential` that can be deepened by twins."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

DEPTH_NAMES = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks", "n_blocks", "depth")
"""Attributes of a model, or of its config, that say how many blocks a container holds."""
CONFIG_NAMES = ("config", "cfg", "args", "hparams")
INDEX_NAME = "layer_idx"
"""Attribute by which a block knows its place, as in `transformers`."""


@dataclass(eq=False)
class Chain:
    """A run of like blocks in one container, in the order in which they are called."""

    name: str
    """The container's name in the model, with the place of the first block if the container holds other modules."""
    container: nn.ModuleList | nn.Sequential
    parent: nn.Module
    """The module that owns the container."""
    blocks: list[nn.Module]
    shape: tuple[int, ...] | None = None
    """Shape of the stream through the chain; None until a forward pass has been seen."""
    depths: list[tuple[Any, str]] = field(default_factory=list)
    """Objects and attributes that hold the container's length."""

    num_parameters: int = 0
    """Parameters that one more block adds: those that it does not share with the rest of the model."""


@dataclass(frozen=True)
class Refusal:
    """A part of a model that will not be grown, and why."""

    name: str
    reason: str


def find_chains(model: nn.Module, slots: Mapping[str, nn.Module] | None = None) -> tuple[list[Chain], list[Refusal]]:
    """Find all runs of like blocks by their structure; `trace.verify` checks how the model calls them.

    A chain with a slot inside its blocks is left alone: its copies would share the slot.
    """
    chains: list[Chain] = []
    refusals: list[Refusal] = []
    seen: set[int] = set()
    inside: set[int] = set()
    for name, parent in model.named_modules():
        for child_name, container in parent.named_children():
            if not isinstance(container, nn.ModuleList | nn.Sequential) or id(container) in seen:
                continue
            seen.add(id(container))
            full = f"{name}.{child_name}" if name else child_name
            if id(container) not in inside:
                _add_runs(full, container, parent, chains, refusals, inside)
    if isinstance(model, nn.ModuleList | nn.Sequential):
        _add_runs("", model, model, chains, refusals, inside)
    held = {id(module) for module in (slots or {}).values()}
    taken = [c for c in chains if any(id(m) in held for block in c.blocks for m in block.modules())]
    refusals += [Refusal(chain.name, "slots were named inside its blocks") for chain in taken]
    kept = [chain for chain in chains if chain not in taken]
    for chain in kept:
        chain.num_parameters = _num_own(model, chain.blocks[0])
    return kept, refusals


def _num_own(model: nn.Module, block: nn.Module) -> int:
    inside = {id(module) for module in block.modules()}
    outside = {id(p) for m in model.modules() if id(m) not in inside for p in m._parameters.values()}
    shared = {id(m) for m in model.modules() if id(m) not in inside for m in m._modules.values()}
    kept = {id(p) for m in block.modules() if id(m) in shared and m is not block for p in m.parameters()}
    return sum(p.numel() for p in block.parameters() if id(p) not in outside | kept)


def _add_runs(
    name: str,
    container: nn.ModuleList | nn.Sequential,
    parent: nn.Module,
    chains: list[Chain],
    refusals: list[Refusal],
    inside: set[int],
) -> None:
    """Split a container into runs of like blocks. Containers inside a block belong to the block."""
    children = list(container)
    runs = [run for run in _runs(children) if _is_block(run[1][0])]
    if not runs:
        return
    label = name or "the model itself"
    if list(container._modules) != [str(i) for i in range(len(children))]:
        refusals.append(Refusal(label, "its blocks have names instead of numbers"))
        return
    if len({id(child) for child in children}) < len(children):
        refusals.append(Refusal(label, "one block is listed twice: its calls share their weights"))
        return
    for start, blocks in runs:
        whole = len(blocks) == len(children)
        chain = Chain(name if whole and name else f"{name}.{start}".strip("."), container, parent, blocks)
        chain.depths = list(_depths(parent, len(children)))
        chains.append(chain)
        inside |= {id(module) for block in blocks for module in block.modules()}


def _runs(children: list[nn.Module]) -> Iterator[tuple[int, list[nn.Module]]]:
    start = 0
    for i in range(1, len(children) + 1):
        if i == len(children) or _signature(children[i]) != _signature(children[start]):
            yield start, children[start:i]
            start = i


def _signature(module: nn.Module) -> tuple[Any, ...]:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return type(module), tuple((name, tuple(tensor.shape)) for name, tensor in tensors)


def _is_block(module: nn.Module) -> bool:
    """Whether a module has weights and is more than one layer of torch's own, or a container of blocks."""
    if not any(p.requires_grad for p in module.parameters()):
        return False
    if type(module) in (nn.Sequential, nn.ModuleList):
        return type(module) is nn.Sequential and all(_is_leaf(child) for child in module)
    return not _is_leaf(module) or not type(module).__module__.startswith("torch.nn")


def _is_leaf(module: nn.Module) -> bool:
    return not any(True for _ in module.children())


def _depths(parent: nn.Module, length: int) -> Iterator[tuple[Any, str]]:
    """Find attributes that say how long a container is, on its owner and on the owner's config."""
    configs = [getattr(parent, name) for name in CONFIG_NAMES if getattr(parent, name, None) is not None]
    for holder in (parent, *configs):
        for name in DEPTH_NAMES:
            value = getattr(holder, name, None)
            if type(value) is int and value == length and not isinstance(value, bool):
                yield holder, name
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            if holder is not parent and type(value) is list and len(value) == length and name.startswith("layer"):
                yield holder, name


def nothing_to_grow(refusals: Sequence[Refusal]) -> str:
    """Say why nothing in a model can be deepened."""
    reasons = "; ".join(f"{refusal.name}: {refusal.reason}" for refusal in refusals)
    found = f" ({reasons})" if reasons else ""
    return (
        f"the model has no chain of like blocks in an nn.ModuleList or nn.Sequential to deepen{found}: name places for"
        " new modules with slots="
    )


def stream_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the stream among a block's inputs: its first tensor."""
    return next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)


def stream_in(output: Any) -> Tensor | None:
    """Return the stream in a block's output: the tensor itself, or the first element of a tuple or list."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    return None
