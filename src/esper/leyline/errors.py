"""What Esper raises when it is given something it cannot use."""

import difflib
from collections.abc import Iterable


class EsperError(ValueError):
    """Bad input: one sentence that names the field and the fix."""


class FileError(EsperError):
    """A file that is missing, damaged, foreign or from a newer Esper."""


def unknown(what: str, name: object, known: Iterable[str]) -> EsperError:
    """The error for a name that is not in a table: it says what would have been."""
    known = [str(k) for k in known]
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known) or 'none'}."
    return EsperError(f"unknown {what} {name!r}: {hint}")
