"""Measure decisions per second with 1, 2 and more workers that each train one equal fleet.

On a CPU every worker has one thread, so use as many cores. On a GPU all workers share one; start NVIDIA's MPS before
(`nvidia-cuda-mps-control -d`), or they take turns. Each number is the median over updates, without the first two.

python benchmark/weak_scaling.py [--workers 1 2] [--device cpu] [--hosts 48] [--updates 12] [--repeats 3]
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from esper.recipes import Recipe, recipe
from esper.simic.workers import ALONE, Workers
from esper.tolaria import Engine

WARM = 2
"""Updates that are not counted."""


def asked_for(workers: int, device: str, hosts: int) -> Recipe:
    """Return a recipe of one fleet for each worker; the fleets differ in nothing but their random seeds."""
    plain = recipe("spirals" if device == "cpu" else "mnist1d_gpu")
    (fleet,) = plain.fleets
    fleets = tuple(replace(fleet, hosts=hosts, env=replace(fleet.env, rng_seed=n)) for n in range(workers))
    return replace(plain, fleets=fleets, engine=Engine.on(device))


def work(rank: int, arguments: argparse.Namespace, file: str) -> None:
    """Train as one of several workers; the first prints decisions per second and the shares of the phases."""
    (size,) = arguments.workers
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    workers = ALONE
    if size > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{file}", rank=rank, world_size=size, timeout=timedelta(hours=1)
        )
        workers = Workers(rank, size)
    training = asked_for(size, arguments.device, arguments.hosts).build(workers)
    reports = [training.step() for _ in range(arguments.updates)][WARM:]
    if rank == 0:
        rate = median(report.decisions / sum(report.seconds.values()) for report in reports)
        phases = {name: median(report.seconds[name] for report in reports) for name in reports[0].seconds}
        parameters = sum(p.numel() for p in training.controller.parameters())
        print(rate, parameters, reports[0].steps, *(f"{name}={seconds:.3f}" for name, seconds in phases.items()))
        sys.stdout.flush()
    os._exit(0)  # threads of gloo that outlive their group can abort the interpreter's own exit


def measured(size: int, arguments: argparse.Namespace) -> tuple[float, str]:
    """Run so many workers, and return decisions per second and what the first one says."""
    own = ["--device", arguments.device, "--hosts", str(arguments.hosts), "--updates", str(arguments.updates)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--workers", str(size), *own, "--file", str(Path(folder) / "rendezvous")]
        processes = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(size)
        ]
        said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"a worker of {size} failed")
    rate, parameters, steps, *phases = said[0].split()
    exchanged = f"{steps} steps of {4 * int(parameters):,} bytes of gradients per update"
    return float(rate), f"{', '.join(phases)}; {exchanged}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--hosts", type=int, default=48)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--file", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return work(arguments.rank, arguments, arguments.file)
    first = 0.0
    for size in arguments.workers:
        rates, said = zip(*(measured(size, arguments) for _ in range(arguments.repeats)), strict=True)
        first = first or median(rates)
        spread = f"{min(rates):.1f} to {max(rates):.1f}"
        print(
            f"{size} workers: {median(rates):.1f} decisions/s ({spread}), {median(rates) / first:.2f} times; {said[-1]}"
        )


if __name__ == "__main__":
    main()
