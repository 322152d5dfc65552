"""Controllers in files: weights, and what its inputs and choices mean."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esper.leyline.actions import FIXED_CHOICES
from esper.leyline.tensor_files import fits, match, parsing, read, write
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, column_names
from esper.tamiyo.network import FAMILIES, Controller, ControllerConfig

CONTROLLER_FORMAT = "esper.controller"
SHIPPED = Path(__file__).parent / "shipped"
"""The run folder of the controller that comes with Esper."""
CONTROLLER = "controller.safetensors"
"""In a run's folder."""
READS = {"host_features": "trunk.0.weight", "slot_features": "slot.0.weight"}
"""The weights that come first to features, which are their first columns."""


def save_controller(path: str | Path, controller: Controller) -> None:
    write(path, CONTROLLER_FORMAT, controller.state_dict(), _meaning() | {"config": asdict(controller.config)})


def load_controller(path: str | Path | None = None) -> Controller:
    """The controller of a file or of a run's folder, or the one that comes with Esper.

    One that reads features that are no more, or chooses among other things, is refused; features that are newer than it
    mean nothing to it.
    """
    path = SHIPPED if path is None else Path(path)
    path = path / CONTROLLER if path.is_dir() else path
    tensors, description = read(path, CONTROLLER_FORMAT)
    with parsing(path):
        for features, weight in READS.items():
            old, new = description[features], list(_meaning()[features])
            if set(old) < set(new):
                description[features] = new
                tensors[weight] = _among(new, old, tensors[weight])
        fits(path, _meaning(), description)
        controller = Controller(ControllerConfig(**description["config"]))
        match(path, controller.state_dict(), tensors)
        controller.load_state_dict(tensors)
        return controller


def _among(new: list[str], old: list[str], weight: Tensor) -> Tensor:
    """Weights that read more features than they did, with zeros for those that they do not know."""
    known, rest = weight.split([len(old), weight.shape[1] - len(old)], 1)
    columns = weight.new_zeros(len(weight), len(new))
    columns[:, [new.index(name) for name in old]] = known
    return torch.cat([columns, rest], 1)


def _meaning() -> dict[str, Any]:
    return {
        "host_features": column_names(HOST_FEATURES),
        "slot_features": column_names(SLOT_FEATURES),
        "choices": {head.name.lower(): names for head, names in FIXED_CHOICES.items()},
        "families": FAMILIES,
    }
