"""Define the errors that Esper raises for input it cannot use."""

import difflib
from collections.abc import Iterable


class EsperError(ValueError):
    """An input that cannot be used: one sentence that names the field, the value and the fix.

    It is a `ValueError`, and the base class of all errors that Esper raises on purpose.
    """


class FileError(EsperError):
    """A file that is missing, damaged, of another format, or written by a newer version of Esper."""


def unknown(what: str, name: object, known: Iterable[str]) -> EsperError:
    """Return the error for an unknown name, with the closest known name or a list of all."""
    known = [str(k) for k in known]
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known) or 'none'}."
    return EsperError(f"unknown {what} {name!r}: {hint}")
