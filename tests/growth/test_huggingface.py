"""Growth in the Trainer of `transformers`: ordinary models at the end, and exact resumption from its checkpoints."""

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForImageClassification, Trainer, TrainerCallback
from transformers import TrainingArguments as Arguments

from conftest_growth import gpt2, llama, read_log, vit
from esper.growth import Doubling, WarmupStableDecay, grow
from esper.growth.huggingface import GrowthCallback
from esper.leyline.errors import EsperError, FileError

TOKENS = torch.randint(2, 32, (40, 8), generator=torch.Generator().manual_seed(0))
TEXTS = [{"input_ids": row, "labels": row} for row in TOKENS]
IMAGES = [
    {"pixel_values": torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(i)), "labels": i % 5}
    for i in range(40)
]
KINDS = {
    "gpt2": (gpt2, TEXTS, AutoModelForCausalLM, "n_layer"),
    "llama": (llama, TEXTS, AutoModelForCausalLM, "num_hidden_layers"),
    "vit": (vit, IMAGES, AutoModelForImageClassification, "num_hidden_layers"),
}


def made(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return KINDS[kind][0](1)


def callback(**options: Any) -> GrowthCallback:
    return GrowthCallback(**{"total": 60, "blend": 6, "policy": Doubling((0.1, 0.4)), "schedule": True} | options)


def trainer(folder: Path, model: nn.Module | None, *callbacks: TrainerCallback, **options: Any) -> Trainer:
    plain = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "learning_rate": 1e-2, "save_strategy": "no"}
    sizes = {"per_device_train_batch_size": 4, "max_steps": 60, "dataloader_pin_memory": False, "logging_steps": 1}
    data = options.pop("data", TEXTS)
    made_by = {name: options.pop(name) for name in ("model_init", "optimizers") if name in options}
    arguments = Arguments(str(folder), **plain | sizes | options)
    return Trainer(model, arguments, train_dataset=data, callbacks=list(callbacks), **made_by)  # pyright: ignore


class Stop(Exception):
    """The power is gone."""


class Interrupt(TrainerCallback):
    """Ends a run at a step by an exception."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise Stop


def weights(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Callable[[str], tuple[Trainer, GrowthCallback]]:
    """Whole runs, one for each kind of model."""

    @functools.cache
    def whole(kind: str) -> tuple[Trainer, GrowthCallback]:
        cb = callback()
        run = trainer(tmp_path_factory.mktemp(kind), made(kind), cb, data=KINDS[kind][1], weight_decay=0.1)
        run.train()
        return run, cb

    return whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_grown_model_is_saved_and_loaded_like_any_other(tmp_path, uninterrupted, kind):
    _, data, auto, depth = KINDS[kind]
    run, cb = uninterrupted(kind)
    model = run.model
    assert cb.growth is not None
    assert list(cb.growth.depth.values()) == [4]
    assert run.state.global_step == cb.growth.steps < 60
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any("esper" in name for m in model.modules() for name in (*m.__dict__, *m._buffers))
    assert not model._load_state_dict_pre_hooks
    assert getattr(model.config, depth) == 4
    run.save_model(str(tmp_path / "final"))
    again = copy.deepcopy(auto.from_pretrained(tmp_path / "final"))  # read in place, unaligned weights round otherwise
    assert equal(weights(model), weights(again))
    names = {m.layer_idx for m in model.modules() if hasattr(m, "layer_idx")}
    assert names == (set(range(4)) if kind != "vit" else set())
    model.eval()
    again.eval()
    batch = {name: torch.as_tensor(x)[None] for name, x in data[0].items()}
    with torch.no_grad():
        assert torch.equal(model(**batch).logits, again(**batch).logits)
    if kind != "vit":
        written = [
            model.generate(TOKENS[:2], max_new_tokens=8, do_sample=False, use_cache=use, pad_token_id=0)
            for use in (True, False)
        ]
        assert torch.equal(*written)


def test_a_trainer_makes_the_run_that_a_plain_loop_makes(tmp_path):
    model, cb = made("llama"), callback()
    run = trainer(tmp_path, model, cb, gradient_accumulation_steps=2, max_grad_norm=0.0)
    seen: list[Tensor] = []
    handle = model.register_forward_pre_hook(
        lambda m, a, kwargs: seen.append(kwargs["input_ids"]) if torch.is_grad_enabled() else None, with_kwargs=True
    )
    run.train()
    handle.remove()
    seen = [x for x in seen if type(x) is Tensor]
    plain = made("llama")
    optimizer = optimizer_for(plain, run)
    growth = grow(plain, optimizer, total=60, blend=6, policy=Doubling((0.1, 0.4)))
    rates = WarmupStableDecay(optimizer, growth)
    used, losses = [], []
    while not growth.done:
        batches = seen[2 * growth.steps : 2 * growth.steps + 2]
        items = torch.tensor(sum(7 * len(x) for x in batches))
        parts = [plain(input_ids=x, labels=x, num_items_in_batch=items).loss for x in batches]
        for part in parts:
            part.backward()
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(torch.stack(parts).detach().sum()))
        growth.step(losses[-1])
        rates.step()
    assert cb.growth is not None
    growth.finish()
    assert cb.growth.log == growth.log
    assert equal(weights(model), weights(plain))
    logged = [entry for entry in run.state.log_history if "learning_rate" in entry]
    assert [entry["learning_rate"] for entry in logged] == used
    assert [entry["loss"] for entry in logged] == pytest.approx(losses, abs=1e-3)


def optimizer_for(model: nn.Module, run: Trainer) -> torch.optim.Optimizer:
    """The Trainer's optimizer, for another model."""
    kind, options = Trainer.get_optimizer_cls_and_kwargs(run.args, model)
    decayed = run.get_decay_parameter_names(model)
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if name in decayed], "weight_decay": run.args.weight_decay},
        {"params": [p for name, p in named if name not in decayed], "weight_decay": 0.0},
    ]
    return kind(groups, **options)


