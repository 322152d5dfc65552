"""Answer requests over HTTP: the page, JSON about runs, and events when something changes."""

import errno
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from esper.dashboard.plain import sentence
from esper.dashboard.sentences import WORDS
from esper.leyline.errors import EsperError
from esper.ui.guard import Guard
from esper.ui.library import Library
from esper.ui.pages import Pages
from esper.ui.runs import Run
from esper.ui.watching import MOST_CLIENTS, Stream, Watcher

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
    "png": "image/png",
}
MOST_ROWS, MOST_POINTS, MOST_FRAMES = 1000, 2000, 200
"""Largest answers: rows of the list, points of curves, decisions of a garden."""
LARGEST = 2**53
STATES = ("", "running", "stopped", "done", "damaged")


def answer(found: Any, status: int = 200) -> Response:
    """Return JSON. Text is escaped to ASCII, so that any text can be sent."""
    body = json.dumps(found, separators=(",", ":"), allow_nan=False)
    return Response(body, status, media_type="application/json")


def problem(said: str, status: int) -> Response:
    """Return an error in one sentence."""
    return answer({"problem": said}, status)


def whole(request: Request, name: str, default: int, least: int = 0, most: int = LARGEST) -> int:
    """Return a whole number of the query.

    Raises:
        EsperError: It is none, or out of range.
    """
    return _whole(request.query_params.get(name, str(default)), name, least, most)


def _whole(given: str, name: str, least: int = 0, most: int = LARGEST) -> int:
    if not (given.isascii() and given.isdigit() and len(given) <= 16 and least <= int(given) <= most):
        raise EsperError(f"{name} must be a whole number from {least} to {most}")
    return int(given)


class Site:
    """The answers of the server."""

    def __init__(self, library: Library) -> None:
        self.library, self.pages = library, Pages(library)
        self.watcher = Watcher(library)

    def runs(self, request: Request) -> Response:
        """Answer with a part of the list of runs."""
        query = request.query_params
        state = query.get("state", "")
        if state not in STATES:
            raise EsperError(f"state must be one of {', '.join(STATES[1:])}, or empty")
        return answer(
            self.library.page(
                offset=whole(request, "offset", 0),
                limit=whole(request, "limit", 200, 1, MOST_ROWS),
                sort=query.get("sort", "-modified")[:40],
                search=query.get("search", "")[:200],
                state=state,
            )
        )

    def of_run(self, make: Callable[[Run, Request], Any]) -> Callable[[Request], Response]:
        """Return the endpoint of an answer about one run."""

        def endpoint(request: Request) -> Response:
            run = self.library.run(request.path_params["id"])
            if run is None:
                return problem("There is no such run in this folder: it may have been moved or removed.", 404)
            run.look(self.library.tree, time.monotonic())
            found = make(run, request)
            return problem("This run has no such episode.", 404) if found is None else answer(found)

        return endpoint

    def routes(self) -> list[Route]:
        """Return the table of all paths."""
        pages, run = self.pages, "/api/runs/{id}"
        of_run: dict[str, Callable[[Run, Request], Any]] = {
            "": lambda run, _: pages.detail(run),
            "/curves": lambda run, r: pages.curves(run, whole(r, "points", 600, 1, MOST_POINTS)),
            "/garden": lambda run, r: pages.garden(run, whole(r, "from", 0), whole(r, "count", 50, 1, MOST_FRAMES)),
            "/lives": lambda run, _: pages.lives(run),
            "/lives/{index}": lambda run, r: pages.life(
                run, _whole(r.path_params["index"], "the number of an episode")
            ),
            "/exams": lambda run, _: pages.exams(run),
            "/growth": lambda run, _: pages.growth(run),
        }
        return [
            Route("/", static),
            Route("/static/{name:path}", static),
            Route("/api/words", lambda _: answer(WORDS)),
            Route("/api/runs", self.runs),
            *(Route(run + path, self.of_run(make)) for path, make in of_run.items()),
            Route("/api/events", self.events),
        ]

    async def events(self, request: Request) -> Response:
        """Answer with a stream of changes."""
        id = request.query_params.get("run")
        if id is not None and id not in self.library.runs:
            return problem("There is no such run in this folder: it may have been moved or removed.", 404)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if len(self.watcher.clients) >= MOST_CLIENTS:
            return problem("Too many pages are open: close some.", 503)
        return Stream(self.watcher, id)


def static(request: Request) -> Response:
    """Answer with a file of the page; only names that are in the package are known."""
    name = request.path_params.get("name", "index.html")
    found = _static().get(name)
    ending = name.rpartition(".")[2]
    if found is None or ending not in TYPES:
        return problem("There is no such file.", 404)
    return Response(found.read_bytes(), media_type=TYPES[ending], headers={"Cache-Control": "no-cache"})


def _static() -> dict[str, Any]:
    """Return the files of the page by name."""
    folder = files("esper.dashboard") / "static"
    return {file.name: file for file in folder.iterdir() if file.is_file()} if folder.is_dir() else {}


def refused(request: Request, error: Exception) -> Response:
    """Answer an error that a request made."""
    return problem(sentence(error), 422)


def failed(request: Request, error: Exception) -> Response:
    """Answer a fault of the server, without a traceback."""
    return problem("The server failed to answer: its terminal says why.", 500)


def missing(request: Request, error: Exception) -> Response:
    """Answer a request for a path that does not exist."""
    return problem("There is nothing at this address.", 404)


def application(site: Site, token: str | None = None, hosts: tuple[str, ...] = ()) -> ASGIApp:
    """Return the server's application.

    Args:
        site: What is answered.
        token: What a request must know; None: any request of this machine is answered.
        hosts: Further names of this machine under which the server may be addressed.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        site.library.start()
        async with site.watcher:
            yield
        site.library.close()

    app = Starlette(
        routes=site.routes(),
        lifespan=lifespan,
        exception_handlers={EsperError: refused, HTTPException: missing, 500: failed},
    )
    app.router.redirect_slashes = False
    return Guard(app, token, hosts)


class Server(uvicorn.Server):
    """A server that ends at once on Ctrl-C, open streams included."""

    def __init__(self, site: Site, app: ASGIApp) -> None:
        self.site = site
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                limit_concurrency=256,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End all streams, then the server."""
        self.site.watcher.close()
        super().handle_exit(sig, frame)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; port 0 takes a free one.

    Raises:
        EsperError: The port is taken, or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError, OverflowError):
        raise EsperError(f"host {host!r} is no address of this machine: use 127.0.0.1") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        found.close()
        if error.errno == errno.EADDRINUSE:
            raise EsperError(
                f"port {port} is taken: choose another with --port, or --port 0 for any free one"
            ) from None
        raise EsperError(f"cannot listen at {host} port {port}: {error.strerror or error}") from None
    return found


def serve(library: Library, listener: socket.socket, token: str | None = None, hosts: tuple[str, ...] = ()) -> None:
    """Answer requests until Ctrl-C."""
    site = Site(library)
    server = Server(site, application(site, token, hosts))
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
