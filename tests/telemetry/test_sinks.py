"""Listeners hear what reports say, under names that people know."""

import math
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from esper.cli.train import Listening, Resume, Train
from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.simic import CollectConfig, LearnConfig, train
from esper.telemetry import SINKS, RunFolder
from esper.telemetry.scalars import scalars
from small_fleets import controller_for, make_env
from telemetry_toys import SMALL


def test_every_number_has_a_known_name_and_nothing_unknown_is_drawn():
    config = LearnConfig(updates=1, collect=CollectConfig(horizon=3))
    (report,) = train([make_env("mlp", 3, episode=3)], controller_for(), config)
    found = scalars(report)
    assert found.keys() >= {"losses/approx_kl", "losses/clipfrac", "charts/SPS", "charts/objective"}
    assert all(math.isfinite(x) for x in found.values())
    for head in report.heads:
        assert (f"{head.name}/entropy" in found) == (head.samples > 0)
        assert f"{head.name}/samples" in found
    assert sum(found[f"ops/{op.name.lower()}"] for op in Op) == pytest.approx(1.0)
    assert len({name.partition("/")[0] for name in found} & {h.name.lower() for h in Head}) == len(Head)


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_what_was_written(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    Train(recipe="smoke", run_dir=tmp_path / "run", listening=Listening(log=("tensorboard",)), changes=SMALL).run()
    Resume(run_dir=tmp_path / "run", listening=Listening(log=("tensorboard",))).run()
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    reports = RunFolder.open(tmp_path / "run").reports()
    drawn = {event.step: event.value for event in events.Scalars("losses/approx_kl")}
    assert drawn == pytest.approx({r.update: r.kl for r in reports}, rel=1e-5, abs=1e-9)


HEARD = """
import sys
from pathlib import Path
from esper.telemetry import SINKS
from telemetry_toys import report

sink = SINKS[sys.argv[1]](Path(sys.argv[2]), "run", {"learn": {"updates": 2}}, 0)
for update in range(2):
    sink.hear(report(update, kl=0.25 + update))
sink.close()
"""


def heard(name: str, folder: Path, **environment: str) -> None:
    """In a process of its own: these packages start threads and servers."""
    folder.mkdir()
    paths = {"PYTHONPATH": str(Path(__file__).parents[1]), "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", HEARD, name, str(folder)],
        env=os.environ | paths | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_wandb_keeps_a_run_offline(tmp_path):
    heard("wandb", tmp_path / "run", WANDB_MODE="offline")
    (log,) = (tmp_path / "run").glob("wandb/offline-run-*/run-run.wandb")
    assert b"losses/approx_kl" in log.read_bytes()


def test_mlflow_finds_what_was_logged_and_goes_on_with_it(tmp_path):
    database = tmp_path / "mlflow.db"
    heard("mlflow", tmp_path / "run", MLFLOW_TRACKING_URI=f"sqlite:///{database}")
    with closing(sqlite3.connect(database)) as found:
        rows = found.execute("select step, value from metrics where key = 'losses/approx_kl' order by step").fetchall()
        assert rows == [(0, 0.25), (1, 1.25)]
        assert found.execute("select value from params where key = 'learn.updates'").fetchall() == [("2",)]
        (tmp_path / "run").rename(tmp_path / "before")
        heard("mlflow", tmp_path / "run", MLFLOW_TRACKING_URI=f"sqlite:///{database}")
        assert found.execute("select count(*) from runs").fetchall() == [(1,)], "a run of the same name is gone on with"


def test_a_sink_that_cannot_begin_says_why_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(EsperError, match=r"wandb is not installed: pip install 'esper\[wandb\]'"):
        SINKS["wandb"](tmp_path, "run", {}, 0)
    (tmp_path / "tensorboard").write_text("in the way")
    with pytest.raises(EsperError, match="tensorboard could not begin"):
        SINKS["tensorboard"](tmp_path, "run", {}, 0)


def test_a_sink_that_fails_later_is_left_out_and_the_run_goes_on(tmp_path, monkeypatch):
    heard = []

    class Broken:
        def __init__(self, folder, name, config, update):
            assert name.startswith("run-")

        def hear(self, report):
            heard.append(report.update)
            raise OSError("the server is gone")

        def close(self):
            heard.append("closed")

    monkeypatch.setitem(SINKS, "wandb", Broken)
    with pytest.warns(UserWarning, match="wandb no longer listens: the server is gone"):
        Train(recipe="smoke", run_dir=tmp_path / "run", listening=Listening(log=("wandb",)), changes=SMALL).run()
    assert heard == [0, "closed"]
    assert RunFolder.open(tmp_path / "run").done
