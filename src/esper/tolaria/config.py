"""Configure training: the device and precision of a fleet, and the optimizer of every host."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from esper.kasmina.hosts import check_examples
from esper.leyline.errors import EsperError, unknown
from esper.leyline.specs import HostSpec
from esper.leyline.state import Task

OptimizerName = Literal["adamw", "sgd"]
Precision = Literal["bf16", "fp32", "fp64"]
DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The device a fleet runs on, its precision, and its memory limit.

    A config may name a GPU that this machine lacks; `place` raises when the device is to be used.

    Raises:
        EsperError: If the device is not supported, if the precision is unknown or needs another device, or
            if the memory limit is not positive.

    Example:
        >>> Engine.on("cuda").precision
        'bf16'
    """

    device: str = "cpu"
    """Device that fleets and the controller run on: cpu, cuda or cuda:1."""
    precision: Precision = "fp32"
    """Precision of activations. With bf16, which needs a GPU, parameters and optimizer state stay in fp32."""
    graphs: bool = True
    """Record training steps as CUDA graphs and replay them. Has no effect on a CPU."""
    memory_budget: int | None = None
    """Memory that a fleet may use, in bytes: batches are split until a step fits. None: no limit."""

    def __post_init__(self) -> None:
        if self.precision not in DTYPES:
            raise unknown("precision", self.precision, DTYPES)
        try:
            kind = torch.device(self.device).type
        except RuntimeError:
            kind = None
        if kind not in DEVICES:
            raise EsperError(f"device {self.device!r} is not supported; use 'cpu' or 'cuda'")
        if self.precision == "bf16" and kind != "cuda":
            raise EsperError(f"precision 'bf16' needs a CUDA device, not {self.device!r}; use 'fp32'")
        if self.memory_budget is not None and self.memory_budget <= 0:
            raise EsperError(f"memory_budget must be positive, not {self.memory_budget}")

    @classmethod
    def on(cls, device: str) -> "Engine":
        """Return an engine for a device with its usual precision: bf16 on CUDA, fp32 on a CPU."""
        return cls(device=device, precision="bf16" if device.startswith("cuda") else "fp32")

    def place(self) -> torch.device:
        """Return the torch device.

        Raises:
            EsperError: If this machine does not have the device.
        """
        device = torch.device(self.device)
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise EsperError(
                f"device {self.device!r} is not available on this machine; use Engine.on('cpu'), or on the command line"
                " --device cpu"
            )
        return device

    @property
    def device_name(self) -> str:
        """The name of the GPU model, or `cpu`."""
        device = self.place()
        return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)

    @property
    def compute(self) -> torch.dtype:
        """The dtype of activations."""
        return DTYPES[self.precision]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of parameters and optimizer state."""
        return torch.promote_types(self.compute, torch.float32)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The optimizer settings and batch size that hosts are trained with, in a fleet or alone.

    Raises:
        EsperError: If a value is out of range; the message names the field.

    Example:
        >>> TrainConfig(optimizer="sgd", lr=0.05, batch_size=128)
    """

    optimizer: OptimizerName = "adamw"
    """Optimizer of the host and of its seeds."""
    lr: float = 3e-3
    """Learning rate of the host and of its seeds."""
    momentum: float = 0.9
    """Momentum of sgd; adamw ignores it."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay rates of adamw's two moments; sgd ignores them."""
    weight_decay: float = 0.0
    """Weight decay: decoupled in adamw, added to the gradient in sgd."""
    clip: float = 1.0
    """Largest gradient norm, for the host's own parameters and for each seed separately."""
    newborn_boost: float = 1.0
    """Factor on a seed's learning rate during its first `newborn_epochs`."""
    newborn_epochs: int = 3
    """Epochs during which `newborn_boost` applies to a seed."""
    warmup: int = 0
    """Epochs over which a newborn seed's learning rate rises linearly to its full value. 0: no warmup."""
    batch_size: int = 64
    """Examples per step. The last incomplete batch of an epoch is dropped."""
    steps: int | None = None
    """Steps of an epoch, on batches drawn anew from all examples. None: a pass over the examples."""

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(OptimizerName):
            raise unknown("optimizer", self.optimizer, get_args(OptimizerName))
        for name in ("lr", "clip", "batch_size", "newborn_boost"):
            if not getattr(self, name) > 0:
                raise EsperError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("momentum", "weight_decay", "newborn_epochs", "warmup"):
            if not getattr(self, name) >= 0:
                raise EsperError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.steps is not None and self.steps < 1:
            raise EsperError(f"steps must be at least 1, not {self.steps}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise EsperError(f"betas must be two numbers from 0 to below 1, not {self.betas}")

    def steps_of(self, examples: int) -> int:
        """Return the steps of an epoch, given the number of training examples."""
        return examples // self.batch_size if self.steps is None else self.steps

    def seed_rate(self, seed_age: Tensor) -> Tensor:
        """Return the factor on a seed's learning rate in the given epoch of its life, counted from 1."""
        boost = torch.where(seed_age <= self.newborn_epochs, self.newborn_boost, 1.0)
        return boost * (seed_age / max(self.warmup, 1)).clamp(max=1) if self.warmup else boost


def check_fit(spec: HostSpec, task: Task, config: TrainConfig) -> None:
    """Raise an error if the host does not fit the task, or the batch size its data."""
    if (spec.inputs, spec.outputs) != (task.spec.inputs, task.spec.outputs):
        raise EsperError(
            f"the host takes inputs {spec.inputs} to {spec.outputs} outputs, but task {task.spec.name!r} has inputs"
            f" {task.spec.inputs} and {task.spec.outputs} outputs; build the host with those of the task"
        )
    if len(task.train.x) < config.batch_size:
        raise EsperError(
            f"batch_size ({config.batch_size}) exceeds the {len(task.train.x)} training examples; use a smaller one"
        )
    if config.steps is not None and config.steps * config.batch_size > len(task.train.x):
        raise EsperError(
            f"steps ({config.steps}) of batch_size {config.batch_size} exceed the {len(task.train.x)} training"
            " examples; use fewer or smaller ones"
        )
    if not len(task.validation.x):
        raise EsperError(f"task {task.spec.name!r} has no validation examples; give it some to measure seeds on")
    check_examples(spec, task.train.x)
