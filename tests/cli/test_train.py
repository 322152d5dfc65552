"""Checkpoints, what a resumed run goes on from, and signals."""

import os
import signal
from dataclasses import replace

import pytest
import torch

from esper.cli.train import checkpoint, continued, pick_up, stopping
from esper.leyline.errors import EsperError, FileError
from esper.recipes import recipe
from esper.recipes.config import WarmStartConfig
from esper.simic import CollectConfig, LearnConfig
from esper.simic.train import Training
from esper.tamiyo import load_controller
from esper.tamiyo.controller_files import save_controller
from esper.telemetry import RunFolder
from small_fleets import controller_for, make_env
from telemetry_toys import report

ASKED = replace(recipe("smoke"), keep=2)


def begin() -> Training:
    return Training([make_env("mlp", 2, episode=2)], controller_for(), LearnConfig(collect=CollectConfig(horizon=1)))


def weights(controller) -> list[torch.Tensor]:
    return [p.detach().clone() for p in controller.parameters()]


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def test_a_resumed_run_goes_on_from_its_newest_checkpoint_with_the_logs_and_the_best_of_then(tmp_path):
    """J of three updates, and of a fourth that no checkpoint holds: the second is the best."""
    folder, training = RunFolder.create(tmp_path / "run", {}, {}), begin()
    best, seen = -float("inf"), []
    for update, j in enumerate((0.4, 0.6, None, 0.5)):
        training.step()
        seen.append(weights(training.controller))
        folder.append(report(update, objective=j))
        if update < 3:
            best = checkpoint(folder, ASKED, training, report(update, objective=j), best)
        assert same(weights(load_controller(folder.best_path)), seen[0 if update == 0 else 1])
    assert [path.stem for path in folder.checkpoints()] == ["000002", "000003"]
    again = begin()
    best = pick_up(folder, again)
    assert (again.update, best) == (3, 0.6)
    assert same(weights(again.controller), seen[2])
    assert [r.update for r in folder.reports()] == [0, 1, 2]
    assert [life.update for life in folder.episodes()] == [0, 0, 1, 1, 2, 2]
    again.step()
    assert same(weights(again.controller), seen[3]), "as if it had never stopped"
    assert checkpoint(folder, ASKED, again, report(3, objective=0.5), best) == 0.6
    assert same(weights(load_controller(folder.best_path)), seen[1])


def test_before_its_first_checkpoint_a_run_begins_again(tmp_path):
    folder, training = RunFolder.create(tmp_path / "run", {}, {}), begin()
    folder.append(report(0))
    assert pick_up(folder, training) == -float("inf")
    assert (training.update, folder.reports(), folder.episodes()) == (0, [], [])


def test_who_goes_on_from_a_run_knows_what_it_knows_and_keeps_its_controller(tmp_path):
    plain = recipe("smoke")
    (fleet,) = plain.fleets
    before = replace(plain, known=(replace(fleet, widths=(5, 5)),))
    folder = RunFolder.create(tmp_path / "run", before.plain(), {})
    asked = replace(plain, warm_start=WarmStartConfig(run=str(folder.path)))
    with pytest.raises(FileError, match="is not done: resume it before another run goes on from it"):
        continued(asked, plain)
    save_controller(folder.controller_path, controller_for())
    own = controller_for().config
    found = continued(replace(asked, controller=replace(asked.controller, size=False)), plain)
    assert found.known == before.learned_from
    assert found.controller == replace(own, size=False), "but for what it is told"
    with pytest.raises(EsperError, match=f"controller must be left as it is in {folder.path}"):
        continued(replace(asked, controller=replace(own, hidden=own.hidden + 1)), plain)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_to_stop_and_a_second_one_stops_at_once(number):
    before = signal.getsignal(number)
    with stopping() as asked:
        assert not asked()
        os.kill(os.getpid(), number)
        assert asked()
    assert signal.getsignal(number) is before
    with pytest.raises(EsperError, match="stopped in the middle of an update"):
        ask_twice(number)
    assert signal.getsignal(number) is before


def ask_twice(number: int) -> None:
    with stopping():
        for _ in range(2):
            os.kill(os.getpid(), number)
        pytest.fail("it goes on")
