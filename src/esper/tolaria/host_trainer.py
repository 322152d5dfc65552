"""Train and grow one host in plain PyTorch: the reference that fleets are tested against."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from esper.kasmina.cost import CostTable, cost_table, epoch_cost
from esper.kasmina.gates import LifecycleConfig
from esper.kasmina.host import num_parameters
from esper.kasmina.hosts import build_host
from esper.kasmina.lifecycle import apply, copied_slots, empty_slots, incubating, legal, speaking, tick, unmeasured
from esper.kasmina.slots import build_seed
from esper.leyline.actions import Graft, Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.leyline.reports import EpochReport, SlotReport
from esper.leyline.rng import Purpose, key, permutation
from esper.leyline.specs import HostSpec
from esper.leyline.state import NO_BLUEPRINT, Setting, Signals, SlotState, Split, Task, Vitals
from esper.tolaria.budget import Clock, Pace, paced, relative_cost
from esper.tolaria.config import TrainConfig, check_fit
from esper.tolaria.setting import make_setting, seed_sizes
from esper.tolaria.surgery import TRUNK, add_group, copy_module, make_optimizer, remove_group


class Evaluation(NamedTuple):
    """Mean loss, metric and score of a host on the validation data."""

    loss: float
    metric: float
    score: float


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
        train_loss, norms, pulls = self.train_epoch(pace)
        with torch.no_grad(), self.listening() as streams:
            evaluation = self.judged(self.host(self.task.validation.x))
        self.vitals = self.examine(train_loss, norms, evaluation, streams)
        self.vitals = self.vitals._replace(pull=pulls[None].to(self.state.alpha))
        self.epoch += 1
        if pace is not None:
            self.spent, self.over = self.spent + float(pace.charged), bool(pace.is_last)
        flops = self.flops() if pace is None else int(pace.charged)
        return self.report(action, refused, train_loss, evaluation, flops)

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
        if report is None:
            measured, train_loss, flops = self.evaluate(), torch.nan, 0
        else:
            measured = Evaluation(report.validation_loss, report.metric, report.score)
            train_loss, flops = report.train_loss, report.flops
        loss, metric, score = (torch.tensor([x], dtype=self.dtype) for x in measured)
        return Signals(
            score=score,
            metric=metric,
            loss=loss,
            train_loss=torch.tensor([train_loss], dtype=torch.float64),
            growth=torch.tensor([num_parameters(self.host.slots)]) / num_parameters(self.host.segments),
            flops=torch.tensor([flops], dtype=torch.float64),
            age=torch.tensor([age]),
            sibling=torch.ones(1, dtype=torch.bool),
            legal=legal(self.state, self.vitals, self.lifecycle),
            slots=self.state,
            vitals=self.vitals,
            spent=None if self.budget is None else torch.tensor([self.spent / self.budget], dtype=torch.float64),
            pace=None if self.budget is None else self.relative_cost(),
        )

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

    def relative_cost(self) -> Tensor:
        """Return what an epoch costs in the present state, contributions included, divided by that of a bare host."""
        cost, trained = epoch_cost(self.costs, self.state, self.lifecycle), self.num_steps * self.config.batch_size
        epoch = relative_cost(cost, trained, len(self.task.validation.x), self.lifecycle)
        return epoch / (trained * self.costs.host.train)

    @property
    def num_steps(self) -> int:
        """Steps of an epoch."""
        return self.config.steps_of(len(self.task.train.x))

    @property
    def is_measured(self) -> bool:
        """Whether the contributions of seeds are measured in the coming epoch."""
        return bool(self.lifecycle.measures(torch.tensor([self.epoch + 1])))

    def train_epoch(self, pace: Pace | None = None) -> tuple[float, dict[str, float], Tensor]:
        """Train for one epoch, or for as many steps as the budget allows.

        Returns:
            The mean loss; the mean gradient norm of each optimizer group; and the mean norm of the loss's gradient with
            respect to the stream at each slot.
        """
        x, y = self.task.train
        size = self.config.batch_size
        order = permutation(key(self.rng_seed, Purpose.SHUFFLE, self.epoch), len(x))
        batches = order[: len(x) // size * size].view(-1, size)
        losses, norms, pulls = [], [], []
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for n in range(self.num_steps if pace is None else int(pace.steps)):
            batch = batches[n % len(batches)]
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate if pace is None else rate * float(pace.rate(n))
            loss, pull = self.gradients(x[batch], y[batch], teaches=n % self.lifecycle.lesson_every == 0)
            losses.append(loss)
            pulls.append(pull)
            norms.append(self.step())
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        mean = {name: sum(norm[name] for norm in norms) / len(norms) for name in norms[0]}
        return sum(losses) / len(losses), mean, torch.stack(pulls).mean(0)

    def gradients(self, x: Tensor, y: Tensor, teaches: bool = True) -> tuple[float, Tensor]:
        """Compute the gradients of one batch.

        An incubating seed gets the gradient of the loss with the seed at its alpha target; everything else gets that of
        the host's own loss.

        Args:
            x: Examples.
            y: Their targets.
            teaches: Whether incubating seeds get a gradient.

        Returns:
            The loss, and the norm of its gradient with respect to the stream at each slot.
        """
        self.optimizer.zero_grad()
        with self.listening() as streams:
            loss = self.loss(x, y)
        for stream in streams:
            stream.retain_grad()
        loss.backward()
        for s in incubating(self.state)[0].nonzero()[:, 0].tolist() if teaches else ():
            parameters = list(self.host.slot(s).parameters())
            with self.frozen_but(s):
                out = self.host.after(s, streams[s].detach(), {s: self.state.alpha_target[0, s]})
                side = self.mean_loss(out, y)
            for p, gradient in zip(parameters, torch.autograd.grad(side, parameters), strict=True):
                p.grad = gradient
        return loss.item(), torch.stack([stream.grad.norm() for stream in streams if stream.grad is not None])

    def step(self) -> dict[str, float]:
        """Clip each optimizer group separately, take a step, and return the norms before clipping."""
        norms = {
            group["name"]: nn.utils.clip_grad_norm_(group["params"], self.config.clip).item()
            for group in self.optimizer.param_groups
        }
        self.optimizer.step()
        return norms

    def loss(self, x: Tensor, y: Tensor, alphas: Mapping[int, Tensor] | None = None) -> Tensor:
        """Return the mean loss of examples, with some slots' alpha replaced."""
        return self.mean_loss(self.host(x, alphas), y)

    def mean_loss(self, out: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of predictions."""
        return self.task.spec.objective.loss(out, y).mean()

    @contextmanager
    def listening(self) -> Iterator[list[Tensor]]:
        """Yield a list that the streams at all slots are added to while the host runs."""
        streams: list[Tensor] = []
        hooks = [slot.register_forward_pre_hook(lambda _, given: streams.append(given[0])) for slot in self.host.slots]
        try:
            yield streams
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def frozen_but(self, slot: int) -> Iterator[None]:
        """Let gradients reach no weights but those of the seed in a slot."""
        trained = {p for p in self.host.parameters() if p.requires_grad}
        others = trained - set(self.host.slot(slot).parameters())
        for p in others:
            p.requires_grad_(False)
        try:
            yield
        finally:
            for p in others:
                p.requires_grad_(True)

    @torch.no_grad()
    def evaluate(self, alphas: Mapping[int, Tensor] | None = None) -> Evaluation:
        """Evaluate the host on the validation data.

        Args:
            alphas: Values to use instead of the alpha of some slots, by slot index.
        """
        return self.judged(self.host(self.task.validation.x, alphas))

    def judged(self, out: Tensor) -> Evaluation:
        """Return how good predictions for the validation data are."""
        objective, y = self.task.spec.objective, self.task.validation.y
        metric = objective.metric(out, y).mean()
        score = objective.score(metric, self.task.spec.outputs)
        return Evaluation(objective.loss(out, y).mean().item(), metric.item(), score.item())

    @torch.no_grad()
    def examine(
        self, train_loss: float, norms: Mapping[str, float], now: Evaluation, streams: Sequence[Tensor]
    ) -> Vitals:
        """Return the vitals after an epoch, given the streams at all slots on the validation data.

        The contribution of a seed is the score with it minus the score without it.
        """
        vitals = unmeasured(self.state)
        finite = torch.tensor([train_loss, now.loss, norms[TRUNK]]).isfinite().all()
        vitals.sane[0] = finite & all_finite(self.host.segments)
        for s, spec in enumerate(self.host.slot_specs):
            slot = self.host.slot(s)
            if slot.seed is None:
                continue
            learns = bool(incubating(self.state)[0, s] | speaking(self.state)[0, s])
            vitals.share[0, s] = norms[spec.name] / norms[TRUNK] if norms[TRUNK] else torch.nan
            vitals.healthy[0, s] = all_finite(slot) and (not learns or 0 < norms[spec.name] < torch.inf)
            speaks = bool(speaking(self.state)[0, s])
            alpha = torch.tensor(0.0) if speaks else self.state.alpha_target[0, s]
            if not (self.is_measured and self.lifecycle.measured(self.state)[0, s]):
                vitals.contribution[0, s] = self.vitals.contribution[0, s]
                continue
            switched = self.judged(self.host.after(s, streams[s], {s: alpha})).score
            vitals.contribution[0, s] = now.score - switched if speaks else switched - now.score
        return vitals

    def flops(self) -> int:
        """Return the FLOPs of a whole epoch: training, incubation and evaluation, counterfactuals included."""
        cost, steps = epoch_cost(self.costs, self.state, self.lifecycle), self.num_steps
        untaught = steps - -(-steps // self.lifecycle.lesson_every)
        is_measured = self.lifecycle.measures(torch.tensor([self.epoch]))
        measured = cost.validation + is_measured * cost.counterfactuals
        trained = self.config.batch_size * (steps * cost.step - untaught * cost.lessons)
        return int(trained + len(self.task.validation.x) * measured)

    def flops_of_validation(self) -> int:
        """Return the FLOPs of a plain forward pass of one example."""
        return int(epoch_cost(self.costs, self.state).validation)

    def report(
        self, action: Sequence[int], refused: bool, train_loss: float, evaluation: Evaluation, flops: int
    ) -> EpochReport:
        """Return the report of the last epoch."""
        op = action[Head.OP]
        slots = []
        for s, spec in enumerate(self.host.slot_specs):
            seed = self.host.slot(s).seed
            slots.append(
                SlotReport(
                    name=spec.name,
                    stage=Stage(int(self.state.stage[0, s])).name,
                    alpha=self.state.alpha[0, s].item(),
                    blueprint=None if seed is None else seed.blueprint,
                    contribution=None if seed is None else self.vitals.contribution[0, s].item(),
                )
            )
        return EpochReport(
            epoch=self.epoch - 1,
            op=Op(op).name if 0 <= op < len(Op) else str(op),
            refused=refused,
            train_loss=train_loss,
            validation_loss=evaluation.loss,
            metric=evaluation.metric,
            score=evaluation.score,
            parameters=num_parameters(self.host),
            growth=self.host.growth,
            flops=flops,
            slots=tuple(slots),
        )


def _cast(split: Split, dtype: torch.dtype) -> Split:
    """Convert examples, and targets that are not class indices, to the host's precision."""
    return Split(*(part.to(dtype) if part.is_floating_point() else part for part in split))


def all_finite(module: nn.Module) -> bool:
    return all(bool(p.isfinite().all()) for p in module.parameters())
