"""Checkpoints of a training, its fleets included: a resumed training continues with identical numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esper.leyline.errors import EsperError
from esper.leyline.tensor_files import Tensors, fits, flatten, match, pack, parsing, read, unflatten, unpack, write
from esper.simic.lives import LifeState
from esper.simic.messages import deal, to_first
from esper.simic.train import Training
from esper.tamiyo.network import HiddenState
from esper.tolaria.checkpoint import env_description, env_tensors, restore_env

RUN_FORMAT = "esper.run"


def save_training_run(path: str | Path, training: Training, notes: Mapping[str, Any] | None = None) -> None:
    """Write all state that the next update depends on, atomically, along with `notes` (any JSON).

    With several workers all must call this; the first one writes a file, the same as if it had all fleets.

    Raises:
        EsperError: The workers hold different controllers.
    """
    tensors, envs = _training_tensors(training), []
    for part, descriptions in _all_fleets(training):
        tensors |= part
        envs += descriptions
    if not training.workers.is_first:
        return
    watch = training.watch
    counters = {"update": training.update, "updates": training.learner.updates, "decisions": training.fleets.decisions}
    watched = {name: getattr(watch, name) for name in ("usual", "starved", "since", "astray", "alert")}
    description = {"envs": envs, "counters": counters, "watched": watched, "notes": dict(notes or {})}
    write(path, RUN_FORMAT, tensors, _settings(training) | description)


def _all_fleets(training: Training) -> Iterator[tuple[Tensors, list[dict[str, Any]]]]:
    """Yield the tensors and descriptions of the fleets of every worker to the first one."""
    workers, weights = training.workers, _controller_tensors(training)
    own = _own_fleets(training)
    if workers.size == 1:
        yield own
        return
    said = to_first(workers, pack(own[0] | weights, {"envs": own[1]}))
    while said:
        tensors, description = unpack(said.pop(0))
        if any(not tensors.pop(name).equal(x.cpu()) for name, x in weights.items()):
            raise EsperError("the workers hold different controllers: begin again on machines of one kind")
        yield tensors, description["envs"]


def _own_fleets(training: Training) -> tuple[Tensors, list[dict[str, Any]]]:
    tensors, fleets = Tensors(), training.fleets
    for i, (env, state) in enumerate(zip(fleets.envs, fleets.states, strict=True), fleets.first_fleet):
        tensors |= {f"env/{i}/{name}": x for name, x in env_tensors(env).items()}
        tensors |= flatten(state, f"live/{i}")
    return tensors, [env_description(env) for env in fleets.envs]


def load_training_run(path: str | Path, training: Training) -> dict[str, Any]:
    """Restore a training that was built from an equal config, and return the file's notes.

    With several workers, of any number, the first one reads the file and deals out the fleets. A file that does not fit
    raises FileError and leaves the training unchanged.
    """
    tensors, description = _dealt(path, training)
    with parsing(path):
        fits(path, _settings(training), description)
        counters, watched = description["counters"], description["watched"]
        fleets, learner = training.fleets, training.learner
        indices = range(fleets.first_fleet, fleets.first_fleet + len(fleets.envs))
        parts = [_with_prefix(f"env/{i}/", tensors) for i in indices]
        states: list[LifeState] = [
            unflatten(state, f"live/{i}", tensors) for i, state in zip(indices, fleets.states, strict=True)
        ]
        unknown = torch.full((len(description["envs"]), training.reached.shape[1]), torch.nan, dtype=torch.float64)
        tensors.setdefault("reached", unknown)  # absent from older checkpoints
        rest = {name: x for name, x in tensors.items() if not name.startswith(("env/", "live/", "optimizer/"))}
        match(path, {n: x for n, x in _training_tensors(training).items() if not n.startswith("optimizer/")}, rest)
        optimizer_state = _optimizer_state(learner.optimizer, tensors)
        own = description["envs"][indices.start : indices.stop]
        for env, part, env_notes in zip(fleets.envs, parts, own, strict=True):
            restore_env(path, env, part, env_notes)
        training.reached = tensors["reached"][indices.start : indices.stop].to(fleets.device)
        fleets.states, fleets.decisions = states, int(counters["decisions"])
        hosts = slice(fleets.first_host, fleets.first_host + sum(fleets.sizes))
        fleets.memory = HiddenState(*(x[hosts] for x in unflatten(fleets.memory, "memory", tensors)))
        training.controller.load_state_dict(_with_prefix("controller/", tensors))
        learner.optimizer.load_state_dict(optimizer_state)
        learner.generator.set_state(tensors["generator"])
        for name in ("count", "mean", "squares"):
            setattr(training.scale, name, tensors[f"scale/{name}"].to(fleets.device))
        training.update, learner.updates = int(counters["update"]), int(counters["updates"])
        training.watch.usual, training.watch.alert = watched["usual"], int(watched["alert"])
        training.watch.starved = {name: int(count) for name, count in watched["starved"].items()}
        training.watch.since |= watched.get("since", {})  # absent from older checkpoints
        training.watch.astray = int(watched.get("astray", 0))
        return dict(description["notes"])


def _dealt(path: str | Path, training: Training) -> tuple[Tensors, dict[str, Any]]:
    """Return the content of a checkpoint, of its fleets only those of this worker."""
    workers, shares = training.workers, training.fleets.shares
    if workers.size == 1:
        return read(path, RUN_FORMAT)
    parts: list[bytes] = []
    if workers.is_first:
        tensors, description = read(path, RUN_FORMAT)
        for share in shares:
            others = tuple(
                f"{kind}/{i}/" for i in range(sum(map(len, shares))) if i not in share for kind in ("env", "live")
            )
            parts.append(pack({name: x for name, x in tensors.items() if not name.startswith(others)}, description))
    return unpack(deal(workers, parts))


def _settings(training: Training) -> dict[str, Any]:
    """Return the settings that must match on resume; the number of updates may differ."""
    return {
        "config": asdict(training.config) | {"updates": None},
        "controller": asdict(training.controller.config),
        "fleets": sum(map(len, training.fleets.shares)),
    }


def _training_tensors(training: Training) -> Tensors:
    """Return all tensors but those of the fleets, on every worker; the hidden states are those of all."""
    learner, scale, workers = training.learner, training.scale, training.workers
    tensors = _controller_tensors(training)
    for index, state in learner.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{name}": torch.as_tensor(x) for name, x in state.items()}
    tensors |= flatten({"count": scale.count, "mean": scale.mean, "squares": scale.squares}, "scale")
    tensors |= flatten(HiddenState(*(workers.joined(x) for x in training.fleets.memory)), "memory")
    tensors |= {"generator": learner.generator.get_state(), "reached": workers.joined(training.reached)}
    return tensors


def _controller_tensors(training: Training) -> Tensors:
    return {f"controller/{name}": x for name, x in training.controller.state_dict().items()}


def _optimizer_state(optimizer: torch.optim.Optimizer, tensors: Tensors) -> dict[str, Any]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        if name.startswith("optimizer/"):
            _, index, part = name.split("/")
            state.setdefault(int(index), {})[part] = x
    return optimizer.state_dict() | {"state": state}


def _with_prefix(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
