"""Train your GPT: a byte-level transformer that begins with one block and ends with four.

python examples/gpt.py [TEXT] [--steps 7000] [--out runs/gpt]

TEXT is any text file; without one, the source of Python's own standard library is the text. Lines that end in "# Esper"
are all that growth adds to an ordinary training loop. About a minute on 2 CPU cores.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

import esper

WIDTH, HEADS, CONTEXT, BATCH = 64, 4, 64, 16
LR = 4e-3


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)  # B heads T c
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A decoder-only transformer over bytes.

    Args:
        depth: Number of blocks.
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        h = self.token(x) + self.position.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def standard_library() -> tuple[Tensor, Tensor]:
    """Read the source of Python's standard library, without tests; every twentieth file is for validation."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    texts = [(root / name).read_bytes() for name in names if not left_out & set(name.split("/"))]
    validation = texts[::20]
    del texts[::20]
    return as_tensor(b"\n".join(texts)), as_tensor(b"\n".join(validation))


def text_file(path: Path) -> tuple[Tensor, Tensor]:
    """Read a text file; its last twentieth is for validation."""
    data = as_tensor(path.read_bytes())
    cut = len(data) - len(data) // 20
    return data[:cut], data[cut:]


def as_tensor(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def windows(data: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Cut windows out of a text: the bytes that a model reads, and the bytes that follow each of them."""
    text = data[starts[:, None] + torch.arange(CONTEXT + 1)].long()  # B T+1
    return text[:, :-1], text[:, 1:]


def batch(data: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a batch of windows at random."""
    return windows(data, torch.randint(len(data) - CONTEXT, (BATCH,), generator=generator))


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, data: Tensor, num_windows: int = 2048) -> float:
    """Return the mean loss over windows that are spread evenly over a text."""
    model.eval()
    starts = torch.linspace(0, len(data) - CONTEXT - 1, num_windows, dtype=torch.float64).long()
    losses = [float(loss_of(model, *windows(data, part))) * len(part) for part in starts.split(128)]
    model.train()
    return sum(losses) / num_windows


@torch.no_grad()
def sample(model: nn.Module, prompt: str, length: int, rng_seed: int = 0, temperature: float = 0.7) -> str:
    """Continue a prompt, byte by byte."""
    generator = torch.Generator().manual_seed(rng_seed)
    text = list(prompt.encode())
    model.eval()
    for _ in range(length):
        logits = model(torch.tensor([text[-CONTEXT:]]))[0, -1]
        text.append(int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)))
    return bytes(text).decode(errors="replace")


def train(data: Tensor, steps: int) -> GPT:
    """Train a GPT that grows: the compute of `steps` optimizer steps at depth 1."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = GPT(depth=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), weight_decay=0.1)
    growth = esper.grow(model, optimizer, total=steps)  # Esper
    schedule = esper.WarmupStableDecay(optimizer, growth)  # Esper
    while not growth.done:  # Esper
        loss = loss_of(model, *batch(data, generator))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        growth.step(loss)  # Esper
        schedule.step()
        if growth.steps % 250 == 0:
            depth = len(model.blocks)
            print(f"step {growth.steps:5}  compute {growth.progress:4.0%}  blocks {depth}  loss {loss.item():.3f}")
    growth.finish()  # Esper
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?", help="text file; Python's standard library by default")
    parser.add_argument("--steps", type=int, default=7000, help="compute, in optimizer steps at depth 1")
    parser.add_argument("--out", type=Path, default=Path("runs/gpt"), help="folder for the trained model")
    asked = parser.parse_args()
    if asked.steps < 1:
        parser.error(f"--steps must be at least 1, not {asked.steps}")
    if asked.text is not None and not asked.text.is_file():
        parser.error(f"there is no file {asked.text}")
    data, validation = standard_library() if asked.text is None else text_file(asked.text)
    if len(validation) <= CONTEXT:
        parser.error(f"the text is too short: give a file of at least {20 * (CONTEXT + 1):,} bytes")
    print(f"{len(data):,} bytes to train on, {len(validation):,} to validate on")

    model = train(data, asked.steps)

    asked.out.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), asked.out / "gpt.safetensors")
    same = GPT(depth=len(model.blocks))  # an ordinary model: the constructor with the larger depth, and its weights
    same.load_state_dict(load_file(asked.out / "gpt.safetensors"))
    print(f"\n{len(same.blocks)} blocks, validation loss {evaluate(same, validation):.3f}; saved in {asked.out}\n")
    print(sample(same, "def ", 300).rstrip())


if __name__ == "__main__":
    main()
