"""How fast N hosts train: one after the other in plain PyTorch, on CUDA streams, and as a fleet, in one run.

python benchmark/fleet.py --device cuda --work mnist1d tiny2d --hosts 16 256 --seeds none one full live
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from esper.kasmina.gates import LifecycleConfig
from esper.leyline.actions import Head, Op
from esper.leyline.objectives import CLASSIFICATION
from esper.leyline.specs import HostSpec, TaskSpec
from esper.leyline.state import Split, Task
from esper.tolaria import Engine, Fleet, TrainConfig

WORKS = {
    # name: kind, inputs, widths, batch, training examples, validation examples
    "mnist1d": ("cnn1d", (40, 1), (8, 8, 8), 64, 3400, 600),
    "tiny2d": ("cnn2d", (8, 8, 3), (16, 32, 64), 64, 2048, 256),
    "cifar": ("cnn2d", (32, 32, 3), (32, 64, 128), 128, 2560, 256),
    "small2d": ("cnn2d", (32, 32, 3), (8, 16, 32), 512, 5120, 512),
}
ROOMY = LifecycleConfig(min_prune_age=1, embargo=1)


def random_task(inputs: tuple[int, ...], train: int, validation: int) -> Task:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(train + validation, *inputs, generator=generator)
    y = torch.randint(10, (train + validation,), generator=generator)
    return Task(
        TaskSpec("random", inputs, 10, CLASSIFICATION), Split(x[:train], y[:train]), Split(x[train:], y[train:])
    )


def plain_host(kind: str, inputs: tuple[int, ...], widths: tuple[int, ...]) -> nn.Module:
    """The same network in torch's own layers, channels first."""
    flat = kind == "cnn1d"
    layers: list[nn.Module] = []
    for narrow, wide in zip((inputs[-1], *widths), widths, strict=False):
        conv = (
            nn.Conv1d(narrow, wide, 5, 2, 2, bias=False) if flat else nn.Conv2d(narrow, wide, 3, padding=1, bias=False)
        )
        layers += [conv, nn.GroupNorm(2, wide), nn.ReLU(), *([] if flat else [nn.MaxPool2d(2)])]
    pool = nn.AdaptiveAvgPool1d(1) if flat else nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(widths[-1], 10))


def plain_steps(work: str, hosts: int, device: torch.device, streams: bool) -> Callable[[], None]:
    """One step of every host, one after the other, or each on a stream of its own."""
    kind, inputs, widths, batch, train, _ = WORKS[work]
    data = random_task(inputs, train, 1).train
    x, y = data.x.movedim(-1, 1).contiguous().to(device), data.y.to(device)
    models = [plain_host(kind, inputs, widths).to(device) for _ in range(hosts)]
    optimizers = [torch.optim.AdamW(m.parameters(), 3e-3, fused=device.type == "cuda") for m in models]
    lanes = [torch.cuda.Stream() for _ in models] if streams else []

    def one(n: int, rows: Tensor) -> None:
        optimizers[n].zero_grad()
        functional.cross_entropy(models[n](x[rows]), y[rows]).backward()
        nn.utils.clip_grad_norm_(models[n].parameters(), 1.0)
        optimizers[n].step()

    def run() -> None:
        rows = torch.randint(train, (hosts, batch), device=device)
        for n in range(hosts):
            if streams:
                lanes[n].wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(lanes[n]):
                    one(n, rows[n])
            else:
                one(n, rows[n])
        for lane in lanes:
            torch.cuda.current_stream().wait_stream(lane)

    return run


def seconds(run: Callable[[], object], device: torch.device, repeat: int, warm: int = 2) -> float:
    times = []
    for repetition in range(repeat + warm):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if repetition >= warm:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def random_legal(fleet: Fleet, generator: torch.Generator) -> Tensor:
    allowed = fleet.legal()
    weight = allowed.float().flatten(1)
    weight[:, : allowed.shape[2]] /= allowed.shape[2]
    picked = torch.multinomial(weight, 1, generator=generator)[:, 0]
    sizes = torch.tensor(fleet.space.sizes, device=fleet.device)
    actions = (torch.rand(fleet.num_hosts, len(sizes), generator=generator, device=fleet.device) * sizes).long()
    actions[:, Head.OP], actions[:, Head.SLOT] = picked // allowed.shape[2], picked % allowed.shape[2]
    return actions


