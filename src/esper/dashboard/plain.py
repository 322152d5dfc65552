"""Read values out of parsed JSON that may hold anything, and make text and values safe to show."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

DEEP, LONG, MANY = 12, 2000, 2000
"""Nesting, characters of a text and entries of a list or object beyond which a value is cut."""
CUT = "…"
EXACT = 2**53
"""Largest whole number that JavaScript holds exactly."""


def number(value: object) -> float | None:
    """Return a finite number; None for anything else, and for a missing value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def count(value: object, most: int = EXACT) -> int | None:
    """Return a whole number from 0 to a bound, up to which pages can count; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None


def text(value: object, most: int = LONG) -> str | None:
    """Return text without characters that are not shown, cut to a length; None for anything else."""
    if not isinstance(value, str):
        return None
    said = value if len(value) <= most else value[: most - 1] + CUT
    return said if said.isprintable() else "".join(map(_shown, said))


def _shown(character: str) -> str:
    """Return a character, a space for any white space, or a replacement for what is not shown: control characters,
    marks that turn the direction of text, halves of characters."""
    return character if character.isprintable() else " " if character.isspace() else "\ufffd"


def sentence(said: object) -> str:
    """Return an error or another text as a clean sentence; the name of a file at its start keeps its small letter."""
    found = text(str(said).rstrip("."), 500) or "?"
    is_name = any(mark in found.partition(" ")[0] for mark in "._/")
    return f"{found if is_name else found[:1].upper() + found[1:]}."


def inside(value: object, *path: str | int) -> Any:
    """Return a value inside nested objects and lists; None where the path leads nowhere."""
    for step in path:
        if isinstance(step, str) and isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(step, int) and isinstance(value, Sequence) and not isinstance(value, str):
            value = value[step] if -len(value) <= step < len(value) else None
        else:
            return None
    return value


def tidy(value: object, deep: int = DEEP) -> Any:
    """Return a copy for JSON: numbers that are not finite are None, and what is too deep or long is cut."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int | float):
        return value if isinstance(value, int) and abs(value) <= EXACT else number(value)
    if deep == 0:
        return CUT
    if isinstance(value, Mapping):
        pairs = list(value.items())
        return {text(str(name), 200): tidy(part, deep - 1) for name, part in pairs[:MANY]} | _cut(pairs)
    if isinstance(value, list | tuple):
        return [tidy(part, deep - 1) for part in value[:MANY]] + [CUT] * (len(value) > MANY)
    return text(str(value))


def _cut(pairs: Sequence[object]) -> dict[str, str]:
    return {CUT: f"{len(pairs) - MANY:,} more"} if len(pairs) > MANY else {}


def short(value: float | None) -> float | None:
    """Return a finite number with six digits, which make a small page; None for anything else."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
