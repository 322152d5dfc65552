"""What a slot and a seed cost one host, against plain PyTorch, and convolutions as matmuls against torch's own.

    python benchmark/single_host.py

Each figure is the median of interleaved repetitions in one run; ratios are to the plain model of the same line.
"""

import platform
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from esper.kasmina.hosts import build_host, weak_host
from esper.kasmina.layers import Conv
from esper.kasmina.slots import build_seed
from esper.leyline.actions import Graft
from esper.leyline.objectives import cross_entropy

SHAPES = {"mlp": (16,), "cnn1d": (40, 1), "cnn2d": (8, 8, 1), "transformer": (64,)}
SEED = {"mlp": "mlp", "cnn1d": "conv_heavy", "cnn2d": "conv_heavy", "transformer": "mlp"}
BATCH, REPETITIONS = 64, 60


def medians(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of each way, timed in turn so that a slow moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for repetition in range(REPETITIONS + 5):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if repetition >= 5:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.parameters())

    def run() -> None:
        optimizer.zero_grad()
        cross_entropy(model(x), y).mean().backward()
        optimizer.step()

    return run


def host_row(kind: str) -> str:
    spec = weak_host(kind, SHAPES[kind], 10)
    tokens = kind == "transformer"
    x = torch.randint(10, (BATCH, *spec.inputs)) if tokens else torch.randn(BATCH, *spec.inputs)
    y = torch.randint(10, (BATCH, *spec.inputs) if tokens else (BATCH,))
    bare, grown = build_host(spec), build_host(spec)
    grown.slot(0).plant(build_seed(grown.slot_specs[0], SEED[kind], Graft.ADD))
    grown.slot(0).alpha = 1.0
    plain = nn.Sequential(*build_host(spec).segments)
    t = medians({"plain": step(plain, x, y), "slots": step(bare, x, y), "seed": step(grown, x, y)})
    return (
        f"| {kind} | {t['plain']:.2f} | {t['slots'] / t['plain']:.2f} | {t['seed'] / t['plain']:.2f} ({SEED[kind]}) |"
    )


def conv_row(channels: int, space: tuple[int, ...]) -> str:
    kernel = (5,) if len(space) == 1 else (3, 3)
    ours = Conv(channels, channels, kernel)
    conv = nn.Conv1d if len(space) == 1 else nn.Conv2d
    torchs = conv(channels, channels, kernel[0], padding=kernel[0] // 2)
    x = torch.randn(BATCH, *space, channels, requires_grad=True)
    first = x.detach().movedim(-1, 1).contiguous().requires_grad_()
    t = medians({"ours": lambda: ours(x).sum().backward(), "torch": lambda: torchs(first).sum().backward()})
    size = "×".join(map(str, space))
    return f"| {size}, {channels} channels | {t['torch']:.2f} | {t['ours'] / t['torch']:.2f} |"


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread of {platform.processor() or platform.machine()}, batch {BATCH}\n")
    print("| host | plain PyTorch step, ms | with empty slots | with one speaking seed |\n|---|--:|--:|--:|")
    print(*(host_row(kind) for kind in SHAPES), sep="\n")
    print("\n| convolution, forward + backward | torch's own, ms | unfold + matmul |\n|---|--:|--:|")
    rows = [(8, (20,)), (32, (20,)), (8, (8, 8)), (16, (8, 8)), (32, (16, 16))]
    print(*(conv_row(*row) for row in rows), sep="\n")
