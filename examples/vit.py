"""Grow a vision transformer of `transformers` on handwritten digits: it begins with two layers and ends with eight.

python examples/vit.py [--steps 2000] [--out runs/vit]

The data are scikit-learn's digits, images of 8 × 8 pixels (pip install 'esper-nn[data,transformers]'). The grown model
is saved and loaded like any other model of `transformers`. Lines that end in "# Esper" are all that growth adds to an
ordinary training loop. About 40 seconds on 2 CPU cores.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import esper

BATCH, LR = 64, 1e-3
TEST = 397
"""Images that are kept for testing, out of 1,797."""
CONFIG = ViTConfig(
    image_size=8,
    patch_size=2,
    num_channels=1,
    hidden_size=48,
    intermediate_size=192,
    num_attention_heads=4,
    num_hidden_layers=2,
)
CONFIG.num_labels = 10

Digits = tuple[Tensor, Tensor]


def digits() -> tuple[Digits, Digits]:
    """Load the digits, shuffled, as images and labels to train on and to test on."""
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(pixels, dtype=torch.float32)[order].view(-1, 1, 8, 8), torch.tensor(labels)[order]
    x = (x - 4.9) / 6.0  # the mean pixel is 4.9 of 16, with a deviation of 6
    return (x[TEST:], y[TEST:]), (x[:TEST], y[:TEST])


@torch.no_grad()
def logits(model: nn.Module, x: Tensor) -> Tensor:
    return model.eval()(pixel_values=x).logits


def train(data: Digits, steps: int) -> ViTForImageClassification:
    """Train a vision transformer that grows: the compute of `steps` optimizer steps at two layers."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    x, y = data
    model = ViTForImageClassification(CONFIG).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.05)
    growth = esper.grow(model, optimizer, total=steps)  # Esper
    schedule = esper.WarmupStableDecay(optimizer, growth)  # Esper
    while not growth.done:  # Esper
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        loss = model(pixel_values=x[rows], labels=y[rows]).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        growth.step(loss)  # Esper
        schedule.step()
        if growth.steps % 100 == 0:
            depth = model.config.num_hidden_layers
            print(f"step {growth.steps:5}  compute {growth.progress:4.0%}  layers {depth}  loss {loss.item():.3f}")
    growth.finish()  # Esper
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000, help="compute, in optimizer steps at two layers")
    parser.add_argument("--out", type=Path, default=Path("runs/vit"), help="folder for the trained model")
    asked = parser.parse_args()
    if asked.steps < 1:
        parser.error(f"--steps must be at least 1, not {asked.steps}")
    data, (x, y) = digits()
    model = train(data, asked.steps)

    model.save_pretrained(asked.out)
    same = ViTForImageClassification.from_pretrained(asked.out)
    equal = torch.equal(logits(same, x), logits(model, x))
    accuracy = (logits(same, x).argmax(1) == y).float().mean().item()
    print(f"\n{same.config.num_hidden_layers} layers, test accuracy {accuracy:.4f}; saved in {asked.out}")
    print(f"logits of the loaded model: {'equal, bit for bit' if equal else 'different'}")


if __name__ == "__main__":
    main()
