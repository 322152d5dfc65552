"""Grow a model in the Trainer of `transformers`: add `GrowthCallback` to its callbacks."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from esper.growth.attaching import grow
from esper.growth.callbacks import BUDGETS, check_options, check_owner, describe_run, made_schedule, reconnect, regrow
from esper.growth.growth import Growth
from esper.growth.saving import MANIFEST, read_manifest
from esper.growth.schedules import WarmupStableDecay
from esper.leyline.atomic import replace_file
from esper.leyline.errors import EsperError, FileError

try:
    from accelerate.optimizer import AcceleratedOptimizer
    from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import SaveStrategy
except ModuleNotFoundError:
    raise EsperError("transformers or accelerate is not installed: pip install 'esper-nn[transformers]'") from None

OPTIMIZER = "optimizer.pt"
"""File of a Trainer checkpoint with the optimizer's state."""
SCALED = "num_items_in_batch"
"""Argument of a model that divides its loss by the examples of a whole optimizer step."""


class GrowthCallback(TrainerCallback):
    """Grow the model of a Trainer while it trains.

    When training ends, the model is an ordinary one: its config holds the new depth, and `save_model` and
    `from_pretrained` work as ever. To resume, make a fresh model, name the checkpoint in
    `TrainingArguments(resume_from_checkpoint=...)`, and pass it to `trainer.train` as usual.

    Args:
        schedule: Let the learning rates follow the compute spent, by `WarmupStableDecay`, in place of the Trainer's
            schedule, which counts steps: True, or its options.
        options: Options of `grow`. Without `total` and `flops`, the budget is the number of optimizer steps that the
            Trainer would make, at the model's present size.

    Attributes:
        growth: The growth, from the start of training on.

    Example:
        >>> callback = GrowthCallback(schedule=True)
        >>> Trainer(model, TrainingArguments(max_steps=1000), train_dataset=data, callbacks=[callback]).train()
        >>> model.config.num_hidden_layers
        8
    """

    def __init__(self, *, schedule: bool | Mapping[str, float] = False, **options: Any) -> None:
        check_options(options)
        self.schedule, self.options = schedule, options
        self.growth: Growth | None = None
        self.rates: WarmupStableDecay | None = None
        self._saved: dict[str, Any] | None = None
        self._handles: list[Any] = []
        self._losses: list[Tensor] = []
        self._is_scaled = False
        self._is_renamed = False

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Regrow the structure of the checkpoint to resume from: the Trainer loads its weights next."""
        model: nn.Module = kwargs["model"]
        if args.resume_from_checkpoint is not None:
            folder = Path(args.resume_from_checkpoint)
            self._saved = read_manifest(folder)
            policy, optimizer = self.options.get("policy"), kwargs.get("optimizer")
            self.growth = regrow(model, self._saved, policy, str(folder), optimizer, self.options.get("evaluate"))
        self._handles.append(model.register_load_state_dict_pre_hook(self._check_weights))

    def _check_weights(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Refuse weights that the model has no place for, which the Trainer would leave out; a pre-hook of loading."""
        foreign = sorted(state_dict.keys() - module.state_dict(prefix=prefix).keys())
        self._is_renamed = bool(foreign)
        if foreign and self._saved is None:
            raise EsperError(
                f"the checkpoint holds {len(foreign)} tensors that the model lacks, first {foreign[0]!r}: name it in"
                " TrainingArguments(resume_from_checkpoint=...), so that the model is regrown before they are loaded"
            )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach the growth to the model and its optimizer."""
        model: nn.Module = kwargs["model"]
        self._release()
        _check_arguments(args, state, model)
        optimizer = _inner(kwargs["optimizer"])
        check_owner(optimizer, model)
        if self.schedule is not False and not isinstance(kwargs["lr_scheduler"], LambdaLR):
            raise EsperError("schedule is on beside a scheduler of another kind: set lr_scheduler_type to 'constant'")
        saved, self._saved = self._saved, None
        if saved is not None and self.growth is not None:
            self._resume(args, state, model, optimizer, saved)
        elif state.global_step:
            raise EsperError(
                "the Trainer resumes, and the growth was not told: name the checkpoint in"
                " TrainingArguments(resume_from_checkpoint=...), too, and list the callback in Trainer(callbacks=...)"
            )
        elif self.growth is not None and not self.growth.is_finished:
            raise EsperError("the last growth is not finished: resume with a fresh model, or call finish() on it")
        else:
            budget = {} if any(name in self.options for name in BUDGETS) else {"total": state.max_steps}
            self.growth = grow(model, optimizer, **budget, **self.options)
        self.rates = made_schedule(self.schedule, self.growth, saved)
        self._show_rates(kwargs["lr_scheduler"])
        self._losses = []
        self._handles.append(model.register_forward_hook(self._listen, with_kwargs=True))

    def _resume(
        self,
        args: TrainingArguments,
        state: TrainerState,
        model: nn.Module,
        optimizer: Optimizer,
        saved: dict[str, Any],
    ) -> None:
        growth, folder = self.growth, Path(args.resume_from_checkpoint or "")
        assert growth is not None
        if state.global_step != saved["counted"]:
            raise EsperError(
                f"{folder} is of step {saved['counted']}, and the Trainer begins at step {state.global_step}: call"
                " trainer.train(resume_from_checkpoint=...) with the checkpoint of TrainingArguments"
            )
        if growth.done:
            raise EsperError(f"the budget of {folder} is spent: load its model with from_pretrained")
        if model is not growth.model:
            raise EsperError("model_init makes a new model after the structure was regrown: pass model= to the Trainer")
        if not (folder / OPTIMIZER).is_file():
            raise FileError(f"{folder} has no {OPTIMIZER}: save whole checkpoints, with save_only_model=False")
        if self._is_renamed:  # files can hold other names than the model, which only from_pretrained translates
            assert isinstance(model, PreTrainedModel)
            model.load_state_dict(type(model).from_pretrained(folder).state_dict())
        reconnect(growth, model, optimizer, saved, str(folder), self.options.get("log"))
        state_dict = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
        optimizer.load_state_dict(state_dict)  # the Trainer has loaded it by position, before the order was right

    def _listen(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Note the loss that the model returns in training; a forward hook."""
        if torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        loss = output.get("loss") if isinstance(output, Mapping) else output[0] if isinstance(output, tuple) else None
        if isinstance(loss, FakeTensor):  # a count, not a training step
            return
        if isinstance(loss, Tensor) and loss.ndim == 0:
            self._losses.append(loss.detach().float())
            self._is_scaled = kwargs.get(SCALED) is not None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Step the growth, and end the training when its budget is spent."""
        growth = self.growth
        if growth is None or growth.done:
            return
        losses, self._losses = self._losses, []
        if not losses and not growth.steps:
            warnings.warn(
                "the model returns no loss: the growth cannot judge by it, nor go back if training diverges",
                stacklevel=2,
            )
        growth.step(self._loss(losses, args.world_size if args.average_tokens_across_devices else 1))
        if self.rates is not None:
            self.rates.step()
            self._show_rates(kwargs["lr_scheduler"])
        if growth.done:
            control.should_training_stop = True
            control.should_save = control.should_save or args.save_strategy == SaveStrategy.STEPS

    def _loss(self, losses: list[Tensor], processes: int) -> Tensor | None:
        """Return the loss of an optimizer step: a mean over examples, whichever way the model scales its parts."""
        if not losses:
            return None
        total = torch.stack(losses).sum()
        return total * processes if self._is_scaled else total / len(losses)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write how the model has grown into the checkpoint, as `growth.json`."""
        growth = self.growth
        if growth is not None and growth.steps and state.is_world_process_zero:
            folder = Path(args.output_dir or "") / f"checkpoint-{state.global_step}"
            run = describe_run(growth, growth.model, self.rates, state.global_step)
            replace_file(folder / MANIFEST, json.dumps(run, indent=1))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Finish the growth: the model is an ordinary one again."""
        self._release()
        if self.growth is None:
            return
        if not self.growth.done and state.global_step >= state.max_steps:
            warnings.warn(
                f"training ended at {self.growth.progress:.0%} of the growth's budget: raise max_steps or"
                " num_train_epochs, or lower total",
                stacklevel=2,
            )
        self.growth.finish()

    def _show_rates(self, schedule: Any) -> None:
        """Let the Trainer log the learning rates that are used."""
        if self.rates is not None:
            schedule._last_lr = self.rates.get_last_lr()

    def _release(self) -> None:
        while self._handles:
            self._handles.pop().remove()


def _inner(optimizer: Any) -> Optimizer:
    """Return the optimizer that accelerate wraps."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _check_arguments(args: TrainingArguments, state: TrainerState, model: nn.Module) -> None:
    refused = {
        "load_best_model_at_end": (args.load_best_model_at_end, "load the best checkpoint with from_pretrained"),
        "deepspeed": (bool(args.deepspeed), "use one device or DistributedDataParallel"),
        "fsdp": (bool(args.fsdp), "use one device or DistributedDataParallel"),
        "DataParallel": (args.n_gpu > 1, "launch one process for each GPU, or show one GPU"),
        "hyperparameter_search": (state.is_hyper_param_search, "train once for each choice"),
        "PEFT": (hasattr(model, "peft_config"), "finish the growth before adapters are added"),
    }
    for name, (used, instead) in refused.items():
        if used:
            raise EsperError(f"{name} does not work with a model that grows: {instead}")
