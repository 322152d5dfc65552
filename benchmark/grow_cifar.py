"""Compare a residual network for small images that is grown with fixed depths, all at the same floating-point
operations.

python benchmark/grow_cifar.py CIFAR10.npz --arms 1 2 3 4 6 1-2-4 --seeds 1 2 3 --jobs 3

The file holds x_train, y_train, x_test and y_test: images as uint8 (N, 32, 32, 3), and their classes. The last 2,000
training images are validation data. The learning rate of each arm is the one with the lowest validation loss, on a
seed of its own. One JSON line for each training; those that choose a rate do not look at the test images. Small
networks leave a large GPU idle: with --jobs, several train at a time, best under CUDA's MPS. The default budget is
meant to take about 12 seconds of an H200, at 100 TFLOP/s.
"""

import argparse
import math
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from arms import Case, Line, Watched, add_options, depths_of, report, side_by_side
from torch import Tensor, nn
from torch.nn import functional as F

import esper

VALIDATION, PAD, TUNED_ON = 2000, 4, 0
"""Validation images; pixels by which crops are moved; the seed on which learning rates are chosen."""


class Block(nn.Module):
    """A residual block; it halves the image where it changes the number of channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.norm2.weight)
        self.shortcut = nn.Sequential()
        if inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(self.shortcut(x) + y)


class ResNet(nn.Module):
    """Three stages: a layer that changes the shape, and `depth` blocks that keep it."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.shapes = nn.ModuleList([stem, Block(widths[0], widths[1]), Block(widths[1], widths[2])])
        self.stages = nn.ModuleList(nn.Sequential(*(Block(w, w) for _ in range(depth))) for w in widths)
        self.head = nn.Linear(widths[2], 10)

    def forward(self, x: Tensor) -> Tensor:
        for shape, stage in zip(self.shapes, self.stages, strict=True):
            x = stage(shape(x))
        return self.head(x.mean((2, 3)))


class Images(NamedTuple):
    """Images on the device, as bytes, and their classes."""

    x: Tensor
    y: Tensor


class Data(NamedTuple):
    """The parts of a data set, with mean and deviation of the training part."""

    train: Images
    """Padded, so that every crop is a part of an image."""
    validation: Images
    test: Images
    mean: Tensor
    std: Tensor

    def normalized(self, x: Tensor) -> Tensor:
        """Return bytes (N, H, W, 3) as floats (N, 3, H, W), channels last in memory."""
        return ((x.float() - self.mean) / self.std).permute(0, 3, 1, 2)


class Options(NamedTuple):
    """What all trainings share."""

    images: Path
    device: str
    width: int
    batch: int
    label_smoothing: float


@cache
def load(path: Path, device: str) -> Data:
    """Read a data set onto the device, once in a process."""
    with np.load(path) as file:
        x, y, x_test, y_test = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    mean, std = (torch.from_numpy(f(x[:-VALIDATION], axis=(0, 1, 2))).float().to(device) for f in (np.mean, np.std))
    padded = np.pad(x[:-VALIDATION], ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)), "reflect")

    def images(x: np.ndarray, y: np.ndarray) -> Images:
        return Images(torch.from_numpy(x.copy()).to(device), torch.from_numpy(y.reshape(-1)).long().to(device))

    return Data(
        images(padded, y[:-VALIDATION]), images(x[-VALIDATION:], y[-VALIDATION:]), images(x_test, y_test), mean, std
    )


