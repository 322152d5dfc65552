"""Tell users and policies about one host: the report of an epoch, and its measurements as signals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esper.kasmina.cost import epoch_cost
from esper.kasmina.host import num_parameters
from esper.kasmina.lifecycle import legal
from esper.leyline.actions import Head, Op
from esper.leyline.lifecycle import Stage
from esper.leyline.reports import EpochReport, SlotReport
from esper.leyline.state import Signals
from esper.tolaria.budget import relative_cost
from esper.tolaria.host_measuring import Evaluation

if TYPE_CHECKING:
    from esper.tolaria.host_trainer import HostTrainer


def report_of(
    trainer: "HostTrainer",
    action: Sequence[int],
    refused: bool,
    train_loss: float,
    evaluation: Evaluation,
    flops: int,
) -> EpochReport:
    """Return the report of the last epoch."""
    host, op = trainer.host, action[Head.OP]
    return EpochReport(
        epoch=trainer.epoch - 1,
        op=Op(op).name if 0 <= op < len(Op) else str(op),
        refused=refused,
        train_loss=train_loss,
        validation_loss=evaluation.loss,
        metric=evaluation.metric,
        score=evaluation.score,
        parameters=num_parameters(host),
        growth=host.growth,
        flops=flops,
        slots=tuple(slot_report(trainer, s) for s in range(len(host.slots))),
    )


def slot_report(trainer: "HostTrainer", s: int) -> SlotReport:
    """Return the report of one slot."""
    state, seed = trainer.state, trainer.host.slot(s).seed
    return SlotReport(
        name=trainer.host.slot_specs[s].name,
        stage=Stage(int(state.stage[0, s])).name,
        alpha=state.alpha[0, s].item(),
        blueprint=None if seed is None else seed.blueprint,
        contribution=None if seed is None else trainer.vitals.contribution[0, s].item(),
    )


def signals_of(trainer: "HostTrainer", age: int, report: EpochReport | None = None) -> Signals:
    """Return the host's measurements in the form that policies read, as a fleet of one host.

    Args:
        trainer: Trainer of the host.
        age: Decisions since the policy took over.
        report: Report of the last epoch; None before the first, when the host is evaluated here.
    """
    if report is None:
        measured, train_loss, flops = trainer.evaluate(), torch.nan, 0
    else:
        measured = Evaluation(report.validation_loss, report.metric, report.score)
        train_loss, flops = report.train_loss, report.flops
    host, state, budget = trainer.host, trainer.state, trainer.budget
    loss, metric, score = (torch.tensor([x], dtype=trainer.dtype) for x in measured)
    return Signals(
        score=score,
        metric=metric,
        loss=loss,
        train_loss=torch.tensor([train_loss], dtype=torch.float64),
        growth=torch.tensor([num_parameters(host.slots)]) / num_parameters(host.segments),
        flops=torch.tensor([flops], dtype=torch.float64),
        age=torch.tensor([age]),
        sibling=torch.ones(1, dtype=torch.bool),
        legal=legal(state, trainer.vitals, trainer.lifecycle),
        slots=state,
        vitals=trainer.vitals,
        spent=None if budget is None else torch.tensor([trainer.spent / budget], dtype=torch.float64),
        pace=None if budget is None else present_cost(trainer),
    )


def present_cost(trainer: "HostTrainer") -> Tensor:
    """Return what an epoch costs in the present state, contributions included, divided by that of a bare host."""
    cost = epoch_cost(trainer.costs, trainer.state, trainer.lifecycle)
    trained = trainer.num_steps * trainer.config.batch_size
    epoch = relative_cost(cost, trained, len(trainer.task.validation.x), trainer.lifecycle)
    return epoch / (trained * trainer.costs.host.train)
