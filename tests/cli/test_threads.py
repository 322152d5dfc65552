"""How the threads of torch wait: asleep in a command, as the user says, and as torch says in a library."""

import os
import subprocess
import sys

import pytest

from esper.cli.threads import SETTINGS, WAITING, let_waiting_threads_sleep

COMMAND = """
import os, sys
assert "torch" not in sys.modules
from esper.cli import main
try:
    main(["bench", "fleet", "--hosts", "0"])
except SystemExit:
    pass
"""
LIBRARY = """
import os
import esper
esper.Controller
"""
TELL = """
import torch
print("policy", os.environ.get("OMP_WAIT_POLICY"))
print("threads", torch.get_num_threads())
"""


def told(code: str, **settings: str) -> subprocess.CompletedProcess:
    """What a fresh process says of its settings; OpenMP writes those that it has read on its own."""
    clean = {name: value for name, value in os.environ.items() if name not in WAITING}
    environment = clean | {"OMP_DISPLAY_ENV": "VERBOSE"} | settings
    return subprocess.run(
        [sys.executable, "-c", code + TELL], env=environment, capture_output=True, text=True, check=True
    )


def test_a_command_lets_idle_threads_sleep():
    """Set before torch loads OpenMP, which would not hear of it later. The number of threads is as without it."""
    command, library = told(COMMAND), told(LIBRARY)
    assert "policy PASSIVE" in command.stdout
    assert "policy None" in library.stdout, "a library leaves the settings of its process alone"
    assert command.stdout.split("threads")[1] == library.stdout.split("threads")[1]
    if "GOMP_SPINCOUNT" in command.stderr:  # GNU's OpenMP says what it has made of it
        assert "GOMP_SPINCOUNT = '500'" in command.stderr
        assert "GOMP_SPINCOUNT = '500'" not in library.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("OMP_WAIT_POLICY", "ACTIVE"), ("GOMP_SPINCOUNT", "1000"), ("KMP_BLOCKTIME", "200")]
)
def test_settings_of_users_win(name, value, monkeypatch):
    for setting in WAITING:
        monkeypatch.delenv(setting, raising=False)
    monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "torch")
    let_waiting_threads_sleep()
    assert {setting: os.environ[setting] for setting in WAITING if setting in os.environ} == {name: value}
    monkeypatch.delenv(name)
    let_waiting_threads_sleep()
    assert {setting: os.environ.pop(setting) for setting in SETTINGS} == SETTINGS


def test_it_is_not_set_once_it_would_have_no_effect(monkeypatch):
    for setting in WAITING:
        monkeypatch.delenv(setting, raising=False)
    let_waiting_threads_sleep()
    assert "torch" in sys.modules
    assert not any(setting in os.environ for setting in WAITING)
