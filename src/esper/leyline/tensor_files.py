"""Read and write tensors as safetensors files with a JSON description in the metadata. Nothing is ever unpickled.

A file is written beside its target, flushed and renamed, so that a crash leaves either the old file or the new one.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from esper.leyline.atomic import replace_file
from esper.leyline.errors import EsperError, FileError

VERSION = 1
"""Version of the format, raised when older versions of Esper cannot read new files. See docs/files.md."""

Tensors = dict[str, Tensor]


@contextmanager
def parsing(path: str | Path) -> Iterator[None]:
    """Turn any error in the block into a `FileError` that names the file."""
    try:
        yield
    except FileError:
        raise
    except EsperError as error:
        raise FileError(f"{path} cannot be used: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
        raise FileError(f"{path} is damaged or of another format: {error!r} while reading its description") from error


def fields_of(record: Any, *later: str) -> dict[str, Any]:
    """Return the fields of a record for a file. Fields that were added `later` are left out while they have their
    default, as in older files."""
    defaults = {field.name: field.default for field in fields(record)}
    return {name: value for name, value in asdict(record).items() if not (name in later and value == defaults[name])}


def fits(path: str | Path, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise an error that names the first difference if a file was written for something else."""
    for name, value in json.loads(json.dumps(expected)).items():
        if found[name] != value:
            raise FileError(f"{path} holds another {name}: {found[name]}, not {value}")


def match(path: str | Path, expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Raise an error if the names or shapes of a file's tensors differ from those expected."""
    wrong = sorted(expected.keys() ^ found.keys())
    wrong += sorted(n for n in expected.keys() & found.keys() if expected[n].shape != found[n].shape)
    if wrong:
        raise FileError(
            f"{path} does not fit: {len(wrong)} tensors are missing, unknown or of another shape, first {wrong[0]!r}"
        )


def flatten(tree: Any, name: str) -> Tensors:
    """Return the tensors of nested records under names like `state/alpha`; fields that are None are left out."""
    if tree is None:
        return {}
    if isinstance(tree, Tensor):
        return {name: tree}
    parts = tree._asdict() if hasattr(tree, "_asdict") else tree
    return {path: x for part, value in parts.items() for path, x in flatten(value, f"{name}/{part}").items()}


def unflatten(like: Any, name: str, tensors: Mapping[str, Tensor]) -> Any:
    """Return a copy of nested records with the tensors that `flatten` named, on the device of the original."""
    if like is None:
        return None
    if isinstance(like, Tensor):
        return tensors[name].to(like.device)
    parts = like._asdict() if hasattr(like, "_asdict") else like
    found = {part: unflatten(value, f"{name}/{part}", tensors) for part, value in parts.items()}
    return type(like)(**found) if hasattr(like, "_asdict") else found


def write(path: str | Path, kind: str, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write tensors and their description to a file, atomically.

    Args:
        path: The file to write or replace.
        kind: The format, such as "esper.model"; `read` asks for the same.
        tensors: Tensors by name.
        description: Anything that JSON can hold.

    Raises:
        FileError: If the file cannot be written.
    """
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(description)
    metadata = {
        "format": kind,
        "version": str(VERSION),
        "sha256": _digest(plain, text),
        "description": text,
    }
    replace_file(path, save(plain, metadata))


def read(path: str | Path, kind: str) -> tuple[Tensors, dict[str, Any]]:
    """Return the tensors and the description of a file that `write` made.

    Raises:
        FileError: If the file is missing, damaged, of another format or from a newer version.
    """
    if not Path(path).is_file():
        raise FileError(f"there is no file {path}")
    try:
        with safe_open(str(path), "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise FileError(f"{path} is damaged or not a safetensors file: {error}") from None
    description = _checked(path, kind, metadata, tensors)
    # Copies are aligned like torch's own tensors; matrix products with unaligned ones round differently.
    return {name: tensor.clone() for name, tensor in tensors.items()}, description


def pack(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> bytes:
    """Return tensors and anything that JSON can hold as bytes, for another process."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save(plain, {"description": json.dumps(description)})


def unpack(content: bytes) -> tuple[Tensors, dict[str, Any]]:
    """Return what `pack` made bytes of."""
    size = int.from_bytes(content[:8], "little")
    description = json.loads(content[8 : 8 + size])["__metadata__"]["description"]
    return {name: tensor.clone() for name, tensor in load(content).items()}, json.loads(description)


def _checked(path: str | Path, kind: str, metadata: Mapping[str, str], tensors: Tensors) -> dict[str, Any]:
    if metadata.get("format") != kind:
        raise FileError(f"{path} is not an {kind} file, but {metadata.get('format', 'of an unknown format')}")
    if not metadata.get("version", "").isdecimal():
        raise FileError(f"{path} is damaged: it has no version")
    if int(metadata["version"]) > VERSION:
        raise FileError(
            f"{path} was written by a newer Esper (format version {metadata['version']}, this one reads up to"
            f" {VERSION}): upgrade Esper"
        )
    text = metadata.get("description", "")
    if metadata.get("sha256") != _digest(tensors, text):
        raise FileError(f"{path} is damaged: its content does not match its checksum")
    with parsing(path):
        return dict(json.loads(text))


def _digest(tensors: Mapping[str, Tensor], description: str) -> str:
    digest = hashlib.sha256(description.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