@pytest.mark.parametrize(("kind", "stop"), [("gpt2", 9), ("llama", 18), ("vit", 14)])
def test_a_run_interrupted_and_resumed_ends_as_one_that_was_not(tmp_path, uninterrupted, kind, stop):
    data, options = KINDS[kind][1], {"weight_decay": 0.1, "save_strategy": "steps", "save_steps": stop}
    first, resumed = made(kind), made(kind)
    whole, one = uninterrupted(kind)
    with pytest.raises(Stop):
        trainer(
            tmp_path / "cut", first, callback(log=tmp_path / "log"), Interrupt(stop + 2), data=data, **options
        ).train()
    folder = tmp_path / "cut" / f"checkpoint-{stop}"
    saved = json.loads((folder / "growth.json").read_text())
    assert saved["structure"]["births"]
    assert any(not birth["done"] for birth in saved["structure"]["births"]) == (stop != 14)
    cb = callback(log=tmp_path / "log")
    run = trainer(tmp_path / "cut", resumed, cb, data=data, **options, resume_from_checkpoint=str(folder))
    run.train(resume_from_checkpoint=str(folder))
    assert cb.growth is not None
    assert one.growth is not None
    assert cb.growth.log == one.growth.log
    assert read_log(tmp_path / "log")[1:] == (one.growth.log, one.growth.history)
    assert equal(weights(resumed), weights(whole.model))
    last = tmp_path / "cut" / f"checkpoint-{run.state.global_step}"
    assert (last / "growth.json").is_file(), "the end of the budget is saved like the end of a run"
    run = trainer(tmp_path / "cut", made(kind), callback(), data=data, resume_from_checkpoint=str(last))
    with pytest.raises(EsperError, match=r"the budget of .* is spent: load its model with from_pretrained"):
        run.train(resume_from_checkpoint=str(last))


def test_the_budget_is_what_the_trainer_would_have_trained(tmp_path):
    cb = GrowthCallback(policy=lambda growth: None)
    run = trainer(tmp_path, made("llama"), cb, max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=2)
    run.train()
    assert cb.growth is not None
    assert cb.growth.config.total == cb.growth.steps == run.state.global_step == 10
    cb = callback(total=200)
    with pytest.warns(UserWarning, match="training ended at 2% of the growth's budget: raise max_steps"):
        trainer(tmp_path, made("llama"), cb, max_steps=5).train()


