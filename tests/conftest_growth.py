"""Models to grow: toys for every difficulty, and real ones from `transformers`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from esper.growth import Event, Measurement

WIDTH = 16


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0])
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    """A byte-level transformer whose head shares the embedding's weight."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(WIDTH, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class ResBlock(nn.Module):
    """A residual block with batch norm and dropout."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.drop = nn.Dropout(0.1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.skip(x) + self.drop(self.norm(self.conv(x))))


class ResNet(nn.Module):
    """Two stages, the second of which begins with a block that changes the shape."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layer1 = nn.Sequential(*(ResBlock(8, 8) for _ in range(depth)))
        self.layer2 = nn.Sequential(ResBlock(8, 12), *(ResBlock(12, 12) for _ in range(depth)))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


class TupleBlock(nn.Module):
    """Takes its stream by keyword, returns a tuple, shares a table with all others and has a buffer."""

    def __init__(self, shared: nn.Embedding) -> None:
        super().__init__()
        self.shared, self.linear = shared, nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, *, hidden: Tensor, flag: bool = False) -> tuple[Tensor, Tensor]:
        bias = self.shared(torch.arange(hidden.shape[1], device=hidden.device))
        return hidden + self.scale * torch.tanh(self.linear(hidden) + bias), bias


class TupleNet(nn.Module):
    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.table = nn.Embedding(8, WIDTH)
        self.depth = depth
        self.layers = nn.ModuleList(TupleBlock(self.table) for _ in range(depth))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(self.depth):
            x, _ = self.layers[i](hidden=x, flag=True)
        return self.head(x)


def nested(depth: int = 2) -> nn.Module:
    """Sequentials within sequentials, one of them the model itself."""
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(depth)]
    return nn.Sequential(nn.Linear(6, WIDTH), nn.Sequential(*blocks), nn.Linear(WIDTH, 3))


def gpt2(depth: int = 2) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = {"bos_token_id": 0, "eos_token_id": 1}
    return GPT2LMHeadModel(GPT2Config(n_layer=depth, n_embd=16, n_head=2, vocab_size=32, n_positions=32, **ids))


def llama(depth: int = 2) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "bos_token_id": 0, "eos_token_id": 1}
    sizes = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 32, "max_position_embeddings": 32}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=depth, **sizes, **heads))


def vit(depth: int = 2) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    return ViTForImageClassification(ViTConfig(num_hidden_layers=depth, num_labels=5, **sizes))


class Kind(NamedTuple):
    """A model, how to call it, and its chains."""

    make: Callable[..., nn.Module]
    batch: Callable[[torch.Generator], Any]
    chains: dict[str, int]
    """Chains at depth 2, and their blocks."""

    def inputs(self, rng_seed: int = 0) -> dict[str, Any] | tuple[Any, ...]:
        return self.batch(torch.Generator().manual_seed(rng_seed))


def tokens(g: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.randint(32, (2, 8), generator=g),)


def ids(g: torch.Generator) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(32, (2, 8), generator=g)}


def images(g: torch.Generator) -> tuple[Tensor, ...]:
    return (torch.randn(4, 3, 8, 8, generator=g),)


KINDS = {
    "gpt": Kind(GPT, tokens, {"blocks": 2}),
    "resnet": Kind(ResNet, images, {"layer1": 2, "layer2.1": 2}),
    "tuples": Kind(TupleNet, lambda g: (torch.randn(3, 5, WIDTH, generator=g),), {"layers": 2}),
    "nested": Kind(nested, lambda g: (torch.randn(4, 6, generator=g),), {"1": 2}),
    "gpt2": Kind(gpt2, ids, {"transformer.h": 2}),
    "llama": Kind(llama, ids, {"model.layers": 2}),
    "vit": Kind(vit, lambda g: {"pixel_values": images(g)[0]}, {"vit.layers": 2}),
}


def run(model: nn.Module, batch: Any) -> Tensor:
    """The model's answer, whatever it wraps it in."""
    output = model(**batch) if isinstance(batch, dict) else model(*batch)
    return output if isinstance(output, Tensor) else output.logits


def bits(x: Tensor) -> Tensor:
    return x.detach().contiguous().view(torch.int32 if x.dtype == torch.float32 else torch.int64)


def read_log(folder: Path) -> tuple[dict[str, Any], list[Event], list[Measurement]]:
    """What the log of a growth says: its header, events and measurements."""
    lines = [json.loads(line) for line in (folder / "growth.jsonl").read_text().splitlines()]
    events = [line["event"] for line in lines if "event" in line]
    assert all(event.pop("blocks") >= 0 for event in events)
    points = [Measurement(**line["point"]) for line in lines if "point" in line]
    return json.loads((folder / "growth.json").read_text()), [Event(**event) for event in events], points
