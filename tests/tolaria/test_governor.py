"""Failed hosts: hand-made histories on both sides of every threshold."""

from math import inf, nan
from typing import NamedTuple

import torch

from esper.tolaria.governor import GovernorConfig, HealthHistory, judge

CONFIG = GovernorConfig(divergence=4.0, collapse=0.5, lead=0.25)
CHANCE = 0.25


class Case(NamedTuple):
    """A host before an epoch, the epoch's loss and score, and what should follow."""

    history: tuple[float, float, float] = (inf, inf, -inf)
    """First loss, best loss, best score."""
    loss: float = 1.0
    score: float = 0.3
    sane: bool = True
    sick: bool = False
    after: tuple[float, float, float] | None = None
    """The history that follows; the same if None."""


def verdicts(cases: dict[str, Case]) -> tuple[dict[str, bool], dict[str, tuple[float, float, float]]]:
    hosts = list(cases.values())
    history = HealthHistory(*torch.tensor([host.history for host in hosts], dtype=torch.float64).T)
    sane, loss, score = (torch.tensor([getattr(host, name) for host in hosts]) for name in ("sane", "loss", "score"))
    sick, after = judge(history, sane, loss, score, CHANCE, CONFIG)
    histories = [tuple(host) for host in torch.stack(list(after), 1).tolist()]
    return dict(zip(cases, sick.tolist(), strict=True)), dict(zip(cases, histories, strict=True))


SICKNESS = {
    "in its first epoch no host has diverged or collapsed": Case(loss=1e6, score=0.0),
    "a first epoch may still be insane": Case(loss=nan, score=nan, sane=False, sick=True),
    "insane weights are sick whatever the loss": Case((3.0, 1.0, 0.3), loss=1.0, sane=False, sick=True),
    "at four times the best loss": Case((3.0, 1.0, 0.3), loss=4.0),
    "above four times the best loss": Case((3.0, 1.0, 0.3), loss=4.5, sick=True),
    "above that, but not above the first loss": Case((8.0, 1.0, 0.3), loss=8.0),
    "above that, and above the first loss": Case((8.0, 1.0, 0.3), loss=8.5, sick=True),
    "with half of its lead over chance": Case((1.0, 1.0, 0.75), score=0.5),
    "with less than half of its lead": Case((1.0, 1.0, 0.75), score=0.4375, sick=True),
    "with the smallest lead that counts, half of it left": Case((1.0, 1.0, 0.5), score=0.375),
    "with the smallest lead that counts, less left": Case((1.0, 1.0, 0.5), score=0.3125, sick=True),
    "with a smaller lead, at chance": Case((1.0, 1.0, 0.4375), score=0.25),
}


def test_who_is_sick_by_hand():
    sick, _ = verdicts(SICKNESS)
    assert sick == {name: case.sick for name, case in SICKNESS.items()}


HISTORIES = {
    "a first epoch": Case(loss=2.0, score=0.5, after=(2.0, 2.0, 0.5)),
    "a better epoch": Case((3.0, 2.0, 0.5), loss=1.0, score=0.75, after=(3.0, 1.0, 0.75)),
    "a lower loss with a lower score": Case((3.0, 2.0, 0.5), loss=1.0, score=0.4375, after=(3.0, 1.0, 0.5)),
    "a worse epoch": Case((3.0, 2.0, 0.5), loss=2.5, score=0.4375),
    "insane, with better numbers": Case((3.0, 2.0, 0.5), loss=1.0, score=0.75, sane=False),
    "collapsed, with a better loss": Case((3.0, 2.0, 0.75), loss=1.0, score=0.25),
    "diverged, with a better score": Case((3.0, 2.0, 0.5), loss=9.0, score=0.75),
    "insane in its first epoch": Case(loss=nan, score=nan, sane=False),
}


def test_only_healthy_epochs_enter_the_history():
    _, after = verdicts(HISTORIES)
    assert after == {name: case.after or case.history for name, case in HISTORIES.items()}
