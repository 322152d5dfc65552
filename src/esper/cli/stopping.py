"""Let signals stop a run without losing anything."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from esper.leyline.errors import EsperError

ASKED: ContextVar[Callable[[], bool]] = ContextVar("ASKED", default=lambda: False)
"""What asks a run to stop in a thread that hears no signals."""


@contextmanager
def asked_by(ask: Callable[[], bool]) -> Iterator[None]:
    """Let a function say whether runs in this thread are to stop, which hears no signals."""
    token = ASKED.set(ask)
    try:
        yield
    finally:
        ASKED.reset(token)


class Stop:
    """Whether a signal has asked a run to stop, and the phase that it interrupted."""

    def __init__(self, says_so: bool = True, ask: Callable[[], bool] = lambda: False) -> None:
        self.ask = ask
        self.asked = self.interrupts = False
        self.phase, self.says_so = "", says_so

    def __call__(self) -> bool:
        return self.asked or self.ask()

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: stop after the update at hand; at once if asked twice, or where nothing would be lost."""
        again, self.asked = self.asked, True
        if again or self.interrupts:
            raise KeyboardInterrupt
        if self.says_so:
            print("stopping after this update; once more to stop at once", file=sys.stderr, flush=True)

    @contextmanager
    def at_once(self, phase: str) -> Iterator[None]:
        """Let a signal end what happens in here at once: a resumed run does it again."""
        self.interrupts = True
        try:
            yield
        except KeyboardInterrupt:
            self.phase = phase
        finally:
            self.interrupts = False


@contextmanager
def stopping(says_so: bool = True) -> Iterator[Stop]:
    """Let Ctrl-C and SIGTERM stop a run after the update at hand; a second signal stops it at once.

    Signals are heard by the main thread alone; in another one, what was given to `asked_by` is asked instead.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Stop(ask=ASKED.get())
        return
    stop = Stop(says_so)
    before = {number: signal.signal(number, stop.hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except KeyboardInterrupt:
        raise EsperError("stopped in the middle of an update; resume goes on from the last checkpoint") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