def test_an_optimizer_of_the_users_own_is_regrown_too(tmp_path):
    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), 1e-2)

    options = {"save_strategy": "steps", "save_steps": 5, "lr_scheduler_type": "constant"}
    whole, resumed = made("llama"), made("llama")
    trainer(tmp_path, whole, callback(schedule=False, total=30), optimizers=(optimizer(whole), None), **options).train()
    folder = str(tmp_path / "checkpoint-5")
    cb = callback(schedule=False, total=30)
    own = (optimizer(resumed), None)
    run = trainer(tmp_path, resumed, cb, optimizers=own, resume_from_checkpoint=folder, **options)
    run.train(resume_from_checkpoint=folder)
    assert equal(weights(resumed), weights(whole))


def test_bad_ways_to_resume_are_refused_in_one_sentence(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 3}
    with pytest.raises(Stop):
        trainer(tmp_path, made("llama"), callback(), Interrupt(10), **options).train()
    early, late = str(tmp_path / "checkpoint-3"), str(tmp_path / "checkpoint-9")
    with pytest.raises(EsperError, match=r"tensors that the model lacks, first .*: name it in TrainingArguments"):
        trainer(tmp_path, made("llama"), callback()).train(resume_from_checkpoint=late)
    with pytest.raises(EsperError, match="the Trainer resumes, and the growth was not told"):
        trainer(tmp_path, made("llama"), callback()).train(resume_from_checkpoint=early)
    with pytest.raises(EsperError, match="is of step 9, and the Trainer begins at step 0"):
        trainer(tmp_path, made("llama"), callback(), resume_from_checkpoint=late).train()
    run = trainer(tmp_path, None, callback(), model_init=lambda: made("llama"), resume_from_checkpoint=early)
    with pytest.raises(EsperError, match="model_init makes a new model after the structure was regrown"):
        run.train(resume_from_checkpoint=early)
    with pytest.raises(FileError, match="saved from another constructor"):
        trainer(tmp_path, llama(2), callback(), resume_from_checkpoint=late)
    with pytest.raises(FileError, match="holds no saved growth"):
        trainer(tmp_path, made("llama"), callback(), resume_from_checkpoint=str(tmp_path))
    other = grow(model := made("llama"), torch.optim.SGD(model.parameters()), total=5)
    other.save(tmp_path / "other")
    with pytest.raises(FileError, match=r"other is damaged or of another format: KeyError\('groups'\)"):
        trainer(tmp_path, made("llama"), callback(), resume_from_checkpoint=str(tmp_path / "other"))
    (tmp_path / "checkpoint-9" / "optimizer.pt").unlink()
    run = trainer(tmp_path, made("llama"), callback(), resume_from_checkpoint=late)
    with pytest.raises(FileError, match=r"has no optimizer.pt: save whole checkpoints"):
        run.train(resume_from_checkpoint=late)


def test_what_cannot_be_grown_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(EsperError, match="unknown option 'totals': did you mean 'total'"):
        GrowthCallback(totals=5)
    best = {"load_best_model_at_end": True, "eval_strategy": "no", "save_strategy": "no"}
    cases = [
        (best, {}, "load_best_model_at_end does not work with a model that grows: load the best checkpoint"),
        ({"max_steps": 5}, {"total": 0}, "the budget must be positive"),
    ]
    for arguments, options, message in cases:
        model = made("llama")
        before = weights(model)
        with pytest.raises(EsperError, match=message):
            trainer(tmp_path, model, callback(**options), **arguments).train()
        assert equal(before, weights(model))
    model = made("llama")
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    with pytest.raises(EsperError, match="schedule is on beside a scheduler of another kind"):
        trainer(tmp_path, model, callback(), optimizers=(optimizer, schedule)).train()


class Evaluates(TrainerCallback):
    """Evaluates the model before every training step."""

    @torch.no_grad()
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kwargs["model"].eval()
        kwargs["model"](input_ids=TOKENS[:4], labels=TOKENS[4:8])
        kwargs["model"].train()


def test_losses_of_evaluation_are_not_taken_for_training(tmp_path):
    runs = []
    for others in ((), (Evaluates(),)):
        model, cb = made("llama"), callback(total=8, blend=2)
        trainer(tmp_path, model, cb, *others).train()
        assert cb.growth is not None
        runs.append((cb.growth, weights(model)))
    (plain, before), (evaluated, after) = runs
    assert evaluated.log == plain.log
    assert evaluated.history == plain.history
    assert equal(after, before)
