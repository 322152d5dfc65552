"""Measure what growth costs a training step while nothing grows."""

import json as json_module
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from esper.cli.bench import BenchGrow
from esper.cli.console import literal_console
from esper.cli.workloads import elapsed
from esper.growth import Growth, grow
from esper.tolaria import Engine

NEVER = 10**9
"""Steps that no measurement makes."""
WARM = 3
"""Bursts before the first that counts."""
Run = Callable[[int], None]
"""Makes a number of training steps."""
STATES = ("attached", "blending", "grown", "finished")


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm beside a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.shortcut(x) + self.norm2(self.conv2(y)))


class CNN(nn.Module):
    """A residual network of three stages, each a chain of `depth` blocks."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.shapes = nn.ModuleList(ResidualBlock(a, b) for a, b in zip((width, *widths[:-1]), widths, strict=True))
        self.stages = nn.ModuleList(nn.Sequential(*(ResidualBlock(w, w) for _ in range(depth))) for w in widths)
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for shape, stage in zip(self.shapes, self.stages, strict=True):
            x = stage(shape(x))
        return self.head(x.mean((2, 3)))


class TransformerBlock(nn.Module):
    """Causal attention and a feed-forward layer, each after its norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # B heads T c
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A decoder of bytes."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(TransformerBlock(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass(frozen=True)
class Subject:
    """A model to measure, and its batch."""

    build: Callable[[int, int], nn.Module]
    width: int
    depth: int
    """Blocks of each chain when it is measured; even, as a grown model starts with half of them."""
    batch: int
    context: int | None = None
    """Bytes of a sequence; images otherwise."""

    def model(self, depth: int, device: torch.device) -> nn.Module:
        """Return a new model of a depth."""
        model = self.build(self.width, depth).to(device)
        return model if self.context else model.to(memory_format=torch.channels_last)  # pyright: ignore

    def data(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return one batch of random inputs and targets."""
        generator = torch.Generator().manual_seed(0)
        if self.context:
            x = torch.randint(256, (self.batch, self.context + 1), generator=generator).to(device)
            return x[:, :-1].contiguous(), x[:, 1:].contiguous()
        x = torch.randn(self.batch, 3, 32, 32, generator=generator).to(device, memory_format=torch.channels_last)
        return x, torch.randint(10, (self.batch,), generator=generator).to(device)


SUBJECTS = {
    "cpu": {"cnn": Subject(CNN, 16, 2, 16), "transformer": Subject(Transformer, 128, 4, 8, 64)},
    "cuda": {"cnn": Subject(CNN, 64, 2, 256), "transformer": Subject(Transformer, 384, 6, 64, 256)},
}


class Loop:
    """A training loop, with or without growth."""

    def __init__(self, model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
        self.model, self.data = model, data
        self.half = data[0].is_cuda
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
        self.growth: Growth | None = None

    def attach(self, blend: int) -> Growth:
        """Grow the model from now on, by hand only."""
        self.growth = grow(
            self.model, self.optimizer, total=NEVER, blend=blend, policy=lambda growth: None, example=self.data[0]
        )
        return self.growth

    def run(self, steps: int) -> None:
        """Make training steps."""
        x, y = self.data
        for _ in range(steps):
            with torch.autocast(x.device.type, torch.bfloat16, enabled=self.half):
                loss = functional.cross_entropy(self.model(x).flatten(0, -2).float(), y.flatten())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.growth is not None:
                self.growth.step(loss)


def loops(subject: Subject, state: str, device: torch.device) -> tuple[Loop, Loop]:
    """Return a plain loop, and one with growth in a state; their models have equal weights and depth."""
    data, plain = subject.data(device), subject.model(subject.depth, device)
    other = Loop(subject.model(subject.depth if state == "attached" else subject.depth // 2, device), data)
    growth = other.attach(blend=NEVER if state == "blending" else 1)
    if state != "attached":
        growth.deepen()
        other.run(8)  # past the blend of one step, and past the time that births are watched
    if state == "finished":
        growth.finish()
        other.growth = None
    plain.load_state_dict(other.model.state_dict())
    return Loop(plain, data), other


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % interval of the median, from order statistics."""
    ordered, half = sorted(values), 0.98 * sqrt(len(values))
    low = max(round(len(values) / 2 - half) - 1, 0)
    return ordered[low], ordered[len(values) - 1 - low]


def compare(plain: Run, other: Run, device: torch.device, pairs: int, burst: int) -> dict[str, float]:
    """Time bursts of steps without and with growth in turns, after warming up.

    Args:
        plain: Makes so many steps without growth.
        other: Makes so many steps with growth.
        device: Where the steps run.
        pairs: How many bursts of each are timed.
        burst: Steps of a burst.
    """
    times: list[dict[Run, float]] = []
    for n in range(WARM + pairs):
        order = (plain, other) if n % 2 else (other, plain)
        times.append({run: elapsed(partial(run, burst), device) / burst for run in order})
    ratios = [time[other] / time[plain] for time in times[WARM:]]
    low, high = interval(ratios)
    return {
        "ratio": round(median(ratios), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "milliseconds": round(1000 * median(time[other] for time in times[WARM:]), 3),
        "pairs": pairs,
    }


def measure_growth(asked: BenchGrow) -> None:
    """Measure both models in every state and print the results."""
    device = Engine(device=asked.device or ("cuda" if torch.cuda.is_available() else "cpu")).place()
    cuda = device.type == "cuda"
    pairs = asked.pairs or ((9 if asked.quick else 25) if cuda else (40 if asked.quick else 300))
    name = torch.cuda.get_device_name(device) if cuda else f"CPU, {torch.get_num_threads()} threads"
    rows: list[dict[str, Any]] = []
    for model, subject in SUBJECTS[device.type].items():
        for state in STATES:
            plain, other = loops(subject, state, device)
            found = compare(plain.run, other.run, device, pairs, burst=10 if cuda else 1)
            rows.append({"model": model, "state": state, "device": device.type} | found)
            print(json_module.dumps(rows[-1]), file=sys.stderr, flush=True)
    if asked.json:
        print(json_module.dumps({"device": name, "torch": torch.__version__, "rows": rows}))
    else:
        show(rows, name)


def show(rows: Sequence[dict[str, Any]], name: str) -> None:
    """Print the rows as a table."""
    table = Table(
        title=f"Training steps with growth on {name}",
        caption="ratio: time of a step to that of a plain model of equal depth, with its 95 % interval",
    )
    for title in ("model", "state", "ratio", "interval", "ms"):
        table.add_column(title, justify="left" if title in ("model", "state") else "right")
    for row in rows:
        between = f"{row['low']:.3f} to {row['high']:.3f}"
        table.add_row(row["model"], row["state"], f"{row['ratio']:.3f}", between, f"{row['milliseconds']:.1f}")
    literal_console().print(table)
