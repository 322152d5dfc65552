"""Save and load controllers: weights, and the names of their features and choices."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esper.leyline.actions import FIXED_CHOICES
from esper.leyline.tensor_files import fits, match, parsing, read, write
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, column_names
from esper.tamiyo.network import DESCRIPTORS, FAMILIES, Controller, ControllerConfig

CONTROLLER_FORMAT = "esper.controller"
SHIPPED = Path(__file__).parent / "shipped"
"""Run folder of the controller that ships with Esper."""
CONTROLLER = "controller.safetensors"
"""Name of the controller's file in a run folder."""
READS = {
    "host_features": "trunk.0.weight",
    "slot_features": "slot.0.weight",
    "blueprint_features": "blueprint.0.weight",
}
"""The weights that read each table of features, in their first columns."""


def save_controller(path: str | Path, controller: Controller) -> None:
    """Write a controller to a file: weights, config, and the names of its features and choices.

    The file is replaced as a whole: a crash leaves the old one or the new one.

    Args:
        path: File to write, usually named `*.safetensors`.
        controller: Controller to save.

    Example:
        >>> esper.save_controller("controller.safetensors", controller)
    """
    write(path, CONTROLLER_FORMAT, controller.state_dict(), _names() | {"config": asdict(controller.config)})


def load_controller(path: str | Path | None = None) -> Controller:
    """Load a controller from a file or a run folder, or the one that ships with Esper.

    A controller saved before some feature existed ignores that feature.

    Args:
        path: File that `save_controller` wrote, or a run folder. None: the shipped controller.

    Returns:
        The controller, on the CPU.

    Raises:
        FileError: If the file is missing or damaged, or if its controller reads features or makes choices that this
            version of Esper does not have.

    Example:
        >>> policy = esper.LearnedPolicy(esper.load_controller())
    """
    path = SHIPPED if path is None else Path(path)
    path = path / CONTROLLER if path.is_dir() else path
    tensors, description = read(path, CONTROLLER_FORMAT)
    with parsing(path):
        description.setdefault("blueprint_features", list(DESCRIPTORS[:-1]))  # absent from older files
        for features, weight in READS.items():
            old, new = description[features], list(_names()[features])
            if set(old) < set(new):
                description[features] = new
                tensors[weight] = _widened(new, old, tensors[weight])
        fits(path, _names(), description)
        controller = Controller(ControllerConfig(**description["config"]))
        match(path, controller.state_dict(), tensors)
        controller.load_state_dict(tensors)
        return controller


def _widened(new: list[str], old: list[str], weight: Tensor) -> Tensor:
    """Insert zero columns for features that did not exist when the weights were saved."""
    known, rest = weight.split([len(old), weight.shape[1] - len(old)], 1)
    columns = weight.new_zeros(len(weight), len(new))
    columns[:, [new.index(name) for name in old]] = known
    return torch.cat([columns, rest], 1)


def _names() -> dict[str, Any]:
    return {
        "host_features": column_names(HOST_FEATURES),
        "slot_features": column_names(SLOT_FEATURES),
        "blueprint_features": DESCRIPTORS,
        "choices": {head.name.lower(): names for head, names in FIXED_CHOICES.items()},
        "families": FAMILIES,
    }
