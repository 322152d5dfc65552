"""Save and load grown hosts: weights of the host and its seeds, and which seed is in which slot."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from esper.kasmina.host import Host
from esper.kasmina.slots import build_seed
from esper.leyline.actions import Graft
from esper.leyline.rng import isolated
from esper.leyline.tensor_files import Tensors, fields_of, fits, match, parsing, read, write

MODEL_FORMAT = "esper.model"


def save_model(path: str | Path, host: Host) -> None:
    """Write a host and its seeds to a model file.

    The file is a safetensors file that holds weights and topology, without optimizer state.

    Args:
        path: The file to write or replace.
        host: The host, with or without seeds.

    Raises:
        FileError: If the file cannot be written.

    Example:
        >>> save_model("host.safetensors", host)
    """
    write(path, MODEL_FORMAT, host.state_dict(), topology(host))


def load_model(path: str | Path, build: Callable[[], Host]) -> Host:
    """Load a host and its seeds from a model file.

    Args:
        path: A file that `save_model` wrote.
        build: A function that builds the bare host that was saved. Its weights are replaced.

    Returns:
        The saved host, on the CPU, with its seeds planted.

    Raises:
        FileError: If the file is missing, damaged, from a newer version, or of another host.

    Example:
        >>> host = load_model("host.safetensors", lambda: build_host(spec))
    """
    tensors, description = read(path, MODEL_FORMAT)
    with parsing(path):
        return regrow(path, build, tensors, description)


def topology(host: Host) -> dict[str, Any]:
    """Return the description of a host's slots and seeds, for files."""
    seeds = {slot.name: host.slot(s).seed for s, slot in enumerate(host.slot_specs)}
    return {
        "host": fields_of(host.spec, "slots"),
        "slots": [fields_of(slot, "block") for slot in host.slot_specs],
        "seeds": {
            name: {"blueprint": seed.blueprint, "graft": seed.graft.name}
            for name, seed in seeds.items()
            if seed is not None
        },
    }


def regrow(path: str | Path, build: Callable[[], Host], tensors: Tensors, description: Mapping[str, Any]) -> Host:
    """Build a host and give it the seeds and weights of a file."""
    with isolated(0):
        host = build()
    fits(path, {part: topology(host)[part] for part in ("host", "slots")}, description)
    for s, slot in enumerate(host.slot_specs):
        if slot.name in description["seeds"]:
            seed = description["seeds"][slot.name]
            host.slot(s).plant(build_seed(slot, seed["blueprint"], Graft[seed["graft"]]))
    match(path, host.state_dict(), tensors)
    host.load_state_dict(tensors, assign=True)
    return host
