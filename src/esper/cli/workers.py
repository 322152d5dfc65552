"""Start workers on this machine, and join those that were started here, by torchrun or by Ray."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import IO, NoReturn

import torch
import torch.distributed as dist

from esper.cli import explained
from esper.leyline.errors import EsperError
from esper.simic.workers import ALONE, WorkerLost, Workers

PATIENCE = timedelta(hours=12)
"""How long an exchange waits for the other workers: one that ends is noticed at once, and warm starts take hours."""
GRACE = 5.0
"""Seconds that workers have to end by themselves once one of them has failed."""
LOST = 75
"""Exit code of a worker that ends because another one has."""
KEEP_ALIVE = {
    getattr(socket, name): value
    for name, value in (
        ("TCP_KEEPIDLE", 60),  # seconds of silence before the kernel asks
        ("TCP_KEEPINTVL", 15),  # seconds between its questions
        ("TCP_KEEPCNT", 4),  # questions without an answer
        ("TCP_USER_TIMEOUT", 120_000),  # milliseconds for the answer to what was sent
    )
    if hasattr(socket, name)
}
"""How the kernel finds out within two minutes that another machine is gone."""
LAUNCHED = "ESPER_LAUNCHED"
"""Set in the environment of workers that `launch` has started."""


def is_worker() -> bool:
    """Whether torchrun, or `launch`, has started this process as one of several."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys() and os.environ["WORLD_SIZE"] != "1"


def were_restarted() -> bool:
    """Whether torchrun has started its workers again, after some were lost."""
    return is_worker() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0


def asks_for_workers(count: int | None) -> bool:
    """Whether this process is to start workers: their number was given, and it is not one of them itself.

    Raises:
        EsperError: The number is not positive, or not that of the workers that were started.
    """
    if count is None:
        return False
    if count < 1:
        raise EsperError(f"workers must be at least 1, not {count}")
    if is_worker() and count != int(os.environ["WORLD_SIZE"]):
        raise EsperError(f"workers ({count}) and the processes of torchrun ({os.environ['WORLD_SIZE']}) must be equal")
    return count > 1 and not is_worker()


def together(run: Callable[[Workers], None], debug: bool = False) -> None:
    """Run a function with the workers that this process belongs to; one of several ends with it."""
    if not is_worker():
        return run(ALONE)
    code = 1
    try:
        code = _exit_code(run, debug)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of gloo that outlive their group can abort the interpreter's own exit


def _exit_code(run: Callable[[Workers], None], debug: bool) -> int:
    """Run one of several workers; of those that lost another one, only the first says so, unless `launch` does."""

    def joined() -> None:
        try:
            with connected() as workers:
                run(workers)
        except WorkerLost:
            if LAUNCHED in os.environ or os.environ["RANK"] != "0":
                raise SystemExit(LOST) from None
            raise

    try:
        explained(joined, debug)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


@contextmanager
def connected() -> Iterator[Workers]:
    """Join the process group that the environment describes, on a GPU of this worker's own if there are enough."""
    if LAUNCHED in os.environ:
        Thread(target=_end_with_launcher, daemon=True).start()
    rank, size, local = (int(os.environ.get(name, 0)) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if torch.cuda.is_available():
        torch.cuda.set_device(local % torch.cuda.device_count())
    try:
        dist.init_process_group("gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise EsperError(f"worker {rank} of {size} cannot join the others: {reason}") from None
    notice_lost_machines()
    try:
        yield Workers(rank, size)
    finally:
        dist.destroy_process_group()


def notice_lost_machines() -> None:
    """Let the kernel ask the other ends of this process's connections whether they are there, where it can.

    A process that ends closes its connections; a machine that is gone does not, and the others would wait for it.
    """
    if not KEEP_ALIVE or not Path("/proc/self/fd").exists():
        return
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in KEEP_ALIVE.items():
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _end_with_launcher() -> None:
    """Wait for the end of the process at the other end of standard input, even by SIGKILL, and end then."""
    os.read(0, 1)
    os._exit(LOST)


@dataclass(frozen=True)
class Started:
    """A process that works for a launcher."""

    rank: int
    process: subprocess.Popen[bytes]
    errors: IO[bytes] | None
    """What it says on standard error; None if the user sees that."""

    @property
    def code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self.process.poll()


def launch(arguments: Sequence[str], size: int, folder: Path) -> None:
    """Run `esper` with these arguments in `size` processes that train together in a run folder.

    They share the threads of this process, and end when it ends.

    Raises:
        EsperError: One of them was killed.
        SystemExit: One of them failed, and has said why.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore
    shared = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": str(max(torch.get_num_threads() // size, 1)),
        LAUNCHED: "1",
    }
    if sys.platform == "linux":
        shared["GLOO_SOCKET_IFNAME"] = "lo"
    crew: list[Started] = []
    try:
        with _forwarding(crew):
            crew += (_start(arguments, rank, os.environ | shared) for rank in range(size))
            lost = _attend(crew)
    finally:
        for worker in crew:
            worker.process.kill()
            worker.process.communicate()
    if lost is not None:
        _explain(lost, size, folder)


def _start(arguments: Sequence[str], rank: int, environment: dict[str, str]) -> Started:
    errors = tempfile.TemporaryFile() if rank else None  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, "-m", "esper", *arguments],
        env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        stdin=subprocess.PIPE,  # closed when this process ends
        stdout=subprocess.DEVNULL if rank else None,
        stderr=errors,
        start_new_session=True,  # signals of a terminal reach them once, through this process
    )
    return Started(rank, process, errors)


@contextmanager
def _forwarding(crew: Sequence[Started]) -> Iterator[None]:
    """Pass Ctrl-C and SIGTERM on to the workers, which stop after the update at hand."""

    def forward(number: int, frame: FrameType | None) -> None:
        for worker in crew:
            if worker.code is None:
                worker.process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _attend(crew: Sequence[Started]) -> Started | None:
    """Wait until all workers have ended, or some time after one has failed, and return the one that failed first."""
    until = float("inf")
    while any(worker.code is None for worker in crew) and time.monotonic() < until:
        if until == float("inf") and any(worker.code for worker in crew):
            until = time.monotonic() + GRACE
        time.sleep(0.05)
    failed = sorted((worker for worker in crew if worker.code), key=lambda worker: worker.code == LOST)
    return failed[0] if failed else None


def _explain(lost: Started, size: int, folder: Path) -> NoReturn:
    """Say why a worker has ended."""
    code, begun = lost.code or 0, (folder / "config.json").exists()
    if code < 0:
        how = f": go on with `esper resume {folder}`" if begun else ""
        raise EsperError(f"worker {lost.rank} of {size} was killed by {signal.Signals(-code).name}{how}")
    if lost.errors is not None:
        lost.errors.seek(0)
        sys.stderr.write(lost.errors.read().decode(errors="replace"))
    raise SystemExit(code)
