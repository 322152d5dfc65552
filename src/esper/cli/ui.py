"""`esper ui`: serve run folders and growth logs as a local web page."""

import os
import platform
import sys
import webbrowser
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from tyro.conf import Positional, arg

from esper.cli.flags import optional
from esper.leyline.errors import EsperError

RUNS = Path("runs")


def has_desktop() -> bool:
    """Return whether somebody sits at a terminal with a browser beside it."""
    is_local = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")) or sys.platform in (
        "darwin",
        "win32",
    )
    return sys.stdout.isatty() and is_local and "SSH_CONNECTION" not in os.environ


@dataclass(frozen=True, kw_only=True)
class Ui:
    """Show runs and growth logs as a live page in the browser.

    The page shows everything below a folder, now and while it grows. It is read-only, works offline, and answers this
    machine alone, unless it is given a host and a token.
    """

    folder: Annotated[
        Path | None, Positional, arg(metavar="[FOLDER]", help_behavior_hint="(default: runs/, or the current folder)")
    ] = None
    """Folder with runs or growth logs, at any depth; or that of one run."""
    port: Annotated[int, arg(metavar="NUMBER")] = 8266
    """Port of the page; 0 takes any free one."""
    host: Annotated[str, arg(metavar="HOSTNAME")] = "127.0.0.1"
    """Address to answer at. Any other than this machine's own needs --token."""
    token: Annotated[str | None, optional("SECRET", "none")] = None
    """What a visitor must know: part of the address that is printed."""
    open: Annotated[bool, arg(help_behavior_hint="(default: in a terminal with a desktop)")] = field(
        default_factory=has_desktop
    )
    """Whether to open a browser."""

    def run(self) -> None:
        if find_spec("starlette") is None or find_spec("uvicorn") is None:
            raise EsperError("esper ui needs the packages starlette and uvicorn: pip install 'esper-nn[ui]'")
        from esper.dashboard.plain import text
        from esper.ui.folders import Tree
        from esper.ui.guard import is_loopback
        from esper.ui.library import Library
        from esper.ui.server import listening, serve

        if not 0 <= self.port < 65536:
            raise EsperError(f"port must be from 0 to 65535, not {self.port}")
        if self.token is not None and not (self.token.strip() and self.token.isascii() and self.token.isprintable()):
            raise EsperError("token must be some letters, digits or signs of ASCII")
        folder = self.folder or (RUNS if RUNS.is_dir() else Path())
        library, listener = Library(Tree(folder)), listening(self.host, self.port)
        where, port = listener.getsockname()[:2]
        if self.token is None and not is_loopback(where):
            listener.close()
            raise EsperError(
                f"host {self.host} can be reached by other machines: give a --token that visitors must know"
            )
        name = platform.node()
        host = name if where in ("0.0.0.0", "::") else f"[{where}]" if ":" in where else self.host
        address = f"http://{host}:{port}/"
        if self.token is not None:
            address += f"?token={quote(self.token, safe='')}"
        print(f"showing {text(str(folder.resolve()))} at {address}  (Ctrl-C ends)", flush=True)
        if self.open:
            webbrowser.open(address)
        serve(library, listener, self.token, (self.host, name, f"{name}.local") if self.token else ())
