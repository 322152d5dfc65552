"""Folders and requests made by somebody who means harm: nothing outside is read, nothing fails, nothing hangs."""

import json
import os
import socket
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from esper.ui.server import TYPES
from ui_toys import Asker, line, live, write_growth, write_run

SECRET = "the-secret-outside"
PATHS = ("", "/curves", "/garden", "/lives", "/lives/0", "/exams", "/growth")
FILES = ("config.json", "environment.json", "start.json", "exam.json", "lives.jsonl", "garden.jsonl", "reports.jsonl")
FILES += ("growth.json", "growth.jsonl", "controller.safetensors", ".lock")
NAMES = (b"<script>alert(1)</script>", b"..%2f..", b"a\nb", b"\xff\xfe", b"'\"&", "\u202e".encode(), b"%00", b"x" * 255)


def outside(folder: Path) -> Path:
    """Make a folder with secrets, in all shapes that the server reads."""
    run = write_run(folder / "outside/run", [0.5], {"name": SECRET})
    (run / "secret.txt").write_text(SECRET)
    (run / "lives.jsonl").write_text(json.dumps({"task": SECRET, "arm": SECRET, "epochs": []}) + "\n")
    growth = write_growth(folder / "outside/growth")
    (growth / "growth.json").write_text(json.dumps({"name": SECRET}))
    return folder / "outside"


def hostile(folder: Path) -> Path:
    """Make a folder of runs, each with something that leads outside, hangs, or is no name."""
    secrets, inside = outside(folder), folder / "inside"
    write_run(inside, [0.5])
    for name in NAMES:
        write_run(Path(os.fsdecode(os.path.join(os.fsencode(inside), name))), [0.5])
    os.symlink(secrets, inside / "link")
    os.symlink("/etc", inside / "etc")
    for i, name in enumerate(FILES):
        for target in (secrets / "run" / name, secrets / "run/secret.txt", Path("/etc/passwd"), Path("/dev/zero")):
            run = write_growth(write_run(inside / f"link-{i}-{target.name}", [0.5]))
            (run / name).unlink(missing_ok=True)
            os.symlink(target, run / name)
        for kind, make in {"pipe": os.mkfifo, "folder": os.mkdir}.items():
            run = write_growth(write_run(inside / f"{kind}-{i}", [0.5]))
            (run / name).unlink(missing_ok=True)
            make(run / name)
    inside.joinpath(*"abcdefghijklmnopqrst").mkdir(parents=True)
    return inside


@pytest.fixture(scope="module")
def asker(tmp_path_factory) -> Asker:
    return Asker(hostile(tmp_path_factory.mktemp("hostile")))


def check(asker: Asker, path: str) -> None:
    """Ask, and see that the answer is one of ours, without anything from outside."""
    found = asker(path)
    assert found.status in (200, 400, 404, 422), (path, found)
    assert SECRET.encode() not in found.body, path
    assert b"root:" not in found.body, path
    if found.headers["content-type"] == "application/json":
        found.json  # noqa: B018


def test_nothing_outside_is_shown(asker):
    check(asker, "/api/runs?limit=1000")
    asker.read_all()
    for sort in ("name", "best", "updates", "modified"):
        check(asker, f"/api/runs?limit=1000&sort={sort}")
    assert len(asker.library.runs) > 100
    for id in asker.library.runs:
        for path in PATHS:
            check(asker, f"/api/runs/{id}{path}")


def test_names_are_text_and_the_same_everywhere(asker):
    names = {row["name"] for row in asker.listed("limit=1000")}
    assert {"<script>alert(1)</script>", "a b", "\ufffd\ufffd", "'\"&", "\ufffd", "%00", "x" * 255} <= names
    assert not any(name.startswith(("link/", "etc/")) for name in names)


@pytest.mark.parametrize(
    "dots", ["..", "%2e%2e", "%2E.", ".%2e", "%252e%252e", "..%2f", "..%5c", "%c0%ae%c0%ae", "....//"]
)
def test_dots_lead_nowhere(asker, dots):
    id = asker.run("a b").id
    for path in ("/static", "/api/runs", f"/api/runs/{id}", f"/api/runs/{id}/lives"):
        for target in ("outside/run/secret.txt", "views.py", "etc/passwd", "link", ""):
            found = asker(f"{path}/{dots}/{dots}/{target}")
            assert found.status in (400, 404, 422), (path, found)
            assert found.json.keys() == {"problem"}


def test_only_files_of_the_page_are_served(asker):
    folder = files("esper.dashboard") / "static"
    for name in (file.name for file in folder.iterdir() if file.name.rpartition(".")[2] in TYPES):
        assert asker(f"/static/{name}").body == (folder / name).read_bytes()
    for name in ("", "/", "../views.py", "..", ".", "/etc/passwd", "index.html/", "index.html%00.js", "\x00"):
        assert asker(f"/static/{name}").status == 404


WORDS = """/ .. %2e%2e %2f %5c \\ %00 api runs static curves lives events 0 outside secret.txt etc passwd %ff % ? & =
limit offset sort points -1 from count search state 99999999999999999999 NaN é {id} + #"""
PIECES = st.sampled_from([*WORDS.split(), " ", "\x00", "\ud800", "a" * 300])


