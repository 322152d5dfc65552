"""N hosts of one spec, trained as one program: their parameters stacked, their seeds in buckets of one kind."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from esper.kasmina.gates import LifecycleConfig
from esper.kasmina.host import num_parameters
from esper.kasmina.hosts import build_host
from esper.kasmina.lifecycle import apply, empty_slots, incubating, legal, tick, unmeasured
from esper.kasmina.slots import AnySeed, build_seed
from esper.leyline.actions import Graft
from esper.leyline.rng import Purpose, key, permutation
from esper.leyline.specs import HostSpec, SlotSpec
from esper.leyline.state import NO_BLUEPRINT, SlotState, Task, Vitals
from esper.tolaria.capture import Program, Programs
from esper.tolaria.config import TrainConfig, check_fit
from esper.tolaria.plan import Kind, Padding, Plan, Roomy, Seeds, SlotPlan, exact, make_plan, power_of_two
from esper.tolaria.stack import Params, Stack, run, step

Norms = dict[Kind | None, Float[Tensor, " R"]]
"""Mean gradient norms of the rows of each bucket, and under None those of the trunk."""


class Measured(NamedTuple):
    """What an epoch's measuring says of every host."""

    loss: Float[Tensor, " N"]
    metric: Float[Tensor, " N"]
    score: Float[Tensor, " N"]
    contribution: Float[Tensor, "N S"]


