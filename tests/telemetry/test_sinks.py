"""Listeners hear what reports say, under names that people know."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from esper.cli.desk import Logging
from esper.cli.train import Train
from esper.leyline.errors import EsperError
from esper.leyline.reports import HeadReport
from esper.telemetry import SINKS, RunFolder
from esper.telemetry.scalars import scalars
from telemetry_toys import SMALL, report


def test_scalars_by_hand():
    """What is known, under names that people know; two heads, of which one was heard 40 times and one never."""
    heads = (HeadReport("op", 40, 0.01, 0.25, 0.9, 0.8, 1.2, 0.5, 0.4), HeadReport("style", 0, *[None] * 5, 0.125, 0.0))
    one = report(
        7,
        decisions=40,
        episodes=3,
        sick=2,
        objective=0.5,
        score=0.75,
        growth=None,
        rent=0.02,
        reward=0.1,
        policy_loss=-0.3,
        value_loss=0.4,
        entropy=0.6,
        approx_kl=0.015,
        explained_variance=None,
        grad_norm=1.5,
        gradient_health=0.875,
        heads=heads,
        ops={"WAIT": 30, "GERMINATE": 10},
        seconds={"collect": 3.0, "learn": 5.0},
    )
    assert scalars(one) == {
        "charts/objective": 0.5,
        "charts/score": 0.75,
        "charts/episodes": 3,
        "charts/sick": 2,
        "charts/rent": 0.02,
        "charts/reward": 0.1,
        "charts/SPS": 5,
        "losses/policy_loss": -0.3,
        "losses/value_loss": 0.4,
        "losses/entropy": 0.6,
        "losses/approx_kl": 0.015,
        "losses/clipfrac": 0.25,
        "losses/gradient": 1.5,
        "losses/gradient_health": 0.875,
        "op/samples": 40,
        "op/approx_kl": 0.01,
        "op/clipfrac": 0.25,
        "op/entropy": 0.9,
        "op/ratio_min": 0.8,
        "op/ratio_max": 1.2,
        "op/gradient": 0.5,
        "style/samples": 0,
        "style/gradient": 0.125,
        "ops/wait": 0.75,
        "ops/germinate": 0.25,
        "seconds/collect": 3,
        "seconds/learn": 5,
    }


def drawn(folder: Path) -> list[tuple[int, float]]:
    """What TensorBoard shows of the KL, update by update."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("losses/approx_kl")]


@pytest.mark.filterwarnings("ignore")
def test_after_a_resume_tensorboard_shows_what_was_heard_last(tmp_path):
    for update, heard in {0: {0: 0.25, 1: 0.5}, 1: {1: 0.75, 2: 1.0}}.items():
        sink = SINKS["tensorboard"](tmp_path, "run", {}, update)
        for at, kl in heard.items():
            sink.hear(report(at, approx_kl=kl))
        sink.close()
    assert drawn(tmp_path) == [(0, 0.25), (1, 0.75), (2, 1.0)]


HEARD = """
import sys
from pathlib import Path
from esper.telemetry import SINKS
from telemetry_toys import report

sink = SINKS[sys.argv[1]](Path(sys.argv[2]), "run", {"learn": {"updates": 2}}, 0)
for update in range(2):
    sink.hear(report(update, approx_kl=0.25 + update))
sink.close()
if sys.argv[1] == "mlflow":
    SINKS["mlflow"](Path(sys.argv[2]), "run", {"learn": {"updates": 2}}, 2).close()
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
        assert found.execute("select count(*) from runs").fetchall() == [(1,)], "a run of the same name is gone on with"


def test_a_sink_that_cannot_begin_says_why_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(EsperError, match=r"wandb is not installed: pip install 'esper-nn\[wandb\]'"):
        SINKS["wandb"](tmp_path, "run", {}, 0)
    (tmp_path / "tensorboard").write_text("in the way")
    with pytest.raises(EsperError, match="tensorboard could not start a run"):
        SINKS["tensorboard"](tmp_path, "run", {}, 0)


@pytest.mark.filterwarnings("ignore")
def test_every_report_is_told_and_a_sink_that_fails_is_left_out(tmp_path, monkeypatch):
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
    logging, changes = Logging(log=("wandb", "tensorboard")), (*SMALL, "--exam", "0")
    with pytest.warns(UserWarning, match="wandb no longer listens: the server is gone"):
        Train(recipe="smoke", run_dir=tmp_path / "run", logging=logging, changes=changes).run()
    assert heard == [0, "closed"]
    folder = RunFolder.open(tmp_path / "run")
    assert folder.done
    assert dict(drawn(folder.path)) == pytest.approx(
        {r.update: r.approx_kl for r in folder.reports()}, rel=1e-5, abs=1e-9
    )
