"""Build seeds for vectors."""

from torch import Tensor, nn

from esper.kasmina.layers import Linear, Norm
from esper.leyline.specs import SlotSpec


class GatedMLP(nn.Module):
    """An MLP with one hidden layer whose units are multiplied by learned gates."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.up = Linear(channels, hidden)
        self.gate = Linear(channels, hidden)
        self.down = Linear(hidden, channels, zero=True)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


def norm(slot: SlotSpec) -> nn.Module:
    return Norm(slot.channels, zero=True)


def low_rank(slot: SlotSpec) -> nn.Module:
    rank = max(1, slot.channels // 4)
    return nn.Sequential(Linear(slot.channels, rank), Linear(rank, slot.channels, zero=True))


def mlp(slot: SlotSpec, expansion: int = 4) -> nn.Module:
    hidden = expansion * slot.channels
    return nn.Sequential(Linear(slot.channels, hidden), nn.ReLU(), Linear(hidden, slot.channels, zero=True))


def gated_mlp(slot: SlotSpec) -> nn.Module:
    return GatedMLP(slot.channels, 2 * slot.channels)
