"""Grow a residual CNN on handwritten digits: both of its stages begin with one block and end with four.

python examples/residual_cnn.py [--epochs 40]

The data are scikit-learn's digits, images of 8 × 8 pixels (pip install 'esper-nn[data]'). Lines that end in "# Esper"
are all that growth adds to an ordinary training loop. About 20 seconds on 2 CPU cores.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import esper

WIDTH, BATCH, LR = 16, 64, 2e-3
TEST = 397
"""Images that are kept for testing, out of 1,797."""


class Block(nn.Module):
    """A pre-activation residual block: two convolutions, each after batch norm and ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.relu(self.norm1(x)))
        return x + self.conv2(F.relu(self.norm2(h)))


class ResNet(nn.Module):
    """A residual network with two stages; a strided convolution between them halves the image.

    Args:
        depth: Number of blocks of each stage.
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, WIDTH, 3, padding=1)
        self.stage1 = nn.Sequential(*(Block(WIDTH) for _ in range(depth)))
        self.down = nn.Conv2d(WIDTH, 2 * WIDTH, 2, stride=2)
        self.stage2 = nn.Sequential(*(Block(2 * WIDTH) for _ in range(depth)))
        self.norm, self.head = nn.BatchNorm2d(2 * WIDTH), nn.Linear(2 * WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stage2(self.down(self.stage1(self.stem(x))))
        return self.head(F.relu(self.norm(h)).mean((2, 3)))


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Load the digits, shuffled, as data to train on and to test on."""
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(pixels, dtype=torch.float32)[order].view(-1, 1, 8, 8), torch.tensor(labels)[order]
    x = (x - 4.9) / 6.0  # the mean pixel is 4.9 of 16, with a deviation of 6
    return TensorDataset(x[TEST:], y[TEST:]), TensorDataset(x[:TEST], y[:TEST])


def shifted(x: Tensor) -> Tensor:
    """Shift the images of a batch by up to one pixel, as augmentation."""
    rows, columns = torch.randint(3, (2,)).tolist()
    return F.pad(x, (1, 1, 1, 1), value=x.min().item())[..., rows : rows + 8, columns : columns + 8]


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    x, y = data.tensors
    return (model(x).argmax(1) == y).float().mean().item()


def train(data: TensorDataset, epochs: float) -> ResNet:
    """Train a network that grows: the compute of `epochs` passes over the data at one block in each stage."""
    torch.manual_seed(0)
    loader = DataLoader(data, BATCH, shuffle=True, drop_last=True)
    model = ResNet(depth=1)
    print(esper.preview(model, data.tensors[0][:BATCH]), "\n")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.05)
    growth = esper.grow(model, optimizer, epochs=epochs, steps_per_epoch=len(loader))  # Esper
    schedule = esper.WarmupStableDecay(optimizer, growth)  # Esper
    while not growth.done:  # Esper
        for x, y in loader:
            loss = F.cross_entropy(model(shifted(x)), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            growth.step(loss)  # Esper
            schedule.step()
            if growth.done:  # Esper
                break
        blocks = " + ".join(str(count) for count in growth.depth.values())
        print(f"compute {growth.progress:4.0%}  blocks {blocks}  loss {growth.average:.4f}")
    growth.finish()  # Esper
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=float, default=40, help="compute, in epochs at one block in each stage")
    asked = parser.parse_args()
    if not asked.epochs > 0:
        parser.error(f"--epochs must be positive, not {asked.epochs}")
    data, test = digits()
    model = train(data, asked.epochs)

    same = ResNet(depth=len(model.stage1))  # an ordinary model: the constructor with the larger depth, and its weights
    same.load_state_dict(model.state_dict())
    print(f"\n{len(same.stage1)} + {len(same.stage2)} blocks, test accuracy {accuracy(same, test):.4f}")


if __name__ == "__main__":
    main()
