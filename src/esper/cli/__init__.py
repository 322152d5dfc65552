"""Command line of Esper."""

import sys
from collections.abc import Callable, Sequence

from esper.cli.commands import parse
from esper.cli.threads import let_waiting_threads_sleep
from esper.leyline.errors import EsperError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `esper`. An error is one sentence and exit code 2; with `--debug` anywhere, it is a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    let_waiting_threads_sleep()
    explained(lambda: parse([argument for argument in given if argument != "--debug"]).run(), "--debug" in given)


def explained(run: Callable[[], object], debug: bool) -> None:
    """Run a command; turn an error into one sentence and exit code 2, unless `debug`."""
    try:
        run()
    except EsperError as error:
        if debug:
            raise
        print(f"esper: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except RuntimeError as error:  # torch's: another kind of error is a fault of Esper and deserves its traceback
        if debug:
            raise
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        print(f"esper: torch cannot do this: {reason}; `--debug` shows where", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader of the output is gone
        raise SystemExit(0) from None
