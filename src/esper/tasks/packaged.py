"""Load tasks whose data comes with a Python package, without downloads or pickles."""

import hashlib
import os
import sysconfig
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

from esper.leyline.errors import EsperError, FileError
from esper.leyline.objectives import CLASSIFICATION
from esper.leyline.rng import isolated
from esper.leyline.specs import TaskSpec
from esper.leyline.state import Split
from esper.tasks.data import TaskData, divide, read_npz, shuffled, standardized, windows

MNIST1D_SHA256 = "c23c4d3e5f1acb9443f78f9165c64ff8877ce49a1d77bc2d6650a424201b5157"
"""Checksum of the standard dataset, rounded to six decimals, because processors differ in the last bits."""


def digits() -> TaskData:
    """Classify handwritten digits (8×8×1 images, 10 classes; from scikit-learn)."""
    data = _package("sklearn.datasets", "digits").load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[..., None]
    split = shuffled(x, torch.tensor(data.target, dtype=torch.long), "digits")
    test, validation, train = divide(split, 297, 300)
    xs = standardized(train.x, validation.x, test.x)
    spec = TaskSpec("digits", (8, 8, 1), 10, CLASSIFICATION)
    return TaskData(spec, Split(xs[0], train.y), Split(xs[1], validation.y), Split(xs[2], test.y))


def mnist1d(examples: int = 3400) -> TaskData:
    """Classify digits drawn as 1-D signals (40×1 signals, 10 classes; from the package mnist1d).

    `examples` is the number of training examples; validation and test data have 600 and 1,000.
    """
    if not 1 <= examples <= 3400:
        raise EsperError(f"examples must be between 1 and 3400, not {examples}")
    path = cache_folder() / "mnist1d.npz"
    arrays = _cached(path)
    if arrays is None:
        arrays = _generated()
        _store(path, arrays)
    x, y = torch.from_numpy(arrays["x"])[..., None], torch.from_numpy(arrays["y"])
    train, validation, test = divide(Split(x, y), 3400, 600)
    train = Split(train.x[:examples], train.y[:examples])
    return TaskData(TaskSpec("mnist1d", (40, 1), 10, CLASSIFICATION), train, validation, test)


CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""What source code consists of; other characters count as the first of these."""
NO_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def source(context: int = 64, characters: int = 1_000_000, validation: int = 0) -> TaskData:
    """Predict the next character of the source of Python's standard library (64 tokens, 96 classes).

    `context` is the number of tokens per example, `characters` the length of the text. Its last two tenths, of other
    files, are validation and test data; `validation` is the number of validation examples, 0: all. The text differs
    between versions of Python.
    """
    if context < 1 or characters <= 10 * context:
        raise EsperError(f"characters ({characters}) must be above 10 times context ({context}), which is positive")
    text = _library(characters)
    if len(text) < characters:
        raise EsperError(f"characters must be at most {len(text)}, the source that is installed, not {characters}")
    place = np.zeros(256, dtype=np.int64)
    place[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(len(CHARACTERS))
    codes = torch.from_numpy(place[np.frombuffer(text, np.uint8)])
    return windows("source", codes, len(CHARACTERS), context, validation)


def _library(length: int) -> bytes:
    """Return files of Python's standard library, one after the other in an order that mixes its packages."""
    root, found = Path(sysconfig.get_path("stdlib")), []
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in NO_SOURCE]
        found += [Path(folder, name).relative_to(root).as_posix() for name in files if name.endswith(".py")]
    text = bytearray()
    for name in sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if len(text) >= length:
            break
        text += (root / name).read_bytes()
    return bytes(text[:length])


def cache_folder() -> Path:
    """Return the folder for generated data: $ESPER_CACHE, or `esper` in the user's cache."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "esper"
    return Path(os.environ.get("ESPER_CACHE") or default)


def _package(module: str, task: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError:
        package = {"sklearn": "scikit-learn"}.get(module.partition(".")[0], module.partition(".")[0])
        raise EsperError(f"task {task!r} needs the package {package}: pip install 'esper-nn[data]'") from None


def _generated() -> dict[str, np.ndarray]:
    """Generate the standard dataset. The package seeds the global generators; their state is restored."""
    module = _package("mnist1d.data", "mnist1d")
    with isolated(0):
        data = module.make_dataset(module.get_dataset_args())
    x = np.concatenate([data["x"], data["x_test"]])
    y = np.concatenate([data["y"], data["y_test"]])
    return _expected({"x": np.round(x, 6).astype(np.float32), "y": y.astype(np.int64)})


def _expected(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    if sha256(arrays) != MNIST1D_SHA256:
        raise EsperError(
            "the installed package mnist1d generates other data than expected: install the versions in constraints.txt"
        )
    return arrays


def _cached(path: Path) -> dict[str, np.ndarray] | None:
    """Return the cached arrays, or None if they are missing or damaged."""
    try:
        arrays = read_npz(path)
    except FileError:
        return None
    return arrays if sha256(arrays) == MNIST1D_SHA256 else None


def _store(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays to the cache, or warn if that fails."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            np.savez(file, x=arrays["x"], y=arrays["y"])
        os.replace(partial, path)
    except OSError as error:
        warnings.warn(
            f"cannot write {path} ({error.strerror}): the data will be generated again next time", stacklevel=2
        )


def sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the checksum of arrays with their names, types and shapes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
