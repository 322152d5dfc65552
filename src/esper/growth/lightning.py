"""Grow a model in Lightning: add `GrowthCallback` to the Trainer."""

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.growth.attaching import grow
from esper.growth.callbacks import (
    BUDGETS,
    check_options,
    check_owner,
    describe_run,
    made_schedule,
    reconnect,
    regrow,
)
from esper.growth.chains import find_chains
from esper.growth.growth import Growth
from esper.growth.schedules import WarmupStableDecay
from esper.leyline.errors import EsperError, FileError

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ModuleNotFoundError:
    raise EsperError("lightning is not installed: pip install 'esper-nn[lightning]'") from None

STATE = "esper.growth"
"""Key of the growth in the callback states of a Lightning checkpoint."""
HOOK = "on_load_checkpoint"
SELF = "self"
"""Name of the LightningModule itself, for `network`."""


class GrowthCallback(Callback):
    """Grow the network of a LightningModule while it trains.

    Checkpoints of Lightning hold the grown structure: `trainer.fit(module, ckpt_path=...)` with a fresh module
    continues the run, and `trainer.test(module, ckpt_path=...)` evaluates it, if the Trainer has this callback.

    Args:
        network: Attribute of the LightningModule with the network that `training_step` calls, such as "net", or
            "self". Not needed where only one attribute holds blocks that can be deepened.
        schedule: Let the learning rates follow the compute spent, by `WarmupStableDecay`: True, or its options.
        options: Options of `grow`. Without `total` and `flops`, the budget is the number of optimizer steps that the
            Trainer would make, at the network's present size.

    Attributes:
        growth: The growth, from the start of training on.

    Example:
        >>> callback = GrowthCallback(schedule=True)
        >>> Trainer(max_epochs=10, callbacks=[callback]).fit(module, data)
        >>> callback.growth.depth
        {'blocks': 8}
    """

    def __init__(
        self, *, network: str | None = None, schedule: bool | Mapping[str, float] = False, **options: Any
    ) -> None:
        check_options(options)
        self.network, self.schedule, self.options = network, schedule, options
        self.growth: Growth | None = None
        self.rates: WarmupStableDecay | None = None
        self._module: LightningModule | None = None
        self._saved: dict[str, Any] | None = None
        self._losses: list[Tensor] = []
        self._counted = 0

    @property
    def state_key(self) -> str:
        """Return the key of this callback in a checkpoint."""
        return STATE

    def state_dict(self) -> dict[str, Any]:
        """Return the structure and the progress of the growth, for a checkpoint."""
        if self._saved is not None:
            return self._saved
        if self.growth is None or self._module is None or not self.growth.steps:
            return {}
        return describe_run(self.growth, self._module, self.rates, self._counted)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Regrow the structure of a checkpoint, if there will be one, just before its weights are loaded."""
        if stage == "fit":
            _check_trainer(trainer)
            self._saved = None
        loaded = pl_module.on_load_checkpoint

        def regrow_first(checkpoint: dict[str, Any]) -> None:
            self._restore(pl_module, checkpoint)
            loaded(checkpoint)

        setattr(pl_module, HOOK, regrow_first)  # callbacks see a checkpoint only after the weights are loaded

    def _restore(self, module: LightningModule, checkpoint: Mapping[str, Any]) -> None:
        if self.growth is not None and self._module is module:
            self.growth.finish()
            self.growth.uproot()
        self.growth, self._module, self._saved = None, module, None
        saved = checkpoint.get("callbacks", {}).get(STATE)
        if saved:
            network = find_network(module, self.network)
            self.growth = regrow(
                network, saved, self.options.get("policy"), "the checkpoint", evaluate=self.options.get("evaluate")
            )
            self._saved = saved

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the growth to the network and its optimizer."""
        pl_module.__dict__.pop(HOOK, None)
        optimizer = self._optimizer(trainer, pl_module)
        saved = self._saved
        if saved is not None and self.growth is not None:
            reconnect(self.growth, pl_module, optimizer, saved, "the checkpoint", self.options.get("log"))
        else:
            if self.growth is not None and not self.growth.is_finished:
                raise EsperError("the last growth is not finished: pass ckpt_path=, or call callback.growth.finish()")
            network = find_network(pl_module, self.network)
            self.growth = grow(network, optimizer, **self._budget(trainer), **self.options)
        self.rates = made_schedule(self.schedule, self.growth, saved)
        self._module = pl_module
        self._losses = []

    def _optimizer(self, trainer: Trainer, module: LightningModule) -> Optimizer:
        if not module.automatic_optimization:
            raise EsperError("automatic_optimization is off: call esper.grow and growth.step in training_step instead")
        if self.schedule is not False and trainer.lr_scheduler_configs:
            raise EsperError("schedule is on and configure_optimizers returns a scheduler: use one of them")
        check_owner(trainer.optimizers[0], module)
        return trainer.optimizers[0]

    def _budget(self, trainer: Trainer) -> dict[str, int]:
        if any(name in self.options for name in BUDGETS):
            return {}
        steps = trainer.estimated_stepping_batches
        if not 0 < steps < math.inf:
            raise EsperError("give total or flops: the Trainer sets no max_steps or max_epochs to take the budget from")
        return {"total": int(steps)}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that growth and Trainer have counted the same steps, and stop at once if the budget is spent."""
        if self._saved is not None and self._saved["counted"] != trainer.global_step:
            raise EsperError(
                f"the checkpoint was saved at step {trainer.global_step}, before its growth had made that step:"
                " list GrowthCallback before the callback that saves"
            )
        self._counted, self._saved = trainer.global_step, None
        if self.growth is not None and self.growth.done:
            trainer.should_stop = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Step the growth, once for every optimizer step."""
        growth = self.growth
        if growth is None or growth.done:
            return
        if isinstance(outputs, Mapping) and isinstance(outputs.get("loss"), Tensor):
            self._losses.append(outputs["loss"])  # divided by the number of accumulated batches
        if trainer.global_step == self._counted:
            return
        losses, self._losses, self._counted = self._losses, [], trainer.global_step
        if not growth.meter.calls and not growth.step_cost:
            name = self.network or "the network"
            raise EsperError(f"training_step did not call {name}: name the module that it calls in network=")
        growth.step(torch.stack(losses).sum() if losses else None)
        if self.rates is not None:
            self.rates.step()
        if not trainer.barebones:
            depth = {f"growth/depth/{chain}": float(blocks) for chain, blocks in growth.depth.items()}
            values = {"growth/progress": growth.progress, "growth/parameters": float(growth.num_parameters)}
            pl_module.log_dict(values | depth, on_step=True, on_epoch=False)
        if growth.done:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finish the growth: the network is left as an ordinary module."""
        if self.growth is None:
            return
        if not (self.growth.done or trainer.should_stop or trainer.fast_dev_run):  # pyright: ignore
            warnings.warn(
                f"training ended at {self.growth.progress:.0%} of the growth's budget: raise max_steps or max_epochs,"
                " or lower total",
                stacklevel=2,
            )
        self.growth.finish()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the network as it is: a checkpoint that is saved now resumes the run."""
        pl_module.__dict__.pop(HOOK, None)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove what `setup` has added."""
        pl_module.__dict__.pop(HOOK, None)


def find_network(module: LightningModule, name: str | None) -> nn.Module:
    """Return the network to grow: the attribute with that name, or the only one that holds blocks to deepen.

    Raises:
        EsperError: If there is no such attribute, or not exactly one candidate.
    """
    if name is not None:
        try:
            return module if name == SELF else module.get_submodule(name)
        except AttributeError:
            raise EsperError(f"network={name!r} is no submodule of {type(module).__name__}") from None
    children = dict(module.named_children())
    chains, _ = find_chains(module)
    names = {SELF if chain.parent is module else chain.name.partition(".")[0] for chain in chains}
    if not names:
        raise EsperError(f"{type(module).__name__} has no chain of like blocks in an nn.ModuleList or nn.Sequential")
    if len(names) > 1:
        raise EsperError(f"several parts of {type(module).__name__} can grow: set network= to one of {sorted(names)}")
    (found,) = names
    if found == SELF and not is_overridden("forward", module, LightningModule):
        raise EsperError(
            f"{type(module).__name__} has blocks and no forward: define it, or put them into a network of their own"
        )
    return module if found == SELF else children[found]


def load_from_checkpoint(module: LightningModule, path: str | Path, *, network: str | None = None) -> LightningModule:
    """Load a checkpoint of a grown run into a fresh module, without a Trainer.

    Args:
        module: A module from the constructor that made the saved one.
        path: A checkpoint that Lightning wrote with `GrowthCallback` among its callbacks.
        network: As for `GrowthCallback`.

    Returns:
        The module, which answers as it did when it was saved.

    Raises:
        FileError: If the file is missing, damaged, or does not fit the module.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise FileError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    saved = checkpoint.get("callbacks", {}).get(STATE)
    if not saved:
        raise FileError(f"{path} holds no growth: it was saved without GrowthCallback, or with weights only")
    growth = regrow(find_network(module, network), saved, lambda growth: None, str(path))
    module.load_state_dict(checkpoint["state_dict"])
    if not growth.is_blending:
        growth.finish()
    return module


def _check_trainer(trainer: Trainer) -> None:
    if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
        raise EsperError(
            f"{type(trainer.strategy).__name__} cannot be grown in: use one device, or DDPStrategy for several"
        )
    for callback in trainer.callbacks:  # pyright: ignore
        if isinstance(callback, StochasticWeightAveraging | WeightAveraging):
            raise EsperError(
                f"{type(callback).__name__} cannot average a model that grows: remove it, or average after finish()"
            )
        if isinstance(callback, ModelCheckpoint) and callback.save_weights_only:
            raise EsperError("save_weights_only leaves out how the model has grown: save whole checkpoints")
