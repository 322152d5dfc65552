"""Listeners hear what reports say, under names that people know."""

import math

import pytest

from esper.cli.train import Listening, Resume, Train
from esper.leyline.actions import Head, Op
from esper.simic import CollectConfig, LearnConfig, train
from esper.telemetry import RunFolder
from esper.telemetry.scalars import scalars
from small_fleets import controller_for, make_env

SMALL = ("--learn.updates", "3", "--fleets.0.hosts", "2", "--fleets.0.env.group", "1", "--fleets.0.env.episode", "3")
SMALL += ("--learn.collect.horizon", "2", "--fleets.0.options.examples", "200", "--exam", "2")


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
