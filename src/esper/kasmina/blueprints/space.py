"""Build seeds for images and 1-D signals."""

from torch import Tensor, nn

from esper.kasmina.layers import Conv, Linear, MeanOverSpace, Norm
from esper.leyline.specs import SlotSpec, Stream

KERNELS = {Stream.SIGNAL: (5,), Stream.IMAGE: (3, 3)}


class SqueezeExcite(nn.Module):
    """A learned scale for each channel, computed from the mean of the stream."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(4, channels // 2)
        self.scale = nn.Sequential(
            MeanOverSpace(), Linear(channels, hidden), nn.SiLU(), Linear(hidden, channels, zero=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale(x)
        return x * scale.view(x.shape[0], *[1] * (x.ndim - 2), -1)


def norm(slot: SlotSpec) -> nn.Module:
    return Norm(slot.channels, space=True, zero=True)


def attention(slot: SlotSpec) -> nn.Module:
    return SqueezeExcite(slot.channels)


def conv_small(slot: SlotSpec) -> nn.Module:
    return Linear(slot.channels, slot.channels, zero=True)


def conv_light(slot: SlotSpec) -> nn.Module:
    return Conv(slot.channels, slot.channels, KERNELS[slot.stream], zero=True)


def conv_heavy(slot: SlotSpec, expansion: int = 4) -> nn.Module:
    wide, kernel = expansion * slot.channels, KERNELS[slot.stream]
    return nn.Sequential(
        Conv(slot.channels, wide, kernel, bias=False),
        Norm(wide, space=True, relu=True),
        Conv(wide, slot.channels, kernel, zero=True),
    )


def depthwise(slot: SlotSpec) -> nn.Module:
    return nn.Sequential(
        Conv(slot.channels, slot.channels, KERNELS[slot.stream], depthwise=True),
        nn.ReLU(),
        Linear(slot.channels, slot.channels, zero=True),
    )


def bottleneck(slot: SlotSpec) -> nn.Module:
    narrow = max(4, slot.channels // 2)
    return nn.Sequential(
        Linear(slot.channels, narrow, bias=False),
        Norm(narrow, space=True, relu=True),
        Conv(narrow, narrow, KERNELS[slot.stream], bias=False),
        Norm(narrow, space=True, relu=True),
        Linear(narrow, slot.channels, zero=True),
    )
