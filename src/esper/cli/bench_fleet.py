"""`esper bench fleet`."""

import gc
import json as json_module
import resource
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from esper.cli.sizes import Size, size_in_bytes
from esper.cli.workloads import WORKS, Plain, Work, elapsed, make_fleet, planted, random_legal, timed
from esper.leyline.errors import EsperError, unknown
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv
from esper.tolaria.config import Precision
from esper.tolaria.governor import snapshot

Seeds = Literal["none", "one", "full", "live"]
COLUMNS = {
    "work": "work",
    "way": "way",
    "hosts": "hosts",
    "seeds": "seeds",
    "precision": "as",
    "samples_per_s": "samples/s",
    "host_epochs_per_s": "epochs/s",
    "ratio": "ratio",
    "same_precision": "as / as",
}


@dataclass(frozen=True, kw_only=True)
class BenchFleet:
    """How fast N hosts train: one after the other in plain PyTorch, on CUDA streams, as CUDA graphs, and as a fleet.

    Everything in one run, side by side. Ratios are to plain PyTorch in single precision on the same work.
    """

    device: str | None = None
    """cpu or cuda; the GPU if there is one."""
    work: tuple[str, ...] = ("mnist1d",)
    """Which hosts: mnist1d (8-8-8, batch 64), tiny2d (8×8, 16-32-64, batch 64), cifar (32×32, 32-64-128, batch 128),
    small2d (32×32, 8-16-32, batch 512)."""
    hosts: tuple[int, ...] | None = None
    """How many at a time; on a GPU 1 4 16 64 256 1024."""
    seeds: tuple[Seeds, ...] = ("none", "one", "full", "live")
    """Seeds of every host: none, one, one in every slot (blueprints mixed), or live: whole decisions of random legal
    actions in lives that end at different times, cold start included."""
    precision: tuple[Precision, ...] | None = None
    """fp32, and on a GPU bf16 as well."""
    decisions: int | None = None
    """How many decisions a live fleet makes; on a GPU 200, else 25."""
    memory_budget: Size = None
    """What a fleet may use, such as 2GB: batches are split until they fit."""
    quick: bool = False
    """A coarse answer in less than a minute on two cores."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> None:
        unknown_works = [name for name in self.work if name not in WORKS]
        if unknown_works:
            raise unknown("work", unknown_works[0], WORKS)
        if any(n < 1 for n in self.hosts or ()):
            raise EsperError(f"hosts must be positive, not {self.hosts}")
        bench = Bench(self)
        for name in self.work:
            bench.measure(name)
        if self.json:
            print(json_module.dumps({"device": bench.device_name, "torch": torch.__version__, "rows": bench.rows}))
        else:
            bench.show()


class Bench:
    def __init__(self, asked: BenchFleet) -> None:
        self.asked = asked
        engine = Engine(device=asked.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.device = engine.place()
        self.cuda = self.device.type == "cuda"
        few = (1, 16) if asked.quick else (1, 4, 16, 64)
        self.hosts = asked.hosts or ((1, 4, 16, 64, 256, 1024) if self.cuda else few)
        self.precisions = asked.precision or (("fp32", "bf16") if self.cuda else ("fp32",))
        self.decisions = asked.decisions or (200 if self.cuda else 5 if asked.quick else 25)
        self.seconds = 0.2 if asked.quick else 1.0
        self.rows: list[dict[str, Any]] = []
        self.plain: dict[tuple[str, str], float] = {}

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name() if self.cuda else f"CPU, {torch.get_num_threads()} threads"

    def measure(self, name: str) -> None:
        work = WORKS[name]
        if self.asked.quick:
            work = replace(work, train=8 * work.batch, validation=128)
        for precision in dict.fromkeys(("fp32", *self.precisions)):
            self.measure_plain(name, work, precision)
        for hosts in self.hosts:
            for precision in self.precisions:
                for seeds in self.asked.seeds:
                    self.measure_fleet(name, work, hosts, seeds, precision)

    def measure_plain(self, name: str, work: Work, precision: Precision) -> None:
        hosts = 4 if self.asked.quick else 16
        plain = Plain(work, hosts, self.device, half=precision == "bf16")
        ways = {"loop": plain.loop}
        if self.cuda:
            ways |= {"streams": plain.streams(), "graphs": plain.graphs()}
        for way, run in ways.items():
            rate = hosts * work.batch / timed(run, self.device, self.seconds, warm=2).seconds
            if way == "loop":
                self.plain[name, precision] = rate
            self.add(name, work, way, hosts, "none", precision, rate)

    def measure_fleet(self, name: str, work: Work, hosts: int, seeds: Seeds, precision: Precision) -> None:
        engine = Engine(
            device=str(self.device), precision=precision, memory_budget=size_in_bytes(self.asked.memory_budget)
        )
        samples = hosts * work.epoch
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        if seeds == "live":
            fleet, more = self.live(work, hosts, engine, samples)
            rate = more.pop("rate")
        else:
            fleet = make_fleet(work, hosts, engine)
            planted(fleet, {"none": 0, "one": 1, "full": len(fleet.space.slots)}[seeds])
            epoch = timed(fleet.train_epoch, self.device, self.seconds, warm=1 if self.cuda else 0).seconds
            copying = elapsed(partial(snapshot, fleet, fleet.evaluate()), self.device)
            more = {"snapshot_share": round(copying / epoch, 4)}
            more |= self.busy(fleet.train_epoch, epoch)
            rate = samples / epoch
        if fleet.programs is not None:
            found = fleet.programs.hits + fleet.programs.misses
            more["cache_hit_rate"] = round(fleet.programs.hits / max(found, 1), 3)
        self.add(name, work, "fleet", hosts, seeds, precision, rate, **more)
        del fleet
        gc.collect()

    def live(self, work: Work, hosts: int, engine: Engine, samples: int) -> tuple[Fleet, dict[str, Any]]:
        """Whole decisions, from nothing: building, compiling, recording, births, deaths, judging."""
        start = time.perf_counter()
        fleet = make_fleet(work, hosts, engine)
        env = FleetEnv(fleet, EnvConfig(staggered=True))
        generator = torch.Generator(self.device).manual_seed(1)
        allowed = env.reset().legal

        def decide(count: int) -> None:
            nonlocal allowed
            for _ in range(count):
                allowed = env.step(random_legal(allowed, fleet.space.sizes, generator)).signals.legal

        first = elapsed(lambda: decide(self.decisions - self.decisions // 2), self.device)
        cold = time.perf_counter() - start
        later = elapsed(lambda: decide(self.decisions // 2), self.device) if self.decisions > 1 else first
        total = time.perf_counter() - start
        more = {
            "rate": samples * self.decisions / total,
            "decisions": self.decisions,
            "first_half_s": round(cold, 2),
            "later_samples_per_s": round(samples * max(self.decisions // 2, 1) / later),
        }
        return fleet, more | self.busy(lambda: decide(3), 3 * later / max(self.decisions // 2, 1))

    def busy(self, run: Any, seconds: float) -> dict[str, float]:
        """The share of the time in which the GPU does something."""
        if not self.cuda:
            return {}
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
            run()
            torch.cuda.synchronize()
        at_work = sum(event.self_device_time_total for event in profiled.key_averages()) / 1e6
        return {"gpu_busy": round(min(at_work / seconds, 1.0), 3)}

    def add(
        self, name: str, work: Work, way: str, hosts: int, seeds: str, precision: str, rate: float, **more: Any
    ) -> None:
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        memory = torch.cuda.max_memory_allocated() if self.cuda else resident
        row = {
            "work": name,
            "way": way,
            "hosts": hosts,
            "seeds": seeds,
            "precision": precision,
            "samples_per_s": round(rate),
            "host_epochs_per_s": round(rate / work.epoch, 2),
            "ratio": round(rate / self.plain[name, "fp32"], 2),
            "same_precision": round(rate / self.plain[name, precision], 2),
            "peak_mb": memory >> 20,
        }
        self.rows.append(row | more)
        print(json_module.dumps(self.rows[-1]), file=sys.stderr, flush=True)

    def show(self) -> None:
        table = Table(
            title=f"Training on {self.device_name}",
            caption="ratio: to plain PyTorch in fp32; as / as: in the same precision",
        )
        for title in COLUMNS.values():
            table.add_column(title, justify="left" if title in ("work", "way", "seeds", "as") else "right")
        for row in self.rows:
            table.add_row(*(str(row[name]) if isinstance(row[name], str) else f"{row[name]:,}" for name in COLUMNS))
        Console().print(table)
