"""Read what an exam is given as files: controllers, data and growth plans."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from esper.leyline.errors import EsperError, FileError
from esper.tamiyo.policies import FixedPlan, PlanStep


def require_different(files: Sequence[Path]) -> None:
    """Refuse a training that is named twice, which would count as two."""
    seen: dict[bytes, Path] = {}
    for path in files:
        content = digest(path)
        if content in seen:
            raise EsperError(f"{seen[content]} and {path} are the same controller: name each training once")
        seen[content] = path


def digest(path: Path) -> bytes:
    """Return the SHA-256 of a file, or of all files in a folder."""
    sha256 = hashlib.sha256()
    try:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if not file.is_dir():
                sha256.update(str(file.relative_to(path)).encode() + file.read_bytes())
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None
    return sha256.digest()


def read_plan(path: Path) -> FixedPlan:
    """Read a growth plan from a JSON file."""
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(lines, list):
            raise TypeError(lines)
        return FixedPlan([PlanStep(int(line.pop("decision")), line) for line in lines], name=path.stem)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise FileError(f"{path} must hold a JSON list of objects with a decision and an op: {error!r}") from None
