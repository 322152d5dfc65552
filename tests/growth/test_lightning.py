"""Growth in Lightning: once an optimizer step, resumed from Lightning's own checkpoints bit for bit."""

import copy
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, WeightAveraging
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from conftest_growth import GPT, nested, read_log
from esper.growth import Doubling, WarmupStableDecay, grow
from esper.growth.lightning import GrowthCallback, load_from_checkpoint
from esper.leyline.errors import EsperError, FileError

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The 'test_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to create"),
]
DATA = torch.randint(32, (24, 2, 9), generator=torch.Generator().manual_seed(0))


def loss_of(net: nn.Module, batch: Tensor) -> Tensor:
    return F.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


class Module(LightningModule):
    """A byte-level transformer with weight decay on matrices only."""

    def __init__(self, lr: float = 1e-2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lr = lr
        self.net = GPT(1)
        self.scale = nn.Parameter(torch.ones(()))
        self.seen: list[float] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        assert "on_load_checkpoint" not in self.__dict__, "the module is the user's own while it trains"
        return loss_of(self.net, batch) * self.scale

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        self.seen.append(float(loss_of(self.net, batch)))

    def configure_optimizers(self) -> Any:
        matrices = [p for p in self.parameters() if p.ndim > 1]
        others = [p for p in self.parameters() if p.ndim < 2]
        return torch.optim.AdamW([{"params": others, "weight_decay": 0.0}, {"params": matrices}], self.lr)


class Loader:
    """A loader that continues where it was, as a run resumed within an epoch needs it."""

    def __init__(self) -> None:
        self.next = 0

    def __len__(self) -> int:
        return len(DATA)

    def __iter__(self):
        while self.next < len(DATA):
            self.next += 1
            yield DATA[self.next - 1]
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Stop(Exception):
    """The power is gone."""


class Interrupt(Callback):
    """Ends a run after some batches by an exception."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == self.after:
            raise Stop


def callback(**options: Any) -> GrowthCallback:
    return GrowthCallback(**{"total": 60, "blend": 6, "policy": Doubling((0.1, 0.4)), "schedule": True} | options)


def trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    silent = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    kept = any(isinstance(cb, ModelCheckpoint) for cb in callbacks)
    return Trainer(
        **{"max_epochs": 10, "enable_checkpointing": kept, "default_root_dir": folder} | silent | options,
        callbacks=list(callbacks),
    )


def weights(module: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(module.state_dict())


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_trainer_makes_the_run_that_a_plain_loop_makes(tmp_path):
    module, cb = Module(), callback()
    logger = CSVLogger(tmp_path)
    run = trainer(tmp_path, cb, logger=logger, log_every_n_steps=1)
    run.fit(module, Loader())
    plain = Module()
    optimizer = plain.configure_optimizers()
    growth = grow(plain.net, optimizer, total=60, blend=6, policy=Doubling((0.1, 0.4)))
    rates = WarmupStableDecay(optimizer, growth)
    while not growth.done:
        loss = plain.training_step(DATA[growth.steps % len(DATA)], 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        growth.step(loss)
        rates.step()
    growth.finish()
    assert cb.growth is not None
    assert cb.growth.depth == {"blocks": 4}
    assert cb.growth.log == growth.log
    assert run.global_step == growth.steps
    assert equal(weights(module), weights(plain))
    assert optimizer.param_groups[0]["lr"] == run.optimizers[0].param_groups[0]["lr"]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())
    assert not any("esper" in name for m in module.modules() for name in (*m.__dict__, *m._buffers))
    assert "on_load_checkpoint" not in module.__dict__
    rows = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert {"growth/progress", "growth/parameters", "growth/depth/blocks"} <= set(rows[0].split(","))
    assert len(rows) == growth.steps + 1


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Callable[[str], tuple[Module, GrowthCallback]]:
    """Whole runs, one for each precision."""

    @functools.cache
    def whole(precision: str) -> tuple[Module, GrowthCallback]:
        module, cb = Module(), callback()
        trainer(tmp_path_factory.mktemp(precision), cb, precision=precision).fit(module, Loader())
        return module, cb

    return whole


@pytest.mark.parametrize(
    ("stop", "precision"), [(9, "32-true"), (9, "bf16-true"), (14, "32-true"), (18, "32-true"), (24, "32-true")]
)
def test_a_run_interrupted_and_resumed_ends_as_one_that_was_not(tmp_path, uninterrupted, stop, precision):
    first, resumed = Module(), Module(lr=1.0)  # the rates are those of the checkpoint, as with Lightning's schedulers
    whole, one = uninterrupted(precision)
    cb = callback(log=tmp_path / "log")
    saves = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=stop, save_top_k=-1)
    with pytest.raises(Stop):
        trainer(tmp_path, Interrupt(stop + 2), cb, saves, precision=precision).fit(first, Loader())
    assert cb.growth is not None
    assert cb.growth.births, "something had grown"
    before = weights(resumed)
    cb = callback(log=tmp_path / "log")
    run = trainer(tmp_path, cb, precision=precision)
    run.fit(resumed, Loader(), ckpt_path=tmp_path / f"step={stop}.ckpt", weights_only=True)
    assert cb.growth is not None
    assert one.growth is not None
    assert cb.growth.log == one.growth.log
    assert read_log(tmp_path / "log")[1:] == (one.growth.log, one.growth.history)
    assert not equal(before, weights(resumed))
    assert equal(weights(resumed), weights(whole))


def test_one_of_the_checkpoints_was_saved_in_mid_blend():
    births = {}
    growth = grow(net := GPT(1), torch.optim.AdamW(net.parameters()), total=60, blend=6, policy=Doubling((0.1, 0.4)))
    while not growth.done:
        loss_of(net, DATA[0]).backward()
        growth.step()
        births[growth.steps] = (len(growth.births), growth.is_blending)
    assert [births[step] for step in (9, 14, 18, 24)] == [(1, True), (1, False), (2, True), (2, False)]


def test_growth_steps_once_an_optimizer_step_and_charges_every_batch(tmp_path):
    cbs = [callback(total=10, policy=lambda growth: None), callback(total=10, policy=lambda growth: None)]
    runs = [trainer(tmp_path, cbs[0]), trainer(tmp_path, cbs[1], accumulate_grad_batches=3)]
    for run in runs:
        run.fit(Module(), DataLoader(DATA, batch_size=None))
    single, triple = (cb.growth for cb in cbs)
    assert single is not None
    assert triple is not None
    assert [run.global_step for run in runs] == [10, 10]
    assert triple.steps == single.steps
    assert triple.spent == 3 * single.spent
    assert triple.average is not None
    assert single.average is not None
    assert 0.5 < float(triple.average) / float(single.average) < 2, "a mean over batches, not a sum"


def test_the_budget_is_what_the_trainer_would_have_trained(tmp_path):
    cb = GrowthCallback(policy=lambda growth: None)
    run = trainer(tmp_path, cb, max_epochs=2, accumulate_grad_batches=2)
    run.fit(Module(), DataLoader(DATA, batch_size=None))
    assert cb.growth is not None
    assert cb.growth.config.total == len(DATA) == run.global_step
    with pytest.raises(EsperError, match="give total or flops: the Trainer sets no max_steps"):
        trainer(tmp_path, GrowthCallback(), max_epochs=-1).fit(Module(), DataLoader(DATA, batch_size=None))


def test_a_run_that_ends_before_its_budget_says_so(tmp_path):
    cb = callback(total=1000)
    with pytest.warns(UserWarning, match="training ended at 2% of the growth's budget: raise max_steps"):
        trainer(tmp_path, cb, max_epochs=1).fit(Module(), DataLoader(DATA, batch_size=None))


@pytest.mark.parametrize("stop", [9, 14])
def test_a_checkpoint_is_evaluated_as_it_was_when_saved(tmp_path, stop):
    module, cb = Module(), callback()
    saves = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=stop, save_top_k=-1)
    run = trainer(tmp_path, cb, saves, Interrupt(stop + 1))
    with pytest.raises(Stop):
        run.fit(module, Loader())
    path = tmp_path / f"step={stop}.ckpt"
    expected = Module()
    growth = GrowthCallback(total=60, log=tmp_path / "log")
    trainer(tmp_path, growth).test(expected, DataLoader(DATA, batch_size=None), ckpt_path=path, verbose=False)
    assert len(expected.net.blocks) == 2
    assert not (tmp_path / "log").exists(), "nothing is trained, so nothing is written down"
    assert growth.growth is not None
    assert growth.growth.is_blending == (stop == 9)
    again = load_from_checkpoint(Module(), path)
    run.test(module, DataLoader(DATA, batch_size=None), ckpt_path=path, verbose=False)
    assert expected.seen == module.seen
    assert float(loss_of(again.net, DATA[0]).detach()) == expected.seen[0]
    run = trainer(tmp_path, cb)
    run.fit(module, Loader(), ckpt_path=path)
    assert cb.growth is not None
    assert cb.growth.depth == {"blocks": 4}


def test_what_an_exception_leaves_behind_can_be_resumed_or_finished(tmp_path):
    module, cb = Module(), callback()
    saves = ModelCheckpoint(tmp_path, filename="died", save_on_exception=True)
    with pytest.raises(Stop):
        trainer(tmp_path, cb, Interrupt(9), saves).fit(module, Loader())
    with pytest.raises(EsperError, match="the last growth is not finished: pass ckpt_path="):
        trainer(tmp_path, cb).fit(module, Loader())
    trainer(tmp_path, cb).fit(module, Loader(), ckpt_path=tmp_path / "died.ckpt")
    assert cb.growth is not None
    assert cb.growth.done
    assert len(module.net.blocks) == 4
    run = trainer(tmp_path, cb)
    run.fit(module, Loader(), ckpt_path=tmp_path / "died.ckpt")
    run.save_checkpoint(tmp_path / "end.ckpt")
    assert len(module.net.blocks) == 4
    ended, after = weights(module), Module()
    again = trainer(tmp_path, callback())
    again.fit(after, Loader(), ckpt_path=tmp_path / "end.ckpt")
    assert again.global_step == run.global_step, "there is nothing left to train"
    assert equal(weights(after), ended)


def test_a_checkpoint_without_growth_begins_to_grow(tmp_path):
    module = Module()
    run = trainer(tmp_path, max_steps=5)
    run.fit(module, Loader())
    run.save_checkpoint(tmp_path / "plain.ckpt")
    cb = callback()
    trainer(tmp_path, cb).fit(Module(), Loader(), ckpt_path=tmp_path / "plain.ckpt")
    assert cb.growth is not None
    assert cb.growth.depth == {"blocks": 4}
    with pytest.raises(FileError, match=r"plain.ckpt holds no growth"):
        load_from_checkpoint(Module(), tmp_path / "plain.ckpt")
    with pytest.raises(FileError, match=r"cannot read .*none.ckpt"):
        load_from_checkpoint(Module(), tmp_path / "none.ckpt")


class Bare(Module):
    """Holds its blocks itself."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = self.net.blocks
        self.embed, self.head = self.net.embed, self.net.head
        del self.net


class Whole(Bare):
    def forward(self, x: Tensor) -> Tensor:
        return GPT.forward(self, x)  # pyright: ignore

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return loss_of(self, batch)


class Two(Module):
    def __init__(self) -> None:
        super().__init__()
        self.other = nested()


class Manual(Module):
    automatic_optimization = False  # pyright: ignore


class Untrained(Module):
    def configure_optimizers(self) -> Any:
        return None


class Scheduled(Module):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 5)]


