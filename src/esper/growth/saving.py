"""Save a growing model in the middle of a run, and resume it: the next step is identical."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from esper.growth.captures import Capture, capture, restore
from esper.growth.log import LINES, resumed_log
from esper.leyline.atomic import replace_file
from esper.leyline.errors import EsperError, FileError
from esper.leyline.tensor_files import parsing, read, write

if TYPE_CHECKING:
    from esper.growth.growth import Growth

FORMAT = "esper.growth"
VERSION = 1
MANIFEST = "growth.json"


def save(growth: "Growth", folder: str | Path) -> None:
    """Write model, optimizer and structure into a folder. An interrupted save leaves the one before."""
    folder = Path(folder)
    if (folder / LINES).exists():
        raise FileError(f"{folder} holds the log of a growth: save into another folder, such as {folder / 'saved'}")
    parts = {"now": capture(growth, copy=False), **growth.held}
    if growth.watch.before is not None:
        parts["watch"] = growth.watch.before
    manifest = describe(growth)
    manifest["captures"] = {name: part.manifest for name, part in parts.items()}
    tensors = {f"{name}/{key}": x for name, part in parts.items() for key, x in part.tensors.items()}
    manifest["tensors"] = _free_name(folder, growth.steps)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write {folder}: {error.strerror or error}") from error
    write(folder / manifest["tensors"], FORMAT, tensors, {"steps": growth.steps})
    replace_file(folder / MANIFEST, json.dumps(manifest, indent=1))
    for old in folder.glob("growth-*.safetensors"):
        if old.name != manifest["tensors"]:
            old.unlink(missing_ok=True)


def _free_name(folder: Path, steps: int) -> str:
    """Return a name that no file has: the tensors of the save before are needed until the manifest is replaced."""
    names = (f"growth-{steps:09d}-{n}.safetensors" for n in count(1))
    return next(name for name in names if not (folder / name).exists())


def describe(growth: "Growth") -> dict[str, Any]:
    """Return what is known about a growth besides its captures, as JSON."""
    policy = growth.policy
    return {
        "version": VERSION,
        "class": type(growth.model).__qualname__,
        "base": growth.base,
        "config": asdict(growth.config),
        "budget": growth.budget,
        "blend": growth.blend,
        "spent": growth.spent,
        "steps": growth.steps,
        "decision": growth.decision,
        "step_cost": growth.step_cost,
        "peaks": growth.peaks,
        "metric": growth.metric,
        "watch": growth.watch.describe(),
        "chains": [chain.name for chain in growth.chains],
        "policy": {"kind": type(policy).__qualname__, "state": getattr(policy, "state_dict", dict)()},
        "log": [asdict(event) for event in growth.log],
        "history": [asdict(point) for point in growth.history],
    }


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
    evaluate: Callable[[], float] | None = None,
    log: str | Path | None = None,
) -> "Growth":
    """Resume a saved growth: regrow the structure, then load weights and optimizer state.

    Args:
        model: A fresh model from the constructor that made the saved one, at the size it began with.
        make_optimizer: Makes the optimizer for a model, as for the saved one.
        folder: The folder that `Growth.save` wrote.
        policy: The policy, if it is a function of the user's own; its state is restored if it has `load_state_dict`.
        evaluate: The validation function, if the saved growth had one.
        log: The folder in which losses and events are written down. A log of the saved growth goes on where it was
            saved; what had been written after that is cut. It is not the folder of the save.

    Returns:
        The growth. The next training step is identical to the one the saved run would have made.

    Raises:
        FileError: If the folder is missing, damaged, or does not fit the model or the optimizer. The model is
            unchanged then.

    Example:
        >>> growth = esper.resume(GPT(depth=2), lambda m: torch.optim.AdamW(m.parameters(), 1e-3), "saved")
        >>> model, optimizer = growth.model, growth.optimizer
    """
    from esper.growth.growth import Growth
    from esper.growth.policies import restored_policy
    from esper.growth.records import GrowthConfig
    from esper.growth.wrappers import base_of, unwrapped

    folder = Path(folder)
    manifest = read_manifest(folder)
    with parsing(folder / MANIFEST):
        recorder = resumed_log(log, manifest)
        tensors, _ = read(folder / manifest["tensors"], FORMAT)
        inner = unwrapped(model)
        if base_of(inner) != manifest["base"]:
            raise FileError(misfit(folder, base_of(inner), manifest["base"]))
        optimizer = make_optimizer(inner)
        saved = manifest["captures"]["now"]["optimizer"]["class"]
        if type(optimizer).__qualname__ != saved:
            raise FileError(f"{folder} was saved with the optimizer {saved}, not {type(optimizer).__qualname__}")
        growth = Growth(
            inner, optimizer, restored_policy(policy, manifest["policy"]), GrowthConfig.of(manifest["config"]), evaluate
        )
        parts = _split(manifest["captures"], tensors)
        growth.take_over(manifest, parts)
        weights = {name: x.clone() for name, x in inner.state_dict().items() if isinstance(x, torch.Tensor)}
        try:
            with _named(f"{folder} does not fit"):
                restore(growth, parts["now"], rates=True)
            recorder.open(growth)
        except Exception:
            growth.uproot()
            inner.load_state_dict(weights)
            raise
    growth.attach(quiet=True)
    return growth


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Say before an error what it means."""
    try:
        yield
    except EsperError as error:
        raise FileError(f"{what}: {error}") from error


def _split(manifests: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Capture]:
    parts = {name: Capture(manifest, {}) for name, manifest in manifests.items()}
    for key, value in tensors.items():
        part, _, name = key.partition("/")
        parts[part].tensors[name] = value
    return parts


def misfit(folder: Path, found: dict[str, list[int]], saved: dict[str, list[int]]) -> str:
    """Say where a model differs from the one that was saved."""
    differing = sorted(name for name in found.keys() | saved.keys() if found.get(name) != saved.get(name))
    name = differing[0]
    return (
        f"{folder} was saved from another constructor: {len(differing)} tensors differ, first {name!r}"
        f" ({saved.get(name, 'missing')} in the file, {found.get(name, 'missing')} in the model)"
    )
