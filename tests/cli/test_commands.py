"""The front door: help, typos, tables and messages, before and without torch."""

import io
import json
import os
import pty
import re
import subprocess
import sys
import time
from inspect import getdoc

import pytest
import torch
from rich.console import Console

import esper
from esper.cli import explained, main
from esper.cli.commands import COMMANDS, Command, Group, overview, parse
from esper.cli.console import literal_console, print_table, show_exam
from esper.cli.watch import Watch, refresh
from esper.leyline.errors import EsperError
from esper.recipes import RECIPES, recipe
from esper.tasks import register_task, unregister_task
from esper.telemetry import Board, RunFolder
from esper.telemetry.folder import LOGS
from telemetry_toys import arm, exam, report

RUN = "import sys; from esper.cli import main\ntry: main(sys.argv[1:])\n"
RUN += "finally: print('torch' in sys.modules, file=sys.stderr)"
CUT = "=== next list ==="
LISTS = f"from esper.cli import main\nfor name in ('recipes', 'tasks', 'blueprints'): main([name]); print('{CUT}')"
ODD = ("[red]run[/red]", "[/]", "[bold", ":smile:")
"""Names that rich would take for markup or emoji."""


def leaves(commands=COMMANDS, words=()):
    """All commands with the words that call them."""
    for name, command in commands.items():
        if isinstance(command, Group):
            yield from leaves(command.commands, (*words, name))
        else:
            yield (*words, name), command


def answer(*arguments, columns=80):
    """What `esper` prints in a process of its own, its exit code, and whether it imported torch."""
    result = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": str(columns)},
    )
    *error, imported = result.stderr.splitlines()
    return result.returncode, result.stdout, "\n".join(error), imported == "True"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "usage: esper COMMAND"),
        (["-h"], 0, "Compare a controller with baseline policies"),
        (["--version"], 0, f"esper {esper.__version__}"),
        ([], 2, "usage: esper COMMAND"),
        (["trian"], 2, "esper: unknown command 'trian': did you mean 'train'?"),
        (["--verison"], 2, "esper: unknown flag '--verison': did you mean '--version'?"),
        (["--device", "cpu"], 2, "esper: unknown flag '--device': flags of a command stand after it"),
        (["nothing"], 2, "esper: unknown command 'nothing': choose from train, resume"),
        (["bench"], 2, "usage: esper bench COMMAND"),
        (["bench", "--help"], 0, "usage: esper bench COMMAND"),
        (["bench", "flet"], 2, "esper: unknown command 'flet': did you mean 'fleet'?"),
        (["bench", "fleet", "--help"], 0, "--workload NAME"),
        (["bench", "fleet", "--worklod", "cifar"], 2, "--workload"),
        (["watch", "--help"], 0, "Seconds between refreshes."),
        (["report", "--help"], 0, "usage: esper report"),
        (["recipes", "--help"], 0, "usage: esper recipes"),
        (["tasks", "--help"], 0, "usage: esper tasks"),
        (["watch", "nowhere"], 2, "esper: nowhere holds no run"),
    ],
)
def test_help_and_typos_are_answered_without_torch(arguments, code, said):
    start = time.perf_counter()
    returned, out, error, imported = answer(*arguments)
    assert (returned, imported) == (code, False)
    assert said in (error if code else out)
    assert time.perf_counter() - start < 5, "0.2 s on a quiet machine; importing torch alone takes seconds"


def test_the_table_of_commands_says_what_the_commands_say():
    for words, command in leaves():
        assert (getdoc(command.load()) or "").partition("\n")[0] == command.summary, words


@pytest.mark.parametrize("group", [Group("All of them.", COMMANDS), COMMANDS["bench"]])
def test_the_overview_fits_80_columns(group):
    assert max(map(len, overview(group, "esper").splitlines())) <= 80


