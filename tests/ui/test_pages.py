"""The JSON of the server, path by path, as the contract names it."""

import json
import os
import shutil
from dataclasses import asdict, replace

import pytest

from esper.dashboard.sentences import WORDS
from esper.leyline.json_records import jsonable
from esper.telemetry import RunFolder
from telemetry_toys import arm, exam, garden, life
from ui_toys import PLAIN, Asker, append, line, write_growth, write_run

OURS, NEVER = arm("learned"), arm("never", 0.1, 0.05, 0.2)
RUN = {"id", "kind", "name", "title", "state", "modified", "updates", "of", "best", "last", "never", "exact", "spark"}
DETAIL = {"id", "kind", "name", "title", "state", "sentence", "facts", "config", "environment", "problem", "reading"}
CURVES = {"updates", "of", "x", "columns", "low", "high", "mix", "planted", "heads", "lines", "anomalies", "skipped"}


@pytest.fixture
def folder(tmp_path):
    """A run with everything: exams, episodes and a garden."""
    path = write_run(tmp_path / "full", [0.25, 0.5])
    (path / "start.json").write_text('{"lives": 0, "decisions": 0, "seconds": 0, "never": 0.375}')
    grew, never = life("WAIT", "GERMINATE"), replace(life("WAIT", "WAIT"), arm="never")
    RunFolder(path).write_exam([exam(OURS, NEVER)], [grew, never, replace(grew, host=1)])
    fleets = [asdict(garden()), {**asdict(garden()), "fleet": 1, "label": "other"}]
    append(path, "".join(json.dumps({"update": i, "fleets": fleets}) + "\n" for i in range(3)), "garden.jsonl")
    return tmp_path


def test_the_list_has_all_that_the_contract_names(folder):
    write_run(folder / "empty")
    write_growth(folder / "gpt")
    found = Asker(folder)("/api/runs")
    assert found.status == 200
    assert found.headers["content-type"] == "application/json"
    assert found.json.keys() == {"folder", "total", "runs", "problems"}
    assert (found.json["folder"], found.json["total"], found.json["problems"]) == (folder.name, 3, [])
    assert all(row.keys() == RUN | {"problem"} for row in found.json["runs"])


def test_the_list_is_sorted_filtered_and_cut(tmp_path):
    for name, objectives in {"b": [0.5], "a": [0.25, 0.75], "c": [], "Ab": [0.1, 0.1, 0.1]}.items():
        write_run(tmp_path / name, objectives, {"name": f"recipe of {name}"})
    (tmp_path / "c/controller.safetensors").touch()
    asker = Asker(tmp_path)

    def names(query: str) -> list[str]:
        return [row["name"] for row in asker.listed(query)]

    assert names("sort=name") == ["a", "Ab", "b", "c"]
    assert names("sort=-best") == ["a", "b", "Ab", "c"], "a run without J comes last"
    assert names("sort=best") == ["Ab", "b", "a", "c"]
    write_growth(tmp_path / "gpt", {"point": {"step": 1, "flops": 1, "parameters": 1, "loss": 2.0}})
    asker.search()
    assert names("sort=-best") == ["a", "b", "Ab", "c", "gpt"], "a loss is no J"
    shutil.rmtree(tmp_path / "gpt")
    asker.search()
    assert names("sort=-updates") == ["Ab", "a", "b", "c"]
    assert names("sort=name&offset=1&limit=2") == ["Ab", "b"]
    assert names("sort=name&search=A") == ["a", "Ab"]
    assert names("search=RECIPE OF b") == ["b"]
    assert names("state=done") == ["c"]
    assert asker("/api/runs?limit=1").json["total"] == 4
    for name, when in {"a": 3, "b": 1, "c": 2, "Ab": 4}.items():
        for file in (tmp_path / name).iterdir():
            os.utime(file, (when, when))
    asker.search()
    assert names("") == ["Ab", "a", "c", "b"], "the latest first"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=0", "Limit must be a whole number from 1 to 1000."),
        ("limit=1001", "Limit must be a whole number from 1 to 1000."),
        ("offset=-1", "Offset must be a whole number from 0 to 9007199254740992."),
        ("offset=" + "9" * 5000, "Offset must be a whole number from 0 to 9007199254740992."),
        ("offset=²", "Offset must be a whole number from 0 to 9007199254740992."),
        (
            "sort=size",
            "Sort must be one of modified, name, best, updates, with a - in front for descending, not 'size'.",
        ),
        ("state=lost", "State must be one of running, stopped, done, damaged, or empty."),
    ],
)
def test_a_query_that_makes_no_sense_is_one_sentence(tmp_path, query, said):
    found = Asker(tmp_path)(f"/api/runs?{query}")
    assert (found.status, found.json) == (422, {"problem": said})


