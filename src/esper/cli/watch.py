"""`esper watch`: show a run in a terminal while another process trains it."""

import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from rich.live import Live

from esper.cli.console import literal_console
from esper.cli.flags import Flag, RunDir
from esper.leyline.errors import EsperError
from esper.telemetry import Board, RunFolder
from esper.telemetry.setting import setting_of

ENVIRONMENT = "environment.json"


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Show the progress of a run from another terminal."""

    run_dir: RunDir
    """Folder of the run."""
    once: Flag = False
    """Print the current state and exit."""
    every: float = 1.0
    """Seconds between refreshes."""
    heads: Flag = False
    """Show the statistics of each head of the controller, too."""

    def run(self) -> None:
        if not self.every > 0:
            raise EsperError(f"every must be positive, not {self.every}")
        folder, console = RunFolder.open(self.run_dir), literal_console()
        environment = folder.environment() if (folder.path / ENVIRONMENT).exists() else {}
        setting = setting_of(folder.config(), environment)
        board = Board(str(folder.path), setting.updates, setting=setting, heads=self.heads)
        lengths = refresh(board, folder, {})
        if self.once:
            console.print(board)
        else:
            with Live(board, console=console, auto_refresh=False) as live, suppress(KeyboardInterrupt):
                while is_going_on(folder):
                    time.sleep(self.every)
                    lengths = refresh(board, folder, lengths)
                    live.refresh()
        if not is_going_on(folder) and not folder.done:
            resume = shlex.join(["esper", "resume", str(folder.path)])
            console.print(f"stopped after update {len(folder.reports())}: resume it with `{resume}`", soft_wrap=True)


def refresh(board: Board, folder: RunFolder, before: Mapping[str, int]) -> Mapping[str, int]:
    """Read what a board shows, if the lengths of the logs have changed, and return them.

    Logs are read from the beginning: a resumed run cuts them back.
    """
    board.start(folder.start())
    lengths = folder.offsets()
    if lengths != before:
        board.reports = folder.reports()
    return lengths


def is_going_on(folder: RunFolder) -> bool:
    """Return whether a run is not done and a process is training it."""
    writer = folder.writer()  # first: a run that ends in between is done, not stopped
    return writer is not None and not folder.done
