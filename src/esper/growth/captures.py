"""Capture a growing model by name, with its structure and its optimizer, and go back to it.

One record serves rolling back, trying a change out, and files.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.growth.births import plant_twins
from esper.growth.optimizers import named
from esper.leyline.errors import FileError

if TYPE_CHECKING:
    from esper.growth.growth import Growth


class Capture(NamedTuple):
    """A model at one moment: its structure and plain values as JSON, and its tensors by name."""

    manifest: dict[str, Any]
    """Steps, births, slots, and the optimizer's groups."""
    tensors: dict[str, Tensor]
    """Tensors of the model (`model/...`) and of its optimizer (`state/...`, `group/...`)."""


@torch.no_grad()
def capture(growth: "Growth", *, copy: bool = True) -> Capture:
    """Capture a growing model.

    Args:
        growth: The growth.
        copy: Whether to copy the tensors, on their device. A file is written at once and needs none.
    """
    tensors, groups = _optimizer(growth.model, growth.optimizer)
    tensors |= {f"model/{name}": x for name, x in growth.model.state_dict().items() if isinstance(x, Tensor)}
    return Capture(
        structure(growth) | {"optimizer": groups}, {k: x.detach().clone() if copy else x for k, x in tensors.items()}
    )


def structure(growth: "Growth") -> dict[str, Any]:
    """Return what has been grown, as JSON."""
    births = [
        {
            "chain": birth.chain.name,
            "counts": birth.counts,
            "step": birth.step,
            "blend": birth.blend,
            "done": birth.done,
        }
        for birth in growth.births
    ]
    found = {"steps": growth.steps, "births": births, "slots": growth.slots.describe()}
    return json.loads(json.dumps(found))  # a copy: lists of the growth change


def _optimizer(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's state by parameter name: its tensors, and everything else as JSON."""
    names = {id(p): name for name, p in named(model, optimizer).items()}
    tensors: dict[str, Tensor] = {}
    groups, values = [], {}
    for g, group in enumerate(optimizer.param_groups):
        options = {}
        for key, value in group.items():
            if isinstance(value, Tensor):
                tensors[f"group/{g}/{key}"] = value
            elif key not in ("params", "param_names"):
                options[key] = _as_json(f"option {key!r} of the optimizer", value)
        groups.append({"parameters": [names[id(p)] for p in group["params"]], "options": options})
        for parameter in group["params"]:
            name = names[id(parameter)]
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[f"state/{name}/{key}"] = value
                else:
                    values.setdefault(name, {})[key] = _as_json(f"state {key!r} of {name}", value)
    return tensors, {"class": type(optimizer).__qualname__, "groups": groups, "values": values}


def _as_json(what: str, value: Any) -> Any:
    try:
        json.dumps(value)
    except TypeError:
        raise FileError(f"{what} cannot be saved: {type(value).__name__} is neither a tensor nor plain data") from None
    return value


def rebuild(growth: "Growth", then: Mapping[str, Any]) -> None:
    """Give a model the structure that `structure` described; weights and optimizer state follow."""
    growth.uproot()
    chains = {chain.name: chain for chain in growth.chains}
    since = growth.steps - then["steps"]
    for saved in then["births"]:
        chain = chains[saved["chain"]]
        plant_twins(growth, chain, saved["counts"], saved["step"] + since, saved["blend"], saved["done"])
    growth.slots.load(growth, then["slots"])


@torch.no_grad()
def restore(growth: "Growth", then: Capture, *, rates: bool = False) -> None:
    """Give a growing model the structure, weights and optimizer state of a capture.

    Compute that was spent since stays spent. Blends go on where they were.

    Args:
        growth: The growth, at any structure.
        then: What to go back to.
        rates: Whether learning rates and other options of the optimizer go back, too.
    """
    rebuild(growth, then.manifest)
    _load_optimizer_groups(growth, then.manifest["optimizer"], rates)
    tensors = then.tensors
    growth.model.load_state_dict({k.removeprefix("model/"): x for k, x in tensors.items() if k.startswith("model/")})
    _load_optimizer_state(growth, then, rates)
    growth.meter.recount()


def _load_optimizer_groups(growth: "Growth", saved: dict[str, Any], rates: bool) -> None:
    names = named(growth.model, growth.optimizer)
    by_id = {id(p): name for name, p in names.items()}
    groups = growth.optimizer.param_groups
    held = [sorted(by_id[id(p)] for p in group["params"]) for group in groups]
    if held != [sorted(group["parameters"]) for group in saved["groups"]]:
        raise FileError("the optimizer's groups hold other parameters than when it was saved")
    for group, then in zip(groups, saved["groups"], strict=True):
        group["params"][:] = [names[name] for name in then["parameters"]]
        if rates:
            options = then["options"].items()
            group.update({k: tuple(v) if isinstance(group.get(k), tuple) else v for k, v in options})


def _load_optimizer_state(growth: "Growth", then: Capture, rates: bool) -> None:
    optimizer, names = growth.optimizer, named(growth.model, growth.optimizer)
    optimizer.state.clear()
    for name, values in then.manifest["optimizer"]["values"].items():
        optimizer.state[names[name]].update(values)
    for key, value in then.tensors.items():
        kind, _, rest = key.partition("/")
        name, _, part = rest.rpartition("/")
        if kind == "state":
            beside = value.ndim > 0 or _steps_on_device(optimizer)
            optimizer.state[names[name]][part] = (value.to(names[name].device) if beside else value).clone()
        elif kind == "group" and rates:
            optimizer.param_groups[int(name)][part] = value.clone()


def _steps_on_device(optimizer: Optimizer) -> bool:
    return any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
