"""Measure the blocks of 2-D CNNs, forward and with their backward pass, for many hosts at once on a GPU.

    python benchmark/cnn_blocks.py [--rows 64]

Hosts are those of `esper bench fleet --workload small2d cifar`, in bf16, recorded as CUDA graphs. Beside the times
stands the least that the GPU could take: the bytes of inputs, outputs and their gradients at the speed of a large copy.
The file runs on older versions of the code, too, so that two of them can be compared on one machine.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro
from torch import Tensor

from esper.kasmina.architectures import cnn2d
from esper.kasmina.layers import run_rows
from esper.leyline.specs import HostSpec

WORKLOADS = {"small2d": ((8, 16, 32), 512), "cifar": ((32, 64, 128), 128)}
"""Widths of the hosts, and examples of a batch."""
SIDE = 32


@dataclass(frozen=True, kw_only=True)
class Question:
    workload: tuple[str, ...] = tuple(WORKLOADS)
    rows: int = 64
    """Hosts."""
    repeats: int = 30

    def run(self) -> None:
        copied = torch.zeros(2**30, dtype=torch.uint8, device="cuda")
        speed = 2 * copied.numel() / self.milliseconds(copied.clone)
        del copied
        print(f"ms for {self.rows} hosts in bf16; {torch.cuda.get_device_name()}, {speed / 1e9:.2f} TB/s\n")
        print("| block | forward | at least | with backward | at least | its convolution alone | with backward |")
        print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
        for name in self.workload:
            self.measure(name, speed)

    def measure(self, name: str, speed: float) -> None:
        """Print a row for each block; `speed` is in bytes a millisecond."""
        widths, batch = WORKLOADS[name]
        blocks = cnn2d(HostSpec("cnn2d", inputs=(SIDE, SIDE, 3), outputs=10, widths=widths))[:-1]
        x = torch.randn(self.rows, batch, SIDE, SIDE, 3, device="cuda", dtype=torch.bfloat16)
        for n, block in enumerate(blocks, start=1):
            params = {key: self.copies(p) for key, p in block.named_parameters()}
            conv = {"weight": params["0.weight"]}
            x = x.detach().requires_grad_(n > 1)  # nobody asks for the gradient of images
            with torch.no_grad():
                out = run_rows(block, params, x)
            moved = 2 * (x.numel() + out.numel()) / speed
            both = 2 * ((2 + (n > 1)) * x.numel() + 2 * out.numel()) / speed
            told = [
                *(f"{self.forward(block, params, x):.3f}", f"{moved:.3f}"),
                *(f"{self.with_backward(block, params, x):.3f}", f"{both:.3f}"),
                *(f"{self.forward(block[0], conv, x):.3f}", f"{self.with_backward(block[0], conv, x):.3f}"),  # pyright: ignore
            ]
            print(f"| {name} {n} | {' | '.join(told)} |", flush=True)
            x = out

    def copies(self, p: Tensor) -> Tensor:
        """Return the parameter of every host."""
        rows = p.detach().cuda().bfloat16()[None].repeat(self.rows, *[1] * p.ndim)
        return rows.requires_grad_()

    def forward(self, module: torch.nn.Module, params: dict[str, Tensor], x: Tensor) -> float:
        with torch.no_grad():
            return self.milliseconds(lambda: run_rows(module, params, x))

    def with_backward(self, module: torch.nn.Module, params: dict[str, Tensor], x: Tensor) -> float:
        leaves = [*params.values(), *([x] if x.requires_grad else [])]

        def step() -> tuple[Tensor, ...]:
            out = run_rows(module, params, x)
            return torch.autograd.grad(out, leaves, out)

        return self.milliseconds(step)

    def milliseconds(self, function: Callable[[], object]) -> float:
        """Record a function and return how long a replay takes."""
        for _ in range(3):
            function()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        torch.cuda.synchronize()
        start.record()
        for _ in range(self.repeats):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / self.repeats


if __name__ == "__main__":
    tyro.cli(Question).run()
