"""Grow a user's own model while it trains.

A *chain* of like blocks is deepened by *twins*: a copy of a block, with its optimizer state, is planted behind it and
blended in, out = x + alpha * (twin(x) - x), from alpha 0 to 1. *Seeds*, small new modules, are planted in *slots*
behind modules that the user names. Compute is the clock: every step is charged with the operations that it takes, and
the run ends when its budget is spent.
"""

import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.growth import captures, finishing, reports
from esper.growth.births import finish_births, move_blends, plant_twins, remove_birth
from esper.growth.captures import Capture
from esper.growth.chains import Chain, find_chains, nothing_to_grow
from esper.growth.compute import Call, Meter, kept_modes
from esper.growth.distributed import SharedGradients, is_distributed
from esper.growth.garden import Garden, SeedChange
from esper.growth.log import Recorder
from esper.growth.optimizers import rename_groups
from esper.growth.policies import Action, Deepen, GrowthPolicy, SlotAction, listed
from esper.growth.preview import Preview, preview_of
from esper.growth.records import Birth, Event, GrowthConfig, Measurement
from esper.growth.saving import save
from esper.growth.slots import Planted
from esper.growth.trace import verify
from esper.growth.watch import Watch, agreed
from esper.growth.wrappers import GROWN, base_of
from esper.leyline.errors import EsperError

BLEND = 0.03
"""Default length of a blend, as a share of the steps that the budget would pay for at the initial size."""
POINTS = 400
"""Measurements of a whole run that are kept for curves, about."""


