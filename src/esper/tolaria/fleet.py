"""N hosts of one spec, trained as one program: their parameters stacked, their seeds in buckets of one kind."""

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map

from esper.kasmina.cost import BACKWARD, host_flops, seed_flops
from esper.kasmina.gates import LifecycleConfig
from esper.kasmina.host import Host
from esper.kasmina.hosts import build_host
from esper.kasmina.lifecycle import apply, empty_slots, incubating, legal, speaking, tick, unmeasured
from esper.kasmina.slots import build_seed
from esper.leyline.actions import Graft
from esper.leyline.errors import EsperError
from esper.leyline.rng import Purpose, key, permutation
from esper.leyline.specs import HostSpec
from esper.leyline.state import NO_BLUEPRINT, SlotState, Split, Task, Vitals
from esper.tolaria.assignment import (
    Assignment,
    Kind,
    Packed,
    Padding,
    Roomy,
    Seeds,
    assign,
    exact,
    pack,
    power_of_two,
    unpack,
    upload,
)
from esper.tolaria.capture import Program, Programs
from esper.tolaria.config import Engine, TrainConfig, check_fit
from esper.tolaria.memory import MemoryEstimator
from esper.tolaria.network import Bucket, Network, where
from esper.tolaria.setting import seed_sizes, tabulate
from esper.tolaria.stack import Stack, step

Norms = dict[Kind | None, Float[Tensor, " R"]]
"""Mean gradient norms of the rows of each bucket, and under None those of the trunk."""


class Measured(NamedTuple):
    """What an epoch's measuring says of every host."""

    loss: Float[Tensor, " N"]
    metric: Float[Tensor, " N"]
    score: Float[Tensor, " N"]
    contribution: Float[Tensor, "N S"]


class Known(NamedTuple):
    """The seeds of all slots as the CPU knows them between two decisions, (N, S)."""

    graft: np.ndarray
    alpha: np.ndarray
    target: np.ndarray
    silent: np.ndarray
    lr: np.ndarray
    loud: np.ndarray


