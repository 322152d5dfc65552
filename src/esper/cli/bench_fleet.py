"""Measure how fast hosts train, one by one and as a fleet."""

import gc
import json as json_module
import resource
import sys
import time
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from esper.cli.bench import BenchFleet, Precision, Seeds
from esper.cli.console import literal_console
from esper.cli.sizes import size_in_bytes
from esper.cli.workloads import WORKLOADS, Plain, Workload, elapsed, make_fleet, planted, random_legal, timed
from esper.leyline.errors import unknown
from esper.tolaria import Engine, EnvConfig, Fleet, FleetEnv
from esper.tolaria.governor import snapshot
from esper.tolaria.training import train_epoch

COLUMNS = {
    "workload": "workload",
    "way": "way",
    "hosts": "hosts",
    "seeds": "seeds",
    "precision": "precision",
    "samples_per_s": "samples/s",
    "host_epochs_per_s": "epochs/s",
    "ratio": "ratio",
    "same_precision": "same",
}


def measure_fleets(asked: BenchFleet) -> None:
    """Measure every workload asked for and print the results."""
    for name in asked.workload:
        if name not in WORKLOADS:
            raise unknown("workload", name, WORKLOADS)
    bench = Bench(asked)
    for name in asked.workload:
        bench.measure(name)
    if asked.json:
        print(json_module.dumps({"device": bench.device_name, "torch": torch.__version__, "rows": bench.rows}))
    else:
        bench.show()


class Bench:
    """The measurements of one command, as rows."""

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
        asked, workload = self.asked, WORKLOADS[name]
        workload = (workload.coarse() if asked.quick else workload).resized(asked.batch, asked.steps, asked.validation)
        for precision in dict.fromkeys(("fp32", *self.precisions)):
            self.measure_plain(name, workload, precision)
        for hosts in self.hosts:
            for precision in self.precisions:
                for seeds in self.asked.seeds:
                    self.measure_fleet(name, workload, hosts, seeds, precision)

    def measure_plain(self, name: str, workload: Workload, precision: Precision) -> None:
        hosts = 4 if self.asked.quick else 16
        plain = Plain(workload, hosts, self.device, half=precision == "bf16")
        ways = {"loop": plain.loop}
        if self.cuda:
            ways |= {"streams": plain.streams(), "graphs": plain.graphs()}
        for way, run in ways.items():
            rate = hosts * workload.batch / timed(run, self.device, self.seconds, warm=2).seconds
            if way == "loop":
                self.plain[name, precision] = rate
            self.add(name, workload, way, hosts, "none", precision, rate)

    def measure_fleet(self, name: str, workload: Workload, hosts: int, seeds: Seeds, precision: Precision) -> None:
        engine = Engine(
            device=str(self.device), precision=precision, memory_budget=size_in_bytes(self.asked.memory_budget)
        )
        samples = hosts * workload.epoch
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        if seeds == "live":
            fleet, more = self.live(workload, hosts, engine, samples)
            rate = more.pop("rate")
        else:
            fleet = make_fleet(workload, hosts, engine)
            planted(fleet, {"none": 0, "one": 1}.get(seeds, len(fleet.space.slots)), twins=seeds == "twins")
            epoch = timed(partial(train_epoch, fleet), self.device, self.seconds, warm=1 if self.cuda else 0).seconds
            copying = elapsed(partial(snapshot, fleet, fleet.evaluate()), self.device)
            more = {"snapshot_share": round(copying / epoch, 4)}
            more |= self.busy(partial(train_epoch, fleet), epoch)
            rate = samples / epoch
        if fleet.programs is not None:
            found = fleet.programs.hits + fleet.programs.misses
            more["cache_hit_rate"] = round(fleet.programs.hits / max(found, 1), 3)
        self.add(name, workload, "fleet", hosts, seeds, precision, rate, **more)
        del fleet
        gc.collect()

    def live(self, workload: Workload, hosts: int, engine: Engine, samples: int) -> tuple[Fleet, dict[str, Any]]:
        """Time whole decisions, building, compiling and recording included."""
        start = time.perf_counter()
        fleet = make_fleet(workload, hosts, engine)
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
        """Return the share of the time in which the GPU is busy."""
        if not self.cuda:
            return {}
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
            run()
            torch.cuda.synchronize()
        at_work = sum(event.self_device_time_total for event in profiled.key_averages()) / 1e6
        return {"gpu_busy": round(min(at_work / seconds, 1.0), 3)}

    def add(
        self, name: str, workload: Workload, way: str, hosts: int, seeds: str, precision: str, rate: float, **more: Any
    ) -> None:
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        memory = torch.cuda.max_memory_allocated() if self.cuda else resident
        row = {
            "workload": name,
            "way": way,
            "hosts": hosts,
            "seeds": seeds,
            "precision": precision,
            "samples_per_s": round(rate),
            "host_epochs_per_s": round(rate / workload.epoch, 2),
            "ratio": round(rate / self.plain[name, "fp32"], 2),
            "same_precision": round(rate / self.plain[name, precision], 2),
            "peak_mb": memory >> 20,
        }
        self.rows.append(row | more)
        print(json_module.dumps(self.rows[-1]), file=sys.stderr, flush=True)

    def show(self) -> None:
        table = Table(
            title=f"Training on {self.device_name}",
            caption="ratio: to plain PyTorch in fp32; same: to plain PyTorch in the same precision",
        )
        for title in COLUMNS.values():
            table.add_column(title, justify="left" if title in ("workload", "way", "seeds", "precision") else "right")
        for row in self.rows:
            table.add_row(*(str(row[name]) if isinstance(row[name], str) else f"{row[name]:,}" for name in COLUMNS))
        literal_console().print(table)
