"""Replace a file as a whole: a crash leaves either the old one or the new one."""

import os
from contextlib import suppress
from pathlib import Path

from esper.leyline.errors import FileError


def replace_file(path: str | Path, content: bytes | str) -> None:
    """Write a file beside its target, flush it to disk, and rename it.

    Raises:
        FileError: If the file cannot be written. The old one is unchanged then.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