class Bucket:
    """The seeds of one kind: a stack, and the host of each row, -1 for a free one."""

    def __init__(self, kind: Kind, slot: SlotSpec, device: torch.device, dtype: torch.dtype, room: int) -> None:
        build_seed(slot, kind.blueprint, Graft.GATE)  # raises if this seed cannot live in this slot
        self.stack = Stack(lambda: AnySeed(slot, kind.blueprint), 0, device, dtype, room)
        self.hosts = np.zeros(0, dtype=np.int64)

    def release(self, staying: np.ndarray) -> None:
        """Free the rows of hosts that are not `staying`, (N,)."""
        leaving = (self.hosts >= 0) & ~staying[self.hosts]
        self.hosts[leaving] = -1
        self.stack.clear(torch.from_numpy(np.flatnonzero(leaving)).to(self.stack.flat.device))

    def admit(self, hosts: np.ndarray, keys: Int[Tensor, " R"], gated: Bool[Tensor, " R"], room: int) -> None:
        """Give newborns a row, making room first if there is none. Only the gated ones have a gate."""
        self.fit(room)
        rows = np.flatnonzero(self.hosts < 0)[: len(hosts)]
        self.hosts[rows] = hosts
        at = torch.from_numpy(rows).to(keys.device)
        self.stack.bear(at, keys)
        for name, view in self.stack.layout.views(self.stack.flat).items():
            if name.startswith("g."):
                view[at] *= gated.view(-1, *[1] * (view.ndim - 1))

    def fit(self, size: int) -> None:
        """Hold `size` rows if that is more than now, or less than a quarter; the living move to the front."""
        if len(self.hosts) // 4 < size <= len(self.hosts):
            return
        living = np.flatnonzero(self.hosts >= 0)
        self.stack.resize(torch.from_numpy(living).to(self.stack.flat.device), size)
        self.hosts = np.concatenate([self.hosts[living], np.full(size - len(living), -1)])


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
        device: torch.device = torch.device("cpu"),
        dtype: torch.dtype = torch.float32,
        compute: torch.dtype | None = None,
        graphs: bool = True,
    ) -> None:
        check_fit(spec, task, config)
        self.spec, self.config, self.lifecycle = spec, config, lifecycle
        self.device, self.dtype, self.compute = device, dtype, compute or dtype
        self.programs = Programs() if graphs and device.type == "cuda" else None
        self.padding: Padding = exact
        self.objective, self.num_outputs = task.spec.objective, task.spec.outputs
        self.train_data, self.validation_data = (
            tuple(x.to(device, self.compute) if x.is_floating_point() else x.to(device) for x in split)
            for split in (task.train, task.validation)
        )
        self.idle: dict[Kind, int] = {}
        self.rng_seeds = torch.tensor(list(rng_seeds), device=device)
        self.patience = 0
        """How many times a kind of seed may be found empty before it is no longer run."""
        if self.programs is not None:
            self.padding, self.patience = Roomy(self.num_hosts // 16), 100
        template = build_host(spec)
        self.slots, self.space = template.slot_specs, template.space
        self.seed_sizes = torch.tensor(
            [
                num_parameters(build_seed(slot, name, graft))
                for slot in self.slots
                for name in self.space.blueprints
                for graft in Graft
            ],
            device=device,
        )
        self.trunk = Stack(lambda: build_host(spec), len(self.rng_seeds), device, dtype)
        self.buckets: dict[Kind, Bucket] = {}
        """The kinds that live now..."""
        self.known: dict[Kind, Bucket] = {}
        """...and those that ever did: recorded programs refer to their memory."""
        self.epoch = torch.zeros_like(self.rng_seeds)
        self.state = empty_slots(len(self.rng_seeds), len(self.slots), device)
        self.vitals = unmeasured(self.state)
        self.everyone = torch.ones_like(self.vitals.sane)
        self.lr = torch.full_like(self.rng_seeds, config.lr, dtype=torch.float64)
        """Step size of each host's own parameters..."""
        self.seed_lr = torch.full_like(self.state.alpha, config.lr, dtype=torch.float64)
        """...and of the seed in each of its slots."""
        self.reset(self.everyone)

    @property
    def num_hosts(self) -> int:
        return len(self.rng_seeds)

    def reset(self, fresh: Bool[Tensor, " N"], rng_seeds: Int[Tensor, " N"] | None = None) -> None:
        """Put fresh hosts in some places: new weights, empty slots, the first epoch."""
        if rng_seeds is not None:
            self.rng_seeds = torch.where(fresh, rng_seeds, self.rng_seeds)
        rows = fresh.nonzero()[:, 0]
        self.trunk.bear(rows, key(self.rng_seeds[rows], Purpose.HOST_WEIGHTS))
        empty = empty_slots(self.num_hosts, len(self.slots), self.device)
        self.epoch = torch.where(fresh, 0, self.epoch)
        unknown = unmeasured(empty)
        self.vitals = Vitals(*(_where(fresh, new, old) for new, old in zip(unknown, self.vitals, strict=True)))
        self.tend(SlotState(*(_where(fresh, new, old) for new, old in zip(empty, self.state, strict=True))), fresh)

    def growth(self, state: SlotState) -> Float[Tensor, " N"]:
        """Parameters of all seeds, silent ones too, over those of the bare host."""
        grafts, blueprints = len(Graft), len(self.space.blueprints)
        sizes = self.seed_sizes.view(len(self.slots), -1)  # S, K * grafts
        at = (state.blueprint.clamp(min=0) * grafts + state.graft).T  # S N
        size = sizes.gather(1, at.clamp(max=blueprints * grafts - 1)).T
        living = state.blueprint != NO_BLUEPRINT
        return size.where(living, 0).sum(1) / self.trunk.layout.num_parameters

    def legal(self) -> Bool[Tensor, "N O S"]:
        return legal(self.state, self.vitals, self.lifecycle)

    def decide(self, actions: Int[Tensor, "N H"]) -> tuple[Bool[Tensor, " N"], Float[Tensor, " N"], Measured]:
        """One decision of every host and the epoch that follows. Returns who was refused, and what was measured."""
        state, refused = apply(self.state, actions, self.legal(), self.space.sizes)
        self.tend(state)
        self.tend(tick(self.state, self.vitals, self.lifecycle))
        train_loss, norms = self.train_epoch()
        measured = self.evaluate()
        self.vitals = self.examine(train_loss, norms, measured)
        self.epoch = self.epoch + 1
        return refused, train_loss, measured

    def tend(self, state: SlotState, fresh: Bool[Tensor, " N"] | None = None) -> None:
        """Take on a state: newborns get a row in their bucket, the gone lose theirs. `fresh` hosts keep nothing."""
        now, births = (x.cpu().numpy() for x in (state.blueprint, state.births))
        renewed = np.zeros(len(now), bool) if fresh is None else fresh.cpu().numpy()
        for kind, bucket in self.buckets.items():
            bucket.release((now[:, kind.slot] == self.space.blueprints.index(kind.blueprint)) & ~renewed)
        kinds = np.unique(np.stack([np.indices(now.shape)[1], now], -1)[now != NO_BLUEPRINT], axis=0)
        for s, b in kinds.tolist():
            kind = Kind(s, self.space.blueprints[b])
            if kind not in self.known:
                room = power_of_two(self.num_hosts) if self.programs else 0
                self.known[kind] = Bucket(kind, self.slots[s], self.device, self.dtype, room)
            bucket = self.buckets[kind] = self.known[kind]
            newborns = np.setdiff1d(np.flatnonzero(now[:, s] == b), bucket.hosts)
            if len(newborns):
                hosts = torch.from_numpy(newborns).to(self.device)
                birth = torch.from_numpy(births[newborns, s]).to(self.device)
                room = self.padding((kind, "seeds"), int((bucket.hosts >= 0).sum()) + len(newborns))
                keys = key(self.rng_seeds[hosts], Purpose.SEED_WEIGHTS, s, birth)
                bucket.admit(newborns, keys, state.graft[hosts, s] == Graft.GATE, room)
        self.idle = {
            kind: 0 if (b.hosts >= 0).any() else self.idle.get(kind, 0) + 1 for kind, b in self.buckets.items()
        }
        self.buckets = {kind: bucket for kind, bucket in self.buckets.items() if self.idle[kind] <= self.patience}
        self.state = state

    def plan(self, measuring: bool) -> Plan:
        graft, alpha, target = (x.cpu().numpy() for x in (self.state.graft, self.state.alpha, self.state.alpha_target))
        silent = incubating(self.state).cpu().numpy()
        lr = (self.seed_lr * self.config.seed_rate(self.state.seed_age)).cpu().numpy()

        def seeds(kind: Kind, hosts: np.ndarray) -> Seeds:
            living, at = hosts >= 0, (hosts, kind.slot)
            zero = alpha.dtype.type(0)
            heard, aim = np.where(living, alpha[at], zero), np.where(living, target[at], zero)
            return Seeds(hosts, graft[at], heard, aim, living & silent[at], lr[at])

        found = {kind: seeds(kind, bucket.hosts) for kind, bucket in self.buckets.items()}
        return make_plan(found, len(self.slots), measuring, self.padding, self.device)

    def train_epoch(self) -> tuple[Float[Tensor, " N"], Norms]:
        """One pass over the training data for every host. Returns mean losses and mean gradient norms."""
        plan, count = self.plan(measuring=False), torch.zeros((), dtype=torch.int64, device=self.device)
        order = permutation(key(self.rng_seeds, Purpose.SHUFFLE, self.epoch), len(self.train_data[0]))
        losses = torch.zeros(self.num_hosts, device=self.device, dtype=torch.float64)
        norms: Norms = {name: torch.zeros(len(stack), device=self.device) for name, stack in self.stacks.items()}
        num_steps = len(order[0]) // self.config.batch_size
        inputs = (plan, order, count, losses, list(norms.values()))
        program = self.recorded("train", self.train_step, inputs)
        if program is None:
            for _ in range(num_steps):
                self.train_step(*inputs)
        else:
            program(inputs)
            for _ in range(num_steps - 1):
                program.graph.replay()
            losses, sums = program.outputs
            norms = dict(zip(norms, sums, strict=True))
        return losses / num_steps, {name: norm / num_steps for name, norm in norms.items()}

    def recorded(self, name: str, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Program | None:
        """A captured program for these inputs, if this fleet captures any."""
        if self.programs is None:
            return None

        def warm_up() -> None:
            before = [(t, t.clone()) for stack in self.stacks.values() for t in stack.tensors.values()]
            function(*tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs))
            for tensor, value in before:
                tensor.copy_(value)

        return self.programs.find(name, function, inputs, warm_up)

    @property
    def stacks(self) -> dict[Kind | None, Stack]:
        return {None: self.trunk} | {kind: bucket.stack for kind, bucket in self.buckets.items()}

    def train_step(
        self, plan: Plan, order: Tensor, count: Tensor, losses: Tensor, norms: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """The next batch of every host: gradients, clipping and step, row by row. Adds to what it is given."""
        size = self.config.batch_size
        batch = order.index_select(1, count * size + torch.arange(size, device=self.device))
        x, y = (part[batch] for part in self.train_data)
        flats = {name: stack.flat.detach().requires_grad_() for name, stack in self.stacks.items()}
        out, beside = self.forward(flats, x, plan)
        loss = vmap(self.objective.loss)(out, y).mean(1)
        total = loss.sum()
        if beside is not None:
            side = vmap(self.objective.loss)(beside, y[plan.beside.rows]).mean(1)
            total = total + side.where(plan.beside.real, 0.0).sum()
        gradients = torch.autograd.grad(total, list(flats.values()), allow_unused=True, materialize_grads=True)
        here = [b for slot in plan.slots for b in slot.buckets]
        active = {None: self.everyone} | {b.kind: b.learns for b in here}
        rate = {None: self.lr} | {b.kind: b.lr for b in here}
        for (name, stack), gradient, norm in zip(self.stacks.items(), gradients, norms, strict=True):
            step(stack, gradient, norm, active[name], rate[name], self.config)
        losses += loss.detach()
        count += 1
        return losses, norms

    def forward(self, flats: dict[Kind | None, Tensor], x: Tensor, plan: Plan) -> tuple[Tensor, Tensor | None]:
        """What all hosts answer, (N, B, ...), and what the rows beside them do.

        A row beside starts where its seed sits, from a copy of the host's stream that no gradient leaves, with the
        seed switched over: on if it is silent, off if it speaks. All other weights it meets are fixed.
        """
        flats = {name: flat.to(self.compute) for name, flat in flats.items()}
        trunk = self.trunk.layout.views(flats[None])
        fixed = {name: p.detach() for name, p in trunk.items()}
        segments = self.trunk.template.segments
        assert isinstance(segments, nn.ModuleList)
        beside: Tensor | None = None
        for s, segment in enumerate(segments):
            prefix = f"segments.{s}."
            x = run(segment, _under(prefix, trunk), x)
            if beside is not None:
                rows = plan.beside.rows[: len(beside)]
                beside = run(segment, {n: p[rows] for n, p in _under(prefix, fixed).items()}, beside)
            if s < len(plan.slots) and plan.slots[s].buckets:
                x, beside = self.graft(flats, x, beside, plan.slots[s])
        return x, beside

    def graft(
        self, flats: dict[Kind | None, Tensor], x: Tensor, beside: Tensor | None, plan: SlotPlan
    ) -> tuple[Tensor, Tensor | None]:
        """Let the seeds of one slot speak, in their hosts and in the rows beside, and start new rows."""
        stream = x.index_select(0, plan.hosts)
        stream = _where(plan.speaks, stream, stream.detach())
        heard = None if beside is None else beside.index_select(0, plan.echoes.rows)
        deltas, echoes = self.deltas(flats, stream, heard, plan)
        loud = _where(plan.speaks, _spread(plan.alpha, deltas) * deltas, -0.0)
        x = x.index_add(0, plan.hosts, loud)
        if beside is not None and echoes is not None:
            loud = _where(plan.echoes.real, _spread(plan.echo_alpha, echoes) * echoes, -0.0)
            beside = beside.index_add(0, plan.echoes.rows, loud)
        seeds = plan.spawns.rows
        if not len(seeds):
            return x, beside
        off = stream.detach()[seeds]
        on = off + _spread(plan.target[seeds], off) * deltas[seeds]
        start = _where(plan.speaks[seeds], off, on)
        return x, start if beside is None else torch.cat([beside, start])

    def deltas(
        self,
        flats: dict[Kind | None, Tensor],
        stream: Tensor,
        heard: Tensor | None,
        plan: SlotPlan,
    ) -> tuple[Tensor, Tensor | None]:
        """What all seeds of a slot make of their hosts' streams and, with fixed weights, of the rows beside."""
        buckets = plan.buckets
        seeds, rows_beside = [b.num_seeds for b in buckets], [b.num_echoes for b in buckets]
        streams, grafts = stream.split(seeds), plan.graft.split(seeds)
        beside = heard.split(rows_beside) if heard is not None else [stream[:0]] * len(buckets)
        echo_grafts = plan.echo_graft.split(rows_beside)
        deltas, echoes = [], []
        for b, own, graft, other, echo_graft in zip(buckets, streams, grafts, beside, echo_grafts, strict=True):
            stack, flat = self.buckets[b.kind].stack, flats[b.kind]
            both = torch.cat([own, other]) if b.num_echoes else own
            rows = torch.cat([flat, flat.detach()[b.echo_seeds]]) if b.num_echoes else flat
            how = torch.cat([graft, echo_graft])
            delta = run(stack.template, stack.layout.views(rows), both, how).to(own.dtype)
            deltas.append(delta[: b.num_seeds])
            echoes.append(delta[b.num_seeds :])
        return torch.cat(deltas), torch.cat(echoes) if heard is not None else None

    @torch.no_grad()
    def evaluate(self) -> Measured:
        """Every host on the validation data, and what each seed contributes, from extra rows of the same pass."""
        inputs = (self.plan(measuring=True),)
        program = self.recorded("measure", self.measure, inputs)
        measured = self.measure(*inputs) if program is None else program(inputs)
        return Measured(*(x.clone() for x in measured))

    @torch.no_grad()
    def measure(self, plan: Plan) -> Measured:
        x, y = self.validation_data
        flats = {name: stack.flat for name, stack in self.stacks.items()}
        out, beside = self.forward(flats, x.expand(self.num_hosts, *x.shape), plan)
        loss, metric, score = self.judge(out, y)
        # One more slot than there is takes what padding rows say.
        contribution = score.new_full((self.num_hosts, len(self.slots) + 1), torch.nan)
        if beside is not None:
            switched = self.judge(beside, y)[2] - score[plan.beside.rows]
            worth = torch.where(plan.beside_speaks, -switched, switched)
            at = torch.where(plan.beside.real, plan.beside_slot, len(self.slots))
            contribution[plan.beside.rows, at] = worth
        return Measured(loss, metric, score, contribution[:, :-1])

    def judge(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        targets = y.expand(len(out), *y.shape)
        loss = vmap(self.objective.loss)(out, targets).mean(1)
        metric = vmap(self.objective.metric)(out, targets).mean(1)
        return loss, metric, self.objective.score(metric, self.num_outputs)

    def examine(self, train_loss: Tensor, norms: Norms, measured: Measured) -> Vitals:
        """Who is sane, which seeds are healthy, and what they are worth."""
        sane = train_loss.isfinite() & measured.loss.isfinite() & norms[None].isfinite()
        sane &= self.trunk.flat.isfinite().all(1)
        healthy = torch.ones_like(self.vitals.healthy)
        learning = incubating(self.state) | (self.state.alpha > 0)
        for kind, bucket in self.buckets.items():
            rows = torch.from_numpy(np.flatnonzero(bucket.hosts >= 0)).to(self.device)
            hosts = torch.from_numpy(bucket.hosts[bucket.hosts >= 0]).to(self.device)
            norm = norms[kind][rows]
            moving = ~learning[hosts, kind.slot] | ((norm > 0) & norm.isfinite())
            healthy[hosts, kind.slot] = bucket.stack.flat[rows].isfinite().all(1) & moving
        return Vitals(sane, healthy, measured.contribution)


def _spread(row: Tensor, like: Tensor) -> Tensor:
    """One number per row, in the dtype of a stream and shaped to multiply it."""
    return row.to(like.dtype).view(-1, *[1] * (like.ndim - 1))


def _where(rows: Bool[Tensor, " R"], yes: Tensor, no: Tensor | float) -> Tensor:
    return torch.where(rows.view(-1, *[1] * (yes.ndim - 1)), yes, no)


def _under(prefix: str, params: Params) -> Params:
    return {name.removeprefix(prefix): p for name, p in params.items() if name.startswith(prefix)}
