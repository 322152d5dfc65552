"""Report the decisions of hosts, epoch by epoch, in the words of files and figures."""

from collections.abc import Mapping

from jaxtyping import Int
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.leyline.lifecycle import Stage
from esper.leyline.reports import EpochReport, SlotReport
from esper.leyline.state import NO_BLUEPRINT, Setting
from esper.simic.lives import LifeState
from esper.tolaria.env import Step


def decision_values(before: LifeState, actions: Int[Tensor, "N H"], step: Step) -> dict[str, Tensor]:
    """Return what `epoch_report` reports of one decision, with a row for each host."""
    final, slots = step.final, step.final.slots
    return {
        **{"op": actions[:, Head.OP], "refused": step.refused, "ended": step.terminated | step.truncated},
        **{name: getattr(final, name) for name in ("train_loss", "loss", "metric", "score", "growth", "flops")},
        **{"stage": slots.stage, "alpha": slots.alpha, "blueprint": slots.blueprint},
        **{"contribution": final.vitals.contribution, "legal": before.signals.legal.any(-1)},
    }


def epoch_report(setting: Setting, epoch: int, values: Mapping[str, Tensor]) -> EpochReport:
    """Report one decision of one host, given its row of `decision_values` on the CPU."""
    space = setting.space
    slots = []
    for s, name in enumerate(space.slots):
        blueprint = int(values["blueprint"][s])
        empty = blueprint == NO_BLUEPRINT
        slots.append(
            SlotReport(
                name=name,
                stage=Stage(int(values["stage"][s])).name,
                alpha=values["alpha"][s].item(),
                blueprint=None if empty else space.blueprints[blueprint],
                contribution=None if empty else values["contribution"][s].item(),
            )
        )
    growth = values["growth"].item()
    return EpochReport(
        epoch=epoch,
        op=Op(int(values["op"])).name,
        refused=bool(values["refused"]),
        train_loss=values["train_loss"].item(),
        validation_loss=values["loss"].item(),
        metric=values["metric"].item(),
        score=values["score"].item(),
        parameters=round(setting.parameters * (1 + growth)),
        growth=growth,
        flops=int(values["flops"]),
        slots=tuple(slots),
        legal=tuple(op.name for op in Op if values["legal"][op]),
    )
