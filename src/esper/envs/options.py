"""Options of the Gymnasium environment: the task, the host, and what an episode costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

from esper.kasmina import LifecycleConfig, host_kinds
from esper.kasmina.hosts import host_kind
from esper.leyline.errors import EsperError, unknown
from esper.recipes import FleetConfig
from esper.recipes.suite import BUDGETED, CHEAP
from esper.simic.rewards import Family, RewardConfig
from esper.tasks import task_names
from esper.tolaria import Engine, EnvConfig, TrainConfig

BUDGET = 20.0
"""Epochs of a bare host that an episode pays for, where nothing else is asked for."""
RATES = {"mlp": 4e-2, "cnn1d": 2e-2, "cnn2d": 2e-2, "transformer": 6e-3, "gpt": 1e-2, "resnet": 1e-2}
"""Learning rates that suit hosts which never grow."""
CHAIN_SLOTS = 3
"""Slots behind each block of hosts whose blocks can be copied: room for four times as many blocks."""


class OptionError(EsperError, TypeError):
    """An option that does not exist; a `TypeError` as for any keyword argument, by which TorchRL's GymEnv tries."""


@dataclass(frozen=True, kw_only=True)
class EnvOptions:
    """What `gymnasium.make("esper:Growth-v0", ...)` and `make_vec` take.

    Raises:
        EsperError: If an option is out of range, unknown or contradicts another; the message names it.

    Example:
        ```python
        import gymnasium

        env = gymnasium.make("esper:Growth-v0", task="spirals", host="mlp", budget=12, price=0.02)
        ```
    """

    task: str = "spirals"
    """A task (`esper tasks`), or a setting of exams on a budget, such as phrases-8, with its host and data."""
    host: str | None = None
    """Kind of host; by default that of the setting, or mlp."""
    widths: tuple[int, ...] | None = None
    """Width of each segment of a host; by default small ones."""
    slots: int | None = None
    """Slots behind each segment; by default one, or three where blocks can be copied."""
    options: Mapping[str, int | float | str] = field(default_factory=dict)
    """Options of the task, such as examples or path."""
    budget: float | None = None
    """Compute of an episode in epochs of a bare host; by default that of the setting, or 20."""
    episode: int | None = None
    """Decisions of an episode, instead of a budget: growth then costs no compute."""
    price: float | tuple[float, ...] = 0.02
    """Price of growth in J = score − price · ln(1 + growth). Of several, every episode draws one."""
    reward: Family | RewardConfig = "progress"
    """Reward of a decision: progress (the rise of J), sparse (J at the end), contribution (see `RewardConfig`)."""
    terminal: bool = False
    """Report the end of an episode as terminated instead of truncated. The observation says how much is left of it, so
    nothing needs to be bootstrapped there."""
    train: TrainConfig | None = None
    """How hosts are trained; by default at the learning rate that suits hosts of this kind without growth."""
    lifecycle: LifecycleConfig | None = None
    """When seeds move from stage to stage; by default few silent lessons on a budget."""
    device: str = "cpu"
    """Device that the hosts are trained on."""
    precision: str | None = None
    """Precision of the hosts: fp32, bf16 or fp64; by default the usual one of the device."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "EnvOptions":
        """Return the options of keyword arguments.

        Raises:
            OptionError: If an option is unknown; the message suggests the closest one.
        """
        known = [known.name for known in fields(cls)]
        for name in given:
            if name not in known:
                hint = str(unknown("option", name, known)).partition(": ")[2]
                raise OptionError(f"unexpected keyword argument {name!r}: {hint}")
        return cls(**given)

    def __post_init__(self) -> None:
        if self.task not in BUDGETED and self.task not in task_names():
            raise unknown("task", self.task, (*task_names(), *BUDGETED))
        if self.host is not None and self.host not in host_kinds():
            raise unknown("host", self.host, host_kinds())
        if self.budget is not None and self.episode is not None:
            raise EsperError("budget and episode exclude each other: an episode is counted in compute or in decisions")
        numbers = all(isinstance(price, int | float) and 0 <= price < float("inf") for price in self.prices)
        if not self.prices or not numbers:
            raise EsperError(f"price must be a number, or several, none of them negative, not {self.price!r}")
        if isinstance(self.reward, str) and self.reward not in get_args(Family):
            raise unknown("reward", self.reward, get_args(Family))

    @property
    def prices(self) -> tuple[float, ...]:
        """The prices that episodes draw from."""
        return tuple(self.price) if isinstance(self.price, tuple | list) else (self.price,)

    @property
    def rewards(self) -> RewardConfig:
        """The reward, by default without discount: discounting is the algorithm's business."""
        return self.reward if isinstance(self.reward, RewardConfig) else RewardConfig(family=self.reward, gamma=1.0)

    @property
    def engine(self) -> Engine:
        """The device and its precision."""
        plain = Engine.on(self.device)
        return plain if self.precision is None else replace(plain, precision=self.precision)  # pyright: ignore

    def setting(self) -> FleetConfig:
        """Return the fleet: that of the setting, or one made for the task, with all that is asked for."""
        named = self.task in BUDGETED
        base = BUDGETED[self.task]() if named else self._made()
        asked = {name: getattr(self, name) for name in ("widths", "slots", "train", "lifecycle")}
        asked = {name: value for name, value in asked.items() if value is not None}
        if named and self.host not in (None, base.host):
            raise EsperError(
                f"host {self.host!r} is not that of the setting {self.task!r}: leave it out, or name a task"
            )
        if "widths" in asked:
            asked["widths"] = tuple(asked["widths"])
        options = {**base.options, **self.options}
        return replace(base, options=options, env=self._env(base.env.budget), sizes=(), **asked)

    def _env(self, budget: float | None) -> EnvConfig:
        if self.episode is not None:
            return EnvConfig(episode=self.episode)
        asked = (self.budget, budget, BUDGET)
        return EnvConfig(budget=next(found for found in asked if found is not None))

    def _made(self) -> FleetConfig:
        kind = self.host or "mlp"
        known = host_kind(kind)
        return FleetConfig(
            task=self.task,
            host=kind,
            widths=known.weak_widths,
            slots=1 if known.block is None else CHAIN_SLOTS,
            train=TrainConfig(lr=RATES[kind]) if kind in RATES else TrainConfig(),
            lifecycle=CHEAP if self.episode is None else LifecycleConfig(),
        )
