"""Find the user's own module inside what wraps it."""

from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from esper.leyline.errors import EsperError

GROWN = "_esper_growth"
"""Attribute of a model that is being grown."""


def unwrapped(model: Any) -> nn.Module:
    """Return the user's own module: what `torch.compile` and `DistributedDataParallel` wrap; refuse other wrappers."""
    if not isinstance(model, nn.Module):
        raise EsperError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if isinstance(model, DataParallel):
        raise EsperError("DataParallel cannot be grown: use DistributedDataParallel, or pass its module")
    if isinstance(model, DistributedDataParallel):
        model = model.module
    inner = getattr(model, "_orig_mod", model)
    if any(type(module).__name__.startswith(("FullyShardedDataParallel", "FSDP")) for module in inner.modules()):
        raise EsperError("a model sharded by FSDP cannot be grown: grow it before it is sharded, and finish first")
    if GROWN in inner.__dict__:
        raise EsperError("this model is being grown already: call finish() on the first growth before another")
    return inner


def is_compiled(model: nn.Module) -> bool:
    """Whether a module is compiled, or some part of it."""
    return any(hasattr(m, "_orig_mod") or m._compiled_call_impl is not None for m in model.modules())


def base_of(model: nn.Module) -> dict[str, list[int]]:
    """Return the shapes of a model's tensors: what its constructor makes."""
    return {name: list(x.shape) for name, x in model.state_dict().items() if isinstance(x, Tensor)}
