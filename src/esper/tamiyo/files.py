"""Controllers in files: weights, and what its inputs and choices mean."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from esper.leyline.actions import FIXED_CHOICES
from esper.leyline.files import fits, match, parsing, read, write
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, column_names
from esper.tamiyo.network import FAMILIES, Controller, ControllerConfig

CONTROLLER_FORMAT = "esper.controller"
SHIPPED = Path(__file__).parent / "shipped"
"""The run folder of the controller that comes with Esper."""


def save_controller(path: str | Path, controller: Controller) -> None:
    write(path, CONTROLLER_FORMAT, controller.state_dict(), _meaning() | {"config": asdict(controller.config)})


def load_controller(path: str | Path | None = None) -> Controller:
    """The controller of a file, or the one that comes with Esper.

    One that reads other features or chooses among other things is refused.
    """
    path = SHIPPED / "controller.safetensors" if path is None else path
    tensors, description = read(path, CONTROLLER_FORMAT)
    with parsing(path):
        fits(path, _meaning(), description)
        controller = Controller(ControllerConfig(**description["config"]))
        match(path, controller.state_dict(), tensors)
        controller.load_state_dict(tensors)
        return controller


def _meaning() -> dict[str, Any]:
    return {
        "host_features": column_names(HOST_FEATURES),
        "slot_features": column_names(SLOT_FEATURES),
        "choices": {head.name.lower(): names for head, names in FIXED_CHOICES.items()},
        "families": FAMILIES,
    }
