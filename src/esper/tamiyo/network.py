"""The controller's network: a factored recurrent actor-critic that scores slots and blueprints by what they are.

Op, then slot, then the rest: a later head knows the earlier choices. Slots and blueprints are rows of descriptors, so
their numbers are data; padding rows are never legal and never counted.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from esper.leyline.actions import FIXED_CHOICES, Head, Op
from esper.leyline.errors import EsperError
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, Features, View, features, width
from esper.tamiyo.heads import chosen, entropy, masked, sample
from esper.tamiyo.masks import affordable, within_budget

TAIL = (Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET, Head.ALPHA_SPEED, Head.ALPHA_CURVE)
"""The heads whose choices are the same for every host."""


@dataclass(frozen=True, kw_only=True)
class ControllerConfig:
    recurrent: bool = True
    """Remember earlier decisions of a life (LSTM); otherwise only the features' own history counts."""
    hidden: int = 64
    """Of the trunk and the memory."""
    slot_hidden: int = 32
    """Of what is made of each slot and blueprint."""
    layer_norm: bool = True
    """After the memory, or after the trunk if there is none."""
    telemetry: bool = True
    """Whether it sees gradient health and shares."""

    def __post_init__(self) -> None:
        for name in ("hidden", "slot_hidden"):
            if getattr(self, name) < 1:
                raise EsperError(f"{name} must be at least 1, not {getattr(self, name)}")


LAPTOP = ControllerConfig()
GPU = ControllerConfig(hidden=256, slot_hidden=64)


class Memory(NamedTuple):
    """What is remembered of each host's life."""

    hidden: Float[Tensor, "N M"]
    cell: Float[Tensor, "N M"]


class Observation(NamedTuple):
    """All that a network reads at one decision, for any leading axes."""

    features: Features
    legal: Bool[Tensor, "*N O S"]
    affordable: Bool[Tensor, "*N S K"]
    blueprints: Float[Tensor, "*N S K D"]
    """Descriptors of what could be planted where."""


def look(view: View, telemetry: bool) -> tuple[Features, Bool[Tensor, "N O S"], Bool[Tensor, "N S K"]]:
    """What there is to see of one fleet: its features, what is legal within its budget, and what is affordable."""
    paid = affordable(view.signals.growth, view.budget, view.setting.seed_parameters)
    return features(view, telemetry), within_budget(view.signals.legal, paid), paid


class Choice(NamedTuple):
    """What was chosen, and how likely each head's choice was."""

    action: Int[Tensor, "*N H"]
    log_probs: Float[Tensor, "*N H"]
    entropy: Float[Tensor, "*N H"]
    value: Float[Tensor, "*N"]


FAMILIES = ("norm", "linear", "mlp", "conv", "attention")
DESCRIPTORS = len(FAMILIES) + 3
"""One for each family, one for any other, and the logarithms of parameter and FLOP ratios."""


def describe(families: tuple[str, ...], parameters: Float[Tensor, "S K"], flops: Float[Tensor, "S K"]) -> Tensor:
    """Descriptors of every blueprint in every slot, (S, K, D)."""
    kind = torch.tensor([FAMILIES.index(f) if f in FAMILIES else len(FAMILIES) for f in families])
    one_hot = torch.nn.functional.one_hot(kind, len(FAMILIES) + 1).float().to(parameters.device)
    ratios = torch.stack([torch.log1p(parameters), torch.log1p(flops)], -1).float()
    return torch.cat([one_hot.expand(*parameters.shape, -1), ratios], -1)


