"""Several workers train one controller as one worker would that has all of their fleets."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from esper.leyline.errors import EsperError
from esper.leyline.json_records import jsonable
from esper.leyline.tensor_files import Tensors, pack, read, unpack
from esper.simic.checkpoint import RUN_FORMAT, load_training_run, save_training_run
from esper.simic.messages import deal, from_first, to_first
from esper.simic.workers import ALONE, Place, Workers
from workers_toys import CONFIG, PPO, begin, spawned, write_trace


class Both(NamedTuple):
    """What two workers did, and one worker with both fleets."""

    folder: Path
    two: dict[str, Any]
    one: dict[str, Any]


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Both:
    folder = tmp_path_factory.mktemp("workers")
    reports = {"plain": write_trace(folder / "plain", begin(), 5)}
    reports["alone"] = write_trace(folder / "alone", begin(recurrent=False), 2)
    limited = replace(CONFIG, ppo=replace(PPO, target_kl=1e-7, lr=3e-3))
    reports["stopped"] = write_trace(folder / "stopped", begin(config=limited), 2)
    saved = begin()
    for _ in range(2):
        saved.step()
    save_training_run(folder / "one", saved)
    ended = spawned(Path(__file__).parent / "exchange_worker.py", folder)
    for worker in ended:
        assert worker.returncode == 0, worker.stderr
    one = {name: [jsonable(asdict(report)) for report in found] for name, found in reports.items()}
    one = json.loads(json.dumps(one))
    return Both(folder, json.loads((folder / "reports.json").read_text()), one)


def trace(both: Both, name: str) -> Tensors:
    return read(both.folder / name, "trace")[0]


@pytest.mark.parametrize("run", ["plain", "alone", "stopped"])
@pytest.mark.parametrize("rank", [0, 1])
def test_two_workers_choose_and_learn_what_one_worker_with_both_fleets_does(run, rank, both):
    one, two = trace(both, run), trace(both, f"{run}-{rank}")
    assert two["actions"].equal(one["actions"])
    assert two["rewards"].equal(one["rewards"])
    assert two["gradients"].shape == one["gradients"].shape, "as many optimizer steps"
    torch.testing.assert_close(two["gradients"], one["gradients"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(two["scale"], one["scale"], rtol=1e-12, atol=0)
    assert two["weights"].equal(trace(both, f"{run}-0")["weights"]), "all workers hold the same controller"


EXACT = ("update", "decisions", "episodes", "sick", "epochs", "steps", "stopped", "ops", "planted", "garden", "lives")
EXACT += ("occupancy", "reward", "rent", "objective", "score", "growth")


@pytest.mark.parametrize("run", ["plain", "alone", "stopped"])
def test_reports_of_two_workers_are_those_of_one(run, both):
    found = list(zip(both.two["reports"][run], both.one[run], strict=True))
    for two, one in found:
        assert two.keys() == one.keys()
        for name in EXACT:
            assert two[name] == one[name], name
        for name in two.keys() - {*EXACT, "seconds", "heads", "detail", "anomalies"}:
            assert two[name] == one[name] or two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-6), name
        for ours, theirs in zip(two["heads"], one["heads"], strict=True):
            for name, x in ours.items():
                assert x == theirs[name] or x == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
        assert [(a["kind"], a["where"]) for a in two["anomalies"]] == [
            (a["kind"], a["where"]) for a in one["anomalies"]
        ]
        assert list(two["seconds"]) == ["collect", "wait", "learn"]
    assert (run == "stopped") == any(two["stopped"] for two, _ in found)


def test_a_reward_that_is_not_finite_on_one_worker_is_learned_from_by_none(both):
    (report,) = both.two["reports"]["broken"]
    assert report["steps"] == 0
    assert "rewards" in report["stopped"]


def without_times(reports: list[dict]) -> list[dict]:
    return [report | {"seconds": {}} for report in reports]


def test_two_workers_that_resume_go_on_to_the_bit(both):
    reports = both.two["reports"]
    assert without_times(reports["resumed"]) == without_times(reports["went on"])
    assert both.two["notes"] == {"of": "two"}


def test_a_checkpoint_says_nothing_about_the_number_of_workers(both, tmp_path):
    """What two have saved one goes on with, and the other way round."""
    (two, notes), (one, others) = (read(both.folder / name, RUN_FORMAT) for name in ("two", "one"))
    assert {n: x.shape for n, x in two.items()} == {n: x.shape for n, x in one.items()}
    assert notes["envs"] == others["envs"]
    training = begin()
    load_training_run(both.folder / "two", training)
    save_training_run(tmp_path / "again", training, {"of": "two"})
    again, same = read(tmp_path / "again", RUN_FORMAT)
    assert same == notes
    for name, x in again.items():
        torch.testing.assert_close(x, two[name], rtol=0, atol=0, equal_nan=True)
    third = both.one["plain"][2]
    went_on = jsonable(asdict(training.step()))
    for report in (went_on, both.two["reports"]["from one"][0]):
        assert json.loads(json.dumps(report["ops"])) == third["ops"]
        assert report["policy_loss"] == pytest.approx(third["policy_loss"], abs=1e-5)


def test_hosts_that_never_grow_are_measured_on_the_fleets_of_all(both):
    assert both.two["never"] == begin().never()


def test_fleets_are_dealt_to_neighbours_in_order_and_evenly():
    for fleets in range(1, 9):
        for size in range(1, fleets + 1):
            shares = [list(Workers(rank, size).share(range(fleets))) for rank in range(size)]
            assert [fleet for share in shares for fleet in share] == list(range(fleets))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_more_workers_than_fleets_are_refused_with_both_numbers():
    with pytest.raises(EsperError, match=r"4 workers cannot share 1 fleet:.*at most 1"):
        Workers(0, 4).share(["fleet"])


def test_a_place_finds_its_own_entries_in_their_order():
    index = torch.tensor([5, 2, 0, 3, 4, 1])
    parts = [Place(first, count, 6).own(index).tolist() for first, count in ((0, 2), (2, 0), (2, 3), (5, 1))]
    assert parts == [[0, 1], [], [0, 1, 2], [0]]


def test_one_worker_gets_back_what_it_gives():
    x, said = torch.tensor([1.0, math.nan]), b"said"
    assert ALONE.joined(x) is x
    assert ALONE.sum(x)[0] is x
    assert ALONE.largest(x)[0] is x
    assert ALONE.numbers(3, 4) == [[3, 4]]
    assert ALONE.place(3) == Place(0, 3, 3)
    assert ALONE.any(True)
    assert not ALONE.any(False)
    assert (from_first(ALONE, said), to_first(ALONE, said), deal(ALONE, [said])) == (said, [said], said)


def test_packed_tensors_come_back_with_their_description():
    tensors = {"x": torch.arange(3), "y": torch.tensor(True), "none": torch.zeros(0, 2)}
    found, description = unpack(pack(tensors, {"a": [1, None, "ü"]}))
    assert description == {"a": [1, None, "ü"]}
    assert found.keys() == tensors.keys()
    assert all(found[name].equal(x) for name, x in tensors.items())
