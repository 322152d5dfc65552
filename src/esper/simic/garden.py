"""Report what every slot held before each decision of a rollout, and which seeds were planted."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from math import nan
from typing import Any, NamedTuple

import numpy as np
import torch

from esper.leyline.actions import Head, Op
from esper.leyline.json_records import from_json, jsonable
from esper.leyline.lifecycle import Stage
from esper.leyline.reports import GardenReport
from esper.simic.messages import to_first
from esper.simic.rollout import Collector, Rollout
from esper.simic.workers import Workers
from esper.tamiyo.features import HOST_FEATURES, SLOT_FEATURES, column_names
from esper.tolaria import FleetEnv

Array = np.ndarray[Any, np.dtype[Any]]
OF_SLOT, OF_HOST = column_names(SLOT_FEATURES), column_names(HOST_FEATURES)
STAGES = [OF_SLOT.index(f"is_{stage.name.lower()}") for stage in Stage]
"""Columns of the slot features of which exactly one is 1: that of the slot's stage."""
STAGE_LETTERS = np.array([ord(stage.name[0]) for stage in Stage], dtype=np.uint8)
OP_LETTERS = np.array([ord(op.name[0]) for op in Op], dtype=np.uint8)
LOWER_CASE = ord("a") - ord("A")


class Decisions(NamedTuple):
    """What T decisions of N hosts were based on and what was chosen, on the CPU: arrays (T, N) or (T, N, S)."""

    stage: Array
    alpha: Array
    twin: Array
    op: Array
    blueprint: Array
    score: Array
    start: Array

    def of(self, hosts: slice, slots: int) -> "Decisions":
        """Return the decisions of one fleet, without padding."""
        return Decisions(*(x[:, hosts] if x.ndim == 2 else x[:, hosts, :slots] for x in self))


def read_decisions(rollout: Rollout) -> Decisions:
    """Read the decisions of a rollout from the device, in one transfer."""
    features, action = rollout.seen.features, rollout.choice.action
    stage, alpha = features.slots[..., STAGES].argmax(-1), features.slots[..., OF_SLOT.index("alpha")]
    twin = torch.zeros_like(alpha) if rollout.twin is None else rollout.twin
    score = features.host[..., OF_HOST.index("score")]
    of_slots = torch.stack([stage, alpha, twin], -2)  # T N 3 S
    of_hosts = torch.stack([action[..., Head.OP], action[..., Head.BLUEPRINT], score, rollout.start], -1)  # T N 4
    table = torch.cat([of_slots.flatten(-2), of_hosts], -1).cpu().numpy()
    slots = alpha.shape[-1]
    read = [table[..., n * slots : (n + 1) * slots] for n in range(3)]
    return Decisions(*read, *np.moveaxis(table[..., 3 * slots :], -1, 0))


def gardens(fleets: Collector, rollout: Rollout) -> tuple[tuple[GardenReport, ...], dict[str, int]]:
    """Return the garden of every fleet in a rollout, and the number of seeds planted, by blueprint."""
    decisions, ends = read_decisions(rollout), np.cumsum([0, *fleets.sizes]).tolist()
    reports, planted = [], Counter[str]()
    for n, env in enumerate(fleets.envs):
        own = decisions.of(slice(ends[n], ends[n + 1]), len(env.setting.space.slots))
        reports.append(garden(fleets.first_fleet + n, env, own))
        planted.update(seeds(own, env.setting.space.blueprints))
    return tuple(reports), dict(planted)


def all_gardens(
    fleets: Collector, rollout: Rollout, workers: Workers
) -> tuple[tuple[GardenReport, ...], dict[str, int]]:
    """Return what `gardens` does for the fleets of all workers to the first of them; the others get none."""
    own, planted = gardens(fleets, rollout)
    if workers.size == 1:
        return own, planted
    said = json.dumps([[jsonable(asdict(report)) for report in own], planted])
    reports, total = list[GardenReport](), Counter[str]()
    for told in to_first(workers, said.encode()):
        records, seeds_there = json.loads(told)
        reports += (from_json(GardenReport, record, "garden", null=nan) for record in records)
        total.update(seeds_there)
    return tuple(reports), dict(total)


def garden(fleet: int, env: FleetEnv, decisions: Decisions) -> GardenReport:
    """Return the report of one fleet's garden."""
    return GardenReport(
        fleet=fleet,
        label=f"{env.fleet.task.name}, {env.fleet.spec.label}",
        slots=env.setting.space.slots,
        hosts=env.fleet.num_hosts,
        cells=cells(decisions),
        ops=texts(OP_LETTERS[decisions.op.astype(int)]),
        scores=tuple(map(tuple, np.round(decisions.score.astype(float), 3).tolist())),
        born=tuple(tuple(np.flatnonzero(row).tolist()) for row in decisions.start),
    )


def cells(decisions: Decisions) -> tuple[str, ...]:
    """Return one text per decision: the letter of the stage and the digit of alpha of each slot, host by host."""
    letters = STAGE_LETTERS[decisions.stage.astype(int)] + LOWER_CASE * decisions.twin
    digits = ord("0") + np.rint(9 * decisions.alpha)
    return texts(np.stack([letters, digits], -1))


def texts(codes: Array) -> tuple[str, ...]:
    """Return one text for each row of an array of ASCII codes."""
    return tuple(row.tobytes().decode("ascii") for row in codes.astype(np.uint8).reshape(len(codes), -1))


def seeds(decisions: Decisions, blueprints: Sequence[str]) -> dict[str, int]:
    """Return the number of seeds planted, by blueprint. What a controller chooses is legal: no op is refused."""
    planted = decisions.blueprint[decisions.op == Op.GERMINATE].astype(int)
    return dict(zip(blueprints, np.bincount(planted, minlength=len(blueprints)).tolist(), strict=True))
