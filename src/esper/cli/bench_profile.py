"""Measure where the time of a fleet goes: operations, bytes, FLOPs and the share of the roofline of each phase."""

import json as json_module
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from esper.cli.bench import BenchProfile
from esper.cli.bench_needs import Need, needs
from esper.cli.console import literal_console
from esper.cli.counting import Count, counted
from esper.cli.workloads import WORKLOADS, Workload, make_fleet, planted, random_legal, timed, wait
from esper.leyline.errors import unknown
from esper.leyline.rng import Purpose, key, permutation
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv
from esper.tolaria.assignment import Known, rows_of
from esper.tolaria.config import DTYPES
from esper.tolaria.measuring import evaluate
from esper.tolaria.schedule import copied, schedule
from esper.tolaria.training import step_of, train_step
from esper.tolaria.transfer import pack, unpack

NOTHING = Count(0, 0, 0)
UNITS = [("", "MB", "bytes"), ("", "MFLOP", "flops"), ("needed ", "MB", "bytes"), ("needed ", "MFLOP", "flops")]


class Peak(NamedTuple):
    """What the machine reaches with one large matrix product, and with one large copy."""

    flops: float
    """FLOPs per second."""
    bytes: float
    """Bytes read and written per second."""


@dataclass(frozen=True)
class Phase:
    """What one phase of a decision does and takes. Phases that another one holds are measured without it."""

    name: str
    calls: int
    """Calls in one decision."""
    seconds: float
    """Seconds of one call, the median of several."""
    done: Count
    need: Need

    def share(self, peak: Peak) -> float:
        """Return the time that the machine needs at least, for what must be computed and moved, over that taken."""
        least = max(self.need.flops / peak.flops, self.need.bytes / peak.bytes)
        return least / self.seconds if self.seconds > 0 else 0.0

    def row(self, peak: Peak) -> dict[str, Any]:
        return {
            "phase": self.name,
            "calls": self.calls,
            "ms": round(1e3 * self.seconds, 4),
            **self.done._asdict(),
            "needed_flops": self.need.flops,
            "needed_bytes": self.need.bytes,
            "roofline": round(self.share(peak), 4),
        }


