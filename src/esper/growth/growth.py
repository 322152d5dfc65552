"""Grow a user's own model while it trains.

A *chain* of like blocks is deepened by *twins*: a copy of a block, with its optimizer state, is planted behind it and
blended in, out = x + alpha * (twin(x) - x), from alpha 0 to 1. Compute is the clock: every step is charged with the
operations that it takes, and the run ends when its budget is spent.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.growth.chains import Chain, Refusal, find_chains
from esper.growth.compute import Call, Meter, as_call
from esper.growth.distributed import SharedGradients, is_distributed
from esper.growth.optimizers import check_optimizer, join_as_copies, leave, rename_groups
from esper.growth.policies import Deepen, Policy, named_policy
from esper.growth.records import Birth, Event
from esper.growth.saving import save
from esper.growth.snapshots import Snapshot
from esper.growth.trace import verify
from esper.growth.twins import arrange, attach, copy_block, detach, settle
from esper.growth.wrappers import GROWN, unwrapped
from esper.leyline.errors import EsperError

BLEND = 0.03
"""Default length of a blend, as a share of the steps that the budget would pay for at the initial size."""
READ_EVERY = 10
"""Steps between two reads of the loss from a GPU; on a CPU it is looked at every step."""
AVERAGE = 0.05
"""Weight of the newest loss in its average."""
DIVERGED = 2.0
"""Times the average loss before a birth at which training counts as diverged."""
WATCHED = 2
"""Times the length of a blend for which a birth is watched."""


def grow(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    total: int | None = None,
    flops: float | None = None,
    policy: str | Policy = "doubling",
    max_growth: float = 4.0,
    max_parameters: int | None = None,
    blend: int | None = None,
    governed: bool = True,
    example: Any = None,
) -> "Growth":
    """Attach growth to a model and its optimizer; both stay the user's own objects.

    Args:
        model: Any module with a chain of like blocks.
        optimizer: The optimizer that trains it. New parameters join its existing groups.
        total: Budget in optimizer steps at the model's present size.
        flops: Budget in floating-point operations, instead of `total`.
        policy: When and what to grow: "doubling", "plateau", or a function from a `Growth` to actions.
        max_growth: Largest number of blocks of a chain, as a multiple of what it began with.
        max_parameters: Largest number of parameters of the whole model.
        blend: Optimizer steps over which a twin is blended in; 3 % of the budget's steps by default.
        governed: Roll back to before a birth if the loss diverges or is not finite soon after it. Keeps a copy of the
            model and its optimizer state in memory while a birth is watched.
        example: Inputs of the model, to check its chains at once: a tensor, a tuple of positional or a dictionary of
            keyword arguments. Without one, the first training step serves as the example.

    Returns:
        The growth: call its `step` after every optimizer step.

    Raises:
        EsperError: If the model or the optimizer cannot be grown. Nothing has been changed then.

    Example:
        >>> growth = esper.growth.grow(model, optimizer, total=4500)
        >>> for x, y in batches:
        ...     loss = F.cross_entropy(model(x), y)
        ...     loss.backward(); optimizer.step(); optimizer.zero_grad()
        ...     growth.step(loss)
        ...     if growth.done:
        ...         break
        >>> model = growth.finish()
    """
    if (total is None) == (flops is None):
        raise EsperError("give either total (optimizer steps at the present size) or flops")
    if not (total or flops or 0) > 0:
        raise EsperError(f"the budget must be positive, not {total if flops is None else flops}")
    if not max_growth >= 1:
        raise EsperError(f"max_growth must be at least 1, not {max_growth}")
    inner = unwrapped(model)
    check_optimizer(optimizer, inner)
    growth = Growth(inner, optimizer, total, flops, named_policy(policy), max_growth, max_parameters, blend, governed)
    if not growth.chains:
        raise EsperError(_nothing_to_grow(growth.refusals))
    if example is not None:
        growth.see(as_call(example))
    growth.attach()
    return growth


def base_of(model: nn.Module) -> dict[str, list[int]]:
    """Return the shapes of a model's tensors: what its constructor makes."""
    return {name: list(x.shape) for name, x in model.state_dict().items() if isinstance(x, Tensor)}