def test_a_run_is_described(folder):
    asker = Asker(folder)
    told = asker.get("full")
    assert told.keys() == DETAIL | {"views", "resume", "never"}
    assert told["sentence"] == "On 30 fresh hosts of digits the controller beats never growing by 0.100 in J."
    assert told["facts"][:2] == [["Recipe", "smoke"], ["Host", "spirals, mlp 4-4"]]
    assert told["views"] == ["run", "garden", "lives", "frontier"]
    assert told["config"]["name"] == "smoke"
    assert told["environment"] == {"device": "cpu", "threads": 2}
    assert (told["never"], told["reading"], told["problem"]) == (0.375, 1.0, None)
    assert told["resume"] == f"esper resume {folder}/full"


def test_a_run_that_is_done_is_not_resumed_and_one_with_an_odd_name_has_no_command(tmp_path):
    (write_run(tmp_path / "done") / "controller.safetensors").touch()
    write_run(tmp_path / "odd\nname")
    write_run(tmp_path / "two words; rm -rf")
    asker = Asker(tmp_path)
    assert asker.get("done")["resume"] is None
    assert asker.get("odd name")["resume"] is None
    assert asker.get("two words; rm -rf")["resume"] == f"esper resume '{tmp_path}/two words; rm -rf'"
    assert asker.get("done")["views"] == ["run"]
    assert asker.get("done")["sentence"] == "A trained controller, without a log of its training."


def test_a_run_with_a_damaged_exam_is_described_and_says_so(folder):
    (folder / "full/exam.json").write_text('{"exams": [{}]}')
    asker = Asker(folder)
    told = asker.get("full")
    assert told["problem"] == "exam.json is damaged: exams[0] lacks the field 'arms'."
    assert told["views"] == ["run", "garden", "lives"]
    assert told["sentence"].startswith("The run stopped after 2 of 9 updates")
    found = asker(f"/api/runs/{asker.run('full').id}/exams")
    assert (found.status, found.json["problem"]) == (422, "exam.json is damaged: exams[0] lacks the field 'arms'.")
    assert [shown["label"] for shown in asker.get("full", "/curves")["lines"]] == ["never grows"]


def test_curves_are_those_of_the_reports_with_lines_of_exams(folder):
    told = Asker(folder).get("full", "/curves")
    assert told.keys() == CURVES | {"note"}
    assert (told["updates"], told["of"], told["x"]) == (2, 9, [0, 1])
    assert told["columns"]["objective"] == [0.25, 0.5]
    assert [shown["label"] for shown in told["lines"]] == ["never grows", "exam: learned", "exam: never"]
    assert len(Asker(folder).get("full", "/curves?points=1")["x"]) == 1


def test_curves_follow_a_log_that_grows_or_is_cut(folder):
    asker, log = Asker(folder), folder / "full/reports.jsonl"
    assert asker.get("full", "/curves")["x"] == [0, 1]
    append(folder / "full", line(2, 0.75)[:50])
    assert asker.get("full", "/curves")["skipped"] == 0
    append(folder / "full", line(2, 0.75)[50:])
    assert asker.get("full", "/curves")["columns"]["objective"] == [0.25, 0.5, 0.75]
    log.write_text(line(0, 0.125) + line(1, 0.25) + line(2, 0.5) + line(3, 1.0))
    assert asker.get("full", "/curves")["columns"]["objective"] == [0.125, 0.25, 0.5, 1.0]


def test_damaged_lines_are_counted_and_said(folder):
    append(folder / "full", "broken\n" + line(5, 0.5) + "\n")
    told = Asker(folder).get("full", "/curves")
    assert (told["x"], told["skipped"]) == ([0, 1, 5], 2)
    assert told["note"] == "2 lines are damaged and left out."


