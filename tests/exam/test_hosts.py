"""Fresh hosts for everything that is chosen, and others for what is scored."""

from dataclasses import replace

import numpy as np
import torch

from esper.exam.derived import from_scratch
from esper.exam.runs import ArmResult
from esper.exam.sitting import Played, Sitting
from esper.recipes.config import Band
from esper.recipes.suite import chosen as chosen_settings
from esper.simic import RentSchedule
from esper.tamiyo.policies import Heuristic, RandomLegal
from esper.tasks import load_test
from small_exams import AT_ONE_RATE, SMALL, sitting, smoke


def test_final_exams_have_hosts_and_data_of_their_own():
    """And both kinds charge the rent that training ends with."""
    later = replace(smoke().learn, rent=RentSchedule(start=0.5, end=0.03))
    final = sitting(SMALL, learn=later)
    preliminary = sitting(replace(SMALL, thorough=False, final=False), learn=later)
    paper, look = final.hosts.scored(0.125, 9), preliminary.hosts.scored(0.25)
    assert (paper.config.rng_seed, look.config.rng_seed) == (7 + Band.FINAL, 7 + Band.DEVELOPMENT)
    held_out = load_test("spirals", examples=200)
    assert paper.test is not None
    assert torch.equal(paper.test.x, held_out.x)
    assert look.test is None
    assert (paper.config.episode, look.config.episode) == (9, 4)
    assert paper.fleet.lr.tolist() == [0.125] * 3
    assert look.fleet.lr.tolist() == [0.25] * 3
    assert final.rent == preliminary.rent == 0.03
    assert sitting(replace(SMALL, price=0.5), learn=later).rent == 0.5


def test_a_learning_rate_of_its_own_for_every_place():
    env = sitting().hosts.env(2, 2, Band.FINAL, [0.1, 0.2])
    assert env.fleet.lr.tolist() == [0.1, 0.2, 0.1, 0.2]
    assert torch.equal(env.fleet.seed_lr[:, 0], env.fleet.lr)


def test_no_host_serves_two_purposes():
    one, seen = sitting(), []
    for band in Band:
        env = one.hosts.env(4, 1, band, [0.1])
        env.reset()
        seen += env.fleet.rng_seeds.tolist()
    assert len(set(seen)) == len(seen)


def test_data_of_ones_own_can_be_examined(tmp_path):
    (tmp_path / "tale.txt").write_text("the quick brown fox jumps over the lazy dog. " * 300)
    pixels = np.random.default_rng(0).integers(0, 255, (400, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x_train=pixels, y_train=np.arange(400) % 3)
    for fleet in chosen_settings((), tmp_path / "mine.npz", tmp_path / "tale.txt"):
        one = Sitting(smoke(), fleet, SMALL)
        assert (one.hosts.example.fleet.task.name, one.unseen) in (
            ("mine", "task and kind of host"),
            ("tale", "task and kind of host"),
        )
        assert len(one.hosts.scored(0.01).reset().score) == 3


def test_whoever_sat_in_the_same_places_before_leaves_no_trace():
    both, tame = [RandomLegal(), Heuristic()], [Heuristic()]
    used = sitting(AT_ONE_RATE)
    played = used.play("both", both, 1e-2)
    after, alone = played.runs[1], sitting(AT_ONE_RATE).play("one", tame, 1e-2).runs[0]
    one = ArmResult("one", [alone], 4, 1e-2)
    grown = from_scratch(used, Played(both, played, {}, list), "static", 4).runs[1]
    afresh = from_scratch(sitting(AT_ONE_RATE), Played(tame, one, {}, list), "static", 4).runs[0]
    assert (alone.outcome.growth > 0).any()
    for mine, theirs in ((after, alone), (grown, afresh)):
        assert all(torch.equal(a, b) for a, b in zip(mine.outcome, theirs.outcome, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(mine.topology, theirs.topology, strict=True))