def batches(data: Data, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of flipped and moved images for ever, every image once in an epoch."""
    x, y = data.train
    height, width = x.shape[1] - 2 * PAD, x.shape[2] - 2 * PAD
    down, right = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    while True:
        order = torch.randperm(len(x), generator=generator, device=x.device)
        for rows in order[: len(x) // size * size].split(size):
            moved = torch.randint(2 * PAD + 1, (2, size, 1), generator=generator, device=x.device)
            flipped = torch.randint(2, (size, 1), generator=generator, device=x.device).bool()
            columns = moved[1] + torch.where(flipped, right.flip(0), right)
            lines = moved[0] + down
            yield data.normalized(x[rows[:, None, None], lines[:, :, None], columns[:, None, :]]), y[rows]


@torch.no_grad()
def evaluate(model: nn.Module, data: Data, images: Images) -> tuple[float, float]:
    """Return the mean loss and the accuracy on images."""
    loss, right = torch.zeros((), device=images.x.device), torch.zeros((), device=images.x.device)
    model.eval()
    for x, y in zip(images.x.split(1000), images.y.split(1000), strict=True):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            logits = model(data.normalized(x)).float()
        loss += F.cross_entropy(logits, y, reduction="sum")
        right += (logits.argmax(1) == y).sum()
    model.train()
    return float(loss) / len(images.y), float(right) / len(images.y)


def train(options: Options, tuning: bool, case: Case) -> Line:
    """Train one arm: a fixed depth such as "4", or depths that double such as "1-2-4"."""
    arm, seed, lr, flops = case
    depths, data = depths_of(arm), load(options.images, options.device)
    torch.manual_seed(seed)
    generator, started = torch.Generator(options.device).manual_seed(1000 + seed), time.perf_counter()
    model = ResNet(depths[0], options.width).to(options.device, memory_format=torch.channels_last)  # pyright: ignore
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)
    policy = Watched(len(depths) - 1, lambda: evaluate(model, data, data.validation)[0])
    feed = batches(data, options.batch, generator)
    growth = esper.grow(
        model,
        optimizer,
        flops=flops,
        policy=policy,
        max_growth=depths[-1] / depths[0],
        example=data.normalized(data.validation.x[: options.batch]),
    )
    schedule = esper.WarmupStableDecay(optimizer, growth)
    while not growth.done:
        x, y = next(feed)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y, label_smoothing=options.label_smoothing)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        policy.step(growth, loss)
        schedule.step()
    growth.finish()
    validation_loss, validation_accuracy = evaluate(model, data, data.validation)
    test_loss, accuracy = (None, None) if tuning else evaluate(model, data, data.test)
    return {
        "arm": arm,
        "seed": seed,
        "lr": lr,
        "accuracy": None if accuracy is None else round(accuracy, 4),
        "loss": None if test_loss is None else round(test_loss, 4),
        "validation_accuracy": round(validation_accuracy, 4),
        "validation_loss": round(validation_loss, 4),
        "steps": growth.steps,
        "pflop": float(f"{growth.spent / 1e15:.4g}"),
        "depth": len(model.stages[0]),
        "births": policy.births,
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    add_options(parser, arms=["1", "2", "3", "4", "6", "1-2-4"], lrs=[0.05, 0.1, 0.2], flops=1.2e15)
    parser.add_argument(
        "--tune", type=float, default=0.5, help="share of --flops for choosing rates; 0: test all of them"
    )
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options = Options(asked.images, device, asked.width, asked.batch, asked.label_smoothing)
    rates: dict[str, list[float]] = {arm: list(asked.lrs) for arm in asked.arms}
    if asked.tune and len(asked.lrs) > 1:
        cases = [Case(arm, TUNED_ON, lr, asked.tune * asked.flops) for arm in rates for lr in rates[arm]]
        tuned = report(side_by_side(partial(train, options, True), cases, asked.jobs), asked.out)
        rates = {arm: [best_rate([line for line in tuned if line["arm"] == arm])] for arm in rates}
    cases = [Case(arm, seed, lr, asked.flops) for seed in asked.seeds for arm in rates for lr in rates[arm]]
    report(side_by_side(partial(train, options, False), cases, asked.jobs), asked.out)


def best_rate(lines: list[Line]) -> float:
    """Return the learning rate with the lowest validation loss, leaving out trainings that diverged."""
    finite = [line for line in lines if math.isfinite(line.get("validation_loss", math.nan))]
    if not finite:
        raise SystemExit(f"every training of arm {lines[0]['arm']} diverged: lower --lrs")
    return min(finite, key=lambda line: line["validation_loss"])["lr"]


if __name__ == "__main__":
    main()
