"""The command line: parse, wire, print."""

import sys
from collections.abc import Sequence

from esper.cli.threads import let_waiting_threads_sleep
from esper.leyline.errors import EsperError


def main(arguments: Sequence[str] | None = None) -> None:
    """`esper ...`: errors of use are one sentence and exit code 2; `--debug` anywhere shows where they come from."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    let_waiting_threads_sleep()
    from esper.cli.commands import parse

    try:
        parse([argument for argument in given if argument != "--debug"]).run()
    except EsperError as error:
        if debug:
            raise
        print(f"esper: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # whoever read our output has seen enough
        raise SystemExit(0) from None
