"""Measure how much slower fleets on a CPU get beside a busy process.

    python benchmark/beside_busy.py

Runs `esper bench fleet --device cpu` alone and beside `sh -c 'while :; do :; done'`, in turns, in three ways: as the
command is, with one thread, and with threads that spin while they wait, as OpenMP's do by default. Figures are the most
examples that a live fleet trained in a second, and the CPU seconds of the whole command, the least of all repetitions.
Nothing else may run on the machine.
"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tyro

BUSY = ("sh", "-c", "while :; do :; done")
WAYS = {"as it is": {}, "one thread": {"OMP_NUM_THREADS": "1"}, "spinning": {"OMP_WAIT_POLICY": "ACTIVE"}}


@dataclass(frozen=True, kw_only=True)
class Question:
    workload: tuple[str, ...] = ("mnist1d", "tiny2d")
    hosts: int = 32
    steps: int = 20
    """Steps of a decision."""
    decisions: int = 6
    busy: int = 1
    """Busy processes beside it."""
    repeats: int = 3

    def run(self) -> None:
        print("| workload | threads | examples/s alone | beside | times as slow | CPU s alone | beside |")
        print("|---|---|--:|--:|--:|--:|--:|", flush=True)
        for workload in self.workload:
            found = {(way, busy): [] for way in WAYS for busy in (0, self.busy)}
            for _ in range(self.repeats):
                for (way, busy), results in found.items():
                    results.append(self.measured(workload, way, busy))
            for way in WAYS:
                (rate, cpu), (slow, more) = (best(found[way, busy]) for busy in (0, self.busy))
                row = f"{workload} | {way} | {rate:,.0f} | {slow:,.0f} | {rate / slow:.2f} | {cpu:.1f} | {more:.1f}"
                print(f"| {row} |", flush=True)

    def measured(self, workload: str, way: str, busy: int) -> tuple[float, float]:
        """Return the examples per second of a live fleet, and the CPU seconds of the command."""
        esper = [sys.executable, "-m", "esper", "bench", "fleet", "--device", "cpu", "--seeds", "live", "--json"]
        sizes = {"--workload": workload, "--hosts": self.hosts, "--steps": self.steps, "--decisions": self.decisions}
        command = [*esper, "--validation", "256", *(str(x) for pair in sizes.items() for x in pair)]
        with neighbours(busy):
            before = cpu_seconds()
            out = subprocess.run(
                command, env=os.environ | WAYS[way], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
            ).stdout
            taken = cpu_seconds() - before
        (rate,) = (row["samples_per_s"] for row in json.loads(out)["rows"] if row["seeds"] == "live")
        return rate, taken


def best(results: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the highest rate and the fewest CPU seconds."""
    rates, seconds = zip(*results, strict=True)
    return max(rates), min(seconds)


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Keep so many processes busy meanwhile."""
    started = [subprocess.Popen(BUSY) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    tyro.cli(Question).run()
