"""A server that runs: changes are told within two seconds, large folders cost little, and it ends at once."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from esper.telemetry import RunFolder
from esper.telemetry.lock import locked
from esper.ui import watching
from telemetry_toys import arm, exam
from ui_toys import append, line, live, next_change, short_line, until, write_growth, write_run

SOON = 2.0
"""Seconds in which a change must be told."""
ESPER = Path(sys.executable).with_name("esper")


def told_soon(server, run: str, change) -> set[str]:
    """Make a change, and return what the page of a run is told of it."""
    with server.events(f"?run={run}") as stream:
        started = time.monotonic()
        change()
        told = next_change(stream)
        assert time.monotonic() - started < 2 * SOON, "twice as long, for machines that do much else"
        assert told["id"] == run
        return set(told["what"])


def test_changes_of_a_run_are_told(tmp_path):
    run = write_run(tmp_path / "run", [0.5])
    with live(tmp_path) as server:
        id = server.id("run")
        assert told_soon(server, id, lambda: append(run, line(1))) == {"reports"}
        assert server.get(f"/api/runs/{id}/curves")["updates"] == 2
        assert told_soon(server, id, lambda: append(run, "{}\n", "garden.jsonl")) == {"garden"}
        assert "exams" in told_soon(server, id, lambda: RunFolder(run).write_exam([exam(arm("learned"))], []))
        assert told_soon(server, id, lambda: (run / "controller.safetensors").touch()) == {"state"}
        assert server.get(f"/api/runs/{id}")["state"] == "done"
        os.truncate(run / "reports.jsonl", 0)
        assert told_soon(server, id, lambda: append(run, line(0))) == {"reports"}
        assert server.get(f"/api/runs/{id}/curves")["x"] == [0]


def test_beginning_and_ending_of_a_run_are_told(tmp_path):
    run = write_run(tmp_path / "run", [0.5])
    with live(tmp_path) as server, ExitStack() as stack:
        id = server.id("run")
        assert told_soon(server, id, lambda: stack.enter_context(locked(run / ".lock", run))) == {"state"}
        assert server.get(f"/api/runs/{id}")["state"] == "running"
        assert told_soon(server, id, stack.close) == {"state"}
        assert server.get(f"/api/runs/{id}")["state"] == "stopped"


def test_changes_of_a_growth_are_told(tmp_path):
    folder = write_growth(tmp_path / "gpt")
    with live(tmp_path) as server:
        point = {"point": {"step": 1, "flops": 1, "parameters": 1, "loss": 1.0}}
        change = lambda: append(folder, json.dumps(point) + "\n", "growth.jsonl")  # noqa: E731
        assert told_soon(server, server.id("gpt"), change) == {"growth"}


def test_changes_of_the_list_are_told(tmp_path):
    run = write_run(tmp_path / "run", [0.5])
    write_run(tmp_path / "other", [0.5])
    with live(tmp_path) as server:
        id = server.id("run")
        until(lambda: all(row["exact"] for row in server.get("/api/runs")["runs"]))
        with server.events() as stream:
            append(run, line(1))
            assert next_change(stream) == {"id": id, "what": ["runs"]}
            write_run(tmp_path / "new", [0.5])
            until(lambda: next_change(stream) and server.get("/api/runs")["total"] == 3)


def test_a_run_that_is_removed_is_told_of(tmp_path):
    run = write_run(tmp_path / "run", [0.5])
    with live(tmp_path) as server:
        id = server.id("run")
        assert "state" in told_soon(server, id, lambda: run.rename(tmp_path / ".hidden"))
        until(lambda: server.get("/api/runs")["total"] == 0)


def test_a_quiet_stream_is_kept_alive(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "HEARTBEAT", 0.1)
    with live(tmp_path) as server, server.events() as stream:
        found = [stream.readline() for _ in range(5)]
    assert b": still here\n" in found


def test_pages_that_listen_are_bounded_and_their_places_are_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr("esper.ui.server.MOST_CLIENTS", 3)
    with live(tmp_path) as server:
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(server.events())
            assert server.get("/api/events") == {"problem": "Too many pages are open: close some."}
            assert server.get("/api/runs")["total"] == 0
        until(lambda: not server.site.watcher.clients)
        with server.events():
            pass


def test_many_changes_are_one_message_to_a_page_that_is_slow():
    client = watching.Client("a")
    for i in range(10_000):
        client.tell("a", {"reports" if i % 2 else "garden"})
    assert client.taken() == 'event: change\ndata: {"id": "a", "what": ["garden", "reports"]}\n\n'
    assert not client.awake.is_set()
    everywhere = watching.Client(None)
    for id in ("a", "b"):
        everywhere.tell(id, {"runs"})
    assert '"id": null' in everywhere.taken()


def test_while_no_page_is_open_nothing_is_looked_at(tmp_path, monkeypatch):
    write_run(tmp_path / "run", [0.5])
    looked = []
    with live(tmp_path) as server:
        monkeypatch.setattr(server.site.watcher, "_look", lambda watched: looked.append(watched) or {})
        time.sleep(1.5)
        assert looked == []
        with server.events():
            until(lambda: looked)


def test_a_fault_while_looking_does_not_end_the_looking(tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path / "run", [0.5])
    monkeypatch.setattr(watching, "EVERY", 0.05)
    with live(tmp_path) as server:
        id, look = server.id("run"), server.site.watcher._look
        with server.events(f"?run={id}") as stream:
            monkeypatch.setattr(server.site.watcher, "_look", lambda watched: 1 / 0)
            until(lambda: "ZeroDivisionError" in capsys.readouterr().err)
            monkeypatch.setattr(server.site.watcher, "_look", look)
            append(run, line(1))
            assert next_change(stream)["what"] == ["reports"]


def test_a_log_of_two_gigabytes_is_read_beside_other_requests(tmp_path):
    write_run(tmp_path / "small", [0.5])
    with open(write_run(tmp_path / "large") / "reports.jsonl", "wb") as file:
        file.write(line(0).encode())
        file.seek(2 << 30)
        file.write(b"\n" + line(1).encode())
    with live(tmp_path) as server:
        small, large = server.id("small"), server.id("large")
        with server.events(f"?run={large}") as stream:
            threads = [threading.Thread(target=server.get, args=(f"/api/runs/{large}/curves",)) for _ in range(50)]
            for thread in threads:
                thread.start()
            for _ in range(5):
                started = time.monotonic()
                assert server.get(f"/api/runs/{small}/curves")["updates"] == 1
                assert time.monotonic() - started < 5
            for thread in threads:
                thread.join()
            assert "reports" in next_change(stream)["what"], "how far it has been read"
        assert server.get(f"/api/runs/{large}/curves")["updates"] >= 1
        assert 0 < server.get(f"/api/runs/{large}")["reading"] <= 1


@contextmanager
def started(*arguments: str | Path):
    """Yield a process of `esper ui`, and its port."""
    command = [str(ESPER), "ui", "--no-open", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[3]
        yield process, int(address.split(":")[2].partition("/")[0])
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            pipe and pipe.close()


def get(port: int, path: str) -> dict:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def cpu_seconds(process: subprocess.Popen) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def megabytes(process: subprocess.Popen) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(row.split()[1]) / 1024 for row in status.splitlines() if row.startswith("VmHWM"))


def test_three_hundred_runs_of_ten_thousand_reports(tmp_path):
    """Nothing is read at the start; the first list takes samples; then logs are read in bounded memory."""
    first = write_run(tmp_path / "000")
    (first / "reports.jsonl").write_text("".join(short_line(i, i / 1e4) for i in range(10_000)))
    for i in range(1, 300):
        folder = tmp_path / f"{i:03}"
        folder.mkdir()
        for file in first.iterdir():
            os.link(file, folder / file.name)
    with started(tmp_path, "--port", "0") as (process, port):
        assert cpu_seconds(process) < 1.5, "of which nearly all is importing"
        found = get(port, "/api/runs?limit=300")
        assert cpu_seconds(process) < 3.5
        assert found["total"] == 300
        rows = [row for row in found["runs"] if row["updates"] is not None]
        assert len(rows) > 100
        assert {row["updates"] for row in rows} == {10_000}
        assert not any(row["exact"] for row in rows[50:])
        until(lambda: sum(row["exact"] for row in get(port, "/api/runs?limit=300")["runs"]) > 20, 60)
        for row in found["runs"][:30]:
            curves = f"/api/runs/{row['id']}/curves?points=100"
            until(lambda path=curves: get(port, path)["columns"]["objective"][-1] > 0.98, 60)
        assert megabytes(process) < 160


@pytest.mark.parametrize("streams", [0, 3])
def test_the_server_ends_at_once_with_open_streams(tmp_path, streams):
    write_run(tmp_path / "run", [0.5])
    with started(tmp_path, "--port", "0") as (process, port), ExitStack() as stack:
        for _ in range(streams):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            stack.callback(connection.close)
            connection.request("GET", "/api/events")
            assert connection.getresponse().readline() == b": esper\n"
        get(port, "/api/runs")
        process.send_signal(signal.SIGINT)
        process.wait(5)
        assert process.returncode == 0
        assert process.stderr.read() == ""
