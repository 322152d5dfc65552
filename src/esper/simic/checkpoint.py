"""A training in the middle of its hosts' lives, in one file: the next update is the same as without a stop."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esper.leyline.tensor_files import Tensors, fits, flatten, match, parsing, read, unflatten, write
from esper.simic.rollout import Live
from esper.simic.train import Training
from esper.tolaria.checkpoint import env_description, env_tensors, restore_env

RUN_FORMAT = "esper.run"


def save_training_run(path: str | Path, training: Training, notes: Mapping[str, Any] | None = None) -> None:
    """Write everything that the next update depends on, all or nothing; and notes for whoever loads it."""
    tensors, envs = _learning(training), []
    for i, (env, live) in enumerate(zip(training.fleets.envs, training.fleets.lives, strict=True)):
        tensors |= {f"env/{i}/{name}": x for name, x in env_tensors(env).items()}
        tensors |= flatten(live, f"live/{i}")
        envs.append(env_description(env))
    watch = training.watch
    counters = {"update": training.update, "updates": training.learner.updates, "decisions": training.fleets.decisions}
    watched = {"usual": watch.usual, "starved": watch.starved, "explored": watch.explored, "alert": watch.alert}
    said = {"envs": envs, "counters": counters, "watched": watched, "notes": dict(notes or {})}
    write(path, RUN_FORMAT, tensors, _settings(training) | said)


def load_training_run(path: str | Path, training: Training) -> dict[str, Any]:
    """Go on from a file, with a training that was made in the same way; returns its notes.

    What does not fit is refused at once.
    """
    tensors, description = read(path, RUN_FORMAT)
    with parsing(path):
        fits(path, _settings(training), description)
        counters, watched = description["counters"], description["watched"]
        fleets, learner = training.fleets, training.learner
        parts = [_under(f"env/{i}/", tensors) for i in range(len(fleets.envs))]
        lives: list[Live] = [unflatten(live, f"live/{i}", tensors) for i, live in enumerate(fleets.lives)]
        rest = {name: x for name, x in tensors.items() if not name.startswith(("env/", "live/", "optimizer/"))}
        match(path, {n: x for n, x in _learning(training).items() if not n.startswith("optimizer/")}, rest)
        moments = _moments(learner.optimizer, tensors)
        for env, part, said in zip(fleets.envs, parts, description["envs"], strict=True):
            restore_env(path, env, part, said)
        fleets.lives, fleets.decisions = lives, int(counters["decisions"])
        fleets.memory = unflatten(fleets.memory, "memory", tensors)
        training.controller.load_state_dict(_under("controller/", tensors))
        learner.optimizer.load_state_dict(moments)
        learner.generator.set_state(tensors["generator"])
        for name in ("count", "mean", "squares"):
            setattr(training.scale, name, tensors[f"scale/{name}"].to(fleets.device))
        training.update, learner.updates = int(counters["update"]), int(counters["updates"])
        training.watch.usual, training.watch.alert = watched["usual"], int(watched["alert"])
        training.watch.starved = {name: int(count) for name, count in watched["starved"].items()}
        training.watch.explored |= watched.get("explored", {})  # absent from older checkpoints
        return dict(description["notes"])


def _settings(training: Training) -> dict[str, Any]:
    """What two trainings must have in common; how long they go on is not among it."""
    return {
        "config": asdict(training.config) | {"updates": None},
        "controller": asdict(training.controller.config),
        "fleets": len(training.fleets.envs),
    }


def _learning(training: Training) -> Tensors:
    learner, scale = training.learner, training.scale
    found = {f"controller/{name}": x for name, x in training.controller.state_dict().items()}
    for index, state in learner.optimizer.state_dict()["state"].items():
        found |= {f"optimizer/{index}/{name}": torch.as_tensor(x) for name, x in state.items()}
    found |= flatten({"count": scale.count, "mean": scale.mean, "squares": scale.squares}, "scale")
    found |= flatten(training.fleets.memory, "memory")
    found["generator"] = learner.generator.get_state()
    return found


def _moments(optimizer: torch.optim.Optimizer, tensors: Tensors) -> dict[str, Any]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        if name.startswith("optimizer/"):
            _, index, part = name.split("/")
            state.setdefault(int(index), {})[part] = x
    return optimizer.state_dict() | {"state": state}


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
