"""Checkpoints of a training, its fleets included: a resumed training continues with identical numbers."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esper.leyline.tensor_files import Tensors, fits, flatten, match, parsing, read, unflatten, write
from esper.simic.lives import LifeState
from esper.simic.train import Training
from esper.tolaria.checkpoint import env_description, env_tensors, restore_env

RUN_FORMAT = "esper.run"


def save_training_run(path: str | Path, training: Training, notes: Mapping[str, Any] | None = None) -> None:
    """Write all state that the next update depends on, atomically, along with `notes` (any JSON)."""
    tensors, envs = _training_tensors(training), []
    for i, (env, state) in enumerate(zip(training.fleets.envs, training.fleets.states, strict=True)):
        tensors |= {f"env/{i}/{name}": x for name, x in env_tensors(env).items()}
        tensors |= flatten(state, f"live/{i}")
        envs.append(env_description(env))
    watch = training.watch
    counters = {"update": training.update, "updates": training.learner.updates, "decisions": training.fleets.decisions}
    watched = {name: getattr(watch, name) for name in ("usual", "starved", "since", "astray", "alert")}
    description = {"envs": envs, "counters": counters, "watched": watched, "notes": dict(notes or {})}
    write(path, RUN_FORMAT, tensors, _settings(training) | description)


def load_training_run(path: str | Path, training: Training) -> dict[str, Any]:
    """Restore a training that was built from an equal config, and return the file's notes.

    A file that does not fit raises FileError and leaves the training unchanged.
    """
    tensors, description = read(path, RUN_FORMAT)
    with parsing(path):
        fits(path, _settings(training), description)
        counters, watched = description["counters"], description["watched"]
        fleets, learner = training.fleets, training.learner
        parts = [_with_prefix(f"env/{i}/", tensors) for i in range(len(fleets.envs))]
        states: list[LifeState] = [unflatten(s, f"live/{i}", tensors) for i, s in enumerate(fleets.states)]
        rest = {name: x for name, x in tensors.items() if not name.startswith(("env/", "live/", "optimizer/"))}
        match(path, {n: x for n, x in _training_tensors(training).items() if not n.startswith("optimizer/")}, rest)
        optimizer_state = _optimizer_state(learner.optimizer, tensors)
        for env, part, env_notes in zip(fleets.envs, parts, description["envs"], strict=True):
            restore_env(path, env, part, env_notes)
        fleets.states, fleets.decisions = states, int(counters["decisions"])
        fleets.memory = unflatten(fleets.memory, "memory", tensors)
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


def _settings(training: Training) -> dict[str, Any]:
    """Return the settings that must match on resume; the number of updates may differ."""
    return {
        "config": asdict(training.config) | {"updates": None},
        "controller": asdict(training.controller.config),
        "fleets": len(training.fleets.envs),
    }


def _training_tensors(training: Training) -> Tensors:
    learner, scale = training.learner, training.scale
    tensors = {f"controller/{name}": x for name, x in training.controller.state_dict().items()}
    for index, state in learner.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{name}": torch.as_tensor(x) for name, x in state.items()}
    tensors |= flatten({"count": scale.count, "mean": scale.mean, "squares": scale.squares}, "scale")
    tensors |= flatten(training.fleets.memory, "memory")
    tensors["generator"] = learner.generator.get_state()
    return tensors


def _optimizer_state(optimizer: torch.optim.Optimizer, tensors: Tensors) -> dict[str, Any]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        if name.startswith("optimizer/"):
            _, index, part = name.split("/")
            state.setdefault(int(index), {})[part] = x
    return optimizer.state_dict() | {"state": state}


def _with_prefix(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
