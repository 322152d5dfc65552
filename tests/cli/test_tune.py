"""The search over fields of a recipe: what is tried, who goes on, and that nothing is done twice."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from esper.cli import main
from esper.cli.many import Many
from esper.cli.trials import WORST, Search, leaves, parsed, rungs_of, trials_of, with_values
from esper.leyline.errors import EsperError, FileError
from esper.recipes import recipe
from esper.telemetry import RunFolder
from jobs_toys import Here
from telemetry_toys import SMALL, same_runs

FIELDS = ["--over", "learn.ppo.lr=1e-4,1e-2", "--over", "learn.ppo.entropy_coef=0.01,0.05"]
TUNE = ["tune", "smoke", *FIELDS, *SMALL, "--learn.updates", "8", "--first", "2", "--factor", "2"]
SMOKE = recipe("smoke")


@pytest.fixture
def lives(monkeypatch) -> list[int]:
    """How many jobs each call of a search lives to do, in this process; the rest live long."""
    left: list[int] = []
    monkeypatch.setattr(Many, "executor", lambda self, count, device: Here(left.pop(0) if left else 10**6))
    monkeypatch.setattr("esper.recipes.config.gc.collect", lambda: 0)
    return left


def results(folder: Path) -> list[dict]:
    return json.loads((folder / "tune.json").read_text())["trials"]


def test_the_best_half_goes_on_and_an_interrupted_search_ends_like_another(lives, tmp_path, capsys):
    main([*TUNE, "--run-dir", str(tmp_path / "whole")])
    assert "results: " in capsys.readouterr().out
    found = results(tmp_path / "whole")
    assert [len(trial["j"]) for trial in found] == [3, 2, 1, 1]
    for rung, count in (("2", 4), ("4", 2)):
        at_rung = [trial["j"][rung] for trial in found[:count]]
        assert max(at_rung[: count // 2] + at_rung) == max(at_rung[: count // 2]), "the best is among those that go on"
        assert min(at_rung[: count // 2]) >= max(at_rung[count // 2 :])
    lives += [2, 3]
    for _ in range(3):
        with suppress(InterruptedError):
            main([*TUNE, "--run-dir", str(tmp_path / "killed")])
    assert results(tmp_path / "killed") == found
    for trial in found:
        same = tmp_path / "whole" / str(trial["trial"]), tmp_path / "killed" / str(trial["trial"])
        reports = [(folder / "reports.jsonl").read_text().count("\n") for folder in same]
        assert reports == [max(map(int, trial["j"]))] * 2
    made = [r.objective for r in RunFolder(tmp_path / "whole" / str(found[0]["trial"])).reports()]
    for start, until in ((0, 2), (2, 4), (4, 8)):
        assert found[0]["j"][str(until)] == mean(j for j in made[start:until] if j is not None)
    best = found[0]
    values = [word for name, value in best["values"].items() for word in (f"--{name}", str(value))]
    plain = tmp_path / "plain"
    main(["train", "smoke", *SMALL, "--learn.updates", "8", "--exam", "0", *values, "--run-dir", str(plain)])
    (tmp_path / "whole" / str(best["trial"]) / "lives.jsonl").write_text("")
    (plain / "lives.jsonl").write_text("")
    same_runs(plain, tmp_path / "whole" / str(best["trial"]))


def test_a_search_that_has_ended_is_shown_again_and_another_one_is_refused_there(lives, tmp_path, capsys):
    command = [*TUNE, "--learn.updates", "2", "--run-dir", str(tmp_path / "search")]
    main(command)
    lives += [0, 0, 0]
    table = capsys.readouterr().out
    main(command)
    assert table.endswith(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main([*command, "--factor", "3"])
    assert "was begun with other flags: give the same ones, or choose another --run-dir" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "no field to search over: add --over"),
        (["--over", "learn.ppo.lr"], "--over must be FIELD=VALUE,VALUE,... such as learn.ppo.lr=1e-4,3e-4, not"),
        (["--over", "learn.ppo.lr=1,,2"], "--over must be FIELD=VALUE,VALUE,..."),
        (["--over", "learn.ppo.rl=1e-3"], "unknown field 'learn.ppo.rl': did you mean 'learn.ppo.lr'?"),
        (["--over", "learn.ppo.lr=1e-3,fast"], "a trial with learn.ppo.lr=fast is not possible: recipe.learn.ppo.lr"),
        (["--over", "fleets.0.hosts=0"], "a trial with fleets.0.hosts=0 is not possible: hosts must be at least 1"),
        (["--over", "learn.ppo.gamma=0.9"], "reward.gamma (0.995) and ppo.gamma (0.9) must be equal"),
        (["--over", "learn.ppo.lr=1e-3,0.001"], "--over names a value of learn.ppo.lr twice"),
        (["--over", "learn.ppo.lr=1", "--over", "learn.ppo.lr=2"], "--over names learn.ppo.lr twice"),
        (["--over", "learn.updates=2,4"], "leave updates out of --over"),
        (["--over", "fleets.0.task=spirals,circles"], "unknown task 'circles'"),
        (["--over", "learn.ppo.lr=1", "--first", "9"], "first must be from 1 to 4, the recipe's updates, not 9"),
        (["--over", "learn.ppo.lr=1", "--factor", "1"], "factor must be at least 2, not 1"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_begins(flags, said, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["tune", "smoke", *flags, "--run-dir", str(tmp_path / "search")])
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "search").exists()


def test_rungs_are_a_factor_apart_and_end_with_all_updates():
    assert rungs_of(1, 3, 9) == [1, 3, 9]
    assert rungs_of(2, 3, 24) == [2, 6, 18, 24]
    assert rungs_of(2, 2, 8) == [2, 4, 8]
    assert rungs_of(5, 3, 5) == [5]


def test_values_are_those_of_json_and_words():
    plain = SMOKE.plain()
    found = parsed(["learn.ppo.lr=1e-4,3", "engine.graphs=true,false", "fleets.0.host=mlp,cnn1d"], plain)
    assert found == {
        "learn.ppo.lr": [1e-4, 3],
        "engine.graphs": [True, False],
        "fleets.0.host": ["mlp", "cnn1d"],
    }
    changed = with_values(SMOKE, {"fleets.0.widths.1": 9, "learn.ppo.lr_end": None})
    assert changed.fleets[0].widths == (SMOKE.fleets[0].widths[0], 9)
    assert with_values(SMOKE, {}) == SMOKE
    assert {"learn.ppo.lr", "fleets.0.widths.0"} <= {*leaves(plain)}


def search_of(tmp_path: Path, j: list[float], until: int = 2) -> Search:
    """A search over as many trials, each with this J after the first rung."""
    trials = trials_of(SMOKE, {"learn.ppo.lr": [n + 1 for n in range(len(j))]}, tmp_path)
    for trial, value in zip(trials, j, strict=True):
        trial.folder.mkdir()
        trial.rung_path(until).write_text(json.dumps({"updates": until, "j": value}))
    return Search(trials=trials, rungs=[2, 4], factor=2)


def test_of_equal_trials_the_first_goes_on_and_one_always_does(tmp_path):
    search = search_of(tmp_path, [-0.1, 0.7, 0.7, WORST, 0.0])
    assert [trial.number for trial in search.best(search.trials, 2)] == [2, 3]
    assert [trial.number for trial in replace(search, factor=9).best(search.trials, 2)] == [2]
    assert [trial.number for trial in search.best([search.trials[n] for n in (3, 4, 0)], 2)] == [5]
    assert [trial.number for trial in search.ranking()] == [2, 3, 5, 1, 4]
    search.trials[3].rung_path(4).write_text('{"updates": 4, "j": 0.0}')
    assert search.ranking()[0].number == 4, "who came further stands first"
    assert search.reached(search.trials[3]) == (4, 0.0)
    search.trials[0].rung_path(2).write_text("{}")
    with pytest.raises(FileError, match="is damaged, remove it"):
        search.ranking()


def test_a_search_in_which_no_episode_ends_says_so(tmp_path):
    search = search_of(tmp_path, [WORST, WORST])
    with pytest.raises(EsperError, match="no episode has ended in any trial after 2 updates: choose a larger --first"):
        search.best(search.trials, 2)