class Growth:
    """A model that grows while it trains; made by `grow`.

    Attributes:
        model: The user's model, changed in place.
        chains: The runs of blocks that are deepened.
        slots: The places in which seeds are planted.
        log: What happened when, at which loss, operations and parameters.
        history: The loss against operations and parameters, for curves.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        policy: GrowthPolicy,
        config: GrowthConfig,
        evaluate: Callable[[], float] | None = None,
    ) -> None:
        self.model, self.optimizer, self.policy, self.config = model, optimizer, policy, config
        self.evaluate = evaluate
        self.budget, self.blend = config.flops, config.blend
        self.slots = Garden(model, config)
        self.chains, self.refusals = find_chains(model, self.slots.modules)
        self.started_with = {chain.name: len(chain.blocks) for chain in self.chains}
        self.num_initial = sum(p.numel() for p in model.parameters())
        self.base = base_of(model)
        self.births: list[Birth] = []
        self.changes: list[Birth | SeedChange] = []
        """Structural changes that `undo` can take back, the latest last."""
        self.held: dict[str, Capture] = {}
        """Captures that a policy goes back to; saved with the growth."""
        self.log: list[Event] = []
        self.history: list[Measurement] = []
        self.recorder = Recorder()
        self.shared, self.watch, self.meter = SharedGradients(), Watch(), Meter(model)
        self.steps, self.spent, self.decision, self.is_finished = 0, 0, 0, False
        self.decides_now = False
        """Whether the present step begins a new decision: one of `decisions` equal shares of the budget."""
        self.peaks = [group["lr"] for group in optimizer.param_groups]
        self.loss: Tensor | None = None
        self.metric: float | None = None
        """The latest validation metric, lower is better."""
        self._is_metric_new = False
        self._handle: Any = None
        self._is_checked = False

    @property
    def progress(self) -> float:
        """Share of the budget spent, from 0 to 1."""
        return min(self.spent / self.budget, 1.0) if self.budget else 0.0

    @property
    def step_cost(self) -> int:
        """Operations of the latest optimizer step, at the model's present size."""
        return self.meter.step_cost

    @property
    def done(self) -> bool:
        """Whether the budget is spent: another step would exceed it by more than half of its cost."""
        return self.budget is not None and self.spent + 0.5 * self.step_cost > self.budget

    @property
    def depth(self) -> dict[str, int]:
        """Blocks of each chain, twins included."""
        return {chain.name: len(chain.blocks) for chain in self.chains}

    @property
    def num_parameters(self) -> int:
        """Parameters of the model, with all it has grown."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def is_blending(self) -> bool:
        """Whether some twin has not reached alpha 1 yet."""
        return any(not birth.done for birth in self.births)

    @property
    def average(self) -> float | None:
        """Exponential average of the training loss over all processes, as far as it has been read from the device."""
        return self.watch.average

    def attach(self, quiet: bool = False) -> None:
        """Listen to the inputs of the model; done by `grow` and `resume`."""
        object.__setattr__(self.model, GROWN, self)
        self._handle = self.model.register_forward_pre_hook(self.meter.listen, with_kwargs=True)
        if not quiet:
            self.note("attach")

    def see(self, call: Call) -> None:
        """Check chains and slots against real inputs, and set the budget from the cost of a step."""
        chains, refused = verify(self.model, self.chains, call)
        if not chains and not len(self.slots):
            raise EsperError(nothing_to_grow([*self.refusals, *refused]))
        self.slots.see(self.model, call)
        self.chains, self.refusals = chains, [*self.refusals, *refused]
        self._is_checked = True
        self.meter.set(call)
        self._set_budget()

    def _set_budget(self) -> None:
        """Set a budget that is given in steps, and the default length of a blend, from the cost of a step."""
        if self.config.total is not None:
            self.budget = self.config.total * self.step_cost
        assert self.budget is not None
        if self.config.blend is None:
            self.blend = max(1, round(BLEND * self.budget / max(self.step_cost, 1)))

    def preview(self) -> Preview:
        """Show what would be grown, with shapes, parameters and operations, and why other parts would not.

        Raises:
            EsperError: If the model has not been seen in training yet and `grow` was given no example.
        """
        self._require_check("previewed")
        return preview_of(self.model, self.meter.example, self.slots, self.chains, self.refusals)

    def step(self, loss: Tensor | float | None = None) -> None:
        """Charge a training step, move blends on, and let the policy decide. Call it after `optimizer.step()`.

        Args:
            loss: The training loss of the step. Policies that look at it need it; it is not read back from the device
                at every step.

        Raises:
            EsperError: If the budget is spent already, or the model was never called in training mode.
        """
        if self.is_finished:
            raise EsperError("the growth is finished: there is nothing left to step")
        if self.done:
            raise EsperError("the budget is spent: stop when growth.done is true")
        self.loss = loss.detach() if isinstance(loss, Tensor) else None if loss is None else torch.tensor(float(loss))
        if self.meter.calls and not self._is_checked:
            self.see(self.meter.calls[0])
        cost = self.meter.charge()
        if self.steps == 0 and not self.changes:  # an example is one call of any size; a step may make several
            self._set_budget()
        self.spent += cost
        self.steps += 1
        self._remember_rates()
        move_blends(self)
        if len(self.slots):
            self.slots.move(self)
        worst = None if self.loss is None else self.watch.see(self.loss, self.steps)
        if worst is not None:
            self._roll_back(worst)
        if not self.done:
            self._decide()
        self._measure()

    def _decide(self) -> None:
        """Let the policy act. At every new decision the model is evaluated first, and slots move on after."""
        self.decides_now = self.progress * self.config.decisions >= self.decision
        if self.decides_now:
            self.decision = int(self.progress * self.config.decisions) + 1
            if self.evaluate is not None:
                self.metric, self._is_metric_new = self._evaluated(), True
        for action in listed(self.policy(self)):
            self.apply(action)
        if self.decides_now and len(self.slots):
            self.slots.tick(self)

    @torch.no_grad()
    def _evaluated(self) -> float:
        assert self.evaluate is not None
        with kept_modes(self.model):
            self.model.eval()
            value = torch.as_tensor(self.evaluate(), dtype=torch.float64)
        if value.numel() != 1 or not bool(value.isfinite()):
            raise EsperError(f"evaluate must return one finite number, a validation loss, not {value.tolist()}")
        return float(agreed(value))

    def metric_without(self, planted: Planted) -> float:
        """Evaluate the model with one seed silent. The evaluation is charged."""
        alpha = float(planted.alpha)
        planted.set_alpha(0.0)
        try:
            with self.meter.evaluation():
                return self._evaluated()
        finally:
            planted.set_alpha(alpha)
            self.spent += self.meter.charge_evaluation()

    def report(self, metric: float) -> None:
        """Tell the policy a validation metric, lower is better; it is preferred to the training loss.

        Args:
            metric: For example the validation loss, or the error rate.
        """
        if not math.isfinite(metric):
            raise EsperError(f"metric must be a finite number, not {metric}")
        self.metric, self._is_metric_new = float(metric), True

    def measure(self) -> float | None:
        """Return what policies judge by: the reported metric, else the average training loss."""
        return self.average if self.metric is None else self.metric

    def judge(self) -> float:
        """Return how good the model is now, lower is better: evaluated, else the average training loss.

        Raises:
            EsperError: If there is neither `evaluate` nor a training loss.
        """
        if self.evaluate is not None:
            return self._evaluated()
        if self.average is None:
            raise EsperError("this policy compares losses: pass the loss to growth.step, or evaluate= to grow")
        return self.average

    def _measure(self) -> None:
        """Keep a point of the curves, about 400 in a run and one for every evaluation."""
        last = self.history[-1].flops if self.history else -math.inf
        is_evaluated = self._is_metric_new and self.evaluate is not None
        if self.budget is None or (self.spent - last < self.budget / POINTS and not self.done and not is_evaluated):
            return
        metric = self.metric if self._is_metric_new else None
        self._is_metric_new = False
        self.history.append(Measurement(self.steps, self.spent, self.num_parameters, self.average, metric))
        self.recorder.record(self)

    def _roll_back(self, worst: float) -> None:
        if self.watch.before is None:
            raise EsperError(f"the loss is not finite at step {self.steps}: lower the learning rate or check the data")
        usual = self.watch.usual
        captures.restore(self, self.watch.before)
        self.watch.forget()
        self.note("rollback", f"loss {worst:.3g} after a birth at {usual:.3g}")

    def apply(self, action: Action) -> bool:
        """Carry out an action, as far as it is legal and the limits allow.

        Returns:
            Whether anything was changed.
        """
        self._require_check("grown")
        if isinstance(action, SlotAction):
            return self._use_slot(action)
        chosen = [chain for chain in self.chains if action.chain in (None, chain.name)]
        if not chosen and action.chain is not None:
            names = ", ".join(chain.name for chain in self.chains) or "none"
            raise EsperError(f"there is no chain {action.chain!r}: choose from {names}")
        grown = [self._deepen(chain, action.times) for chain in chosen]
        return any(grown)

    def deepen(self, chain: str | None = None, times: int = 2) -> bool:
        """Plant twins behind every block of a chain, or of all chains.

        Args:
            chain: Name of a chain; all of them by default.
            times: How many times as many blocks the chain will have.

        Returns:
            Whether anything was grown.
        """
        return self.apply(Deepen(chain, times))

    def plant(self, slot: str, seed: str, **choices: Any) -> bool:
        """Plant a seed in a slot and blend it in.

        Args:
            slot: Name of the slot.
            seed: Name of a blueprint.
            **choices: Choices of other heads, such as `style="gate"`, `tempo=5` or `alpha_target=0.5`.

        Returns:
            Whether it was planted: not if the slot holds a seed, or the limit of parameters would be exceeded.
        """
        return self.apply(SlotAction("GERMINATE", {"slot": slot, "blueprint": seed, **choices}))

    def prune(self, slot: str) -> bool:
        """Fade a seed out and remove it; it must be three decisions old.

        Args:
            slot: Name of the slot.

        Returns:
            Whether it is pruned.
        """
        return self.apply(SlotAction("PRUNE", {"slot": slot}))

    def room(self, chain: Chain) -> int:
        """Return how many blocks a chain may still get under the limits."""
        most = int(self.config.max_growth * self.started_with[chain.name] + 1e-9) - len(chain.blocks)
        if self.config.max_parameters is not None:
            spare = self.config.max_parameters - self.num_parameters
            most = min(most, spare // max(chain.num_parameters, 1))
        return max(most, 0)

    def _use_slot(self, action: SlotAction) -> bool:
        if self.slots.space is None:
            raise EsperError("the model has no slots: name modules in slots= of grow")
        indices = self.slots.space.action(action.op, **action.choices)
        planting = action.op == "GERMINATE"
        if planting and self.config.max_parameters is not None:
            size = self.slots.size_of(indices)
            if self.num_parameters + size > self.config.max_parameters:
                return False
        before = self._before_birth() if planting else None
        if not self.slots.act(self, indices):
            return False
        if planting:
            assert self.blend is not None
            self.watch.begin(before, self.steps, self.blend)
        return True

    def _deepen(self, chain: Chain, times: int) -> bool:
        wanted = len(chain.blocks) * (times - 1)
        count = min(wanted, self.room(chain))
        if count < 1 or any(not birth.done and birth.chain is chain for birth in self.births):
            return False
        self._warn_if_decayed()
        ends = [(i + 1) * count // len(chain.blocks) for i in range(len(chain.blocks))]
        counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        before = self._before_birth()
        assert self.blend is not None
        birth = plant_twins(self, chain, counts, self.steps, self.blend)
        self.watch.begin(before, self.steps, self.blend)
        self.note("deepen", f"{chain.name}: {len(birth.before)} to {len(chain.blocks)} blocks")
        return True

    def _before_birth(self) -> Capture | None:
        """Capture the model as it is, unless a birth of the same step has done so."""
        if not self.config.governed or (self.watch.before is not None and self.watch.since == self.steps):
            return None
        return self.capture()

    def structure_changed(self, joined: Iterable[nn.Parameter] = (), left: Iterable[nn.Parameter] = ()) -> None:
        """Keep everything that depends on the model's structure right: names, shared gradients, costs."""
        self.shared.remove(left)
        if is_distributed():
            self.shared.add(joined)
        rename_groups(self.optimizer, self.model)
        self.meter.recount()

    def take_over(self, manifest: dict[str, Any], parts: dict[str, Capture]) -> None:
        """Take over the counters, the policy's captures and the records of a saved growth; done by `resume`."""
        chains = {chain.name: chain for chain in self.chains}
        self.chains = [chains[name] for name in manifest["chains"]]
        self.meter.step_cost = manifest["step_cost"]
        for name in ("budget", "blend", "spent", "steps", "decision", "peaks", "metric"):
            setattr(self, name, manifest[name])
        self.watch.load(manifest["watch"], parts.get("watch"))
        self.held = {name: part for name, part in parts.items() if name not in ("now", "watch")}
        self.log = [Event(**event) for event in manifest["log"]]
        self.history = [Measurement(**point) for point in manifest["history"]]
        self._is_checked = self.step_cost > 0

    def capture(self) -> Capture:
        """Copy the model, its structure and its optimizer, to go back to with `restore`."""
        return captures.capture(self)

    def restore(self, then: Capture) -> None:
        """Go back to a capture. Compute that was spent since stays spent."""
        captures.restore(self, then)

    def _remember_rates(self) -> None:
        """Keep the highest learning rate of every group. Rates that are tensors are not read."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.peaks = [p if isinstance(lr, Tensor) else max(p, lr) for p, lr in zip(self.peaks, rates, strict=True)]

    def _warn_if_decayed(self) -> None:
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        if any(lr < 0.5 * float(peak) for peak, lr in zip(self.peaks, rates, strict=True)):
            warnings.warn(
                "growing at a learning rate below half of its peak: new blocks have little left to learn with; grow"
                " earlier, or use WarmupStableDecay",
                stacklevel=2,
            )

    def undo(self) -> None:
        """Take the last structural change back, optimizer included; everything else keeps what it has learned.

        Raises:
            EsperError: If nothing has been grown.
        """
        if not self.changes:
            raise EsperError("there is nothing to undo: nothing has been grown")
        change = self.changes.pop()
        self.watch.end()
        if isinstance(change, Birth):
            remove_birth(self, change)
            self.note("undo", change.chain.name)
        else:
            self.slots.undo(self, change)
            self.note("undo", self.slots.places[change.slot].spec.name)

    def uproot(self) -> None:
        """Remove everything that has been planted."""
        self.slots.clear(self)
        while self.births:
            remove_birth(self, self.births[-1])
        self.changes.clear()

    def save(self, folder: str | Path) -> None:
        """Write model, optimizer and structure into a folder, from which `resume` continues identically.

        Args:
            folder: Where to write; made if it does not exist. A save that is interrupted leaves the one before.
        """
        save(self, folder)

    def finish(self) -> nn.Module:
        """Return the user's model with all blocks it has grown, without hooks or anything else of Esper.

        A twin that is still being blended is kept at its full weight. A seed is folded into the layer before it where
        that is possible, and otherwise becomes a plain module behind it.
        """
        if self.is_finished:
            return self.model
        finish_births(self)
        finishing.fold_seeds(self.model, self.optimizer, self.slots.places)
        if self._handle is not None:
            self._handle.remove()
        self.shared.remove(list(self.shared.parameters))
        self.model.__dict__.pop(GROWN, None)
        rename_groups(self.optimizer, self.model)
        self.watch.end()
        self.held.clear()
        self.note("finish")
        self.is_finished = True
        return self.model

    def plot(self, path: str | Path) -> None:
        """Draw loss and parameters against compute, with every birth marked; needs the extra `plot`.

        Args:
            path: Where to write the picture; its ending (.png, .svg, .pdf) decides the format.
        """
        reports.plot(self, path)

    def report_html(self, path: str | Path) -> None:
        """Write a page with the picture and what happened when; one file, needs the extra `plot`.

        Args:
            path: Where to write the page.
        """
        reports.write_page(self, path)

    def _require_check(self, what: str) -> None:
        if not self._is_checked:
            raise EsperError(
                f"the model cannot be {what} before it is checked: pass example= to grow, or make a training step first"
            )

    def note(self, kind: str, detail: str = "") -> None:
        """Write an event to the log."""
        loss = None if self.loss is None else float(self.loss)
        depth, parameters = dict(self.depth), self.num_parameters
        self.log.append(Event(kind, self.steps, self.progress, self.spent, parameters, loss, depth, detail))
        self.recorder.record(self)
