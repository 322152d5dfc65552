"""Train and grow one host in plain PyTorch: the reference that fleets are tested against."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from esper.kasmina.cost import CostTable, cost_table, epoch_cost
from esper.kasmina.gates import LifecycleConfig
from esper.kasmina.host import num_parameters
from esper.kasmina.hosts import build_host
from esper.kasmina.lifecycle import apply, copied_slots, empty_slots, legal, tick, unmeasured
from esper.kasmina.slots import build_seed
from esper.leyline.actions import Graft, Head
from esper.leyline.errors import EsperError
from esper.leyline.reports import EpochReport
from esper.leyline.rng import Purpose, key
from esper.leyline.specs import HostSpec
from esper.leyline.state import NO_BLUEPRINT, Setting, Signals, SlotState, Split, Task
from esper.tolaria.budget import Clock, Pace, epoch_flops, paced
from esper.tolaria.config import TrainConfig, check_fit
from esper.tolaria.host_measuring import Evaluation, all_finite, examined, judged
from esper.tolaria.host_reports import report_of, signals_of
from esper.tolaria.host_training import streams_of, train_epoch
from esper.tolaria.setting import make_setting, seed_sizes
from esper.tolaria.surgery import TRUNK, add_group, copy_module, make_optimizer, remove_group


class HostTrainer:
    """One host, its optimizer and the state of its slots, trained on the CPU.

    `decide` takes an action and trains for one epoch. To let a policy choose the actions, see `esper.grow_host`.

    Args:
        spec: Host to build, for example from `esper.weak_host`. Its inputs and outputs must be those of the task.
        task: Data to train and to validate on.
        config: Optimizer settings and batch size.
        lifecycle: Gates that seeds must pass, and the epochs they spend in each stage.
        rng_seed: Seed of the host's weights, its seeds' weights and its data order. Equal seeds give equal results.
        dtype: Precision of weights and examples.

    Raises:
        EsperError: If the host does not fit the task, or the batch size exceeds the training data.

    Example:
        >>> task = esper.load_task("mnist1d")
        >>> trainer = esper.HostTrainer(esper.weak_host("cnn1d", task.spec.inputs, task.spec.outputs), task)
        >>> report = trainer.decide(trainer.space.action("GERMINATE", slot="s0", blueprint="conv_heavy"))
        >>> report = trainer.decide(trainer.space.action("WAIT"))
        >>> esper.save_model("grown.safetensors", trainer.host)
    """

    def __init__(
        self,
        spec: HostSpec,
        task: Task,
        config: TrainConfig = TrainConfig(),
        *,
        lifecycle: LifecycleConfig = LifecycleConfig(),
        rng_seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_fit(spec, task, config)
        self.spec, self.config, self.lifecycle, self.dtype = spec, config, lifecycle, dtype
        self.task = task._replace(train=_cast(task.train, dtype), validation=_cast(task.validation, dtype))
        self.rng_seed, self.epoch = int(rng_seed), 0
        self.host = build_host(spec, self.rng_seed).to(dtype)
        self.space = self.host.space
        self.optimizer = make_optimizer(self.host.parameters(), config)
        self.state = empty_slots(1, len(self.host.slots))
        self.vitals = unmeasured(self.state)
        self.budget: float | None = None
        """FLOPs of the host's life, from which its training is paid; None: no limit."""
        self.spent = 0.0
        """FLOPs spent of the budget."""
        self.over = False
        """Whether the budget is spent."""

    @cached_property
    def costs(self) -> CostTable:
        """FLOPs of the host and of every possible seed for one example."""
        return cost_table(self.spec, torch.device("cpu"))

    def decide(self, action: Sequence[int]) -> EpochReport:
        """Apply one action, train for one epoch, and evaluate the host and each of its seeds.

        Args:
            action: One choice per head, as `trainer.space.action` returns it. An illegal action is refused and counts
                as waiting.

        Returns:
            What was done, what it cost, and the results on the validation data.

        Raises:
            EsperError: If the action does not have one choice per head, its seed cannot be built in its slot, or the
                budget is spent.
        """
        if self.over:
            raise EsperError("the host has spent its budget: set trainer.budget higher, or stop")
        refused = self.act(action)
        self.begin_epoch()
        pace = self.pace()
        train_loss, norms, pulls = train_epoch(self, pace)
        with torch.no_grad(), streams_of(self.host) as streams:
            evaluation = self.evaluate()
        self.vitals = examined(self, train_loss, norms, evaluation, streams)
        self.vitals = self.vitals._replace(pull=pulls[None].to(self.state.alpha))
        self.epoch += 1
        if pace is not None:
            self.spent, self.over = self.spent + float(pace.charged), bool(pace.is_last)
        flops = self.flops() if pace is None else int(pace.charged)
        return report_of(self, action, refused, train_loss, evaluation, flops)

    def legal(self) -> Tensor:
        """Return a mask of the ops that are legal on each slot, (O, S)."""
        return legal(self.state, self.vitals, self.lifecycle)[0]

    def act(self, action: Sequence[int]) -> bool:
        """Apply one action without training; return whether it was illegal and changed nothing."""
        if len(action) != len(Head):
            raise EsperError(
                f"an action has {len(Head)} choices, one for each head, not {len(action)}; make it with space.action()"
            )
        state, refused = apply(self.state, torch.tensor([action]), self.vitals, self.lifecycle, self.space)
        self.tend(state)
        return bool(refused)

    def setting(self, episode: int) -> Setting:
        """Return the constants of this host that policies need, for an episode of `episode` decisions."""
        slots, bare = self.host.slot_specs, num_parameters(self.host.segments)
        costs = None if self.budget is None else self.costs
        facts = (self.task.spec, slots, self.space, seed_sizes(slots, self.space), bare, episode, costs)
        return make_setting(*facts)._replace(slots_each=self.spec.slots)

    def signals(self, age: int, report: EpochReport | None = None) -> Signals:
        """Return the host's measurements in the form that policies read, as a fleet of one host.

        Args:
            age: Decisions since the policy took over.
            report: Report of the last epoch; None before the first, when the host is evaluated here.
        """
        return signals_of(self, age, report)

    def begin_epoch(self) -> None:
        """Advance stages and alphas by one epoch, and set the learning rate of each seed."""
        self.tend(tick(self.state, self.vitals, self.lifecycle))
        rate = self.config.seed_rate(self.state.seed_age)[0]
        for group in self.optimizer.param_groups:
            if group["name"] != TRUNK:
                group["lr"] = self.config.lr * rate[self.space.slots.index(group["name"])].item()

    def tend(self, state: SlotState) -> None:
        """Make host and optimizer agree with a new state: plant newborn seeds, remove pruned ones, set alpha."""
        for s, spec in enumerate(self.host.slot_specs):
            slot, blueprint = self.host.slot(s), int(state.blueprint[0, s])
            if slot.seed is None and blueprint != NO_BLUEPRINT:
                birth = key(self.rng_seed, Purpose.SEED_WEIGHTS, s, state.births[0, s])
                graft = Graft(int(state.graft[0, s]))
                seed = build_seed(spec, self.space.blueprints[blueprint], graft, birth).to(self.dtype)
                slot.plant(seed)
                add_group(self.optimizer, spec.name, slot.parameters())
                if blueprint == self.space.twin:
                    copy_module(self.optimizer, self.block_in_front(s), seed.f)
                self.vitals.healthy[0, s] = all_finite(slot)
            elif slot.seed is not None and blueprint == NO_BLUEPRINT:
                slot.uproot()
                remove_group(self.optimizer, spec.name)
            slot.alpha = state.alpha[0, s]
        self.state = state

    def block_in_front(self, s: int) -> nn.Module:
        """Return the block that a new twin in a slot copies: the nearest earlier twin, or that of the segment."""
        copied = int(copied_slots(self.state, s, s - s % self.spec.slots, self.space.twin))
        if copied < 0:
            return self.host.get_submodule(self.host.blocks[s])
        seed = self.host.slot(copied).seed
        assert seed is not None
        return seed.f

    def pace(self) -> Pace | None:
        """Return what the host can afford in its next epoch; None without a budget."""
        if self.budget is None:
            return None
        budget, spent = (torch.tensor([x], dtype=torch.float64) for x in (self.budget, self.spent))
        cost = epoch_cost(self.costs, self.state, self.lifecycle)
        clock = Clock(budget, self.config.batch_size, self.num_steps, self.lifecycle.lesson_every)
        return paced(clock, spent, cost, torch.tensor([len(self.task.validation.x) * self.is_measured]))

    @property
    def num_steps(self) -> int:
        """Steps of an epoch."""
        return self.config.steps_of(len(self.task.train.x))

    @property
    def is_measured(self) -> bool:
        """Whether the contributions of seeds are measured in the coming epoch."""
        return bool(self.lifecycle.measures(torch.tensor([self.epoch + 1])))

    @torch.no_grad()
    def evaluate(self, alphas: Mapping[int, Tensor] | None = None) -> Evaluation:
        """Evaluate the host on the validation data.

        Args:
            alphas: Values to use instead of the alpha of some slots, by slot index.
        """
        return judged(self, self.host(self.task.validation.x, alphas))

    def flops(self) -> int:
        """Return the FLOPs of a whole epoch: training, incubation and evaluation, counterfactuals included."""
        cost = epoch_cost(self.costs, self.state, self.lifecycle)
        is_measured = self.lifecycle.measures(torch.tensor([self.epoch]))
        steps, examples = self.num_steps, len(self.task.validation.x)
        return int(epoch_flops(cost, self.config.batch_size, steps, examples, self.lifecycle, is_measured))


def _cast(split: Split, dtype: torch.dtype) -> Split:
    """Convert examples, and targets that are not class indices, to the host's precision."""
    return Split(*(part.to(dtype) if part.is_floating_point() else part for part in split))