class Controller(nn.Module):
    """Reads observations, remembers, chooses, and says what it expects."""

    def __init__(self, config: ControllerConfig = ControllerConfig(), rng_seed: int = 0) -> None:
        super().__init__()
        self.config = config
        h, s = config.hidden, config.slot_hidden
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng_seed)
            self.slot = _mlp(width(SLOT_FEATURES), s, s)
            self.trunk = _mlp(width(HOST_FEATURES) + 2 * s, h, h)
            self.memory = nn.LSTM(h, h) if config.recurrent else None
            self.norm = nn.LayerNorm(h) if config.layer_norm else nn.Identity()
            self.op = _head(h, h // 2, len(Op))
            self.op_code = nn.Embedding(len(Op), s)
            self.slot_score = _head(h + 2 * s, s, 1)
            self.blueprint = _mlp(DESCRIPTORS, s, s)
            self.blueprint_score = _head(h + 2 * s, s, 1)
            self.tail = _head(h + 2 * s, h // 2, sum(len(FIXED_CHOICES[head]) for head in TAIL))
            self.value = _head(h, h // 2, 1, gain=1.0)
            self._init_memory()

    def _init_memory(self) -> None:
        if self.memory is None:
            return
        size = self.config.hidden
        for name, p in self.memory.named_parameters():
            if "weight" in name:
                for gate in p.data.split(size):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.zeros_(p)
            if name == "bias_ih_l0":
                p.data[size : 2 * size] = 1.0  # forget gate

    def blank(self, num_hosts: int, device: torch.device) -> Memory:
        """The memory of newborns."""
        zeros = torch.zeros(num_hosts, self.config.hidden, device=device)
        return Memory(zeros, zeros)

    def remember(
        self, features: Features, exists: Bool[Tensor, "T N S"], memory: Memory
    ) -> tuple[Float[Tensor, "T N M"], Float[Tensor, "T N S E"], Memory]:
        """Sequences of features, (T, N, ...), from the memory before their first decision."""
        slots = self.slot(features.slots)
        known = exists[..., None]
        mean = slots.where(known, 0.0).sum(-2) / known.sum(-2).clamp(min=1)
        most = slots.masked_fill(~known, -torch.inf).amax(-2)
        x = self.trunk(torch.cat([features.host, mean, most], -1))
        if self.memory is not None:
            x, (hidden, cell) = self.memory(x, (memory.hidden[None], memory.cell[None]))
            memory = Memory(hidden[0], cell[0])
        return self.norm(x), slots, memory

    def op_log_probs(self, x: Tensor, legal: Tensor) -> tuple[Tensor, Tensor]:
        mask = legal.any(-1)
        return masked(self.op(x), mask), mask

    def slot_log_probs(self, x: Tensor, slots: Tensor, legal: Tensor, op: Tensor) -> tuple[Tensor, Tensor]:
        mask = legal.gather(-2, op[..., None, None].expand(*op.shape, 1, legal.shape[-1]))[..., 0, :]
        context = torch.cat([x, self.op_code(op)], -1)[..., None, :].expand(*slots.shape[:-1], -1)
        return masked(self.slot_score(torch.cat([slots, context], -1))[..., 0], mask), mask

    def rest_log_probs(
        self, x: Tensor, slots: Tensor, seen: Observation, op: Tensor, slot: Tensor
    ) -> list[tuple[Head, Tensor, Tensor]]:
        """Of the blueprint and of the heads with fixed choices, given op and slot."""
        at = slot[..., None, None]
        here = slots.gather(-2, at.expand(*slot.shape, 1, slots.shape[-1]))[..., 0, :]
        offered = _at_slot(seen.blueprints, slot)
        mask = _at_slot(seen.affordable, slot)
        mask = mask | ~mask.any(-1, keepdim=True)  # whoever plants nothing may name anything
        context = torch.cat([x, here], -1)[..., None, :].expand(*offered.shape[:-1], -1)
        scores = self.blueprint_score(torch.cat([self.blueprint(offered), context], -1))[..., 0]
        found = [(Head.BLUEPRINT, masked(scores, mask), mask)]
        logits = self.tail(torch.cat([x, here, self.op_code(op)], -1))
        for head, part in zip(TAIL, logits.split([len(FIXED_CHOICES[head]) for head in TAIL], -1), strict=True):
            every = torch.ones_like(part, dtype=torch.bool)
            found.append((head, masked(part, every), every))
        return found

    def act(self, seen: Observation, memory: Memory, uniform: Float[Tensor, "N A"]) -> tuple[Choice, Memory]:
        """Choose for N hosts, from uniform numbers for every choice of every head."""
        draws = iter(_shares(uniform, seen))

        def pick(log_probs: Tensor, given: Tensor | None) -> Tensor:
            return sample(log_probs, next(draws))

        choice, memory = self._choose(_one(seen), memory, pick, None)
        return Choice(*(x[0] for x in choice)), memory

    def judge(self, seen: Observation, memory: Memory, action: Int[Tensor, "T N H"]) -> Choice:
        """What is thought now of decisions made before, (T, N)."""
        return self._choose(seen, memory, _as_given, action)[0]

    def expect(self, seen: Observation, memory: Memory) -> Float[Tensor, " N"]:
        """The value of where N hosts are, without remembering it."""
        x, _, _ = self.remember(*_inputs(_one(seen)), memory)
        return self.value(x)[0, :, 0]

    def _choose(self, seen, memory, pick, action) -> tuple[Choice, Memory]:
        x, slots, memory = self.remember(*_inputs(seen), memory)

        def given(head: Head) -> Tensor | None:
            return None if action is None else action[..., head]

        found: dict[Head, tuple[Tensor, Tensor, Tensor]] = {}

        def decide(head: Head, log_probs: Tensor, mask: Tensor) -> Tensor:
            picked = pick(log_probs, given(head))
            found[head] = picked, chosen(log_probs, picked), entropy(log_probs, mask)
            return picked

        op = decide(Head.OP, *self.op_log_probs(x, seen.legal))
        slot = decide(Head.SLOT, *self.slot_log_probs(x, slots, seen.legal, op))
        for head, log_probs, mask in self.rest_log_probs(x, slots, seen, op, slot):
            decide(head, log_probs, mask)
        picked, log_probs, spread = (torch.stack([found[head][i] for head in Head], -1) for i in range(3))
        return Choice(picked, log_probs, spread, self.value(x)[..., 0]), memory


def _as_given(_: Tensor, given: Tensor | None) -> Tensor:
    assert given is not None
    return given


def _inputs(seen: Observation) -> tuple[Features, Tensor]:
    return seen.features, seen.legal[..., Op.WAIT, :]


def _one(seen: Observation) -> Observation:
    """A sequence of one decision."""
    features = Features(*(x[None] for x in seen.features))
    return Observation(features, *(x[None] for x in seen[1:]))


def _at_slot(x: Tensor, slot: Tensor) -> Tensor:
    """(..., S, K, ...) at each host's chosen slot."""
    axis = slot.ndim
    index = slot.view(*slot.shape, *[1] * (x.ndim - axis)).expand(*slot.shape, 1, *x.shape[axis + 1 :])
    return x.gather(axis, index).squeeze(axis)


def num_draws(num_slots: int, num_blueprints: int) -> int:
    """Uniform numbers that one decision takes."""
    fixed = sum(len(FIXED_CHOICES[head]) for head in TAIL)
    return len(Op) + num_slots + num_blueprints + fixed


def _shares(uniform: Tensor, seen: Observation) -> tuple[Tensor, ...]:
    sizes = [len(Op), seen.legal.shape[-1], seen.affordable.shape[-1], *(len(FIXED_CHOICES[head]) for head in TAIL)]
    return tuple(part[None] for part in uniform.split(sizes, -1))


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    gain = math.sqrt(2)
    return nn.Sequential(_linear(inputs, hidden, gain), nn.ReLU(), _linear(hidden, outputs, gain), nn.ReLU())


def _head(inputs: int, hidden: int, outputs: int, gain: float = 0.01) -> nn.Sequential:
    return nn.Sequential(_linear(inputs, hidden, math.sqrt(2)), nn.ReLU(), _linear(hidden, outputs, gain))
