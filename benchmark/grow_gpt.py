"""Compare a byte-level GPT that is grown with fixed depths, all at the same floating-point operations.

python benchmark/grow_gpt.py CORPUS.xz --arms 3 4 5 6 8 2-4-8 --seeds 1 2 3

The corpus is any large text, compressed with xz; its last 3 % are validation data. One JSON line for each arm.
"""

import argparse
import lzma
import time
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from arms import Case, Line, Watched, add_options, depths_of, report, side_by_side
from torch import Tensor, nn
from torch.nn import functional as F

import esper

WIDTH, HEADS, CONTEXT, BATCH = 384, 6, 256, 128


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)
        for layer in (self.qkv, self.out, self.up, self.down):
            nn.init.normal_(layer.weight, std=0.02)

    @torch.compile
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.n1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)  # B heads T c
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    """A decoder of bytes."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        for weight in (self.token.weight, self.position.weight, self.head.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        h = self.token(x) + self.position.weight
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def batch(data: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=generator, device=data.device)
    text = data[starts[:, None] + torch.arange(CONTEXT + 1, device=data.device)].long()
    return text[:, :-1], text[:, 1:]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16):
        return F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, data: Tensor) -> float:
    generator = torch.Generator(data.device).manual_seed(99)
    model.eval()
    total = sum(loss_of(model, *batch(data, generator)) for _ in range(20))
    model.train()
    return float(total) / 20


@cache
def load(corpus: Path, device: str) -> tuple[Tensor, Tensor]:
    """Read training and validation data onto the device, once in a process."""
    text = np.frombuffer(lzma.decompress(corpus.read_bytes()), np.uint8)
    data = torch.from_numpy(text.copy()).to(device)
    cut = int(0.97 * len(data))
    return data[:cut], data[cut:]


def train(corpus: Path, device: str, case: Case) -> Line:
    """Train one arm: a fixed depth such as "4", or depths that double such as "2-4-8"."""
    arm, seed, lr, flops = case
    depths = depths_of(arm)
    torch.backends.cuda.matmul.allow_tf32 = True
    train_data, validation = load(corpus, device)
    torch.manual_seed(seed)
    generator, started = torch.Generator(device).manual_seed(1000 + seed), time.perf_counter()
    model = GPT(depths[0]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    policy = Watched(len(depths) - 1, lambda: evaluate(model, validation))
    growth = esper.grow(model, optimizer, flops=flops, policy=policy, max_growth=depths[-1] / depths[0], blend=150)
    schedule = esper.WarmupStableDecay(optimizer, growth)
    while not growth.done:
        loss = loss_of(model, *batch(train_data, generator))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        policy.step(growth, loss)
        schedule.step()
    growth.finish()
    return {
        "arm": arm,
        "seed": seed,
        "lr": lr,
        "loss": round(evaluate(model, validation), 4),
        "steps": growth.steps,
        "pflop": round(growth.spent / 1e15, 3),
        "depth": len(model.blocks),
        "births": policy.births,
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    add_options(parser, arms=["3", "4", "5", "6", "8", "2-4-8"], lrs=[1e-3], flops=8.3e15)
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cases = [Case(arm, seed, lr, asked.flops) for seed in asked.seeds for arm in asked.arms for lr in asked.lrs]
    report(side_by_side(partial(train, asked.corpus, device), cases, asked.jobs), asked.out)


if __name__ == "__main__":
    main()
