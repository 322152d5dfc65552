"""Save a growing model in the middle of a run, and resume it: the next step is identical."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.leyline.errors import FileError
from esper.leyline.tensor_files import parsing, read, write

if TYPE_CHECKING:
    from esper.growth.growth import Growth

FORMAT = "esper.growth"
VERSION = 1
MANIFEST = "growth.json"


def save(growth: "Growth", folder: str | Path) -> None:
    """Write model, optimizer and structure into a folder. An interrupted save leaves the one before."""
    folder = Path(folder)
    manifest = describe(growth)
    tensors = {f"model/{name}": x for name, x in growth.model.state_dict().items() if isinstance(x, Tensor)}
    optimizer_tensors, manifest["optimizer"] = optimizer_state(growth.model, growth.optimizer)
    manifest["tensors"] = f"growth-{growth.steps:09d}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write {folder}: {error.strerror or error}") from error
    write(folder / manifest["tensors"], FORMAT, tensors | optimizer_tensors, {"steps": growth.steps})
    _write_json(folder / MANIFEST, manifest)
    for old in folder.glob("growth-*.safetensors"):
        if old.name != manifest["tensors"]:
            old.unlink(missing_ok=True)


def describe(growth: "Growth") -> dict[str, Any]:
    """Return everything about a growth but tensors, as JSON."""
    policy = growth.policy
    births = [
        {
            "chain": birth.chain.name,
            "before": len(birth.before),
            "counts": birth.counts,
            "step": birth.step,
            "blend": birth.blend,
            "done": birth.done,
        }
        for birth in growth.births
    ]
    return {
        "version": VERSION,
        "class": type(growth.model).__qualname__,
        "base": growth.base,
        "budget": growth.budget,
        "total": growth.total,
        "spent": growth.spent,
        "steps": growth.steps,
        "blend": growth.blend,
        "limits": {"max_growth": growth.max_growth, "max_parameters": growth.max_parameters},
        "governed": growth.governed,
        "step_cost": growth.step_cost,
        "peaks": growth.peaks,
        "average": None if growth.average is None else float(growth.average),
        "chains": [chain.name for chain in growth.chains],
        "policy": {"kind": type(policy).__qualname__, "state": getattr(policy, "state_dict", dict)()},
        "births": births,
        "log": [asdict(event) for event in growth.log],
    }


def optimizer_state(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's state by parameter name: its tensors, and everything else as JSON."""
    names = {id(p): name for name, p in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    groups, values = [], {}
    for g, group in enumerate(optimizer.param_groups):
        options = {}
        for key, value in group.items():
            if isinstance(value, Tensor):
                tensors[f"group/{g}/{key}"] = value
            elif key not in ("params", "param_names"):
                options[key] = _as_json(f"option {key!r} of the optimizer", value)
        members = [names.get(id(p), f"unnamed/{g}/{i}") for i, p in enumerate(group["params"])]
        groups.append({"parameters": members, "options": options})
        for name, parameter in zip(members, group["params"], strict=True):
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


def _write_json(path: Path, content: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check the description of a saved growth."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FileError(f"{folder} holds no saved growth: there is no {MANIFEST} in it")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FileError(f"{path} is damaged: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("version"), int):
        raise FileError(f"{path} is damaged: it has no version")
    if manifest["version"] > VERSION:
        raise FileError(f"{path} was written by a newer Esper (version {manifest['version']}): upgrade Esper")
    return manifest


def resume(
    model: nn.Module,
    make_optimizer: Callable[[nn.Module], Optimizer],
    folder: str | Path,
    *,
    policy: Any = None,
) -> "Growth":
    """Resume a saved growth: regrow the structure, then load weights and optimizer state.

    Args:
        model: A fresh model from the constructor that made the saved one, at the size it began with.
        make_optimizer: Makes the optimizer for a model, as for the saved one.
        folder: The folder that `Growth.save` wrote.
        policy: The policy, if it is a function of the user's own; its state is restored if it has `load_state_dict`.

    Returns:
        The growth. The next training step is identical to the one the saved run would have made.

    Raises:
        FileError: If the folder is missing, damaged, or does not fit the model or the optimizer. The model is
            unchanged then.
    """
    from esper.growth.growth import Growth, base_of
    from esper.growth.policies import restored_policy
    from esper.growth.wrappers import unwrapped

    folder = Path(folder)
    manifest = read_manifest(folder)
    with parsing(folder / MANIFEST):
        tensors, _ = read(folder / manifest["tensors"], FORMAT)
        inner = unwrapped(model)
        if base_of(inner) != manifest["base"]:
            raise FileError(_misfit(folder, base_of(inner), manifest["base"]))
        optimizer = make_optimizer(inner)
        if type(optimizer).__qualname__ != manifest["optimizer"]["class"]:
            made, saved = type(optimizer).__qualname__, manifest["optimizer"]["class"]
            raise FileError(f"{folder} was saved with the optimizer {saved}, not {made}")
        limits = manifest["limits"]
        growth = Growth(
            inner,
            optimizer,
            manifest["total"],
            manifest["budget"],
            restored_policy(policy, manifest["policy"]),
            limits["max_growth"],
            limits["max_parameters"],
            manifest["blend"],
            manifest["governed"],
        )
        try:
            growth.replay(manifest)
            _load(folder, growth, tensors, manifest["optimizer"])
        except Exception:
            growth.uproot()
            raise
    growth.attach(quiet=True)
    return growth


def _misfit(folder: Path, found: dict[str, list[int]], saved: dict[str, list[int]]) -> str:
    differing = sorted(name for name in found.keys() | saved.keys() if found.get(name) != saved.get(name))
    name = differing[0]
    return (
        f"{folder} was saved from another constructor: {len(differing)} tensors differ, first {name!r}"
        f" ({saved.get(name, 'missing')} in the file, {found.get(name, 'missing')} in the model)"
    )


@torch.no_grad()
def _load(folder: Path, growth: "Growth", tensors: dict[str, Tensor], saved: dict[str, Any]) -> None:
    model, optimizer = growth.model, growth.optimizer
    names = dict(model.named_parameters())
    groups = [[n for n, p in names.items() if any(p is q for q in g["params"])] for g in optimizer.param_groups]
    if [sorted(group) for group in groups] != [sorted(group["parameters"]) for group in saved["groups"]]:
        raise FileError(f"{folder} does not fit the optimizer: its groups hold other parameters")
    model.load_state_dict({k.removeprefix("model/"): x for k, x in tensors.items() if k.startswith("model/")})
    optimizer.state.clear()
    for g, (group, then) in enumerate(zip(optimizer.param_groups, saved["groups"], strict=True)):
        group["params"][:] = [names[name] for name in then["parameters"]]
        for key, value in then["options"].items():
            group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
        for key in [k for k in tensors if k.startswith(f"group/{g}/")]:
            group[key.rpartition("/")[2]] = tensors[key]
    for name, values in saved["values"].items():
        optimizer.state[names[name]].update(values)
    for key, value in tensors.items():
        if key.startswith("state/"):
            _, _, rest = key.partition("/")
            name, _, part = rest.rpartition("/")
            parameter = names[name]
            optimizer.state[parameter][part] = (
                value if value.ndim == 0 and not _on_device(optimizer) else value.to(parameter.device)
            )


def _on_device(optimizer: Optimizer) -> bool:
    """Whether step counts live beside their parameters."""
    return any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
