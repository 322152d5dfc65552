"""The exam: policies side by side on hosts that nobody has seen, scored on data that nothing was chosen by."""

from collections.abc import Sequence

import torch
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.leyline.lifecycle import Stage
from esper.leyline.reports import ArmReport, EpochReport, ExamReport, Life, SlotReport
from esper.leyline.state import NO_BLUEPRINT, Setting
from esper.simic.play import Outcome
from esper.simic.search import compare
from esper.simic.statistics import Values, improvement, iqm, paired
from esper.tamiyo.policies import Policy
from esper.tolaria import FleetEnv
from esper.tolaria.env import Step


def examine(
    env: FleetEnv, policies: Sequence[Policy], rent: float, rng_seed: int = 0, told: int = 0
) -> tuple[ExamReport, list[Life]]:
    """The first policy against the others, on the env's hosts: groups of which each policy has one.

    Also returns the lives of the first hosts, as many as are to be `told`, under every policy.
    """
    if env.test is None:
        raise EsperError("env must hold test data for an exam: FleetEnv(fleet, config, test=load_test(...))")
    diary = Diary(env, range(told * len(policies)))
    outcomes = compare(env, policies, rent, rng_seed, diary.note)
    spec, objective = env.fleet.spec, env.fleet.objective
    report = ExamReport(
        task=env.fleet.task_name,
        host=f"{spec.kind} {'-'.join(map(str, spec.widths))}",
        metric=objective.metric_name,
        hosts=len(outcomes[0].score),
        episode=env.setting.episode,
        rent=rent,
        policy=policies[0].name,
        arms=tuple(
            _arm(policy.name, outcome, None if policy is policies[0] else outcomes[0], env.setting, rng_seed)
            for policy, outcome in zip(policies, outcomes, strict=True)
        ),
    )
    lives = [
        Life(report.task, policies[i % len(policies)].name, i // len(policies), epochs)
        for i, epochs in enumerate(diary.lives())
    ]
    return report, lives


def _arm(name: str, own: Outcome, tested: Outcome | None, setting: Setting, rng_seed: int) -> ArmReport:
    metric, j = _values(own.metric), _values(own.objective)
    ours = None if tested is None else _values(tested.objective)
    growth = own.growth.mean().item()
    return ArmReport(
        name=name,
        mean=float(metric.mean()),
        iqm=iqm(metric),
        j=float(j.mean()),
        params=setting.parameters * (1 + growth),
        growth=growth,
        flops=own.flops.mean().item(),
        sick=own.sick.mean().item(),
        vs=None if ours is None else paired(ours, j, rng_seed),
        improvement=None if ours is None else improvement(ours, j),
    )


def _values(x: Tensor) -> Values:
    return x.double().cpu().numpy()


class Diary:
    """What some hosts of an env do and what becomes of it, to be told afterwards."""

    def __init__(self, env: FleetEnv, hosts: Sequence[int]) -> None:
        self.setting = env.setting
        self.hosts = torch.tensor(list(hosts), dtype=torch.long, device=env.fleet.device)
        self.days: list[dict[str, Tensor]] = []

    def note(self, actions: Tensor, step: Step) -> None:
        if len(self.hosts):
            final, slots = step.final, step.final.slots
            kept = {
                **{"op": actions[:, Head.OP], "refused": step.refused, "ended": step.terminated | step.truncated},
                **{name: getattr(final, name) for name in ("train_loss", "loss", "metric", "score", "growth", "flops")},
                **{"stage": slots.stage, "alpha": slots.alpha, "blueprint": slots.blueprint},
                **{"contribution": final.vitals.contribution},
            }
            self.days.append({name: value[self.hosts].cpu() for name, value in kept.items()})

    def lives(self) -> list[tuple[EpochReport, ...]]:
        """Of each host, its first life."""
        return [tuple(self._life(row)) for row in range(len(self.hosts))]

    def _life(self, row: int) -> list[EpochReport]:
        told = []
        for epoch, day in enumerate(self.days):
            today = {name: value[row] for name, value in day.items()}
            told.append(self._epoch(epoch, today))
            if bool(today["ended"]):
                break
        return told

    def _epoch(self, epoch: int, today: dict[str, Tensor]) -> EpochReport:
        space = self.setting.space
        slots = []
        for s, name in enumerate(space.slots):
            blueprint = int(today["blueprint"][s])
            empty = blueprint == NO_BLUEPRINT
            slots.append(
                SlotReport(
                    name=name,
                    stage=Stage(int(today["stage"][s])).name,
                    alpha=today["alpha"][s].item(),
                    blueprint=None if empty else space.blueprints[blueprint],
                    contribution=None if empty else today["contribution"][s].item(),
                )
            )
        growth = today["growth"].item()
        return EpochReport(
            epoch=epoch,
            op=Op(int(today["op"])).name,
            refused=bool(today["refused"]),
            train_loss=today["train_loss"].item(),
            validation_loss=today["loss"].item(),
            metric=today["metric"].item(),
            score=today["score"].item(),
            parameters=round(self.setting.parameters * (1 + growth)),
            growth=growth,
            flops=int(today["flops"]),
            slots=tuple(slots),
        )
