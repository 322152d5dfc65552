"""Tell open pages within two seconds what has changed, by looking at the files that they show once a second."""

import asyncio
import json
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from esper.ui.library import Library
from esper.ui.runs import FILES, Run

EVERY = 1.0
"""Seconds between two looks at the files; more if looking takes more than a quarter of the time."""
HEARTBEAT = 15.0
"""Seconds without a change after which a comment is sent, so that nobody on the way ends the connection."""
MOST_CLIENTS = 64
"""Pages that can listen at a time."""


@dataclass(eq=False)
class Client:
    """A page that listens: to one run, or to the list of runs."""

    run: str | None
    ids: set[str] = field(default_factory=set)
    what: set[str] = field(default_factory=set)
    """What has changed and was not sent yet: many changes are one message, so that a slow page costs no memory."""
    awake: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, id: str | None, what: set[str]) -> None:
        """Add a change."""
        self.ids |= {id} if id is not None else set()
        self.what |= what
        self.awake.set()

    def taken(self) -> str:
        """Return the changes as one message, and forget them."""
        id = next(iter(self.ids)) if len(self.ids) == 1 else self.run
        message = f"event: change\ndata: {json.dumps({'id': id, 'what': sorted(self.what)})}\n\n"
        self.ids, self.what = set(), set()
        self.awake.clear()
        return message


Look = dict[str, Any]
"""What a change is noticed by, for every part of a page."""


class Watcher:
    """Looks at the files that open pages show; while none is open, at nothing."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.clients: set[Client] = set()
        self.looks: dict[str | None, Look] = {}
        """The last look at each run, and, by None, at the list."""
        self.closing = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Watcher":
        """Begin to look."""
        self.task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        """End all streams, and the looking."""
        self.close()
        if self.task is not None:
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task

    def close(self) -> None:
        """End all streams."""
        self.closing.set()
        for client in self.clients:
            client.awake.set()

    async def listen(self, client: Client) -> None:
        """Tell a page from now on what changes."""
        self.clients.add(client)
        if client.run not in self.looks:
            looks = await run_sync(self._look, {client.run})
            self.looks = looks | self.looks

    async def _watch(self) -> None:
        own = CapacityLimiter(1)  # a thread of its own: slow requests may hold all others
        while True:
            started = time.monotonic()
            try:
                await self._watch_once(own)
            except Exception:
                traceback.print_exc()
            took = time.monotonic() - started
            await asyncio.sleep(max(EVERY - took, 3 * took))

    async def _watch_once(self, own: CapacityLimiter) -> None:
        watched = {client.run for client in self.clients}
        looks = await run_sync(self._look, watched, limiter=own) if watched else {}
        for key, look in looks.items():
            before = self.looks.get(key, look)
            changed = {part for part, found in look.items() if before.get(part) != found}
            if changed and key is None:
                self._tell_lists(changed)
            elif changed and key is not None:
                self._tell(key, changed)
        watched = {client.run for client in self.clients}
        self.looks = {key: look for key, look in (self.looks | looks).items() if key in watched}

    def _tell(self, id: str, changed: set[str]) -> None:
        for client in self.clients:
            if client.run == id:
                client.tell(id, changed)

    def _tell_lists(self, changed: set[str]) -> None:
        ids = changed - {"runs"}
        for client in self.clients:
            if client.run is None:
                client.tell(next(iter(ids)) if len(ids) == 1 else None, {"runs"})

    def _look(self, watched: set[str | None]) -> dict[str | None, Look]:
        found: dict[str | None, Look] = {}
        for id in watched:
            run = self.library.runs.get(id) if id is not None else None
            if run is not None:
                found[id] = self._look_at(run)
            elif id is not None:
                found[id] = {"state": "gone"}
        if None in watched:
            runs = self.library.look_at_all()
            found[None] = {run.id: (run.seen, run.is_written) for run in runs} | {"runs": self.library.known()}
        return found

    def _look_at(self, run: Run) -> Look:
        run.look(self.library.tree, time.monotonic())
        stamps, reading = dict(run.stamps), self.library.reading(run)
        look: Look = {part: tuple(stamps.get(name) for name in names) for part, names in FILES.items()}
        look["reports"] = (*look["reports"], reading)
        look["state"] = (*look["state"], run.state(time.time()))
        return look


class Stream(Response):
    """A stream of changes to one page, until it goes away or the server ends."""

    def __init__(self, watcher: Watcher, run: str | None) -> None:
        self.watcher, self.client = watcher, Client(run)
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send every change."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.create_task(_disconnected(receive))
        closing = asyncio.create_task(self.watcher.closing.wait())
        try:
            await self.watcher.listen(self.client)
            await self._send(send, ": esper\n\n")
            while not gone.done() and not closing.done():
                awake = asyncio.create_task(self.client.awake.wait())
                await asyncio.wait({gone, closing, awake}, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
                awake.cancel()
                if not gone.done() and not closing.done():
                    await self._send(send, self.client.taken() if self.client.what else ": still here\n\n")
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            return  # the page went away while something was sent
        finally:
            self.watcher.clients.discard(self.client)
            gone.cancel()
            closing.cancel()

    async def _send(self, send: Send, message: str) -> None:
        await send({"type": "http.response.body", "body": message.encode(), "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