class Uncalled(Module):
    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return loss_of(self.net.forward, batch)  # pyright: ignore


class Outside(Module):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([*self.parameters(), nn.Parameter(torch.ones(()))], 1e-2)


class ByLayer(Module):
    """Has a group of parameters for every block, and so more of them after growth."""

    def configure_optimizers(self) -> Any:
        blocks = [{"params": list(block.parameters())} for block in self.net.blocks]
        return torch.optim.SGD([{"params": [self.scale, *self.net.embed.parameters()]}, *blocks], 1e-2)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Manual, {}, "automatic_optimization is off"),
        (Two, {}, r"several parts of Two can grow: set network= to one of \['net', 'other'\]"),
        (Two, {"network": "nets"}, "network='nets' is no submodule of Two"),
        (Bare, {}, "Bare has blocks and no forward: define it"),
        (Untrained, {}, "optimizer lacks 13 trainable parameters"),
        (Scheduled, {}, "schedule is on and configure_optimizers returns a scheduler"),
        (Uncalled, {}, "training_step did not call the network: name the module"),
        (Outside, {}, "optimizer holds 1 parameters that are not of the Outside it trains"),
        (Module, {"total": 0}, "the budget must be positive"),
    ],
)
@pytest.mark.filterwarnings("ignore:`LightningModule.configure_optimizers` returned `None`")
def test_what_cannot_be_grown_is_refused_in_one_sentence(tmp_path, module, options, message):
    made = module()
    before = weights(made)
    with pytest.raises(EsperError, match=message):
        trainer(tmp_path, callback(**options)).fit(made, Loader())
    if module is not Uncalled:
        assert equal(before, weights(made))