@pytest.mark.parametrize("words", [words for words, _ in leaves()])
def test_help_of_a_command_fits_80_columns(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit:
        main([*words, "--help"])
    assert not exit.value.code
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


FLAGS = {
    "train": "--run-dir --rng-seed --device --workers --trainings --least --failures --at-once --threads --ray"
    " --address --log --json --heads",
    "resume": "--workers --ray --address --least --failures --log --json --heads",
    "tune": "--over --first --factor --run-dir --rng-seed --device --at-once --threads --ray --address",
    "watch": "--once --every --heads",
    "ui": "--port --host --token --open --no-open",
    "report": "",
    "exam": "--tasks --images --text --plan --budgeted --quick --device --memory-budget --out --json --hosts --rates"
    " --tuned-on --plans --thorough --no-thorough --final --no-final --price --recorded"
    " --at-once --threads --ray --address",
    "recipes": "--json",
    "tasks": "--json",
    "blueprints": "--json",
    "bench fleet": "--device --workload --hosts --seeds --precision --decisions --batch --steps --validation"
    " --memory-budget --quick --json",
    "bench profile": "--device --workload --hosts --seeds --precision --decisions --batch --steps --validation --top"
    " --quick --json",
    "bench ppo": "--device --learners --minibatches --hosts --decisions --quick --json",
    "bench precision": "--device --task --host --hosts --epochs --rent --json",
    "bench grow": "--device --pairs --quick --json",
}
"""Every flag of every command. Whoever changes one breaks scripts of others: change this list on purpose."""


@pytest.mark.parametrize("words", [words for words, _ in leaves()])
def test_the_flags_of_a_command_change_only_on_purpose(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    found = re.findall(r"^(?:│ |  )(--[a-z][a-z-]+)(?:, (--[a-z-]+))?", capsys.readouterr().out, re.MULTILINE)
    assert [flag for pair in found for flag in pair if flag] == FLAGS[" ".join(words)].split()


def test_one_spelling_for_the_device():
    for words, _ in leaves():
        if {"train", "exam", "bench"} & set(words):
            assert "--device" in FLAGS[" ".join(words)], words
    assert parse(["exam", "--device", "cuda:1"]).device == "cuda:1"


def test_the_device_of_a_training_brings_its_usual_precision():
    on_cpu = parse(["train", "mnist1d_gpu", "--device", "cpu"])
    engine = on_cpu.asked().engine
    assert (engine.device, engine.precision) == ("cpu", "fp32")
    assert "--device cpu" in on_cpu.command(), "which makes the run again"
    engine = parse(["train", "smoke", "--device", "cuda"]).asked().engine
    assert (engine.device, engine.precision) == ("cuda", "bf16")
    engine = parse(["train", "smoke", "--device", "cuda", "--engine.precision", "fp32"]).asked().engine
    assert (engine.device, engine.precision) == ("cuda", "fp32"), "a flag of the recipe says more"
    assert parse(["train", "mnist1d_gpu"]).asked().engine == recipe("mnist1d_gpu").engine


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "general"], "--device cpu"),
        (["train", "smoke", "--device", "cuda"], "--device cpu"),
        (["train", "smoke", "--device", "mps"], "device 'mps' is not supported"),
        (["bench", "fleet", "--device", "mps", "--quick"], "device 'mps' is not supported"),
        (["bench", "fleet", "--device", "cuda", "--quick"], "--device cpu"),
        (["bench", "ppo", "--device", "mps", "--quick"], "device 'mps' is not supported"),
        (["bench", "grow", "--device", "mps"], "device 'mps' is not supported"),
        (["bench", "precision"], "bf16 needs a CUDA device"),
        (["exam", "--device", "mps", "--quick"], "device 'mps' is not supported"),
        (
            ["train", "smoke", "--fleets.0.host", "cnn2d"],
            "host kind 'cnn2d' needs inputs of shape (height, width, channels), not (2,)",
        ),
        (["train", "smoke", "--fleets.0.widths", "3", "3"], "gives 3 channels: seeds need at least 4"),
        (["train", "smoke", "--fleets.0.widths", "0", "4"], "widths must be one or more positive numbers"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="here a GPU recipe runs")