def test_a_garden_is_shown_frame_by_frame(folder):
    asker = Asker(folder)
    told = asker.get("full", "/garden")
    fleets = [{"label": "toy, gpt 8", "hosts": 2, "slots": ["s0"]}, {"label": "other", "hosts": 2, "slots": ["s0"]}]
    assert (told["fleets"], told["frames"], told["from"]) == (fleets, 6, 0)
    assert [(f["update"], f["decision"]) for f in told["shown"]] == [(i // 2, i % 2) for i in range(6)]
    assert told["shown"][1]["fleets"][1] == {"cells": "b4D0", "ops": "WW", "scores": [0.3, 0.4], "born": []}
    part = asker.get("full", "/garden?from=3&count=2")
    assert (part["shown"], part["from"]) == (told["shown"][3:5], 3)
    assert asker.get("full", "/garden?from=99")["shown"] == []
    append(
        folder / "full", '{"update": 3}\n[]\n' + json.dumps({"update": 4, "fleets": [asdict(garden())]}), "garden.jsonl"
    )
    assert asker.get("full", "/garden")["frames"] == 6, "damaged lines, and one without an end"
    append(folder / "full", "\n", "garden.jsonl")
    assert asker.get("full", "/garden?from=6")["shown"][0]["update"] == 4


def test_episodes_are_listed_and_shown_beside_their_twins(folder):
    asker = Asker(folder)
    told = asker.get("full", "/lives")["lives"]
    assert [(row["index"], row["arm"], row["host"], row["epochs"]) for row in told] == [
        (0, "learned", 0, 2),
        (1, "never", 0, 2),
        (2, "learned", 1, 2),
    ]
    shown = asker.get("full", "/lives/0")
    assert shown.keys() == {"task", "kind", "arm", "host", "slots", "never", "epochs"}
    assert [epoch["op"] for epoch in shown["epochs"]] == ["WAIT", "GERMINATE"]
    assert shown["epochs"][0] == jsonable(asdict(life("WAIT").epochs[0])) | {"slots": [], "legal": []}
    assert shown["never"] == [0.5, 0.5]
    assert asker.get("full", "/lives/2")["never"] is None, "no equal host was recorded"
    for index, status in {"3": 404, "-1": 422, "x": 422, "9" * 5000: 422}.items():
        assert asker(f"/api/runs/{asker.run('full').id}/lives/{index}").status == status


def test_exams_are_shown_and_read_again_when_they_change(folder):
    asker = Asker(folder)
    (told,) = asker.get("full", "/exams")["exams"]
    assert [arm["name"] for arm in told["arms"]] == ["learned", "never"]
    RunFolder(folder / "full").write_exam([exam(OURS, NEVER), exam(OURS)], [])
    assert len(asker.get("full", "/exams")["exams"]) == 2
    write_run(folder / "empty")
    asker.search()
    assert asker.get("empty", "/exams") == {"exams": []}


def test_a_growth_is_described_and_shown(tmp_path):
    numbers = {"step": 1, "flops": 10, "parameters": 100, "loss": 2.0}
    event = {**numbers, "kind": "deepen", "progress": 0.5, "blocks": 3, "detail": "h: 2"}
    write_growth(tmp_path / "gpt", {"point": numbers}, {"event": event})
    asker = Asker(tmp_path)
    told = asker.get("gpt")
    assert told.keys() == DETAIL | {"views", "resume", "never"}
    assert (told["kind"], told["views"], told["title"]) == ("growth", ["growth"], "GPT")
    shown = asker.get("gpt", "/growth")
    assert shown["sentence"] == told["sentence"]
    assert told["sentence"].startswith("Grew from 2 to 3 blocks (100 parameters) in 1 step so far")
    keys = {"sentence", "name", "steps", "spent", "budget", "is_over", "parameters", "blocks", "points", "events"}
    assert shown.keys() == keys | {"options"}


def test_a_run_is_no_growth_and_a_growth_no_run(folder):
    write_growth(folder / "gpt")
    asker = Asker(folder)
    for name, path in {"gpt": "curves", "full": "growth"}.items():
        id = asker.run(name).id
        found = asker(f"/api/runs/{id}/{path}")
        assert (found.status, f"{id} is a" in found.json["problem"]) == (422, True)


def test_words_are_those_of_the_table(tmp_path):
    assert Asker(tmp_path)("/api/words").json == WORDS


def test_what_is_not_there_is_one_sentence(folder):
    asker = Asker(folder)
    id = asker.run("full").id
    for path in (
        "/nothing",
        "/api",
        "/api/runs/0",
        f"/api/runs/{id}/nothing",
        "/static/nothing.js",
        "/api/events?run=0",
    ):
        found = asker(path)
        assert found.status == 404, path
        assert found.json.keys() == {"problem"}


def test_a_run_that_was_removed_says_so(folder):
    asker = Asker(folder)
    id = asker.run("full").id
    (folder / "full").rename(folder.parent / "elsewhere")
    told = asker(f"/api/runs/{id}").json
    assert (told["state"], told["problem"]) == ("damaged", "The folder of this run is gone.")
    assert asker(f"/api/runs/{id}/curves").status == 422
    asker.search()
    assert asker(f"/api/runs/{id}").status == 404


def test_few_logs_are_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("esper.ui.library.OPENED", 3)
    for i in range(6):
        write_run(tmp_path / str(i), [i / 8])
    asker = Asker(tmp_path)
    for _ in range(2):
        for i in range(6):
            assert asker.get(str(i), "/curves")["columns"]["objective"] == [i / 8]
    assert len(asker.library.opened) == 3


def test_a_log_that_takes_long_is_shown_in_part(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run")
    (run / "reports.jsonl").write_text("".join(json.dumps({**PLAIN, "update": i}) + "\n" for i in range(1000)))
    monkeypatch.setattr("esper.ui.library.PATIENCE", 0.0)
    asker = Asker(tmp_path)
    told = asker.get("run", "/curves")
    assert 0 < told["updates"] < 1000
    share = asker.get("run")["reading"]
    assert 0 < share < 1
    assert told["note"] == f"Still reading the log: {share:.0%}."
    assert asker.get("run", "/curves")["updates"] == told["updates"], "the background reads on"
    asker.read_all()
    told = asker.get("run", "/curves")
    assert (told["updates"], told["note"]) == (1000, None)
    assert asker.get("run")["reading"] == 1.0
