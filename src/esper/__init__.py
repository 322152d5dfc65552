"""Train neural networks that start small and grow while they train.

`esper.grow(model, optimizer, total=...)` grows a PyTorch model of your own: *chains* of like blocks are deepened by
*twins*, copies that are blended in, and small modules, *seeds*, are planted in *slots*. For research, a *fleet* trains
hundreds of host networks as one program, a *controller* learns when, where and what to grow, and an *exam* compares it
with simple policies. `esper --help` shows the command line.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from esper.registration import register_soon

__version__ = "0.2.0.dev0"

_PUBLIC = {
    "exam.arms": ("Arm",),
    "exam.config": ("ExamConfig",),
    "exam.holding": ("hold_exam",),
    "exam.records": ("ArmReport", "ExamReport"),
    "growth": (
        *("Deepen", "Doubling", "Growth", "GrowthConfig", "Preview", "SlotAction", "WarmupStableDecay", "grow"),
        *("preview", "resume"),
    ),
    "kasmina": (
        *("Host", "LifecycleConfig", "blueprint_names", "build_host", "host_kinds", "load_model", "register_blueprint"),
        *("register_host", "save_model", "unregister_blueprint", "unregister_host", "weak_host"),
    ),
    "leyline": ("ActionSpace", "EpochReport", "EsperError", "FileError", "Op", "SlotReport", "Stage"),
    "leyline.objectives": ("CLASSIFICATION", "LANGUAGE", "REGRESSION", "Objective"),
    "leyline.reports": ("UpdateReport",),
    "leyline.specs": ("HostSpec", "SlotSpec", "Stream", "TaskSpec"),
    "leyline.state": ("Split", "Task"),
    "recipes": ("FleetConfig", "Recipe", "recipe", "recipe_names"),
    "simic": (
        *("CloneConfig", "CollectConfig", "LearnConfig", "OfflineConfig", "PPOConfig", "RentSchedule", "RewardConfig"),
        *("clone", "evaluate", "grow_host", "learn_offline", "load_episodes", "record_episodes", "save_episodes"),
        "train_controller",
    ),
    "tamiyo": ("Controller", "ControllerConfig", "load_controller", "save_controller"),
    "tamiyo.policies": (
        *("FixedPlan", "GapTrigger", "GreedyGradient", "Heuristic", "LearnedPolicy", "Never", "Oversized", "PlanStep"),
        *("Plateau", "Policy", "RandomLegal", "Schedule"),
    ),
    "tasks": ("TaskData", "load_task", "load_test", "register_task", "task_names", "unregister_task"),
    "tolaria": (
        *("Engine", "EnvConfig", "Fleet", "FleetEnv", "GovernorConfig", "HostTrainer", "TrainConfig"),
        *("load_training", "save_training"),
    ),
}
"""The public names of each module, imported when they are first used: commands that only read files need no torch."""
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}
_SUBPACKAGES = (
    "dashboard",
    "envs",
    "exam",
    "growth",
    "kasmina",
    "leyline",
    "recipes",
    "simic",
    "tamiyo",
    "tasks",
    "telemetry",
    "tolaria",
)

__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from esper.exam.arms import Arm
    from esper.exam.config import ExamConfig
    from esper.exam.holding import hold_exam
    from esper.exam.records import ArmReport, ExamReport
    from esper.growth import (
        Deepen,
        Doubling,
        Growth,
        GrowthConfig,
        Preview,
        SlotAction,
        WarmupStableDecay,
        grow,
        preview,
        resume,
    )
    from esper.kasmina import (
        Host,
        LifecycleConfig,
        blueprint_names,
        build_host,
        host_kinds,
        load_model,
        register_blueprint,
        register_host,
        save_model,
        unregister_blueprint,
        unregister_host,
        weak_host,
    )
    from esper.leyline import ActionSpace, EpochReport, EsperError, FileError, Op, SlotReport, Stage
    from esper.leyline.objectives import CLASSIFICATION, LANGUAGE, REGRESSION, Objective
    from esper.leyline.reports import UpdateReport
    from esper.leyline.specs import HostSpec, SlotSpec, Stream, TaskSpec
    from esper.leyline.state import Split, Task
    from esper.recipes import FleetConfig, Recipe, recipe, recipe_names
    from esper.simic import (
        CloneConfig,
        CollectConfig,
        LearnConfig,
        OfflineConfig,
        PPOConfig,
        RentSchedule,
        RewardConfig,
        clone,
        evaluate,
        grow_host,
        learn_offline,
        load_episodes,
        record_episodes,
        save_episodes,
        train_controller,
    )
    from esper.tamiyo import Controller, ControllerConfig, load_controller, save_controller
    from esper.tamiyo.policies import (
        FixedPlan,
        GapTrigger,
        GreedyGradient,
        Heuristic,
        LearnedPolicy,
        Never,
        Oversized,
        PlanStep,
        Plateau,
        Policy,
        RandomLegal,
        Schedule,
    )
    from esper.tasks import TaskData, load_task, load_test, register_task, task_names, unregister_task
    from esper.tolaria import (
        Engine,
        EnvConfig,
        Fleet,
        FleetEnv,
        GovernorConfig,
        HostTrainer,
        TrainConfig,
        load_training,
        save_training,
    )


def __getattr__(name: str) -> object:
    if name in _SUBPACKAGES:
        return import_module(f"esper.{name}")
    if name in _HOME:
        value = globals()[name] = getattr(import_module(f"esper.{_HOME[name]}"), name)
        return value
    raise AttributeError(f"module 'esper' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


register_soon()  # gymnasium.make("esper:Growth-v0") imports this package and expects to find the environment