def test_bad_options_and_trainers_are_refused(tmp_path):
    with pytest.raises(EsperError, match="unknown option 'totals': did you mean 'total'"):
        GrowthCallback(totals=5)
    for other, message in (
        (WeightAveraging(), "WeightAveraging cannot average a model that grows"),
        (ModelCheckpoint(tmp_path, save_weights_only=True), "save_weights_only leaves out"),
    ):
        with pytest.raises(EsperError, match=message):
            trainer(tmp_path, callback(), other).fit(Module(), Loader())


def test_the_log_of_another_growth_is_refused(tmp_path):
    trainer(tmp_path, callback(log=tmp_path / "log", total=20)).fit(Module(), Loader())
    before = (tmp_path / "log/growth.jsonl").read_bytes()
    with pytest.raises(FileError, match=r"log='.*log' holds the log of another growth"):
        trainer(tmp_path, callback(log=tmp_path / "log")).fit(Module(), Loader())
    saves = ModelCheckpoint(tmp_path / "kept", filename="{step}", every_n_train_steps=9)
    with pytest.raises(Stop):
        trainer(tmp_path, callback(), saves, Interrupt(10)).fit(Module(), Loader())
    with pytest.raises(FileError, match=r"log='.*log' holds the log of another growth"):
        trainer(tmp_path, callback(log=tmp_path / "log")).fit(
            Module(), Loader(), ckpt_path=tmp_path / "kept/step=9.ckpt"
        )
    assert (tmp_path / "log/growth.jsonl").read_bytes() == before


