"""Build causal seeds for token sequences."""

from torch import nn

from esper.kasmina.layers import CausalAttention, Linear, Norm
from esper.leyline.specs import SlotSpec


def norm(slot: SlotSpec) -> nn.Module:
    return Norm(slot.channels, zero=True)


def lora(slot: SlotSpec, rank: int = 4) -> nn.Module:
    return nn.Sequential(Linear(slot.channels, rank, bias=False), Linear(rank, slot.channels, bias=False, zero=True))


def lora_large(slot: SlotSpec) -> nn.Module:
    return lora(slot, rank=16)


def attention(slot: SlotSpec) -> nn.Module:
    return nn.Sequential(Norm(slot.channels), CausalAttention(slot.channels, zero=True))


def mlp(slot: SlotSpec, expansion: int = 4) -> nn.Module:
    hidden = expansion * slot.channels
    return nn.Sequential(
        Norm(slot.channels),
        Linear(slot.channels, hidden),
        nn.GELU(),
        Linear(hidden, slot.channels, zero=True),
    )


def mlp_small(slot: SlotSpec) -> nn.Module:
    return mlp(slot, expansion=1)
