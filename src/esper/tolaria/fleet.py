"""Train N hosts of one spec as one program: parameters stacked, seeds in buckets of one kind."""

from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map

from esper.kasmina.cost import CostTable, cost_table, epoch_cost
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
    Known,
    Packed,
    Padding,
    Roomy,
    Seeds,
    assign,
    exact,
    hosts_by_kind,
    pack,
    power_of_two,
    rows_of,
    unpack,
    upload,
)
from esper.tolaria.budget import Clock, Pace, paced
from esper.tolaria.capture import Program, Programs
from esper.tolaria.config import Engine, TrainConfig, check_fit
from esper.tolaria.memory import MemoryEstimator
from esper.tolaria.network import Bucket, Network, where
from esper.tolaria.optimizer import Update, step
from esper.tolaria.setting import seed_sizes
from esper.tolaria.stack import Stack, by_row, squares
from esper.tolaria.vitals import examined

Norms = dict[Kind | None, Float[Tensor, " R"]]
"""Mean gradient norms of the rows of each bucket; those of the trunk under None."""


class Measured(NamedTuple):
    """Results of every host on the validation data, and the contribution of each seed."""

    loss: Float[Tensor, " N"]
    metric: Float[Tensor, " N"]
    score: Float[Tensor, " N"]
    contribution: Float[Tensor, "N S"]