def agreed(value: Tensor, largest: bool = False) -> float:
    """Read a number from its device; the mean, or the largest, over all processes of a distributed run."""
    if is_distributed():
        value = value.clone()
        dist.all_reduce(value, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)
        value = value if largest else value / dist.get_world_size()
    return float(value)


class Growth:
    """A model that grows while it trains; made by `grow`.

    Attributes:
        model: The user's model, changed in place.
        chains: The runs of blocks that are deepened.
        log: What happened when, at which loss, operations and parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        total: int | None,
        flops: float | None,
        policy: Policy,
        max_growth: float,
        max_parameters: int | None,
        blend: int | None,
        governed: bool,
    ) -> None:
        self.model, self.optimizer, self.policy = model, optimizer, policy
        self.total, self.budget = total, flops
        self.max_growth, self.max_parameters = max_growth, max_parameters
        self.blend, self.governed = blend, governed
        self.chains, self.refusals = find_chains(model)
        self.started_with = {chain.name: len(chain.blocks) for chain in self.chains}
        self.births: list[Birth] = []
        self.log: list[Event] = []
        self.base = base_of(model)
        self.shared = SharedGradients()
        self.steps, self.spent, self.is_finished = 0, 0, False
        self.peaks = [group["lr"] for group in optimizer.param_groups]
        self.loss: Tensor | None = None
        self.average: Tensor | None = None
        """Exponential average of the training loss, on its device."""
        self.metric: float | None = None
        self._worst: Tensor | None = None
        self.meter = Meter(model)
        self._handle: Any = None
        self._verified = False

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
        return sum(p.numel() for p in self.model.parameters())

    @property
    def is_blending(self) -> bool:
        """Whether some twin has not reached alpha 1 yet."""
        return any(not birth.done for birth in self.births)

    def attach(self, quiet: bool = False) -> None:
        """Listen to the inputs of the model; done by `grow` and `resume`."""
        object.__setattr__(self.model, GROWN, self)
        self._handle = self.model.register_forward_pre_hook(self.meter.listen, with_kwargs=True)
        if not quiet:
            self._note("attach")

    def see(self, call: Call, times: int = 1) -> None:
        """Check the chains against real inputs, and set the budget from the cost of a step of several such calls."""
        self.chains, refused = verify(self.model, self.chains, call)
        self.refusals += refused
        if not self.chains:
            raise EsperError(_nothing_to_grow(self.refusals))
        self._verified = True
        self.meter.set(call)
        if self.budget is None:
            assert self.total is not None
            self.budget = self.total * times * self.step_cost
        if self.blend is None:
            self.blend = max(1, round(BLEND * self.budget / max(times * self.step_cost, 1)))

    def step(self, loss: Tensor | float | None = None) -> None:
        """Charge a training step, move blending twins on, and let the policy decide. Call it after `optimizer.step()`.

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
        if self.meter.calls and not self._verified:
            self.see(self.meter.calls[0], len(self.meter.calls))
        self.spent += self.meter.charge()
        self.steps += 1
        self._remember_rates()
        self._move_blends()
        self._watch()
        if not self.done:
            for action in _listed(self.policy(self)):
                self.apply(action)

    def report(self, metric: float) -> None:
        """Tell the policy a validation metric, lower is better; it is preferred to the training loss.

        Args:
            metric: For example the validation loss, or the error rate.
        """
        self.metric = float(metric)

    def measure(self) -> float | None:
        """Return what policies judge by: the reported metric, else the average training loss; None between two reads.

        The loss is read from the device every few steps only, and averaged over all processes.
        """
        if self.metric is not None:
            return self.metric
        if self.average is None or self.steps % READ_EVERY:
            return None
        return agreed(self.average)

    def _watch(self) -> None:
        """Keep the average of the loss; roll back if it diverges soon after a birth, and raise if it is not finite."""
        if self.loss is None:
            return
        loss = self.loss.float()
        self._worst = loss if self._worst is None else torch.maximum(self._worst, loss)
        due = self.steps % READ_EVERY == 0 or loss.device.type == "cpu"
        worst = agreed(self._worst, largest=True) if due else 0.0
        self._worst = None if due else self._worst
        watched = next((birth for birth in reversed(self.births) if birth.snapshot is not None), None)
        if not math.isfinite(worst) or (watched is not None and worst > DIVERGED * watched.usual):
            if watched is None:
                raise EsperError(
                    f"the loss is not finite at step {self.steps}: lower the learning rate or check the data"
                )
            self._roll_back(watched, worst)
            return
        self.average = loss if self.average is None else torch.lerp(self.average.to(loss.device), loss, AVERAGE)
        if watched is not None and self.steps - watched.step >= WATCHED * watched.blend:
            watched.snapshot = None

    def _roll_back(self, birth: Birth, worst: float) -> None:
        snapshot = birth.snapshot
        assert snapshot is not None
        while birth in self.births:
            self._remove(self.births[-1])
        snapshot.restore(self.chains, self.optimizer)
        rename_groups(self.optimizer, self.model)
        self._note("rollback", f"{birth.chain.name}: loss {worst:.3g} after a birth at {birth.usual:.3g}")

    def _move_blends(self) -> None:
        for birth in self.births:
            if not birth.done:
                alpha = min(1.0, (self.steps - birth.step) / birth.blend)
                birth.alpha.fill_(alpha)
                if alpha >= 1:
                    self._settle(birth)

    def _settle(self, birth: Birth, quiet: bool = False) -> None:
        for twin in birth.twins:
            settle(twin)
        birth.done = True
        if not quiet:
            self._note("blended", birth.chain.name)

    def apply(self, action: Deepen) -> bool:
        """Carry out an action of a policy, as far as the limits allow.

        Returns:
            Whether anything was grown.
        """
        if not self._verified:
            raise EsperError("the chains are not checked yet: pass example= to grow, or make a training step first")
        chosen = [chain for chain in self.chains if action.chain in (None, chain.name)]
        if not chosen:
            names = ", ".join(chain.name for chain in self.chains)
            raise EsperError(f"there is no chain {action.chain!r}: choose from {names}")
        grown = [chain for chain in chosen if self._deepen(chain, action.times)]
        return bool(grown)

    def deepen(self, chain: str | None = None, times: int = 2) -> bool:
        """Plant twins behind every block of a chain, or of all chains.

        Args:
            chain: Name of a chain; all of them by default.
            times: How many times as many blocks the chain will have.
        """
        return self.apply(Deepen(chain, times))

    def room(self, chain: Chain) -> int:
        """Return how many blocks a chain may still get under the limits."""
        most = int(self.max_growth * self.started_with[chain.name] + 1e-9) - len(chain.blocks)
        if self.max_parameters is not None:
            most = min(most, (self.max_parameters - self.num_parameters) // max(chain.num_parameters, 1))
        return max(most, 0)

    def _deepen(self, chain: Chain, times: int) -> bool:
        wanted = len(chain.blocks) * (times - 1)
        count = min(wanted, self.room(chain))
        if count < 1 or any(not birth.done and birth.chain is chain for birth in self.births):
            return False
        self._warn_if_decayed()
        counts = [
            (i + 1) * count // len(chain.blocks) - i * count // len(chain.blocks) for i in range(len(chain.blocks))
        ]
        snapshot = Snapshot.take(self.model, self.chains, self.optimizer) if self.governed else None
        assert self.blend is not None
        birth = self._plant(chain, counts, self.steps, self.blend)
        birth.snapshot = snapshot
        birth.usual = math.inf if self.average is None else agreed(self.average)
        self.meter.recount()
        self._note("deepen", f"{chain.name}: {len(birth.before)} to {len(chain.blocks)} blocks")
        return True

    def _plant(self, chain: Chain, counts: Sequence[int], step: int, blend: int) -> Birth:
        """Plant twins behind the blocks of a chain, silent, with copies of the optimizer's state."""
        self._detach_done()
        before, alpha = chain.blocks, self._silence(chain)
        blocks: list[nn.Module] = []
        twins: list[nn.Module] = []
        copies: dict[nn.Parameter, nn.Parameter] = {}
        for block, count in zip(before, counts, strict=True):
            blocks.append(block)
            for _ in range(count):
                twin = copy_block(block, self.model)
                pairs = zip(twin.parameters(), block.parameters(), strict=True)
                copies |= {new: old for new, old in pairs if new is not old}
                twins.append(twin)
                blocks.append(twin)
        join_as_copies(self.optimizer, copies)
        for twin in twins:
            attach(twin, alpha)
        arrange(chain, blocks)
        rename_groups(self.optimizer, self.model)
        birth = Birth(chain, twins, before, list(counts), list(copies), alpha, step, blend)
        self.births.append(birth)
        if is_distributed():
            self.shared.add(birth.parameters)
        return birth

    def _detach_done(self) -> None:
        """Make twins that are blended in plain blocks."""
        for twin in (twin for birth in self.births if birth.done for twin in birth.twins):
            detach(twin)

    def replay(self, manifest: dict[str, Any]) -> None:
        """Regrow the structure of a saved growth, and take over its counters; done by `resume`."""
        chains = {chain.name: chain for chain in self.chains}
        self.chains = [chains[name] for name in manifest["chains"]]
        for saved in manifest["births"]:
            birth = self._plant(chains[saved["chain"]], saved["counts"], saved["step"], saved["blend"])
            if saved["done"]:
                self._settle(birth, quiet=True)
            else:
                birth.alpha.fill_(min(1.0, (manifest["steps"] - birth.step) / birth.blend))
        self.meter.step_cost = manifest["step_cost"]
        for name in ("spent", "steps", "peaks"):
            setattr(self, name, manifest[name])
        self.average = None if manifest["average"] is None else torch.tensor(manifest["average"])
        self.log = [Event(**event) for event in manifest["log"]]
        self._verified = True

    def _silence(self, chain: Chain) -> Tensor:
        like = next(chain.blocks[0].parameters())
        return torch.zeros((), dtype=torch.float32, device=like.device)

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
        if not self.births:
            raise EsperError("there is nothing to undo: nothing has been grown")
        birth = self.births[-1]
        self._remove(birth)
        self._note("undo", birth.chain.name)

    def _remove(self, birth: Birth) -> None:
        for twin in birth.twins:
            detach(twin)
        leave(self.optimizer, birth.parameters)
        self.shared.remove(birth.parameters)
        arrange(birth.chain, birth.before)
        rename_groups(self.optimizer, self.model)
        self.births.remove(birth)
        self.meter.recount()

    def uproot(self) -> None:
        """Remove everything that has been planted."""
        while self.births:
            self._remove(self.births[-1])

    def save(self, folder: str | Path) -> None:
        """Write model, optimizer and structure into a folder, from which `resume` continues identically.

        Args:
            folder: Where to write; made if it does not exist. A save that is interrupted leaves the one before.
        """
        save(self, folder)

    def finish(self) -> nn.Module:
        """Return the user's model with all blocks it has grown, without hooks or anything else of Esper.

        A twin that is still being blended is kept at its full weight.
        """
        for birth in self.births:
            if not birth.done:
                birth.alpha.fill_(1.0)
                self._settle(birth)
        self._detach_done()
        if self._handle is not None:
            self._handle.remove()
        self.shared.remove(list(self.shared.parameters))
        self.model.__dict__.pop(GROWN, None)
        if not self.is_finished:
            self._note("finish")
        self.is_finished = True
        return self.model

    def _note(self, kind: str, detail: str = "") -> None:
        loss = None if self.loss is None else float(self.loss)
        depth, parameters = dict(self.depth), self.num_parameters
        self.log.append(Event(kind, self.steps, self.progress, self.spent, parameters, loss, depth, detail))


def _listed(actions: Deepen | Iterable[Deepen] | None) -> Sequence[Deepen]:
    if actions is None:
        return ()
    return (actions,) if isinstance(actions, Deepen) else tuple(actions)


def _nothing_to_grow(refusals: Sequence[Refusal]) -> str:
    reasons = "; ".join(f"{refusal.name}: {refusal.reason}" for refusal in refusals)
    found = f" ({reasons})" if reasons else ""
    return f"the model has no chain of like blocks in an nn.ModuleList or nn.Sequential to deepen{found}"
