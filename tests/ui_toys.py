"""Run folders for tests of the page, requests without a network, and a server in a thread."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from esper.leyline.json_records import jsonable
from esper.ui.folders import Tree
from esper.ui.library import Library
from esper.ui.runs import Run
from esper.ui.server import Server, Site, application, listening
from telemetry_toys import report

RECIPE = {"name": "smoke", "fleets": [{"task": "spirals", "host": "mlp", "widths": [4, 4]}], "learn": {"updates": 9}}
PLAIN = jsonable(asdict(report(0).brief()))


def line(update: int, objective: float | None = 0.5, **values: Any) -> str:
    """One line of reports.jsonl."""
    return json.dumps({**PLAIN, "update": update, "objective": objective, **values}) + "\n"


def short_line(update: int, objective: float | None = 0.5) -> str:
    """A line with only what a list needs."""
    return f'{{"update": {update}, "objective": {json.dumps(objective)}}}\n'


def write_run(folder: Path, objectives: list[float | None] | None = None, recipe: Any = RECIPE) -> Path:
    """Write a run with one update for each J."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "environment.json").write_text(json.dumps({"device": "cpu", "threads": 2}))
    (folder / "config.json").write_text(json.dumps({"version": 1, "recipe": recipe}))
    if objectives is not None:
        (folder / "reports.jsonl").write_text("".join(line(i, j) for i, j in enumerate(objectives)))
    return folder


def append(folder: Path, text: str, name: str = "reports.jsonl") -> None:
    """Add text to a log."""
    with open(folder / name, "a", encoding="utf-8") as file:
        file.write(text)


def write_growth(folder: Path, *lines: Mapping[str, Any]) -> Path:
    """Write the log of a growth."""
    folder.mkdir(parents=True, exist_ok=True)
    header = {"version": 1, "name": "GPT", "options": {}, "parameters": 100, "blocks": 2, "budget": 1e9}
    (folder / "growth.json").write_text(json.dumps(header))
    (folder / "growth.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


class Answer(NamedTuple):
    """What came back for a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Asker:
    """Asks the application directly, without a network. Every folder below has been found."""

    def __init__(self, folder: Path, token: str | None = None, hosts: tuple[str, ...] = ()) -> None:
        self.library = Library(Tree(folder))
        self.site = Site(self.library)
        self.app = application(self.site, token, hosts)
        self.search()

    def search(self) -> None:
        """Find the runs that are there now."""
        self.library._search()

    def read_all(self) -> None:
        """Do what the background reader does, until nothing is left."""
        self.library.look_at_all()
        while self.library._read_some(time.monotonic() + 5):
            pass

    def __call__(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Return the answer to a request; names of headers are written with an underscore for a dash."""
        return asyncio.run(asyncio.wait_for(self._ask(path, method, headers), 10))

    async def _ask(self, target: str, method: str, headers: Mapping[str, str]) -> Answer:
        raw, _, query = target.partition("?")
        given = {"host": "127.0.0.1:8266", **{name.replace("_", "-"): value for name, value in headers.items()}}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(raw),
            "raw_path": raw.encode("utf-8", "surrogatepass"),
            "query_string": query.encode("utf-8", "surrogatepass"),
            "root_path": "",
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8266),
        }
        sent: list[Any] = []
        asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive() -> Any:
            return next(asked, None) or await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        try:
            await self.app(scope, receive, send)  # pyright: ignore
        except ArithmeticError:
            assert sent, "an error must be answered, too"
        start = next(message for message in sent if message["type"] == "http.response.start")
        found = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], found, b"".join(message.get("body", b"") for message in sent))

    def run(self, name: str) -> Run:
        """Return a run by its name."""
        return next(run for run in self.library.runs.values() if run.name == name)

    def get(self, name: str, path: str = "") -> Any:
        """Return the JSON of one run."""
        found = self(f"/api/runs/{self.run(name).id}{path}")
        assert found.status == 200, found.body
        return found.json

    def listed(self, query: str = "") -> list[dict[str, Any]]:
        """Return the rows of the list."""
        return self(f"/api/runs?{query}").json["runs"]


class Live:
    """A server that runs in a thread."""

    def __init__(self, folder: Path, token: str | None = None) -> None:
        self.library = Library(Tree(folder))
        self.site = Site(self.library)
        self.server = Server(self.site, application(self.site, token))
        self.listener = listening("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})

    def get(self, path: str) -> Any:
        """Return the JSON at a path."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def id(self, name: str) -> str:
        """Return the id of a run."""
        return next(row["id"] for row in self.get(f"/api/runs?search={name}")["runs"] if row["name"] == name)

    @contextmanager
    def events(self, query: str = "") -> Iterator[http.client.HTTPResponse]:
        """Yield a stream of events that has begun."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", f"/api/events{query}")
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.readline() == b": esper\n"
            yield answer
        finally:
            connection.close()


def next_change(stream: http.client.HTTPResponse) -> dict[str, Any]:
    """Return the next change that a stream tells of."""
    end = time.monotonic() + 10
    while text := stream.readline().decode():
        assert time.monotonic() < end, "nothing was told"
        if text.startswith("data: "):
            return json.loads(text.removeprefix("data: "))
    raise AssertionError("the stream has ended")


@contextmanager
def live(folder: Path, token: str | None = None) -> Iterator[Live]:
    """Run a server while a test runs."""
    made = Live(folder, token)
    made.thread.start()
    try:
        yield made
    finally:
        made.server.handle_exit(2, None)
        made.thread.join(10)
        assert not made.thread.is_alive()


def until(what: Any, seconds: float = 10) -> Any:
    """Wait until a function returns something true, and return it."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.02)
    return found
