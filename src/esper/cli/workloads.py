"""Workloads of benchmarks: hosts on random data, in plain PyTorch and in fleets."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from esper.kasmina.gates import LifecycleConfig
from esper.leyline.actions import TWIN, Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.objectives import CLASSIFICATION, LANGUAGE
from esper.leyline.specs import HostSpec, TaskSpec
from esper.leyline.state import Split, Task
from esper.tolaria import Engine, Fleet, TrainConfig

BUSY = LifecycleConfig(min_prune_age=1, embargo=1)
"""Short ages and embargoes, so that random actions keep all slots busy."""


@dataclass(frozen=True)
class Workload:
    """The hosts and data of one benchmark."""

    kind: str
    inputs: tuple[int, ...]
    widths: tuple[int, ...]
    batch: int
    train: int
    validation: int
    outputs: int = 10

    @property
    def epoch(self) -> int:
        """Samples per host and epoch."""
        return self.train // self.batch * self.batch

    @property
    def is_language(self) -> bool:
        """Whether the hosts predict the next token at every position."""
        return self.kind == "gpt"

    def resized(self, batch: int | None = None, steps: int | None = None, validation: int | None = None) -> "Workload":
        """Return the workload with another batch size, other training steps or other validation examples."""
        size = batch or self.batch
        train = self.epoch // self.batch * size if steps is None else steps * size
        return replace(self, batch=size, train=train, validation=validation or self.validation)

    def coarse(self) -> "Workload":
        """Return a workload that takes seconds on two cores."""
        return self.resized(batch=2, steps=2, validation=4) if self.is_language else self.resized(None, 8, 128)


WORKLOADS = {
    "mnist1d": Workload("cnn1d", (40, 1), (8, 8, 8), 64, 4032, 1000),
    "tiny2d": Workload("cnn2d", (8, 8, 3), (16, 32, 64), 64, 2048, 256),
    "cifar": Workload("cnn2d", (32, 32, 3), (32, 64, 128), 128, 2560, 256),
    "small2d": Workload("cnn2d", (32, 32, 3), (8, 16, 32), 512, 5120, 512),
    "tokens": Workload("gpt", (128,), (64, 64, 64, 64), 32, 1024, 128, outputs=64),
}


def random_task(workload: Workload) -> Task:
    generator = torch.Generator().manual_seed(0)
    count, outputs = workload.train + workload.validation, workload.outputs
    if workload.is_language:
        x, y = torch.randint(outputs, (2, count, *workload.inputs), generator=generator)
    else:
        x = torch.randn(count, *workload.inputs, generator=generator)
        y = torch.randint(outputs, (count,), generator=generator)
    spec = TaskSpec("random", workload.inputs, outputs, LANGUAGE if workload.is_language else CLASSIFICATION)
    return Task(spec, Split(x[: workload.train], y[: workload.train]), Split(x[workload.train :], y[workload.train :]))


class PlainBlock(nn.Module):
    """A pre-norm transformer block in torch's own layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class PlainTransformer(nn.Module):
    """A causal transformer in torch's own layers."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        width, (context,) = workload.widths[0], workload.inputs
        self.token, self.position = nn.Embedding(workload.outputs, width), nn.Embedding(context, width)
        blocks = [PlainBlock(width, heads=width // 16) for _ in workload.widths]
        self.rest = nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, workload.outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.token(x) + self.position.weight)


def plain_host(workload: Workload) -> nn.Module:
    """Return the network of a workload's hosts in torch's own layers, channels first."""
    if workload.is_language:
        return PlainTransformer(workload)
    flat = workload.kind == "cnn1d"
    layers: list[nn.Module] = []
    for narrow, wide in pairwise((workload.inputs[-1], *workload.widths)):
        if flat:
            layers += [nn.Conv1d(narrow, wide, 5, 2, 2, bias=False), nn.GroupNorm(2, wide), nn.ReLU()]
        else:
            conv = nn.Conv2d(narrow, wide, 3, padding=1, bias=False)
            layers += [conv, nn.GroupNorm(2, wide), nn.ReLU(), nn.MaxPool2d(2)]
    pool = nn.AdaptiveAvgPool1d(1) if flat else nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, pool, nn.Flatten(), nn.Linear(workload.widths[-1], workload.outputs))


class Plain:
    """Hosts trained the usual way: one module and one AdamW each, data on the device."""

    def __init__(self, workload: Workload, hosts: int, device: torch.device, half: bool) -> None:
        data = random_task(workload).train
        self.workload, self.hosts, self.device, self.half = workload, hosts, device, half
        x = data.x if workload.is_language else data.x.movedim(-1, 1).contiguous()
        self.x, self.y = x.to(device), data.y.to(device)
        self.models = [plain_host(workload).to(device) for _ in range(hosts)]
        cuda = device.type == "cuda"
        self.optimizers = [torch.optim.AdamW(m.parameters(), 3e-3, fused=cuda, capturable=cuda) for m in self.models]

    def step(self, n: int, rows: Tensor) -> None:
        self.optimizers[n].zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            loss = functional.cross_entropy(self.models[n](self.x[rows]).movedim(-1, 1), self.y[rows])
        loss.backward()
        nn.utils.clip_grad_norm_(self.models[n].parameters(), 1.0)
        self.optimizers[n].step()

    def rows(self) -> Tensor:
        return torch.randint(self.workload.train, (self.hosts, self.workload.batch), device=self.device)

    def loop(self) -> None:
        rows = self.rows()
        for n in range(self.hosts):
            self.step(n, rows[n])

    def streams(self) -> Callable[[], None]:
        """Return a step that trains every host on its own CUDA stream."""
        lanes = [torch.cuda.Stream() for _ in self.models]

        def run() -> None:
            rows = self.rows()
            for n, lane in enumerate(lanes):
                lane.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(lane):
                    self.step(n, rows[n])
            for lane in lanes:
                torch.cuda.current_stream().wait_stream(lane)

        return run

    def graphs(self) -> Callable[[], None]:
        """Return a step that replays one CUDA graph per host, each on its own stream."""
        rows = self.rows()
        lanes, graphs = [torch.cuda.Stream() for _ in self.models], []
        for n, lane in enumerate(lanes):
            lane.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(lane):
                for _ in range(3):
                    self.step(n, rows[n])
            torch.cuda.current_stream().wait_stream(lane)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=lane):
                self.step(n, rows[n])
            graphs.append(graph)

        def run() -> None:
            rows.copy_(self.rows())
            for graph, lane in zip(graphs, lanes, strict=True):
                lane.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(lane):
                    graph.replay()
            for lane in lanes:
                torch.cuda.current_stream().wait_stream(lane)

        return run


def make_fleet(workload: Workload, hosts: int, engine: Engine) -> Fleet:
    spec = HostSpec(workload.kind, workload.inputs, workload.outputs, workload.widths)
    config = TrainConfig(batch_size=workload.batch)
    return Fleet(spec, random_task(workload), range(hosts), config, lifecycle=BUSY, engine=engine)


def planted(fleet: Fleet, num_slots: int, twins: bool = False) -> None:
    """Plant seeds in the first slots of every host until they are blended in: twins, or all blueprints in turn."""
    kinds = [TWIN] if twins else fleet.space.blueprints
    if twins and TWIN not in fleet.space.blueprints:
        raise EsperError(f"seeds twins: hosts of kind {fleet.spec.kind!r} have no blocks to copy; use workload tokens")
    for slot in fleet.space.slots[:num_slots]:
        actions = torch.tensor([fleet.space.action(Op.GERMINATE, slot=slot)] * fleet.num_hosts)
        turn = torch.tensor([fleet.space.blueprints.index(name) for name in kinds])
        actions[:, Head.BLUEPRINT] = turn[torch.arange(fleet.num_hosts) % len(turn)]
        fleet.decide(actions.to(fleet.device))
    for _ in range(7 if num_slots else 0):
        fleet.decide(torch.zeros(fleet.num_hosts, len(Head), dtype=torch.long, device=fleet.device))


def random_legal(allowed: Tensor, sizes: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Sample a legal op and slot from a mask (N, O, S), with WAIT counted once, and any choice of the other heads."""
    weight = allowed.float()
    weight[:, Op.WAIT] /= allowed.shape[2]
    picked = torch.multinomial(weight.flatten(1), 1, generator=generator)[:, 0]
    uniform = torch.rand(len(allowed), len(sizes), generator=generator, device=allowed.device)
    actions = (uniform * torch.tensor(sizes, device=allowed.device)).long()
    actions[:, Head.OP], actions[:, Head.SLOT] = picked // allowed.shape[2], picked % allowed.shape[2]
    return actions


class Timing(NamedTuple):
    """How long something took."""

    seconds: float
    """Median over repetitions."""
    repeated: int


def timed(run: Callable[[], object], device: torch.device, at_least: float, warm: int = 1) -> Timing:
    """Time `run` again and again for `at_least` seconds, at least three times."""
    times: list[float] = []
    for _ in range(warm):
        run()
    while sum(times) < at_least or len(times) < 3:
        times.append(elapsed(run, device))
    return Timing(sorted(times)[len(times) // 2], len(times))


def elapsed(run: Callable[[], object], device: torch.device) -> float:
    wait(device)
    start = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - start


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