class Fleet:
    """N hosts of one spec, trained together as one program.

    Hosts differ in their weights, data order and seeds; spec, task and configs are shared. Training a host in a fleet
    gives the results of training it alone with `HostTrainer`.

    Args:
        spec: Spec of all hosts. Its inputs and outputs must be those of the task.
        task: Data to train and to validate on; it is copied to the device.
        rng_seeds: Seed of the weights and data order of each host; their number is the number of hosts.
        config: Optimizer settings and batch size.
        lifecycle: Gates that seeds must pass, and the epochs they spend in each stage.
        engine: Device, precision and memory limit.

    Raises:
        EsperError: If the hosts do not fit the task, the device is not available, or the memory limit is too small.

    Example:
        >>> fleet = esper.Fleet(host, task, range(64))
        >>> plant = fleet.space.action("GERMINATE", slot="s0", blueprint="conv_heavy")
        >>> refused, train_loss, measured = fleet.decide(torch.tensor([plant] * 64))
        >>> esper.save_model("grown.safetensors", fleet.host(int(measured.score.argmax())))
    """

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
        """Learning rate of each host's own parameters."""
        self.seed_lr = torch.full_like(self.state.alpha, config.lr, dtype=torch.float64)
        """Learning rate of the seed in each slot."""
        self.losses = torch.zeros(self.num_hosts, device=self.device, dtype=torch.float64)
        self.pulls = torch.zeros_like(self.state.alpha, dtype=engine.dtype)
        self.count = torch.zeros((), dtype=torch.int64, device=self.device)
        """Steps of the present epoch that have been made."""
        self.budget: Float[Tensor, " N"] | None = None
        """FLOPs of each host's life; None if lives are counted in epochs. Set by the env."""
        self.charges_measuring: bool | Bool[Tensor, " N"] = True
        """Whether measuring the contribution of seeds is paid for out of the budget. Set by the env."""
        self.pauses: Float[Tensor, "P N"] | None = None
        """FLOPs at which an epoch ends early, to the step. Set by the env."""
        self.spent = torch.zeros_like(self.lr)
        """FLOPs that each host has spent of its budget."""
        self.over = torch.zeros_like(self.everyone)
        """Whether the host has spent its budget."""
        self.reset(self.everyone)

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return len(self.rng_seeds)

    @cached_property
    def costs(self) -> CostTable:
        """FLOPs of a host and of every possible seed for one example."""
        return cost_table(self.spec, self.device)

    @property
    def trunk(self) -> Stack:
        """Parameters and optimizer state of the hosts without their seeds."""
        return self.network.trunk

    @property
    def buckets(self) -> dict[Kind, Bucket]:
        """Parameters and optimizer state of all seeds, by slot and blueprint."""
        return self.network.buckets

    def learn_at(self, lr: Float[Tensor, " N"]) -> None:
        """Set the learning rate of each host and its seeds."""
        self.lr.copy_(lr)
        self.seed_lr.copy_(lr[:, None])

    def seeds_in_slots(self, table: Int[Tensor, "S K G"], state: SlotState) -> Int[Tensor, "N S"]:
        """Return the entry of each slot's seed in a table of all possible seeds; 0 where there is no seed."""
        slot = torch.arange(len(self.slots), device=self.device)
        value = table[slot, state.blueprint.clamp(min=0), state.graft]
        return value.where(state.blueprint != NO_BLUEPRINT, 0)

    def reset(self, fresh: Bool[Tensor, " N"], rng_seeds: Int[Tensor, " N"] | None = None) -> None:
        """Replace some hosts by fresh ones: new weights, empty slots, epoch 0.

        Args:
            fresh: Mask of the hosts to replace.
            rng_seeds: Their new seeds; None keeps the present ones.
        """
        if rng_seeds is not None:
            self.rng_seeds = torch.where(fresh, rng_seeds, self.rng_seeds)
        self.network.bear(fresh, self.rng_seeds)
        empty = empty_slots(self.num_hosts, len(self.slots), self.device)
        self.epoch = torch.where(fresh, 0, self.epoch)
        self.spent = torch.where(fresh, 0.0, self.spent)
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
            host.slot(s).alpha = self.state.alpha[n, s]
        return host

    def growth(self, state: SlotState) -> Float[Tensor, " N"]:
        """Return the parameters of all seeds, silent ones included, over those of the bare host."""
        return self.seeds_in_slots(self.seed_sizes, state).sum(1) / self.trunk.layout.num_parameters

    def flops(self, counterfactuals: bool | Bool[Tensor, " N"] = True) -> Int[Tensor, " N"]:
        """Return the FLOPs of one epoch of each host: training, incubation and evaluation.

        Args:
            counterfactuals: Whether to count the passes that measure the contribution of each seed.
        """
        cost, steps = epoch_cost(self.costs, self.state, self.lifecycle), self.num_steps
        untaught = steps - -(-steps // self.lifecycle.lesson_every)
        is_measured = self.lifecycle.measures(self.epoch) & counterfactuals
        measured = cost.validation + is_measured * cost.counterfactuals
        trained = steps * cost.step - untaught * cost.lessons
        return self.config.batch_size * trained + len(self.validation_data.x) * measured

    def legal(self) -> Bool[Tensor, "N O S"]:
        """Return a mask of the ops that are legal on each slot of each host."""
        return legal(self.state, self.vitals, self.lifecycle)

    def decide(self, actions: Int[Tensor, "N H"]) -> tuple[Bool[Tensor, " N"], Float[Tensor, " N"], Measured]:
        """Apply an action to every host, train for one epoch, and evaluate the hosts and their seeds.

        Args:
            actions: One row per host, as `fleet.space.action` returns it. Illegal actions are refused, and count as
                waiting.

        Returns:
            A mask of the refused actions, the mean training losses, and the results on the validation data.
        """
        state, refused = apply(self.state, actions, self.vitals, self.lifecycle, self.space)
        self.tend(tick(state, self.vitals, self.lifecycle), before=self.state)
        known, pace = self.known(), self.pace()
        train_loss, norms, pulls = self.train_epoch(known, pace)
        measured = self.evaluate(known)  # the CPU prepares this while the device trains
        if pace is not None:
            self.spent, self.over = self.spent + pace.charged, pace.is_last
        self.vitals = examined(self, train_loss, norms, pulls, measured)
        self.epoch = self.epoch + 1
        if isinstance(self.padding, Roomy):
            self.padding.grow_older()
        return refused, train_loss, measured

    def tend(self, state: SlotState, fresh: Bool[Tensor, " N"] | None = None, before: SlotState | None = None) -> None:
        """Make the weights agree with a new state: add newborn seeds, remove pruned ones.

        Args:
            state: New state of all slots.
            fresh: Mask of the hosts that have just been replaced: none of their seeds are kept.
            before: State before the decision, which says what newborn twins copy. None: their weights are drawn.
        """
        self.network.tend(state, fresh, self.rng_seeds, self.padding, before)
        self.state = state

    def known(self) -> Known:
        """Copy what assignments depend on from the device, in one transfer."""
        state, lr = self.state, self.seed_lr * self.config.seed_rate(self.state.seed_age)
        loud, silent, due = speaking(state), incubating(state), self.due
        rows = (state.graft, state.alpha, state.alpha_target, silent, lr, loud, due)
        return Known(*torch.stack([x.double() for x in rows]).cpu().numpy())

    @property
    def due(self) -> Bool[Tensor, "N S"]:
        """Whether the contribution of each seed is measured in its host's coming epoch."""
        return self.lifecycle.measured(self.state) & self.is_measured[:, None]

    @property
    def is_measured(self) -> Bool[Tensor, " N"]:
        """Whether contributions are measured in each host's coming epoch."""
        return self.lifecycle.measures(self.epoch + 1)

    def assignment(
        self, known: Known, measuring: bool, switched: Bool[Tensor, "N S"] | None = None, lessons: bool = True
    ) -> Assignment:
        """Assign all seeds to rows.

        Args:
            known: Slots as copied to the CPU.
            measuring: Whether side rows start at every seed of hosts that are measured, or, for training, at silent
                ones.
            switched: Mask of seeds to switch: audible ones off, silent ones on. No side rows start then.
            lessons: Whether silent seeds are taught.
        """
        alpha, silent = known.alpha, known.silent * lessons
        if switched is not None:
            over = np.where(known.loud, 0.0, known.target)
            alpha, silent = np.where(switched.cpu().numpy(), over, alpha), np.zeros_like(silent)

        def seeds(kind: Kind, hosts: np.ndarray) -> Seeds:
            living, at = hosts >= 0, (hosts, kind.slot)
            loud, aim = (np.where(living, x[at], 0).astype(np.float32) for x in (alpha, known.target))
            taught = living & (silent[at] > 0)
            starts = living & (known.due[at] > 0) if measuring else taught
            return Seeds(hosts, known.graft[at].astype(np.int64), loud, aim, starts, taught, known.lr[at])

        buckets = {kind: seeds(kind, bucket.hosts) for kind, bucket in self.buckets.items()}
        if switched is not None:
            buckets = {kind: seeds._replace(starts=np.zeros_like(seeds.starts)) for kind, seeds in buckets.items()}
        return assign(buckets, len(self.slots), measuring and switched is None, self.padding)

    @property
    def num_steps(self) -> int:
        """Steps of an epoch."""
        return self.config.steps_of(len(self.train_data[0]))

    def pace(self) -> Pace | None:
        """Return what every host can afford in its next epoch; None if lives are counted in epochs."""
        if self.budget is None:
            return None
        cost = epoch_cost(self.costs, self.state, self.lifecycle)
        measured = len(self.validation_data.x) * (self.is_measured & self.charges_measuring)
        clock = Clock(self.budget, self.config.batch_size, self.num_steps, self.lifecycle.lesson_every, self.pauses)
        return paced(clock, self.spent, cost, measured)

    def train_epoch(
        self, known: Known | None = None, pace: Pace | None = None
    ) -> tuple[Float[Tensor, " N"], Norms, Float[Tensor, "N S"]]:
        """Train every host for one epoch, or for as many steps as its budget allows.

        Returns:
            Mean losses; mean gradient norms of parameters; and mean norms of the loss's gradient with respect to the
            streams at slots.
        """
        known = known or self.known()
        self.count.zero_()
        order = permutation(key(self.rng_seeds, Purpose.SHUFFLE, self.epoch), len(self.train_data[0]))
        losses, pulls = self.losses.zero_(), self.pulls.zero_()
        norms: Norms = {name: stack.norms.zero_() for name, stack in self.network.stacks.items()}
        num_steps = self.num_steps if pace is None else int(pace.steps.max())  # waits for the device
        every = self.lifecycle.lesson_every
        steps = [self.step_of(known, order, pace)]
        if every > 1 and known.silent.any():
            steps.append(self.step_of(known, order, pace, lessons=False))
        for n in range(num_steps):
            steps[0 if n % every == 0 else -1]()
        if pace is None:
            return losses / num_steps, {name: norm / num_steps for name, norm in norms.items()}, pulls / num_steps
        hosts = {kind: upload(np.maximum(bucket.hosts, 0), self.device) for kind, bucket in self.buckets.items()}
        made = {None: pace.steps} | {kind: pace.steps[rows] for kind, rows in hosts.items()}
        means = {name: norm / made[name].to(norm.dtype) for name, norm in norms.items()}
        return losses / pace.steps, means, pulls / pace.steps[:, None]

    def step_of(self, known: Known, order: Tensor, pace: Pace | None, lessons: bool = True) -> Callable[[], None]:
        """Return a function that trains every host on its next batch, by a captured program if there is one.

        Steps with and without lessons may have inputs of the same shapes, and take turns: each has its own program.
        """
        assignment = self.assignment(known, measuring=False, lessons=lessons)
        chunks = self.memory.chunks(self.num_hosts, self.config.batch_size, *rows_of(assignment))
        inputs = (pack(assignment, self.device), order, chunks, pace)
        program = self.recorded("train" if lessons else "train without lessons", self.train_step, inputs)
        if program is None:
            return partial(self.train_step, unpack(inputs[0]), *inputs[1:])
        program.load(inputs)
        return program.graph.replay

    def recorded(self, name: str, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Program | None:
        """Return the captured program for these inputs, or None if this fleet does not capture programs."""
        if self.programs is None:
            return None

        def warm_up() -> None:
            changing = [t for stack in self.network.stacks.values() for t in (*stack.tensors.values(), stack.norms)]
            changing += [self.losses, self.pulls, self.count]
            before = [t.clone() for t in changing]
            function(*tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, inputs))
            for tensor, value in zip(changing, before, strict=True):
                tensor.copy_(value)

        return self.programs.find(name, function, inputs, warm_up, kinds=tuple(self.network.stacks))

    def train_step(self, assignment: Assignment | Packed, order: Tensor, chunks: int, pace: Pace | None = None) -> None:
        """Train every host on its next batch, clipping row by row, and add to the sums of losses and norms.

        Hosts that have made all steps that their pace allows are not trained.
        """
        assignment = unpack(assignment) if isinstance(assignment, Packed) else assignment
        size = self.config.batch_size
        count, batches = self.count, len(self.train_data[0]) // size
        at = count if pace is None else count % batches  # a last epoch may go on from the beginning
        batch = order.index_select(1, at * size + torch.arange(size, device=self.device))
        running = self.everyone if pace is None else pace.running(count)
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
            pulled += torch.stack([squares(g) for g in new[len(flats) :]], 1)
            new = new[: len(flats)]
            gradients = [a + b for a, b in zip(gradients, new, strict=True)] if gradients else new
            self.losses += loss.detach() if pace is None else loss.detach().where(running, 0.0)
        self.pulls += pulled.sqrt() if pace is None else pulled.sqrt().where(running[:, None], 0.0)
        here = [b for slot in assignment.slots for b in slot.buckets]
        active = {None: running} | {b.kind: b.learns for b in here}
        rate = {None: self.lr} | {b.kind: b.lr for b in here}
        if pace is not None:
            factor, rows = pace.rate(count), hosts_by_kind(assignment)
            rate = {name: lr * (factor if name is None else factor[rows[name]]) for name, lr in rate.items()}
            trains = {None: running} | {kind: running[hosts] for kind, hosts in rows.items()}
            active = {name: trains[name] & learns for name, learns in active.items()}
            gradients = [where(trains[name], g, 0.0) for name, g in zip(stacks, gradients, strict=True)]
        named = zip(stacks.items(), gradients, strict=True)
        step([Update(stack, gradient, active[name], rate[name]) for (name, stack), gradient in named], self.config)
        count += 1

    def evaluate(self, known: Known | None = None) -> Measured:
        """Evaluate every host on the validation data, and each seed's contribution by side rows of the same pass."""
        return self.measured(self.assignment(known or self.known(), measuring=True))

    def evaluate_bare(self) -> Measured:
        """Evaluate every host on the validation data without its seeds."""
        return self.measured(assign({}, len(self.slots), measuring=True, padding=self.padding))

    @torch.no_grad()
    def evaluate_on(self, data: Split) -> Measured:
        """Evaluate every host on held-out data, without measuring contributions."""
        none = torch.zeros_like(self.state.alpha, dtype=torch.bool)
        assignment = self.assignment(self.known(), measuring=True, switched=none)
        chunks = self.memory.chunks(self.num_hosts, len(data.x), *rows_of(assignment), training=False)
        return self.measure(pack(assignment, self.device), chunks, self.resident(data))

    def resident(self, data: Split) -> Split:
        """Copy data to the fleet's device, floating-point data in the precision of activations."""
        return Split(
            *(x.to(self.device, self.engine.compute) if x.is_floating_point() else x.to(self.device) for x in data)
        )

    def switched(self, over: Bool[Tensor, "N S"]) -> Measured:
        """Evaluate every host on the validation data with some seeds switched: audible ones off, silent ones on.

        `switched(speaking(fleet.state))` evaluates every host without its seeds.
        """
        return self.measured(self.assignment(self.known(), measuring=True, switched=over))

    @torch.no_grad()
    def measured(self, assignment: Assignment) -> Measured:
        """Evaluate every host on the validation data, by a captured program if there is one."""
        chunks = self.memory.chunks(self.num_hosts, len(self.validation_data[0]), *rows_of(assignment), training=False)
        inputs = (pack(assignment, self.device), chunks)
        program = self.recorded("measure", self.measure, inputs)
        measured = self.measure(*inputs) if program is None else program(inputs)
        return Measured(*(x.clone() for x in measured))

    @torch.no_grad()
    def measure(self, packed: Packed, chunks: int, data: Split | None = None) -> Measured:
        """Evaluate every host on data split into `chunks` parts; the validation data by default."""
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
        # Padding rows write into one extra slot, which is dropped.
        contribution = score.new_full((self.num_hosts, len(self.slots) + 1), torch.nan)
        if len(assignment.beside.rows):
            metrics = torch.stack([b for b in besides if b is not None]).sum(0) / size
            switched = self.objective.score(metrics, self.num_outputs) - score[assignment.beside.rows]
            worth = torch.where(assignment.beside_speaks, -switched, switched)
            at = torch.where(assignment.beside.real, assignment.beside_slot, len(self.slots))
            contribution[assignment.beside.rows, at] = worth
        return Measured(loss, metric, score, contribution[:, :-1])

    def judge(self, out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of loss and metric over examples."""
        targets = y.expand(len(out), *y.shape)
        return by_row(self.objective.loss, out, targets), by_row(self.objective.metric, out, targets)