def measure_profiles(asked: BenchProfile) -> None:
    """Profile every workload asked for and print the results."""
    for name in asked.workload:
        if name not in WORKLOADS:
            raise unknown("workload", name, WORKLOADS)
    engine = Engine(device=asked.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    device = engine.place()
    engine = replace(engine, precision=asked.precision or Engine.on(str(device)).precision)
    found = []
    for name in asked.workload:
        workload = WORKLOADS[name].coarse() if asked.quick else WORKLOADS[name]
        workload = workload.resized(asked.batch, asked.steps, asked.validation)
        found.append(profiled(name, workload, asked, engine))
    machine = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    if asked.json:
        print(json_module.dumps({"device": machine, "torch": torch.__version__, "profiles": found}))
    else:
        for result in found:
            show(result, machine)


def profiled(name: str, workload: Workload, asked: BenchProfile, engine: Engine) -> dict[str, Any]:
    """Return the phases of one decision of a fleet, and the operations that take most of its time."""
    device, seconds = engine.place(), 0.1 if asked.quick else 1.0
    peak = measured_peak(device, DTYPES[engine.precision], small=asked.quick)
    env = FleetEnv(make_fleet(workload, asked.hosts, engine), EnvConfig(staggered=True))
    generator = torch.Generator(device).manual_seed(1)
    legal = env.reset().legal
    if asked.seeds == "live":
        for _ in range(asked.decisions or 12):
            legal = env.step(random_legal(legal, env.fleet.space.sizes, generator)).signals.legal
    else:
        num_slots = {"none": 0, "one": 1}.get(asked.seeds, len(env.fleet.slots))
        planted(env.fleet, num_slots, twins=asked.seeds == "twins")
    fleet = env.fleet
    phases = measured_phases(fleet, seconds)
    kinds = len(fleet.buckets)

    def decide() -> None:
        nonlocal legal
        if asked.seeds == "live":
            legal = env.step(random_legal(legal, fleet.space.sizes, generator)).signals.legal
        else:
            fleet.decide(torch.zeros(fleet.num_hosts, len(fleet.space.sizes), dtype=torch.long, device=device))

    whole = timed(decide, device, seconds).seconds
    rest = whole - sum(phase.calls * phase.seconds for phase in phases)
    phases.append(Phase("all else in a decision", 1, max(rest, 0.0), NOTHING, Need(0, 0)))
    return {
        "workload": name,
        "hosts": asked.hosts,
        "seeds": asked.seeds,
        "precision": engine.precision,
        "kinds": kinds,
        "decision_ms": round(1e3 * whole, 3),
        "decisions_per_s": round(asked.hosts / whole, 2),
        "peak_tflops": round(peak.flops / 1e12, 3),
        "peak_gb_s": round(peak.bytes / 1e9, 2),
        "phases": [phase.row(peak) | {"share": round(phase.calls * phase.seconds / whole, 4)} for phase in phases],
        "operations": operations(decide, device, asked.top),
    }


class Way(NamedTuple):
    """A function as fleets run it, and what it runs without recorded programs."""

    run: Callable[[], object]
    unrecorded: Callable[[], object]


def measured_phases(fleet: Fleet, seconds: float) -> list[Phase]:
    """Measure the phases of a decision one by one, in the present state of a fleet."""
    known, needed = copied(fleet), needs(fleet)
    lessons = -(-fleet.num_steps // fleet.lifecycle.lesson_every)
    train, teach = (measured_way(_training(fleet, known, lessons), fleet, seconds) for lessons in (False, True))
    plain, full = (measured_way(_measuring(fleet, known, worth), fleet, seconds) for worth in (False, True))
    scheduled = timed(lambda: schedule(fleet, copied(fleet), measuring=False), fleet.device, seconds / 4).seconds
    phases = (
        ("train step", fleet.num_steps, *train),
        ("lessons", lessons, *_without(teach, train)),
        ("evaluate", 1, *plain),
        ("contributions", 1, *_without(full, plain)),
    )
    return [
        *(Phase(name, calls, took, done, needed[name]) for name, calls, took, done in phases),
        Phase("schedule", 2, scheduled, NOTHING, Need(0, 0)),
    ]


def _training(fleet: Fleet, known: Known, lessons: bool) -> Way:
    order = permutation(key(fleet.rng_seeds, Purpose.SHUFFLE, fleet.epoch), len(fleet.train_data[0]))
    assignment = unpack(pack(schedule(fleet, known, measuring=False, lessons=lessons), fleet.device))
    chunks = fleet.memory.chunks(fleet.num_hosts, fleet.config.batch_size, *rows_of(assignment))
    return Way(step_of(fleet, known, order, None, lessons), partial(train_step, fleet, assignment, order, chunks))


def _measuring(fleet: Fleet, known: Known, contributions: bool) -> Way:
    none = torch.zeros_like(fleet.state.alpha, dtype=torch.bool)
    run, programs = partial(evaluate, fleet, None, None if contributions else none, known), fleet.programs

    def unrecorded() -> None:
        fleet.programs = None
        try:
            run()
        finally:
            fleet.programs = programs

    return Way(run, unrecorded)


def measured_way(way: Way, fleet: Fleet, seconds: float) -> tuple[float, Count]:
    """Time a function, and count what it does."""

    def again() -> None:
        fleet.count.zero_()
        way.run()

    took = timed(again, fleet.device, seconds).seconds
    fleet.count.zero_()
    return took, counted(way.unrecorded)


def _without(whole: tuple[float, Count], part: tuple[float, Count]) -> tuple[float, Count]:
    """Return what one phase takes and does more than another."""
    return max(whole[0] - part[0], 0.0), Count(*(max(a - b, 0) for a, b in zip(whole[1], part[1], strict=True)))


def measured_peak(device: torch.device, dtype: torch.dtype, small: bool) -> Peak:
    """Measure a large matrix product and a large copy."""
    size, length = (8192, 1 << 28) if device.type == "cuda" else (512, 1 << 22) if small else (2048, 1 << 25)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    x, y = (torch.zeros(length, device=device) for _ in range(2))
    product = timed(lambda: torch.mm(a, b), device, 0.1, warm=3).seconds
    copy = timed(lambda: y.copy_(x), device, 0.1, warm=3).seconds
    return Peak(2 * size**3 / product, 2 * x.nbytes / copy)


def operations(run: Callable[[], object], device: torch.device, top: int) -> list[dict[str, Any]]:
    """Return the operations or kernels of one call that take most time, as torch's profiler sees them."""
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU], acc_events=True) as seen:
        run()
        wait(device)
    took = {event: event.self_device_time_total if cuda else event.self_cpu_time_total for event in seen.key_averages()}
    total = sum(took.values()) or 1.0
    first = sorted(took, key=lambda event: -took[event])[:top]
    return [
        {"name": e.key[:80], "calls": e.count, "ms": round(took[e] / 1e3, 3), "share": round(took[e] / total, 4)}
        for e in first
    ]


COLUMNS = ("phase", "calls", "ms", "share", "operations", "MB", "MFLOP", "needed MB", "needed MFLOP", "roofline")


def show(result: dict[str, Any], machine: str) -> None:
    """Print one workload's phases and operations as tables."""
    title = "{workload}, {hosts} hosts, seeds {seeds}, {precision}: {decisions_per_s} decisions/s".format(**result)
    caption = "roofline: least time for the needed bytes and FLOPs, at {peak_tflops} TFLOP/s and {peak_gb_s} GB/s"
    phases = [
        row
        | {f"{needed}{unit}": round(row[(needed + name).replace(" ", "_")] / 1e6, 1) for needed, unit, name in UNITS}
        for row in result["phases"]
    ]
    console = literal_console()
    for columns, rows, heading, below in (
        (COLUMNS, phases, f"{title} on {machine}", caption.format(**result)),
        (("name", "calls", "ms", "share"), result["operations"], "operations that take most time", None),
    ):
        table = Table(title=heading, caption=below)
        for column in columns:
            table.add_column(column, justify="left" if column in ("phase", "name") else "right")
        for row in rows:
            table.add_row(*(row[name] if isinstance(row[name], str) else f"{row[name]:,}" for name in columns))
        console.print(table)
