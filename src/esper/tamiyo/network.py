"""Define the controller's network: a recurrent actor-critic with one head per factor of the action.

The op is chosen first, then the slot, then all other heads, given the earlier choices. Slots and blueprints are scored
by descriptors, so their numbers may vary; padding rows are never legal and never counted.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from esper.leyline.actions import FIXED_CHOICES, Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.state import Setting
from esper.tamiyo.features import (
    HIDEABLE,
    HOST_FEATURES,
    SLOT_FEATURES,
    Features,
    View,
    column_names,
    features,
    hidden,
    width,
)
from esper.tamiyo.heads import chosen, entropy, gumbel, masked
from esper.tamiyo.masks import affordable, within_budget

TAIL = (Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET, Head.ALPHA_SPEED, Head.ALPHA_CURVE)
"""The last heads, which have a fixed number of choices and are chosen all at once."""
TAIL_SIZES = tuple(len(FIXED_CHOICES[head]) for head in TAIL)


@dataclass(frozen=True, kw_only=True)
class ControllerConfig:
    """The size of a controller's network, and the features it sees.

    Raises:
        EsperError: If a width is less than 1; the message names the field.

    Example:
        >>> ControllerConfig(hidden=128, recurrent=False)
    """

    recurrent: bool = True
    """Use an LSTM to remember earlier decisions of an episode; otherwise an MLP reads the features alone."""
    hidden: int = 64
    """Width of the trunk and of the LSTM."""
    slot_hidden: int = 32
    """Width of the encoders of slots and blueprints."""
    layer_norm: bool = True
    """Apply layer normalization after the LSTM, or after the trunk if there is none."""
    telemetry: bool = True
    """Show the controller the gradient health and gradient share of each seed."""
    size: bool = True
    """Show the controller the number of parameters of the bare host. A controller trained on few hosts memorises them
    by their size and transfers badly to others."""

    def __post_init__(self) -> None:
        for name in ("hidden", "slot_hidden"):
            if getattr(self, name) < 1:
                raise EsperError(f"{name} must be at least 1, not {getattr(self, name)}")


LAPTOP = ControllerConfig()
GPU = ControllerConfig(hidden=256, slot_hidden=64)


class HiddenState(NamedTuple):
    """The LSTM state of each host's episode."""

    hidden: Float[Tensor, "N M"]
    cell: Float[Tensor, "N M"]


class Observation(NamedTuple):
    """The network's inputs at one decision, with any leading axes."""

    features: Features
    legal: Bool[Tensor, "*N O S"]
    affordable: Bool[Tensor, "*N S K"]
    blueprints: Float[Tensor, "*N S K D"]
    """Descriptors of each blueprint in each slot."""

    @property
    def exists(self) -> Bool[Tensor, "*N S"]:
        """Mask of the slots that are not padding: waiting is always legal there."""
        return self.legal[..., Op.WAIT, :]


def look(view: View) -> tuple[Features, Bool[Tensor, "N O S"], Bool[Tensor, "N S K"]]:
    """Return the features of one fleet, its legal ops within the budget, and its affordable blueprints."""
    paid = affordable(view.signals.growth, view.budget, view.setting.seed_parameters)
    return features(view), within_budget(view.signals.legal, paid), paid


class Choice(NamedTuple):
    """Actions, the log-probability of each head's choice, and the value estimates."""

    action: Int[Tensor, "*N H"]
    log_probs: Float[Tensor, "*N H"]
    value: Float[Tensor, "*N"]


class Judged(NamedTuple):
    """Log-probabilities, entropies and values of earlier decisions under the present weights."""

    log_probs: Float[Tensor, "*N H"]
    entropy: Float[Tensor, "*N H"]
    """Entropy of each head, from 0 to 1."""
    legal: Float[Tensor, "*N H"]
    """Share of each head's choices that were legal."""
    value: Float[Tensor, "*N"]


FAMILIES = ("norm", "linear", "mlp", "conv", "attention")
DESCRIPTORS = (*FAMILIES, "other", "parameters", "flops")
"""Columns of a descriptor: a one-hot code of the family, with one place for unknown families, and the logarithms of the
ratios of parameters and FLOPs. FLOPs read 0 where episodes are counted in epochs: J does not charge for them there, and
a controller that sees them memorises the blueprints of its training hosts by them."""


LATER = ("pace",)
"""Features of hosts that were added for episodes with a budget. Their weights start at zero, like those of FLOPs, so
that equal seeds give the controllers that they gave before."""