def test_groups_that_change_with_depth_cannot_be_resumed(tmp_path):
    saves = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=9)
    with pytest.raises(Stop):
        trainer(tmp_path, callback(), saves, Interrupt(10)).fit(ByLayer(), Loader())
    with pytest.raises(FileError, match=r"the checkpoint does not fit the optimizer: .* 2 parameter groups"):
        trainer(tmp_path, callback()).fit(ByLayer(), Loader(), ckpt_path=tmp_path / "step=9.ckpt")
    wrong = Module()
    wrong.net = GPT(2)
    with pytest.raises(FileError, match="the checkpoint was saved from another constructor"):
        trainer(tmp_path, callback()).fit(wrong, Loader(), ckpt_path=tmp_path / "step=9.ckpt")


def test_schedulers_of_lightning_and_other_networks_work(tmp_path):
    for module, options in ((Scheduled(), {"schedule": False}), (Whole(), {}), (Two(), {"network": "net"})):
        cb = callback(total=20, blend=2, **options)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "growing at a learning rate below half of its peak")
            trainer(tmp_path, cb).fit(module, Loader())
        assert cb.growth is not None
        assert cb.growth.depth == {"blocks": 4}


def test_a_checkpoint_saved_before_the_growth_has_stepped_is_refused(tmp_path):
    class Early(Callback):
        def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
            if trainer.global_step == 9:
                trainer.save_checkpoint(tmp_path / "early.ckpt")

    trainer(tmp_path, Early(), callback()).fit(Module(), Loader())
    with pytest.raises(EsperError, match="list GrowthCallback before the callback that saves"):
        trainer(tmp_path, callback()).fit(Module(), Loader(), ckpt_path=tmp_path / "early.ckpt")