def planted(fleet: Fleet, seeds: str) -> None:
    """Bring every host to the wanted occupancy, with blueprints in turn, fully blended in."""
    slots = fleet.space.slots[: {"none": 0, "one": 1, "full": len(fleet.space.slots)}[seeds]]
    for s, _ in enumerate(slots):
        actions = torch.tensor([fleet.space.action(Op.GERMINATE, slot=slots[s])] * fleet.num_hosts)
        actions[:, Head.BLUEPRINT] = torch.arange(fleet.num_hosts) % len(fleet.space.blueprints)
        fleet.decide(actions.to(fleet.device))
    for _ in range(7 if slots else 0):
        fleet.decide(torch.zeros(fleet.num_hosts, len(Head), dtype=torch.long, device=fleet.device))


def fleet_rate(work: str, hosts: int, device: torch.device, seeds: str, compute: str) -> tuple[float, Fleet]:
    """Training samples per second, all hosts together; for "live", whole decisions with everything in them."""
    kind, inputs, widths, batch, train, validation = WORKS[work]
    task = random_task(inputs, train, validation)
    config = TrainConfig(batch_size=batch)
    fleet = Fleet(
        HostSpec(kind, inputs, 10, widths), task, range(hosts), config, lifecycle=ROOMY, engine=Engine(device=str(device), precision=compute)
    )
    samples = hosts * (train // batch * batch)
    if seeds != "live":
        planted(fleet, seeds)
        return samples / seconds(fleet.train_epoch, device, 5), fleet
    generator = torch.Generator(device).manual_seed(1)
    episode = 25
    ages = torch.arange(hosts, device=device) % episode

    def decision() -> None:
        nonlocal ages
        fleet.decide(random_legal(fleet, generator))
        ages = (ages + 1) % episode
        fleet.reset(ages == 0, fleet.rng_seeds + hosts)

    rates = []
    for _ in range(4):
        elapsed = seconds(lambda: [decision() for _ in range(12)], device, 1, warm=0)
        rates.append(samples * 12 / elapsed)
        print(f"live: {rates[-1]:,.0f} samples/s over the next 12 decisions", file=sys.stderr, flush=True)
    return 4 / sum(1 / rate for rate in rates), fleet


def rows(arguments: argparse.Namespace) -> list[dict[str, object]]:
    device = torch.device(arguments.device)
    found: list[dict[str, object]] = []
    for work in arguments.work:
        batch = WORKS[work][3]
        sample = 16
        loop = sample * batch / seconds(plain_steps(work, sample, device, False), device, 5)

        def add(way: str, hosts: int, seeds: str, rate: float, **more: object) -> None:
            row = {"work": work, "way": way, "hosts": hosts, "seeds": seeds, "samples_per_s": round(rate)}  # noqa: B023
            found.append(row | {"ratio": round(rate / loop, 2)} | more)  # noqa: B023
            print(found[-1], file=sys.stderr, flush=True)

        add("loop", sample, "none", loop)
        if device.type == "cuda":
            add("streams", sample, "none", sample * batch / seconds(plain_steps(work, sample, device, True), device, 5))
        for hosts in arguments.hosts:
            for seeds in arguments.seeds:
                for name in arguments.precision:
                    rate, fleet = fleet_rate(work, hosts, device, seeds, name)
                    more: dict[str, object] = {"precision": name}
                    if fleet.programs is not None:
                        more |= {"hits": fleet.programs.hits, "misses": fleet.programs.misses}
                        more |= {"peak_mb": torch.cuda.max_memory_allocated() >> 20}
                        torch.cuda.reset_peak_memory_stats()
                    add("fleet", hosts, seeds, rate, **more)
                    del fleet
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--work", nargs="+", choices=WORKS, default=["mnist1d"])
    parser.add_argument("--hosts", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--seeds", nargs="+", choices=("none", "one", "full", "live"), default=["none", "one", "live"])
    parser.add_argument("--precision", nargs="+", choices=("fp32", "bf16"), default=["fp32"])
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    arguments = parser.parse_args()
    found = rows(arguments)
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    if arguments.json:
        print(json.dumps({"device": name, "rows": found}))


if __name__ == "__main__":
    main()