def describe(setting: Setting) -> Float[Tensor, "S K D"]:
    """Return the descriptors of every blueprint in every slot."""
    parameters, costs = setting.seed_parameters, setting.seed_costs
    kind = torch.tensor([FAMILIES.index(f) if f in FAMILIES else len(FAMILIES) for f in setting.families])
    one_hot = torch.nn.functional.one_hot(kind, len(FAMILIES) + 1).float().to(parameters.device)
    ratios = (parameters, torch.zeros_like(parameters) if costs is None else costs)
    return torch.cat(
        [one_hot.expand(*parameters.shape, -1), *(torch.log1p(ratio)[..., None].float() for ratio in ratios)], -1
    )


class Score(nn.Module):
    """A layer that scores each of several items in one context, encoding the context once."""

    def __init__(self, item: int, context: int, hidden: int) -> None:
        super().__init__()
        gain = math.sqrt(2)
        self.item, self.context = linear(item, hidden, gain), linear(context, hidden, gain)
        self.out = linear(hidden, 1, 0.01)

    def forward(self, items: Float[Tensor, "*N M E"], context: Float[Tensor, "*N C"]) -> Float[Tensor, "*N M"]:
        return self.out(torch.relu(self.item(items) + self.context(context)[..., None, :]))[..., 0]


