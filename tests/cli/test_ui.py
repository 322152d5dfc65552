"""`esper ui`: what it refuses, what it prints, and that it needs no torch."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from esper.cli import main, ui
from esper.cli.ui import Ui
from esper.leyline.errors import EsperError
from ui_toys import write_run


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


WITH_IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


def refusal(*arguments: str, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["ui", "--no-open", *arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def served(monkeypatch):
    """What would be served, without serving it."""
    found: dict = {"opened": None}

    def serve(library, listener, token, hosts) -> None:
        found.update(library=library, port=listener.getsockname()[1], token=token, hosts=hosts)
        listener.close()

    monkeypatch.setattr("esper.ui.server.serve", serve)
    monkeypatch.setattr(ui.webbrowser, "open", lambda address: found.update(opened=address))
    return found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--host", "0.0.0.0"],
            "host 0.0.0.0 can be reached by other machines: give a --token that visitors must know",
        ),
        pytest.param(["--host", "::"], "host :: can be reached by other machines", marks=WITH_IPV6),
        (["--host", ""], "host '' is no address of this machine: use 127.0.0.1"),
        (["--host", "no such host"], "host 'no such host' is no address of this machine: use 127.0.0.1"),
        (["--host", "192.0.2.1", "--token", "x"], "cannot listen at 192.0.2.1"),
        (["--port", "70000"], "port must be from 0 to 65535, not 70000"),
        (["--port", "-1"], "port must be from 0 to 65535, not -1"),
        (["--token", ""], "token must be some letters, digits or signs of ASCII"),
        (["--token", "pä"], "token must be some letters, digits or signs of ASCII"),
        (["nowhere"], "cannot read the folder nowhere: No such file or directory"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(tmp_path, monkeypatch, capsys, arguments, said, served):
    monkeypatch.chdir(tmp_path)
    told = refusal(*arguments, capsys=capsys)
    assert said in told
    assert told.count("\n") == 1


def test_a_port_that_is_taken_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = f"esper: port {port} is taken: choose another with --port, or --port 0 for any free one\n"
        assert refusal("--port", str(port), capsys=capsys) == said


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_a_missing_package_is_one_sentence(monkeypatch, missing):
    find = ui.find_spec
    monkeypatch.setattr(ui, "find_spec", lambda name: None if name == missing else find(name))
    with pytest.raises(EsperError, match=r"pip install 'esper-nn\[ui\]'"):
        Ui().run()


def test_the_folder_is_runs_or_the_current_one(tmp_path, monkeypatch, served, capsys):
    monkeypatch.chdir(tmp_path)
    Ui(port=0, open=False).run()
    assert served["library"].tree.path == tmp_path
    write_run(tmp_path / "runs/first", [0.5])
    Ui(port=0, open=False).run()
    assert served["library"].tree.path == tmp_path / "runs"
    Ui(folder=Path("runs/first"), port=0, open=False).run()
    assert [place.parts for place in served["library"].tree.find()] == [()]
    assert served["opened"] is None


def test_the_address_is_printed_with_the_token(tmp_path, served, capsys):
    Ui(folder=tmp_path, port=0, open=True, host="0.0.0.0", token="a b&c").run()
    said = capsys.readouterr().out
    assert said.startswith(f"showing {tmp_path} at http://")
    assert f":{served['port']}/?token=a%20b%26c " in said
    assert "0.0.0.0" not in said, "no address to open"
    assert served["opened"] in said
    assert served["token"] == "a b&c"


@WITH_IPV6
def test_an_address_of_ipv6_is_printed_in_brackets(tmp_path, served, capsys):
    Ui(folder=tmp_path, port=0, open=False, host="::1").run()
    assert f"at http://[::1]:{served['port']}/ " in capsys.readouterr().out


def test_a_browser_is_opened_only_beside_a_terminal_with_a_desktop(monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert Ui().open
    monkeypatch.setenv("SSH_CONNECTION", "there")
    assert not Ui().open
    monkeypatch.delenv("SSH_CONNECTION")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert not Ui().open
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert Ui().open == (sys.platform in ("darwin", "win32"))


@pytest.mark.parametrize(
    "code",
    [
        "import esper.ui.server, esper.ui.pages, esper.cli.ui",
        "import esper.dashboard.curves, esper.dashboard.views, esper.dashboard.sentences",
        "from esper.cli import main\ntry: main(['ui', '--help'])\nexcept SystemExit: pass",
    ],
)
def test_the_page_needs_no_torch(code):
    told = f"{code}\nimport sys; print(sorted({{'torch', 'numpy', 'matplotlib', 'jaxtyping'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_help_does_not_load_the_server():
    code = "from esper.cli import main\ntry: main(['ui', '--help'])\nexcept SystemExit: pass"
    told = f"{code}\nimport sys; print(sorted({{'starlette', 'uvicorn', 'rich'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert "--no-open" in result.stdout
    assert "starlette" not in result.stdout.splitlines()[-1]
