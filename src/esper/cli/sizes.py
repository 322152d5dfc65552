"""Parse memory sizes such as 2GB."""

import re

from esper.leyline.errors import EsperError

Size = str | None
UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def size_in_bytes(text: Size) -> int | None:
    """Return the bytes of a size such as 2GB, 512MB or 1048576; None stays None."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([\d.]+)\s*([KMGT]?B?)\s*", text.upper())
    unit = match and (match[2] if match[2].endswith("B") or not match[2] else f"{match[2]}B")
    if match is None or unit not in {*UNITS, "B"}:
        raise EsperError(f"memory_budget must be a size such as 2GB or 512MB, not {text!r}")
    try:
        return int(float(match[1]) * UNITS.get(unit, 1))
    except ValueError:
        raise EsperError(f"memory_budget must be a size such as 2GB or 512MB, not {text!r}") from None
