"""Convert parsed JSON into typed records, and records into JSON."""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from esper.leyline.errors import EsperError


def from_json(kind: Any, plain: Any, where: str, null: float | None = None) -> Any:
    """Convert parsed JSON into a value of a type, which may be a dataclass.

    Args:
        kind: The type: a dataclass, union, literal, tuple, mapping or plain type.
        plain: What `json.loads` returned.
        where: The path of the value, for error messages.
        null: The number that null stands for where a float is expected. None: null is an error.

    Raises:
        EsperError: If the value does not have this type; the message names the path.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _any_of(inner, plain, where, null)
    if origin is Literal:
        if plain not in inner:
            raise EsperError(f"{where} must be one of {', '.join(map(repr, inner))}, not {plain!r}")
        return plain
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(plain, Mapping):
            raise EsperError(f"{where} must be an object, not {plain!r}")
        return kind(**_fields(kind, plain, where, null))
    if origin is tuple:
        if not isinstance(plain, list | tuple):
            raise EsperError(f"{where} must be a list, not {plain!r}")
        kinds = inner[:1] * len(plain) if inner[-1] is Ellipsis else inner
        if len(kinds) != len(plain):
            raise EsperError(f"{where} must have {len(kinds)} entries, not {len(plain)}")
        return tuple(from_json(k, x, f"{where}[{i}]", null) for i, (k, x) in enumerate(zip(kinds, plain, strict=True)))
    if origin in (dict, Mapping):
        if not isinstance(plain, Mapping):
            raise EsperError(f"{where} must be an object, not {plain!r}")
        return {name: from_json(inner[1], value, f"{where}.{name}", null) for name, value in plain.items()}
    if kind is float:
        return _number(plain, where, null)
    if kind in (int, str, bool) and (not isinstance(plain, kind) or (kind is int and isinstance(plain, bool))):
        raise EsperError(f"{where} must be of type {kind.__name__}, not {plain!r}")
    return plain


def _any_of(kinds: tuple[Any, ...], plain: Any, where: str, null: float | None) -> Any:
    """Convert a value of a union: None, the only other type, or a plain type that fits exactly."""
    if plain is None and type(None) in kinds:
        return None
    kinds = tuple(k for k in kinds if k is not type(None))
    if len(kinds) == 1:
        return from_json(kinds[0], plain, where, null)
    if type(plain) not in kinds:
        raise EsperError(f"{where} must be of type {' or '.join(k.__name__ for k in kinds)}, not {plain!r}")
    return plain


def _fields(kind: type, plain: Mapping[str, Any], where: str, null: float | None) -> dict[str, Any]:
    hints = get_type_hints(kind)
    plain = {getattr(kind, "RENAMED", {}).get(name, name): value for name, value in plain.items()}
    unknown = sorted(plain.keys() - {f.name for f in fields(kind)})
    if unknown:
        raise EsperError(f"{where} has an unknown field {unknown[0]!r}")
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    if not needed <= plain.keys():
        raise EsperError(f"{where} lacks the field {min(needed - plain.keys())!r}")
    return {name: from_json(hints[name], value, f"{where}.{name}", null) for name, value in plain.items()}


def _number(plain: Any, where: str, null: float | None) -> float:
    if plain is None and null is not None:
        return null
    if isinstance(plain, int | float | str) and not isinstance(plain, bool):
        try:
            number = float(plain)
        except (ValueError, OverflowError):
            number = math.nan
        if not math.isnan(number):
            return number
    raise EsperError(f"{where} must be a number, not {plain!r}")


def jsonable(x: Any) -> Any:
    """Return a copy for JSON in which NaN and infinity, which JSON lacks, are None."""
    if isinstance(x, dict):
        return {name: jsonable(value) for name, value in x.items()}
    if isinstance(x, list | tuple):
        return [jsonable(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
