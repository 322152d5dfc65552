"""Attach growth to a model: the first of the five lines."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from esper.growth.chains import nothing_to_grow
from esper.growth.compute import as_call
from esper.growth.growth import Growth
from esper.growth.log import new_log
from esper.growth.optimizers import check_optimizer
from esper.growth.policies import GrowthPolicy, named_policy
from esper.growth.records import GrowthConfig
from esper.growth.wrappers import unwrapped
from esper.leyline.errors import EsperError
from esper.tamiyo.policies import Policy as FleetPolicy


def grow(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    total: int | None = None,
    flops: float | None = None,
    epochs: float | None = None,
    steps_per_epoch: int | None = None,
    policy: str | Path | GrowthPolicy | FleetPolicy | None = None,
    slots: str | Sequence[str] = (),
    evaluate: Callable[[], float] | None = None,
    example: Any = None,
    log: str | Path | None = None,
    **options: Any,
) -> "Growth":
    """Attach growth to a model and its optimizer; both stay the user's own objects.

    Args:
        model: Any module with a chain of like blocks, or with slots that you name.
        optimizer: The optimizer that trains it. New parameters join its existing groups.
        total: Budget in optimizer steps at the model's present size.
        flops: Budget in floating-point operations, instead of `total`.
        epochs: Budget in passes over the data at the present size, instead of `total`; needs `steps_per_epoch`.
        steps_per_epoch: Optimizer steps in an epoch, usually `len(loader)`.
        policy: When and what to grow. For chains "doubling" (the default), "plateau" or "probe"; for slots "heuristic"
            (the default if slots are named) or "learned", the controller that ships with Esper; a plan as a JSON file;
            a policy of fleets; or a function from a `Growth` to actions.
        slots: Modules behind which seeds can be planted: exact names, ends of names, or regular expressions.
        evaluate: A function that returns a validation loss, lower is better. It is called 25 times in the budget, with
            the model in evaluation mode and without gradients. "heuristic" and "learned" need it.
        example: Inputs of the model, to check it at once: a tensor, a tuple of positional or a dictionary of keyword
            arguments. Without one, the first training step serves as the example.
        log: A new folder in which losses and events are written down while the model trains; `esper ui` shows it.
        **options: Further fields of `esper.growth.GrowthConfig`: max_growth (4), max_parameters, blend, governed,
            decisions, price, seeds, stream, rng_seed.

    Returns:
        The growth: call its `step` after every optimizer step.

    Raises:
        EsperError: If the model or the optimizer cannot be grown. Nothing has been changed then.

    Example:
        >>> growth = esper.grow(model, optimizer, total=4500)
        >>> for x, y in batches:
        ...     loss = F.cross_entropy(model(x), y)
        ...     loss.backward(); optimizer.step(); optimizer.zero_grad()
        ...     growth.step(loss)
        ...     if growth.done:
        ...         break
        >>> model = growth.finish()
    """
    patterns = (slots,) if isinstance(slots, str) else tuple(slots)
    config = config_of(total, flops, epochs, steps_per_epoch, slots=patterns, **options)
    recorder, inner = new_log(log), unwrapped(model)
    check_optimizer(optimizer, inner)
    chosen = named_policy(("heuristic" if patterns else "doubling") if policy is None else policy)
    growth = Growth(inner, optimizer, chosen, config, evaluate)
    if not growth.chains and not patterns:
        raise EsperError(nothing_to_grow(growth.refusals))
    if example is not None:
        growth.see(as_call(example))
    recorder.open(growth)
    growth.attach()
    return growth


def config_of(
    total: int | None, flops: float | None, epochs: float | None, steps_per_epoch: int | None, **options: Any
) -> GrowthConfig:
    """Return the options of a growth, with a budget in epochs turned into steps."""
    if epochs is not None:
        if steps_per_epoch is None or steps_per_epoch < 1:
            raise EsperError("epochs needs steps_per_epoch, the optimizer steps in an epoch, usually len(loader)")
        if total is not None:
            raise EsperError("give one budget: total (optimizer steps at the present size), flops, or epochs")
        total = round(epochs * steps_per_epoch)
    if isinstance(options.get("seeds"), str):
        options["seeds"] = (options["seeds"],)
    if "seeds" in options:
        options["seeds"] = tuple(options["seeds"])
    try:
        return GrowthConfig(total=total, flops=flops, **options)
    except TypeError as error:
        raise EsperError(f"grow takes no such option: {str(error).partition('argument ')[2] or error}") from None
