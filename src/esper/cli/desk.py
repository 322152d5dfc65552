"""Write the reports of a run down, show them, and tell trackers."""

import json as json_module
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Annotated, Any

from rich.console import Console
from rich.live import Live

from esper.cli.flags import Flag, optional
from esper.leyline.errors import EsperError
from esper.leyline.json_records import jsonable
from esper.leyline.reports import UpdateReport
from esper.recipes import Recipe
from esper.telemetry import SINKS, Board, RunFolder, Sink, SinkName
from esper.telemetry.setting import setting_of

PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
"""Print text as it is: names of files and settings are no markup."""


@dataclass(frozen=True, kw_only=True)
class Logging:
    """Where the reports of a run go besides its folder."""

    log: Annotated[tuple[SinkName, ...], optional("NAME ...", "none")] = ()
    """Trackers that get every update as well: tensorboard, wandb, mlflow."""
    json: Flag = False
    """Print each update as one line of JSON."""
    heads: Flag = False
    """Show the statistics of each head of the controller, too."""

    def arguments(self) -> list[str]:
        """Return the flags of the command line that say this."""
        switches = [f"--{name}" for name in ("json", "heads") if getattr(self, name)]
        return [*(("--log", *self.log) if self.log else ()), *switches]

    def check(self) -> None:
        """Raise an error if a tracker is not installed, before anything is written."""
        for name in self.log:
            if find_spec(name) is None:
                raise EsperError(f"{name} is not installed: pip install 'esper-nn[{name}]'")

    @contextmanager
    def told(self, folder: RunFolder, asked: Recipe, update: int) -> Iterator[Callable[[UpdateReport], None]]:
        """Open all trackers, and yield a function that sends them a report; one that fails gets no more of them."""
        with ExitStack() as open_sinks:
            sinks: dict[SinkName, Sink] = {}
            for name in self.log:
                try:
                    sinks[name] = SINKS[name](folder.path, folder.identity, asked.plain(), update)
                except EsperError as error:
                    raise EsperError(f"{error}; `esper resume {folder.path}` goes on without {name}") from error
                open_sinks.callback(_carefully, name, sinks[name].close)

            def tell(report: UpdateReport) -> None:
                for name in list(sinks):
                    if not _carefully(name, sinks[name].hear, report):
                        del sinks[name]

            yield tell

    @contextmanager
    def shown(self, board: Board, console: Console) -> Iterator[Callable[[UpdateReport], None]]:
        """Yield a function that shows a report: as JSON, on a board in a terminal, as a line elsewhere."""
        if self.json:
            yield lambda report: print(json_module.dumps(jsonable(asdict(report.brief()))), flush=True)
        elif console.is_terminal:
            with Live(board, console=console, auto_refresh=False) as live:
                yield lambda report: live.refresh()
        else:
            yield lambda report: console.print(board.line(), **PLAIN)


def _carefully(name: str, do: Callable[..., object], *arguments: object) -> bool:
    """Call a tracker, and return whether it worked; if not, a warning says why."""
    try:
        do(*arguments)
    except Exception as error:
        warnings.warn(f"{name} no longer listens: {error}", stacklevel=2)
        return False
    return True


class Desk:
    """Writes the reports of a run down, shows them and tells trackers: what the first worker does besides training."""

    def __init__(self, folder: RunFolder, asked: Recipe, logging: Logging, console: Console) -> None:
        self.folder, self.asked, self.logging, self.console = folder, asked, logging, console
        setting = setting_of(folder.config(), folder.environment())
        reports = folder.reports()
        self.board = Board(str(folder.path), setting.updates, reports, setting=setting, heads=logging.heads)
        self.listeners: list[Callable[[UpdateReport], object]] = []

    @contextmanager
    def told(self) -> Iterator[None]:
        """Open all trackers."""
        with self.logging.told(self.folder, self.asked, len(self.board.reports)) as tell:
            self.listeners.append(tell)
            yield

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the reports that are heard in the block."""
        self.board.start(self.folder.start())
        with self.logging.shown(self.board, self.console) as show:
            self.listeners.append(show)
            yield
            self.listeners.remove(show)

    def hear(self, report: UpdateReport) -> None:
        """Write down an update, and say so."""
        self.folder.append(report)
        report = report.brief()
        self.board.hear(report)
        for listener in self.listeners:
            listener(report)

    def say_stopped(self, phase: str) -> None:
        during = f" during {phase}," if phase else ""
        made = f"after update {len(self.board.reports)}"
        self.console.print(f"stopped{during} {made}: go on with `esper resume {self.folder.path}`", **PLAIN)
