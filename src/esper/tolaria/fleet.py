"""Train N hosts of one spec as one program: parameters stacked, seeds in buckets of one kind."""

from collections.abc import Iterable
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.kasmina.cost import CostTable, cost_table, epoch_cost
from esper.kasmina.gates import LifecycleConfig
from esper.kasmina.host import Host
from esper.kasmina.lifecycle import empty_slots, legal, unmeasured
from esper.leyline.errors import EsperError
from esper.leyline.specs import HostSpec
from esper.leyline.state import SlotState, Split, Task, Vitals
from esper.tolaria.allocator import keep_freed_memory
from esper.tolaria.assignment import Kind
from esper.tolaria.beginning import begin
from esper.tolaria.bucket import Bucket
from esper.tolaria.budget import epoch_flops
from esper.tolaria.capture import Programs
from esper.tolaria.config import Engine, TrainConfig, check_fit
from esper.tolaria.extraction import taken_out
from esper.tolaria.measuring import Measured, evaluate
from esper.tolaria.memory import MemoryEstimator
from esper.tolaria.network import Network, where
from esper.tolaria.padding import Padding, Roomy, exact, power_of_two
from esper.tolaria.schedule import Switch
from esper.tolaria.setting import parameters_of_seeds, seed_sizes
from esper.tolaria.stack import Stack
from esper.tolaria.training import train_epoch
from esper.tolaria.transfer import resident
from esper.tolaria.vitals import examined


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
        if self.device.type == "cpu":
            keep_freed_memory()
        self.task, self.objective, self.num_outputs = task.spec, task.spec.objective, task.spec.outputs
        self.train_data, self.validation_data = (
            resident(data, self.device, engine.compute) for data in (task.train, task.validation)
        )
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
        return taken_out(self, n)

    def growth(self, state: SlotState) -> Float[Tensor, " N"]:
        """Return the parameters of all seeds, silent ones included, over those of the bare host."""
        return parameters_of_seeds(self.seed_sizes, state).sum(1) / self.trunk.layout.num_parameters

    def flops(self, counterfactuals: bool | Bool[Tensor, " N"] = True) -> Int[Tensor, " N"]:
        """Return the FLOPs of one epoch of each host: training, incubation and evaluation.

        Args:
            counterfactuals: Whether to count the passes that measure the contribution of each seed.
        """
        cost = epoch_cost(self.costs, self.state, self.lifecycle)
        is_measured = self.lifecycle.measures(self.epoch) & counterfactuals
        examples = len(self.validation_data.x)
        return epoch_flops(cost, self.config.batch_size, self.num_steps, examples, self.lifecycle, is_measured)

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
        start = begin(self, actions)
        self.tend(start.state, before=self.state)
        known, pace = start.copied(), start.pace
        train_loss, norms, pulls = train_epoch(self, known, pace)
        measured = evaluate(self, known=known)  # the CPU prepares this while the device trains
        if pace is not None:
            self.spent, self.over = self.spent + pace.charged, pace.is_last
        self.vitals = examined(self, train_loss, norms, pulls, measured)
        self.epoch = self.epoch + 1
        if isinstance(self.padding, Roomy):
            self.padding.grow_older()
        return start.refused, train_loss, measured

    def tend(self, state: SlotState, fresh: Bool[Tensor, " N"] | None = None, before: SlotState | None = None) -> None:
        """Make the weights agree with a new state: add newborn seeds, remove pruned ones.

        Args:
            state: New state of all slots.
            fresh: Mask of the hosts that have just been replaced: none of their seeds are kept.
            before: State before the decision, which says what newborn twins copy. None: their weights are drawn.
        """
        self.network.tend(state, fresh, self.rng_seeds, self.padding, before)
        self.state = state

    @property
    def due(self) -> Bool[Tensor, "N S"]:
        """Whether the contribution of each seed is measured in its host's coming epoch."""
        return self.lifecycle.measured(self.state) & self.is_measured[:, None]

    @property
    def is_measured(self) -> Bool[Tensor, " N"]:
        """Whether contributions are measured in each host's coming epoch."""
        return self.lifecycle.measures(self.epoch + 1)

    @property
    def num_steps(self) -> int:
        """Steps of an epoch."""
        return self.config.steps_of(len(self.train_data[0]))

    def evaluate(self, data: Split | None = None, switch: Switch | None = None) -> Measured:
        """Evaluate every host.

        Args:
            data: Held-out data. None: the validation data, on which contributions are measured, too.
            switch: Mask of seeds to switch, (N, S): audible ones off, silent ones on; or "bare", which leaves out all
                seeds. No contributions are measured then.
        """
        return evaluate(self, data, switch)
