"""How hosts are trained."""

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


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Where a fleet runs, and how precisely."""

    device: str = "cpu"
    precision: Precision = "fp32"
    """Of what is computed. With bf16, parameters and moments are kept in fp32 all the same."""
    graphs: bool = True
    """Record whole steps and replay them, where the device can (CUDA)."""
    memory_budget: int | None = None
    """Bytes a fleet may use: batches are split until they fit. None: as much as there is."""

    def __post_init__(self) -> None:
        if self.precision not in DTYPES:
            raise unknown("precision", self.precision, DTYPES)
        try:
            kind = torch.device(self.device).type
        except RuntimeError:
            raise EsperError(f"device {self.device!r} is none that torch knows; use 'cpu' or 'cuda'") from None
        if self.precision == "bf16" and kind != "cuda":
            raise EsperError(f"precision 'bf16' needs a CUDA device, not {self.device!r}; use 'fp32'")
        if self.memory_budget is not None and self.memory_budget <= 0:
            raise EsperError(f"memory_budget must be positive, not {self.memory_budget}")

    @classmethod
    def on(cls, device: str) -> "Engine":
        """As precise as is usual there: bf16 on CUDA, fp32 elsewhere."""
        return cls(device=device, precision="bf16" if device.startswith("cuda") else "fp32")

    def place(self) -> torch.device:
        """The device, if this machine has it. A config may be read where it has not."""
        device = torch.device(self.device)
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise EsperError(f"device {self.device!r} is not available here; use 'cpu'")
        return device

    @property
    def device_name(self) -> str:
        """As its maker calls it, if this machine has it."""
        device = self.place()
        return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)

    @property
    def compute(self) -> torch.dtype:
        """Of activations..."""
        return DTYPES[self.precision]

    @property
    def dtype(self) -> torch.dtype:
        """...and of parameters."""
        return torch.promote_types(self.compute, torch.float32)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The same for every host of a fleet, and for one host alone."""

    optimizer: OptimizerName = "adamw"
    lr: float = 3e-3
    """Step size of the host and of its seeds."""
    momentum: float = 0.9
    """For sgd."""
    betas: tuple[float, float] = (0.9, 0.99)
    """For adamw."""
    weight_decay: float = 0.0
    clip: float = 1.0
    """Largest gradient norm, for the host's own parameters and for each seed's."""
    newborn_boost: float = 1.0
    """Times the step size for a seed in its first `newborn_epochs`."""
    newborn_epochs: int = 3
    warmup: int = 0
    """Epochs over which a newborn seed's step size rises to its full value."""
    batch_size: int = 64
    """Examples per step; what does not fill a batch is left out of that epoch's shuffle."""

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(OptimizerName):
            raise unknown("optimizer", self.optimizer, get_args(OptimizerName))
        for name in ("lr", "clip", "batch_size", "newborn_boost"):
            if not getattr(self, name) > 0:
                raise EsperError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("momentum", "weight_decay", "newborn_epochs", "warmup"):
            if not getattr(self, name) >= 0:
                raise EsperError(f"{name} must not be negative, not {getattr(self, name)}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise EsperError(f"betas must be two numbers from 0 to below 1, not {self.betas}")

    def seed_rate(self, seed_age: Tensor) -> Tensor:
        """What to multiply the step size of a seed with, in its so-manieth epoch (1 is the first)."""
        boost = torch.where(seed_age <= self.newborn_epochs, self.newborn_boost, 1.0)
        return boost * (seed_age / max(self.warmup, 1)).clamp(max=1) if self.warmup else boost


def check_fit(spec: HostSpec, task: Task, config: TrainConfig) -> None:
    """Refuse hosts and tasks that do not belong together."""
    if (spec.inputs, spec.outputs) != (task.spec.inputs, task.spec.outputs):
        raise EsperError(
            f"the host takes {spec.inputs} to {spec.outputs},"
            f" but task {task.spec.name!r} {task.spec.inputs} to {task.spec.outputs}"
        )
    if len(task.train.x) < config.batch_size:
        raise EsperError(f"batch_size ({config.batch_size}) exceeds the {len(task.train.x)} training examples")
    if not len(task.validation.x):
        raise EsperError(f"task {task.spec.name!r} has no validation data to measure contributions on")
    check_examples(spec, task.train.x)