class Fleet:
    """Hosts that differ in their weights, their data order and their seeds, and share everything else."""

    def __init__(
        self,
        spec: HostSpec,
        task: Task,
        rng_seeds: Iterable[int],
        config: TrainConfig = TrainConfig(),
        *,
        lifecycle: LifecycleConfig = LifecycleConfig(),
        engine: Engine = Engine(),
    ) -> None:
        check_fit(spec, task, config)
        self.spec, self.config, self.lifecycle, self.engine = spec, config, lifecycle, engine
        self.device = engine.place()
        self.task, self.objective, self.num_outputs = task.spec, task.spec.objective, task.spec.outputs
        self.train_data, self.validation_data = self.resident(task.train), self.resident(task.validation)
        self.rng_seeds = torch.tensor(list(rng_seeds), device=self.device)
        self.programs = Programs() if engine.graphs and self.device.type == "cuda" else None
        self.padding: Padding = exact if self.programs is None else Roomy(self.num_hosts)
        room, patience = (0, 0) if self.programs is None else (power_of_two(self.num_hosts), 100)
        self.network = Network(spec, self.num_hosts, self.device, engine.dtype, room, patience)
        self.slots, self.space = self.network.slots, self.network.space
        self.memory = MemoryEstimator(self.network, engine, self.train_data[0].dtype, spec.inputs)
        self.memory.chunks(self.num_hosts, self.config.batch_size, {}, 0)  # raises if the bare hosts do not fit
        self.seed_sizes = seed_sizes(self.slots, self.space).to(self.device)
        self.epoch = torch.zeros_like(self.rng_seeds)
        self.state = empty_slots(self.num_hosts, len(self.slots), self.device)
        self.vitals = unmeasured(self.state)
        self.everyone = torch.ones_like(self.vitals.sane)
        self.lr = torch.full_like(self.rng_seeds, config.lr, dtype=torch.float64)
        """Step size of each host's own parameters..."""
        self.seed_lr = torch.full_like(self.state.alpha, config.lr, dtype=torch.float64)
        """...and of the seed in each of its slots."""
        self.losses = torch.zeros(self.num_hosts, device=self.device, dtype=torch.float64)
        self.pulls = torch.zeros_like(self.state.alpha, dtype=engine.dtype)
        self.reset(self.everyone)

    @property
    def num_hosts(self) -> int:
        return len(self.rng_seeds)

    @cached_property
    def seed_flops(self) -> Int[Tensor, "S K G"]:
        return tabulate(self.slots, self.space, seed_flops).to(self.device)

    @property
    def trunk(self) -> Stack:
        return self.network.trunk

    @property
    def buckets(self) -> dict[Kind, Bucket]:
        return self.network.buckets

    def learn_at(self, lr: Float[Tensor, " N"]) -> None:
        """A step size for each host and its seeds."""
        self.lr.copy_(lr)
        self.seed_lr.copy_(lr[:, None])

    def seeds_in_slots(self, table: Int[Tensor, "S K G"], state: SlotState) -> Int[Tensor, "N S"]:
        """Each slot's entry in such a table; 0 where there is no seed."""
        slot = torch.arange(len(self.slots), device=self.device)
        value = table[slot, state.blueprint.clamp(min=0), state.graft]
        return value.where(state.blueprint != NO_BLUEPRINT, 0)

    def reset(self, fresh: Bool[Tensor, " N"], rng_seeds: Int[Tensor, " N"] | None = None) -> None:
        """Put fresh hosts in some places: new weights, empty slots, the first epoch."""
        if rng_seeds is not None:
            self.rng_seeds = torch.where(fresh, rng_seeds, self.rng_seeds)
        self.network.bear(fresh, self.rng_seeds)
        empty = empty_slots(self.num_hosts, len(self.slots), self.device)
        self.epoch = torch.where(fresh, 0, self.epoch)
        unknown = unmeasured(empty)
        self.vitals = Vitals(*(where(fresh, new, old) for new, old in zip(unknown, self.vitals, strict=True)))
        self.tend(SlotState(*(where(fresh, new, old) for new, old in zip(empty, self.state, strict=True))), fresh)

    @torch.no_grad()
    def host(self, n: int) -> Host:
        """Return host `n` as an ordinary model: a copy with its weights, seeds, grafts and alphas.

        The copy shares no memory with the fleet, lives on the fleet's device and has the dtype of its parameters.
        A `FleetEnv` replaces a host when its episode ends; pass it an `on_end` to copy hosts before that.

        Args:
            n: Index of the host, from 0.

        Raises:
            EsperError: If the fleet has no host of that index.

        Example:
            >>> esper.save_model("grown.safetensors", fleet.host(3))
        """
        if not 0 <= n < self.num_hosts:
            raise EsperError(f"n must be from 0 to {self.num_hosts - 1}, the hosts of this fleet, not {n}")
        host = build_host(self.spec).to(self.device, self.engine.dtype)
        for name, stacked in self.trunk.layout.views(self.trunk.flat).items():
            host.get_parameter(name).copy_(stacked[n])
        for kind, bucket in self.buckets.items():
            for row in np.flatnonzero(bucket.hosts == n):
                graft = Graft(int(self.state.graft[n, kind.slot]))
                seed = build_seed(self.slots[kind.slot], kind.blueprint, graft).to(self.device, self.engine.dtype)
                stacked = bucket.stack.layout.views(bucket.stack.flat)
                for name, p in seed.named_parameters():
                    p.copy_(stacked[name][row])
                host.slot(kind.slot).plant(seed)
        for s in range(len(self.slots)):
            host.slot(s).alpha.copy_(self.state.alpha[n, s])
        return host

    def growth(self, state: SlotState) -> Float[Tensor, " N"]:
        """Parameters of all seeds, silent ones too, over those of the bare host."""
        return self.seeds_in_slots(self.seed_sizes, state).sum(1) / self.trunk.layout.num_parameters

    def flops(self, counterfactuals: bool = True) -> Int[Tensor, " N"]:
        """What this epoch cost each host, silent lessons included, and measuring what seeds are worth."""
        seeds, loud, silent = (
            self.seeds_in_slots(self.seed_flops, self.state),
            speaking(self.state),
            incubating(self.state),
        )
        heard = host_flops(self.spec) + seeds.where(loud, 0).sum(1)
        side = (heard[:, None] + seeds).where(silent, 0).sum(1)
        switched = heard[:, None] + torch.where(loud, -seeds, seeds)
        without = switched.where(self.state.blueprint != NO_BLUEPRINT, 0).sum(1)
        trained = len(self.train_data[0]) // self.config.batch_size * self.config.batch_size
        return (1 + BACKWARD) * trained * (heard + side) + len(self.validation_data.x) * (
            heard + counterfactuals * without
        )

    def legal(self) -> Bool[Tensor, "N O S"]:
        return legal(self.state, self.vitals, self.lifecycle)

    def decide(self, actions: Int[Tensor, "N H"]) -> tuple[Bool[Tensor, " N"], Float[Tensor, " N"], Measured]:
        """One decision of every host and the epoch that follows.

        Returns who was refused, the mean training losses, and what was measured.
        """
        state, refused = apply(self.state, actions, self.legal(), self.space.sizes)
        self.tend(tick(state, self.vitals, self.lifecycle))
        known = self.known()
        train_loss, norms, pulls = self.train_epoch(known)
        measured = self.evaluate(known)  # planned while the device trains
        self.vitals = self.examine(train_loss, norms, pulls, measured)
        self.epoch = self.epoch + 1
        if isinstance(self.padding, Roomy):
            self.padding.grow_older()
        return refused, train_loss, measured

    def tend(self, state: SlotState, fresh: Bool[Tensor, " N"] | None = None) -> None:
        """Take on a state, with the weights that belong to it. `fresh` hosts keep nothing."""
        self.network.tend(state, fresh, self.rng_seeds, self.padding)
        self.state = state

    def known(self) -> Known:
        """What assignments are made of, read from the device once."""
        state, lr = self.state, self.seed_lr * self.config.seed_rate(self.state.seed_age)
        loud, silent = speaking(state), incubating(state)
        rows = (state.graft, state.alpha, state.alpha_target, silent, lr, loud)
        return Known(*torch.stack([x.double() for x in rows]).cpu().numpy())

    def assignment(self, known: Known, measuring: bool, switched: Bool[Tensor, "N S"] | None = None) -> Assignment:
        """Who runs where: with rows beside the hosts, or, where seeds are `switched` over, without any."""
        alpha, silent = known.alpha, known.silent
        if switched is not None:
            over = np.where(known.loud, 0.0, known.target)
            alpha, silent = np.where(switched.cpu().numpy(), over, alpha), np.zeros_like(silent)

        def seeds(kind: Kind, hosts: np.ndarray) -> Seeds:
            living, at = hosts >= 0, (hosts, kind.slot)
            loud, aim = (np.where(living, x[at], 0).astype(np.float32) for x in (alpha, known.target))
            return Seeds(hosts, known.graft[at].astype(np.int64), loud, aim, living & (silent[at] > 0), known.lr[at])

        found = {kind: seeds(kind, bucket.hosts) for kind, bucket in self.buckets.items()}
        return assign(found, len(self.slots), measuring and switched is None, self.padding)

    def train_epoch(self, known: Known | None = None) -> tuple[Float[Tensor, " N"], Norms, Float[Tensor, "N S"]]:
        """One pass over the training data for every host.

        Returns mean losses and mean gradient norms, of parameters and of the streams at slots.
        """
        assignment = self.assignment(known or self.known(), measuring=False)
        count = torch.zeros((), dtype=torch.int64, device=self.device)
        order = permutation(key(self.rng_seeds, Purpose.SHUFFLE, self.epoch), len(self.train_data[0]))
        losses, pulls = self.losses.zero_(), self.pulls.zero_()
        norms: Norms = {name: stack.norms.zero_() for name, stack in self.network.stacks.items()}
        num_steps = len(order[0]) // self.config.batch_size
        chunks = self.memory.chunks(self.num_hosts, self.config.batch_size, *rows_of(assignment))
        inputs = (pack(assignment, self.device), order, count, chunks)
        program = self.recorded("train", self.train_step, inputs)
        if program is None:
            here = unpack(inputs[0])
            for _ in range(num_steps):
                self.train_step(here, *inputs[1:])
        else:
            program(inputs)
            for _ in range(num_steps - 1):
                program.graph.replay()
        return losses / num_steps, {name: norm / num_steps for name, norm in norms.items()}, pulls / num_steps

    def recorded(self, name: str, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Program | None:
        """A captured program for these inputs, if this fleet captures any."""
        if self.programs is None:
            return None

        def warm_up() -> None:
            changing = [t for stack in self.network.stacks.values() for t in (*stack.tensors.values(), stack.norms)]
            changing += [self.losses, self.pulls]
            before = [t.clone() for t in changing]
            function(*tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs))
            for tensor, value in zip(changing, before, strict=True):
                tensor.copy_(value)

        return self.programs.find(name, function, inputs, warm_up, kinds=tuple(self.network.stacks))

    def train_step(self, assignment: Assignment | Packed, order: Tensor, count: Tensor, chunks: int) -> None:
        """The next batch of every host: gradients, clipping and step, row by row. Adds up losses and norms."""
        assignment = unpack(assignment) if isinstance(assignment, Packed) else assignment
        size = self.config.batch_size
        batch = order.index_select(1, count * size + torch.arange(size, device=self.device))
        stacks = self.network.stacks
        flats = {name: stack.flat.to(self.engine.compute).detach().requires_grad_() for name, stack in stacks.items()}
        gradients: list[Tensor] = []
        pulled = torch.zeros_like(self.pulls)
        for part in batch.chunk(chunks, dim=1):
            x, y = (data[part] for data in self.train_data)
            out, beside, streams = self.network.forward(flats, x, assignment)
            loss = by_row(self.objective.loss, out, y) / size
            total = loss.sum()
            if beside is not None:
                side = by_row(self.objective.loss, beside, y[assignment.beside.rows]) / size
                total = total + side.where(assignment.beside.real, 0.0).sum()
            wanted = [*flats.values(), *streams]
            (*new,) = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
            pulled += torch.stack([_squares(g) for g in new[len(flats) :]], 1)
            new = new[: len(flats)]
            gradients = [a + b for a, b in zip(gradients, new, strict=True)] if gradients else new
            self.losses += loss.detach()
        self.pulls += pulled.sqrt()
        here = [b for slot in assignment.slots for b in slot.buckets]
        active = {None: self.everyone} | {b.kind: b.learns for b in here}
        rate = {None: self.lr} | {b.kind: b.lr for b in here}
        for (name, stack), gradient in zip(stacks.items(), gradients, strict=True):
            step(stack, gradient, active[name], rate[name], self.config)
        count += 1

    def evaluate(self, known: Known | None = None) -> Measured:
        """Every host on the validation data, and what each seed contributes, from extra rows of the same pass."""
        return self.measured(self.assignment(known or self.known(), measuring=True))

    def evaluate_bare(self) -> Measured:
        """Every host on the validation data as if it had no seeds: all there is to know of newborns."""
        return self.measured(assign({}, len(self.slots), measuring=True, padding=self.padding))

    @torch.no_grad()
    def evaluate_on(self, data: Split) -> Measured:
        """The same on other data, which nothing is ever chosen by."""
        as_they_are = torch.zeros_like(self.state.alpha, dtype=torch.bool)
        assignment = self.assignment(self.known(), measuring=True, switched=as_they_are)
        chunks = self.memory.chunks(self.num_hosts, len(data.x), *rows_of(assignment), training=False)
        return self.measure(pack(assignment, self.device), chunks, self.resident(data))

    def resident(self, data: Split) -> Split:
        """On the fleet's device, inputs in the precision it computes in."""
        return Split(
            *(x.to(self.device, self.engine.compute) if x.is_floating_point() else x.to(self.device) for x in data)
        )

    def switched(self, over: Bool[Tensor, "N S"]) -> Measured:
        """The same with some seeds switched over: off where they speak, on where they are silent.

        `switched(speaking(fleet.state))` is every host without its seeds; two slots at a time are pairs.
        """
        return self.measured(self.assignment(self.known(), measuring=True, switched=over))

    @torch.no_grad()
    def measured(self, assignment: Assignment) -> Measured:
        chunks = self.memory.chunks(self.num_hosts, len(self.validation_data[0]), *rows_of(assignment), training=False)
        inputs = (pack(assignment, self.device), chunks)
        program = self.recorded("measure", self.measure, inputs)
        measured = self.measure(*inputs) if program is None else program(inputs)
        return Measured(*(x.clone() for x in measured))

    @torch.no_grad()
    def measure(self, packed: Packed, chunks: int, data: Split | None = None) -> Measured:
        assignment, data = unpack(packed), data or self.validation_data
        flats = {name: stack.flat.to(self.engine.compute) for name, stack in self.network.stacks.items()}
        sums, besides = [], []
        for x, y in zip(*(part.chunk(chunks) for part in data), strict=True):
            out, beside, _ = self.network.forward(flats, x.expand(self.num_hosts, *x.shape), assignment)
            sums.append(self.judge(out, y))
            besides.append(None if beside is None else self.judge(beside, y)[1])
        size = len(data.x)
        loss, metric = (torch.stack(parts).sum(0) / size for parts in zip(*sums, strict=True))
        score = self.objective.score(metric, self.num_outputs)
        # One more slot than there is takes what padding rows say.
        contribution = score.new_full((self.num_hosts, len(self.slots) + 1), torch.nan)
        if len(assignment.beside.rows):
            metrics = torch.stack([b for b in besides if b is not None]).sum(0) / size
            switched = self.objective.score(metrics, self.num_outputs) - score[assignment.beside.rows]
            worth = torch.where(assignment.beside_speaks, -switched, switched)
            at = torch.where(assignment.beside.real, assignment.beside_slot, len(self.slots))
            contribution[assignment.beside.rows, at] = worth
        return Measured(loss, metric, score, contribution[:, :-1])

    def judge(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of loss and metric over examples."""
        targets = y.expand(len(out), *y.shape)
        return by_row(self.objective.loss, out, targets), by_row(self.objective.metric, out, targets)

    def examine(self, train_loss: Tensor, norms: Norms, pulls: Tensor, measured: Measured) -> Vitals:
        """Who is sane, which seeds are healthy, and what they are worth."""
        sane = train_loss.isfinite() & measured.loss.isfinite() & norms[None].isfinite()
        sane &= self.trunk.flat.isfinite().all(1)
        healthy = torch.ones(self.num_hosts, len(self.slots), dtype=torch.bool, device=self.device)
        share = torch.full_like(self.state.alpha, torch.nan)
        learning = incubating(self.state) | speaking(self.state)
        for s in range(len(self.slots)):
            here = {kind: bucket for kind, bucket in self.buckets.items() if kind.slot == s}
            if here:
                hosts = np.concatenate([bucket.hosts for bucket in here.values()])
                rows, hosts = (upload(x, self.device) for x in (np.flatnonzero(hosts >= 0), hosts[hosts >= 0]))
                finite = torch.cat([bucket.stack.flat.isfinite().all(1) for bucket in here.values()])[rows]
                norm = torch.cat([norms[kind] for kind in here])[rows]
                share[hosts, s] = (norm / norms[None][hosts]).to(share.dtype)
                healthy[hosts, s] = finite & (~learning[hosts, s] | ((norm > 0) & norm.isfinite()))
        return Vitals(sane, healthy, measured.contribution, share, pulls.to(share.dtype))


def _squares(gradient: Float[Tensor, "N ..."]) -> Float[Tensor, " N"]:
    """The squared length of each row, summed in single precision at least."""
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    return torch.linalg.vector_norm(gradient.flatten(1), dim=1, dtype=dtype).square()


def by_row(judge: Callable[[Tensor, Tensor], Tensor], out: Tensor, y: Tensor) -> Float[Tensor, " R"]:
    """The sum of what is said of each example, row by row."""
    return judge(out.flatten(0, 1), y.flatten(0, 1)).unflatten(0, out.shape[:2]).sum(1)


def rows_of(assignment: Assignment) -> tuple[dict[Kind, int], int]:
    """How many rows of seeds of each kind an assignment runs, and how many beside the hosts."""
    return {b.kind: b.num_seeds + b.num_echoes for slot in assignment.slots for b in slot.buckets}, len(
        assignment.beside.rows
    )