class Controller(nn.Module):
    """A recurrent actor-critic network that chooses when, where and what to grow.

    One controller serves hosts of any kind, size and number of slots. `esper.LearnedPolicy` turns it into a policy.

    Args:
        config: Size of the network, and the features it sees.
        rng_seed: Seed of the initial weights. The global random state is not changed.

    Example:
        >>> controller = esper.load_controller()
        >>> outcome = esper.evaluate(env, esper.LearnedPolicy(controller), rent=0.02)
    """

    tail_index: Tensor
    tail_exists: Tensor
    no_host: Tensor
    no_slot: Tensor

    def __init__(self, config: ControllerConfig = ControllerConfig(), rng_seed: int = 0) -> None:
        super().__init__()
        self.config = config
        h, s = config.hidden, config.slot_hidden
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rng_seed)
            self.slot = mlp(width(SLOT_FEATURES), s, s)
            inputs = width(HOST_FEATURES) - len(LATER) + 2 * s
            first = nn.Sequential(linear(inputs, h, math.sqrt(2)), nn.ReLU())
            self.trunk = first if config.recurrent else mlp(inputs, h, h)
            self.memory = nn.LSTM(h, h) if config.recurrent else None
            self.norm = nn.LayerNorm(h) if config.layer_norm else nn.Identity()
            self.op = _head(h, h // 2, len(Op))
            self.op_code = nn.Embedding(len(Op), s)
            self.slot_score = Score(s, h + s, s)
            self.blueprint = mlp(len(DESCRIPTORS) - 1, s, s)
            self.blueprint_score = Score(s, h + s, s)
            self.tail = _head(h + 2 * s, h // 2, sum(TAIL_SIZES))
            self.value = _head(h, h // 2, 1, gain=1.0)
            self._init_memory()
        _insert_zeros(self.trunk, [column_names(HOST_FEATURES).index(name) for name in LATER])
        _insert_zeros(self.blueprint, [len(DESCRIPTORS) - 1])
        index, exists = _side_by_side(TAIL_SIZES)
        self.register_buffer("tail_index", index, persistent=False)
        self.register_buffer("tail_exists", exists, persistent=False)
        blind = [group for group in HIDEABLE if not getattr(config, group)]
        self.register_buffer("no_host", hidden(HOST_FEATURES, blind), persistent=False)
        self.register_buffer("no_slot", hidden(SLOT_FEATURES, blind), persistent=False)

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

    @torch.no_grad()
    def adopt(self, before: "Controller") -> None:
        """Copy the weights of another controller of this shape, and decide as it does.

        Features that it could not see get zero weights, and count once they have been learned.
        """
        self.load_state_dict(before.state_dict())
        reads = {"trunk.0": (before.no_host, self.no_host), "slot.0": (before.no_slot, self.no_slot)}
        for layer, (theirs, ours) in reads.items():
            weight, bias = self.get_parameter(f"{layer}.weight"), self.get_parameter(f"{layer}.bias")
            new = (ours.isnan() & ~theirs.isnan()).nonzero()[:, 0]
            bias += weight[:, new] @ theirs[new]
            weight[:, new] = 0.0

    def blank(self, num_hosts: int, device: torch.device) -> HiddenState:
        """Return the hidden state at the beginning of an episode."""
        zeros = torch.zeros(num_hosts, self.config.hidden, device=device)
        return HiddenState(zeros, zeros)

    def read(
        self, features: Features, exists: Bool[Tensor, "*N S"]
    ) -> tuple[Float[Tensor, "*N M"], Float[Tensor, "*N S E"]]:
        """Encode hosts and slots, before the LSTM."""
        masks = (self.no_host, self.no_slot)
        host, slots = (x.where(mask.isnan(), mask) for x, mask in zip(features, masks, strict=True))
        slots = self.slot(slots)
        known = exists[..., None]
        mean = slots.where(known, 0.0).sum(-2) / known.sum(-2).clamp(min=1)
        highest = slots.masked_fill(~known, -torch.inf).amax(-2)
        return self.trunk(torch.cat([host, mean, highest], -1)), slots

    def remember(self, x: Float[Tensor, "T N M"], memory: HiddenState) -> Float[Tensor, "T N M"]:
        """Run the LSTM over whole sequences, from the hidden state before their first decision."""
        if self.memory is not None:
            with torch.backends.cudnn.flags(allow_tf32=False):  # `remember_one` does not use TF32 either
                x, _ = self.memory(x, (memory.hidden[None], memory.cell[None]))
        return self.norm(x)

    def remember_one(self, x: Float[Tensor, "N M"], memory: HiddenState) -> tuple[Float[Tensor, "N M"], HiddenState]:
        """Run the LSTM for one decision."""
        if self.memory is not None:
            memory = HiddenState(*torch.lstm_cell(x, memory, *self.memory.parameters()))
            x = memory.hidden
        return self.norm(x), memory

    def op_log_probs(self, x: Tensor, legal: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and mask of ops."""
        mask = legal.any(-1)
        return masked(self.op(x), mask), mask

    def slot_log_probs(self, x: Tensor, slots: Tensor, legal: Tensor, op: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and mask of slots, given the op."""
        mask = legal.gather(-2, op[..., None, None].expand(*op.shape, 1, legal.shape[-1]))[..., 0, :]
        return masked(self.slot_score(slots, torch.cat([x, self.op_code(op)], -1)), mask), mask

    def rest_log_probs(
        self, x: Tensor, slots: Tensor, seen: Observation, op: Tensor, slot: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return log-probabilities and masks given op and slot: of blueprints, (..., K), and of the last heads,
        (..., heads, choices)."""
        at = slot[..., None, None]
        here = slots.gather(-2, at.expand(*slot.shape, 1, slots.shape[-1]))[..., 0, :]
        offered = at_slot(seen.blueprints, slot)
        mask = at_slot(seen.affordable, slot)
        mask = mask | ~mask.any(-1, keepdim=True)  # with an op that plants nothing, any blueprint will do
        scores = self.blueprint_score(self.blueprint(offered), torch.cat([x, here], -1))
        logits = self.tail(torch.cat([x, here, self.op_code(op)], -1))[..., self.tail_index]
        every = self.tail_exists.expand_as(logits)
        return (masked(scores, mask), mask), (masked(logits, every), every)

    def act(self, seen: Observation, memory: HiddenState, uniform: Float[Tensor, "N A"]) -> tuple[Choice, HiddenState]:
        """Sample actions for N hosts.

        Args:
            seen: What the hosts are like.
            memory: Hidden state before this decision.
            uniform: Uniform numbers for every choice of every head, `num_draws` per host; 0.5 everywhere gives the
                most likely choices.

        Returns:
            The choices, and the hidden state after this decision.
        """
        x, slots = self.read(seen.features, seen.exists)
        x, memory = self.remember_one(x, memory)
        sizes = [len(Op), seen.legal.shape[-1], seen.affordable.shape[-1], sum(TAIL_SIZES)]
        *noise, last = gumbel(uniform).split(sizes, -1)
        noise.append(last[..., self.tail_index])
        choices = self._choose(x, slots, seen, lambda group, log_probs: (log_probs + noise[group]).argmax(-1))
        log_probs = _joined([chosen(all_log_probs, picked) for picked, all_log_probs, _ in choices])
        return Choice(_joined([picked for picked, _, _ in choices]), log_probs, self.value(x)[..., 0]), memory

    def judge(self, seen: Observation, memory: HiddenState, action: Int[Tensor, "T N H"]) -> Judged:
        """Return log-probabilities, entropies and values of earlier decisions, (T, N), under the present weights."""
        x, slots = self.read(seen.features, seen.exists)
        x = self.remember(x, memory)
        given = _groups(action)
        choices = self._choose(x, slots, seen, lambda group, _: given[group])
        log_probs = _joined([chosen(all_log_probs, picked) for picked, all_log_probs, _ in choices])
        entropies = _joined([entropy(all_log_probs, mask) for _, all_log_probs, mask in choices])
        legal = _joined([mask.float().mean(-1) for _, _, mask in choices[:3]] + [torch.ones_like(given[3]).float()])
        return Judged(log_probs, entropies, legal, self.value(x)[..., 0])

    def probabilities(
        self, seen: Observation, memory: HiddenState, action: Int[Tensor, "N H"]
    ) -> dict[Head, Float[Tensor, "N C"]]:
        """Return the probability of every choice of each head, given the choices made for the heads before it.

        The hidden state, which is that before the decision, is not advanced. An illegal choice has probability 0.
        """
        x, slots = self.read(seen.features, seen.exists)
        x, _ = self.remember_one(x, memory)
        given = _groups(action)
        choices = self._choose(x, slots, seen, lambda group, _: given[group])
        *single, tail = [log_probs.exp().where(mask, 0.0) for _, log_probs, mask in choices]
        last = [row[..., :size] for row, size in zip(tail.unbind(-2), TAIL_SIZES, strict=True)]
        return dict(zip(Head, [*single, *last], strict=True))

    def expect(self, seen: Observation, memory: HiddenState) -> Float[Tensor, " N"]:
        """Return the value estimates of N hosts without advancing the hidden state."""
        x, _ = self.remember_one(self.read(seen.features, seen.exists)[0], memory)
        return self.value(x)[..., 0]

    def _choose(
        self, x: Tensor, slots: Tensor, seen: Observation, pick: Callable[[int, Tensor], Tensor]
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return choices, log-probabilities and masks of the op, the slot, the blueprint and the last heads."""
        op_probs, op_mask = self.op_log_probs(x, seen.legal)
        op = pick(0, op_probs)
        slot_probs, slot_mask = self.slot_log_probs(x, slots, seen.legal, op)
        slot = pick(1, slot_probs)
        (blueprint, blueprint_mask), (tail, tail_mask) = self.rest_log_probs(x, slots, seen, op, slot)
        return [
            (op, op_probs, op_mask),
            (slot, slot_probs, slot_mask),
            (pick(2, blueprint), blueprint, blueprint_mask),
            (pick(3, tail), tail, tail_mask),
        ]


def _groups(action: Int[Tensor, "*N H"]) -> Sequence[Tensor]:
    """Split actions into the choices of three single heads and those of the last heads, (..., heads)."""
    return (*action[..., : Head.STYLE].unbind(-1), action[..., Head.STYLE :])


def _joined(groups: Sequence[Tensor]) -> Tensor:
    """Join three single heads and the last heads along the axis of heads."""
    *single, tail = groups
    return torch.cat([torch.stack(single, -1), tail], -1)


def _side_by_side(sizes: Sequence[int]) -> tuple[Int[Tensor, "G C"], Bool[Tensor, "G C"]]:
    """Return the index of each head's choices in a row of all choices, padded to the widest head, and which exist."""
    starts = torch.tensor([0, *sizes]).cumsum(0)[:-1, None]
    choice = torch.arange(max(sizes))
    exists = choice < torch.tensor(sizes)[:, None]
    return (starts + choice).where(exists, 0), exists


def at_slot(x: Tensor, slot: Tensor) -> Tensor:
    """Select each host's chosen slot from a tensor of shape (..., S, K, ...)."""
    axis = slot.ndim
    index = slot.view(*slot.shape, *[1] * (x.ndim - axis)).expand(*slot.shape, 1, *x.shape[axis + 1 :])
    return x.gather(axis, index).squeeze(axis)


def num_draws(num_slots: int, num_blueprints: int) -> int:
    """Return how many uniform numbers one decision of one host takes."""
    return len(Op) + num_slots + num_blueprints + sum(TAIL_SIZES)


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    gain = math.sqrt(2)
    return nn.Sequential(linear(inputs, hidden, gain), nn.ReLU(), linear(hidden, outputs, gain), nn.ReLU())


@torch.no_grad()
def _insert_zeros(module: nn.Sequential, columns: list[int]) -> None:
    """Let the first layer of a module read more columns, with zero weights: all others keep what was drawn for them."""
    layer = module[0]
    assert isinstance(layer, nn.Linear)
    width = layer.in_features + len(columns)
    weight = layer.weight.new_zeros(layer.out_features, width)
    weight[:, [n for n in range(width) if n not in columns]] = layer.weight
    layer.in_features, layer.weight = width, nn.Parameter(weight)


def _head(inputs: int, hidden: int, outputs: int, gain: float = 0.01) -> nn.Sequential:
    return nn.Sequential(linear(inputs, hidden, math.sqrt(2)), nn.ReLU(), linear(hidden, outputs, gain))