@given(st.lists(PIECES, max_size=12))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_request_makes_it_fail(asker, pieces):
    id = asker.run("a b").id
    target = "/" + "".join(pieces).replace("{id}", id)
    if "api/events" not in target.partition("?")[0]:  # which does not end
        check(asker, target)


@given(
    st.sampled_from(["/api/runs?", "/api/runs/{id}/curves?", "/api/runs/{id}/garden?"]), st.lists(PIECES, max_size=8)
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_query_makes_it_fail(asker, path, pieces):
    check(asker, path.replace("{id}", asker.run("a b").id) + "".join(pieces))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["version", "recipe", "a"]), inner),
    max_leaves=6,
)
KEYS = ("update", "objective", "heads", "ops", "seconds", "anomalies", "fleets", "cells", "epochs", "point", "event")
KEYS += (
    "exams",
    "arms",
    "policy",
    "step",
    "flops",
    "parameters",
    "kind",
    "name",
    "never",
    "recipe",
    "version",
    "learn",
)
RECORDS = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
LINES = st.lists(RECORDS.map(lambda x: json.dumps(x).encode()) | st.binary(max_size=30), max_size=5).map(b"\n".join)


@given(st.dictionaries(st.sampled_from(FILES), LINES, max_size=4), st.booleans())
@settings(max_examples=100)
def test_no_content_of_files_makes_it_fail(tmp_path_factory, contents, has_end):
    folder = tmp_path_factory.mktemp("fuzz")
    write_growth(write_run(folder / "run", [0.5]), {"point": {"step": 1, "flops": 1, "parameters": 1}})
    for name, content in contents.items():
        (folder / "run" / name).write_bytes(content + b"\n" * has_end)
    asker = Asker(folder)
    check(asker, "/api/runs")
    for id in asker.library.runs:
        for path in PATHS:
            check(asker, f"/api/runs/{id}{path}")


def mutated(plain: object, path: tuple[int, ...], value: object) -> object:
    """Return JSON with one of its parts replaced."""
    if not path or not isinstance(plain, dict | list) or not plain:
        return value
    keys = list(plain) if isinstance(plain, dict) else range(len(plain))
    key = keys[path[0] % len(keys)]
    copy = plain.copy()
    copy[key] = mutated(plain[key], path[1:], value)
    return copy


EXAM = json.loads((files("esper.tamiyo") / "shipped/exam.json").read_text())
SCORED = {"scores": [0.5], "objectives": [0.4]}
EXAM["exams"] = [{**exam, "arms": [arm | SCORED for arm in exam["arms"][:3]]} for exam in EXAM["exams"][:2]]


@given(st.lists(st.integers(0, 40), max_size=6).map(tuple), VALUES | st.sampled_from([1e308, -1e308, 0, "", 10**400]))
@settings(max_examples=150)
def test_no_number_in_an_exam_makes_it_fail(tmp_path_factory, path, value):
    folder = tmp_path_factory.mktemp("exam")
    run = write_run(folder / "run", [0.5])
    with suppress(ValueError):  # a number of too many digits is none that a file can hold
        (run / "exam.json").write_text(json.dumps(mutated(EXAM, path, value)))
    asker = Asker(folder)
    for part in ("", "/exams", "/curves"):
        check(asker, f"/api/runs/{asker.run('run').id}{part}")


def test_ten_thousand_runs_are_listed_page_by_page(tmp_path):
    for i in range(10_000):
        folder = tmp_path / f"{i % 100:02}" / f"{i:05}"
        folder.mkdir(parents=True)
        (folder / "reports.jsonl").touch()
    asker = Asker(tmp_path)
    first = asker("/api/runs?sort=name&limit=200").json
    assert first["total"] == 10_000
    assert [row["name"] for row in first["runs"][:2]] == ["00/00000", "00/00100"]
    assert len(first["runs"]) == 200
    last = asker("/api/runs?sort=name&limit=200&offset=9900").json["runs"]
    assert [row["name"] for row in last][-1] == "99/09999"
    assert asker("/api/runs?search=/0123").json["total"] == 10
    assert asker("/api/runs?state=damaged&sort=-best").status == 200


def test_a_long_line_without_an_end_is_damage(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "reports.jsonl").write_text(line(0) + "x" * (5 << 20) + "\n" + line(1) + '{"update": 2')
    told = Asker(tmp_path).get("run", "/curves")
    assert (told["x"], told["skipped"]) == ([0, 1], 1)


def test_no_bytes_on_the_wire_end_the_server(tmp_path):
    write_run(tmp_path / "run", [0.5])
    sent = [b"\x00" * 100, b"GET / HTTP/1.1\r\n\r\n", b"GET /../../etc/passwd HTTP/1.0\r\nHost: localhost\r\n\r\n"]
    sent += [b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET " + b"a" * 99_999, b"\r\n" * 1000]
    sent += [b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"GET /\xff\xfe HTTP/1.1\r\n"]
    with live(tmp_path) as server:
        for text in sent:
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
                connection.sendall(text)
                connection.shutdown(socket.SHUT_WR)
                answer = b""
                with suppress(ConnectionResetError):
                    while part := connection.recv(1 << 16):
                        answer += part
                assert SECRET.encode() not in answer
                assert not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 5")), text
        assert server.get("/api/runs")["total"] == 1