def test_what_torch_cannot_do_is_one_sentence_and_nothing_begins(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("esper: ")
    assert message in line
    assert list(tmp_path.iterdir()) == []


def fails() -> None:
    torch.zeros(2, 3) @ torch.zeros(2, 3)


def test_an_error_of_torch_is_one_sentence_unless_asked_for(capsys):
    with pytest.raises(SystemExit) as exit:
        explained(fails, debug=False)
    assert exit.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("esper: torch cannot do this: mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        explained(fails, debug=True)


@pytest.fixture(scope="module")
def lists() -> list[list[str]]:
    """What `esper` prints in a terminal of 80 columns: recipes, tasks and blueprints, from one process."""
    master, slave = pty.openpty()
    size = os.environ | {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"}
    process = subprocess.Popen([sys.executable, "-c", LISTS], stdout=slave, stderr=slave, env=size)
    os.close(slave)
    out = b""
    while True:
        try:
            read = os.read(master, 1 << 16)
        except OSError:
            break
        out += read
    os.close(master)
    assert process.wait() == 0
    return [[line.rstrip() for line in part.splitlines()] for part in out.decode().split(CUT)]


@pytest.mark.parametrize("number", range(3), ids=("recipes", "tasks", "blueprints"))
def test_lists_fit_a_terminal_of_80_columns(lists, number):
    lines = lists[number]
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines), "nothing is cut"
    first = [line.split()[0] for line in lines if re.match(r" \w", line)]
    assert len(first) > 5, "names stand in a column of their own"


def test_tasks_are_described(capsys):
    main(["tasks", "--json"])
    found = {task["name"]: task["summary"] for task in json.loads(capsys.readouterr().out)}
    assert all(found.values())
    assert "next character" in found["text"]


def test_recipes_say_how_long_they_take_and_on_what(capsys):
    main(["recipes", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == RECIPES.keys()
    for name, said in found.items():
        assert re.search(r"second|minute|hour", said["takes"]), name
        assert re.search(r"core|GPU|H200", said["takes"]), name
        assert said["summary"], name


def wide_exam():
    arms = [arm("learned"), arm("static, longer", 0.012, -0.003, 0.027), arm("least gradient", 0.2, 0.1, 0.3)]
    return exam(*arms)


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 140])
def test_the_table_of_an_exam_is_never_cut(columns):
    console = Console(width=columns, force_terminal=True, markup=False, color_system=None, file=io.StringIO())
    show_exam(wide_exam(), console)
    said = console.file.getvalue()
    assert max(map(len, said.splitlines())) <= columns
    assert "…" not in said
    for kept in ("least gradient", "learned − arm", "better", "verdict"):
        assert kept in said
    (heading,) = (line for line in said.splitlines() if "policy" in line)
    for column in ("J", "accuracy", "P(better)", "FLOPs", "parameters", "time"):
        assert column in heading or column in said.partition("A wider terminal also shows: ")[2]
    assert ("J" in heading.replace("arm, J", "").split(), "FLOPs" in heading) == (columns >= 80, columns >= 140)


@pytest.mark.parametrize("name", ODD)
def test_names_of_users_are_no_markup(name, tmp_path, capsys):
    """A folder, a task, an arm of an exam and a setting."""
    folder = RunFolder.create(tmp_path / name.replace("/", ""), recipe("smoke").plain(), {})
    folder.append(report(0))
    main(["watch", str(folder.path), "--once"])
    said = capsys.readouterr().out
    assert folder.path.name in said.replace("\n", "").replace("─", "")
    register_task(name, lambda: None)
    try:
        main(["tasks"])
    finally:
        unregister_task(name)
    assert name in capsys.readouterr().out
    show_exam(exam(arm("learned"), arm(name, 0.1, 0.0, 0.2)), literal_console())
    assert name in capsys.readouterr().out
    print_table(("name", "what"), [(name, name)])
    assert capsys.readouterr().out.count(name) == 2
    with pytest.raises(SystemExit):
        main(["train", name])
    assert f"unknown recipe {name!r}" in capsys.readouterr().err
    literal_console().print(Board(name, 3, [report(0)]))
    assert name in capsys.readouterr().out


def test_watch_needs_no_torch_and_shows_every_stage_of_a_recipe(tmp_path):
    """The number of updates is in the recipe of the folder, also in that of an older version."""
    plain = recipe("general").plain()
    plain["learn"]["ppo"]["anchor_coef"] = 0.1
    plain["start"] = plain.pop("warm_start")
    folder = RunFolder.create(tmp_path / "run", plain, {"device": "cuda"})
    folder.append(report(0))
    folder.write_start(0, 0, 60.0, never=0.25)
    script = "import sys; from esper.cli import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", script, "watch", str(folder.path), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    assert f"1 of {recipe('general').updates}" in done.stdout
    assert "stage 1 of 4: 14 fleets, " in done.stdout
    assert "never grows: 0.250, +0.250" in done.stdout
    assert "entropy" not in done.stdout
    Watch(run_dir=folder.path, once=True, heads=True).run()


def test_a_watched_board_follows_its_run_also_when_it_is_cut_back(tmp_path):
    folder, board = RunFolder.create(tmp_path / "run", recipe("smoke").plain(), {}), Board("run", 4)
    lengths, seen = refresh(board, folder, {}), []
    for update in range(3):
        folder.append(report(update))
        lengths = refresh(board, folder, lengths)
        seen.append(len(board.reports))
    before = board.reports
    assert refresh(board, folder, lengths) == lengths
    assert board.reports is before, "an unchanged log is not read again"
    folder.cut(dict.fromkeys(LOGS, 0))
    refresh(board, folder, lengths)
    assert seen == [1, 2, 3]
    assert not board.reports
    (folder.path / "environment.json").unlink()
    Watch(run_dir=folder.path, once=True).run()


def test_watch_says_that_a_run_has_stopped(tmp_path, capsys):
    """Nobody holds its lock, and it is not done."""
    folder = RunFolder.create(tmp_path / "a run", recipe("smoke").plain(), {})
    folder.append(report(0))
    for once in (False, True):
        Watch(run_dir=folder.path, once=once, every=0.01).run()
        said = capsys.readouterr().out
        assert f"stopped after update 1: resume it with `esper resume '{folder.path}'`" in said
    with folder.alone():
        Watch(run_dir=folder.path, once=True).run()
    assert "stopped" not in capsys.readouterr().out


def test_watch_waits_as_long_as_a_process_writes(tmp_path, capsys):
    folder = RunFolder.create(tmp_path / "run", recipe("smoke").plain(), {})
    hold = "import sys, time; from pathlib import Path; from esper.telemetry import RunFolder\n"
    hold += "with RunFolder(Path(sys.argv[1])).alone(): print('held', flush=True); time.sleep(1.5)"
    with subprocess.Popen([sys.executable, "-c", hold, str(folder.path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        start = time.perf_counter()
        Watch(run_dir=folder.path, every=0.05).run()
    assert time.perf_counter() - start > 1
    assert "stopped after update 0" in capsys.readouterr().out


def test_minibatches_and_hosts_of_benchmarks_are_checked_before_torch_is_imported():
    for arguments, message in {
        ("ppo", "--minibatches", "0"): "minibatches must be at least 1",
        ("precision", "--hosts", "1"): "hosts must be at least 2",
    }.items():
        with pytest.raises(EsperError, match=message):
            parse(["bench", *arguments]).run()


def test_commands_are_found_in_their_modules():
    assert all(isinstance(command, Command) and callable(command.load()) for _, command in leaves())
