"""Plant seeds in an MLP while it learns to tell the arms of a spiral apart.

python examples/seeds_in_mlp.py [--policy learned] [--steps 8000] [--out runs/seeds_in_mlp]

The MLP is too narrow for its task. Behind each of its hidden layers lies a slot, and a policy decides when to plant
which seed: a rule ("heuristic"), or the controller that ships with Esper ("learned"). Both look at the validation
loss. The finished model is plain PyTorch and is exported with torch.export. Lines that end in "# Esper" are all that
growth adds to an ordinary training loop. About 10 seconds on 2 CPU cores.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import esper

ARMS, WIDTH, BATCH, LR = 3, 8, 64, 1e-2

Points = tuple[Tensor, Tensor]


class MLP(nn.Module):
    """Two narrow hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(2, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, ARMS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.fc2(F.relu(self.fc1(x)))))


def spirals(examples: int, rng_seed: int) -> Points:
    """Draw points on the arms of a spiral that turns twice, with noise."""
    generator = torch.Generator().manual_seed(rng_seed)
    y = torch.randint(ARMS, (examples,), generator=generator)
    radius = torch.rand(examples, generator=generator).sqrt()
    angle = 2 * math.pi * (2 * radius + y / ARMS) + 0.2 * torch.randn(examples, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), y


def accuracy(model: nn.Module, data: Points) -> float:
    x, y = data
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def train(policy: str, steps: int) -> nn.Module:
    """Train an MLP with slots: the compute of `steps` optimizer steps without seeds."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    (x, y), validation = spirals(2000, rng_seed=1), spirals(1000, rng_seed=2)
    model = MLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)

    def validation_loss() -> float:
        return F.cross_entropy(model(validation[0]), validation[1]).item()

    slots = ["fc1", "fc2"]
    growth = esper.grow(  # Esper
        model, optimizer, total=steps, slots=slots, policy=policy, evaluate=validation_loss, example=x[:BATCH]
    )
    schedule = esper.WarmupStableDecay(optimizer, growth)  # Esper
    print(growth.preview(), "\n")
    seen = 0
    while not growth.done:  # Esper
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        growth.step(loss)  # Esper
        schedule.step()
        for event in growth.log[seen:]:
            size = f"{event.parameters:5,} parameters"
            print(f"compute {event.progress:4.0%}  {size}  {event.kind:9}  {event.detail}")
        seen = len(growth.log)
    print(f"compute {growth.progress:4.0%}  validation loss {validation_loss():.4f}")
    return growth.finish()  # Esper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", choices=("heuristic", "learned"), default="heuristic", help="who decides")
    parser.add_argument("--steps", type=int, default=8000, help="compute, in optimizer steps without seeds")
    parser.add_argument("--out", type=Path, default=Path("runs/seeds_in_mlp"), help="folder for the exported model")
    asked = parser.parse_args()
    if asked.steps < 1:
        parser.error(f"--steps must be at least 1, not {asked.steps}")

    model = train(asked.policy, asked.steps).eval()

    test = spirals(1000, rng_seed=3)
    exported = torch.export.export(model, (test[0],))
    asked.out.mkdir(parents=True, exist_ok=True)
    torch.export.save(exported, asked.out / "mlp.pt2")
    again = torch.export.load(asked.out / "mlp.pt2").module()
    print(f"\n{model}\n")
    print(f"test accuracy {accuracy(model, test):.4f}, exported {accuracy(again, test):.4f}; saved in {asked.out}")


if __name__ == "__main__":
    main()
