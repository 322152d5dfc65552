"""A growth is written down while it trains, and nothing about the disk can disturb it."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest_growth import GPT, WIDTH, Block, read_log
from esper.growth import Doubling, Growth, grow, resume
from esper.growth import log as log_module
from esper.leyline.errors import FileError


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-2)


def made(log: Path | None = None, weights: int = 1, **options: Any) -> Growth:
    torch.manual_seed(weights)
    model = GPT(1)
    policy = Doubling((0.1, 0.3))
    return grow(model, optimizer_for(model), **{"total": 60, "blend": 4, "policy": policy, "log": log} | options)


def train(growth: Growth, until: int = 1000) -> Growth:
    """Train on batches that depend on the step alone, to the end of the budget or to a step."""
    while growth.steps < until and not growth.done:
        x = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(growth.steps))
        loss = growth.model(x).square().mean()
        loss.backward()
        growth.optimizer.step()
        growth.optimizer.zero_grad()
        growth.step(loss)
    return growth


def lines(folder: Path) -> list[str]:
    return (folder / "growth.jsonl").read_text().splitlines()


def test_everything_that_happens_is_written_once_and_at_once(tmp_path):
    growth = made(tmp_path / "runs/gpt", evaluate=lambda: 0.5)
    header, events, points = read_log(tmp_path / "runs/gpt")
    assert (header["version"], header["name"], header["parameters"]) == (1, "GPT", growth.num_parameters)
    assert header["options"] == {"policy": "Doubling", **header["options"]}
    assert header["options"]["total"] == 60
    assert header["budget"] is None, "what a step costs is not known yet"
    assert not events
    assert not points
    for step in range(1, 12):
        train(growth, step)
        header, events, points = read_log(tmp_path / "runs/gpt")
        assert (events, points) == (growth.log, growth.history)
        assert (header["blocks"], header["budget"]) == (1, growth.budget)
    train(growth).finish()
    _, events, points = read_log(tmp_path / "runs/gpt")
    assert (events, points) == (growth.log, growth.history)
    assert json.loads(lines(tmp_path / "runs/gpt")[-1])["event"]["kind"] == "finish"
    counts = [json.loads(line).get("event", {}).get("blocks") for line in lines(tmp_path / "runs/gpt")]
    assert [n for n in counts if n is not None] == [event.depth["blocks"] for event in growth.log]
    steps = [next(iter(json.loads(line).values()))["step"] for line in lines(tmp_path / "runs/gpt")]
    assert steps == sorted(steps)


def test_a_growth_is_described_when_it_is_looked_at_first(tmp_path):
    growth = made(tmp_path, example=torch.zeros(2, 8, dtype=torch.long))
    header, events, _ = read_log(tmp_path)
    assert header["budget"] == growth.budget
    assert [event.kind for event in events] == ["attach"]


def test_a_log_changes_no_bit(tmp_path):
    plain, logged = train(made()), train(made(tmp_path))
    assert plain.log == logged.log
    assert plain.history == logged.history
    for a, b in zip(plain.finish().parameters(), logged.finish().parameters(), strict=True):
        assert torch.equal(a, b)
    assert "torch" not in vars(log_module), "nothing there can wait for a device"


class Two(nn.Module):
    """One chain that can be deepened, and one that is called from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.fixed = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.fixed[2](self.fixed[1](self.fixed[0](x)))


def test_blocks_are_those_of_the_chains_that_can_grow(tmp_path):
    """Which ones can is known from the first step on: what happened before is written then."""
    model = Two()
    growth = grow(model, optimizer_for(model), total=40, policy=lambda growth: None, log=tmp_path)
    assert len(growth.chains) == 2
    model(torch.randn(2, 5, WIDTH)).sum().backward()
    growth.step()
    growth.deepen()
    header, _, _ = read_log(tmp_path)
    assert header["blocks"] == 2
    blocks = [json.loads(line)["event"]["blocks"] for line in lines(tmp_path) if "event" in json.loads(line)]
    assert blocks == [2, 4]


def test_a_growth_that_never_trained_says_how_it_ended(tmp_path):
    growth = made(tmp_path)
    growth.finish()
    assert [event.kind for event in read_log(tmp_path)[1]] == ["attach", "finish"]


def test_a_loss_that_is_no_number_is_null(tmp_path):
    growth = train(made(tmp_path), 8)
    growth.model(torch.zeros(2, 8, dtype=torch.long)).sum().backward()
    growth.step(torch.tensor(float("nan")))
    assert growth.log[-1].kind == "rollback"
    last = [json.loads(line) for line in lines(tmp_path) if "rollback" in line]
    assert [line["event"]["loss"] for line in last] == [None]
    assert "NaN" not in (tmp_path / "growth.jsonl").read_text()


@pytest.fixture
def whole(tmp_path) -> Path:
    """The log of a run that was not interrupted."""
    train(made(tmp_path / "whole")).finish()
    return tmp_path / "whole"


def half(content: str) -> str:
    return content[: len(content) // 2]


FOUND = {
    "as it was left": lambda text: text,
    "half a line": lambda text: text[:-9],
    "lines are missing": lambda text: "".join(text.splitlines(keepends=True)[:7]),
    "less than half": lambda text: half(half(text)),
    "nothing": lambda text: "",
}


@pytest.mark.parametrize("found", FOUND)
def test_a_resumed_log_is_that_of_a_run_which_never_stopped(tmp_path, whole, found):
    growth = train(made(tmp_path / "log"), 9)
    growth.save(tmp_path / "saved")
    train(growth, 13)
    path = tmp_path / "log/growth.jsonl"
    path.write_text(FOUND[found](path.read_text()))
    again = resume(GPT(1), optimizer_for, tmp_path / "saved", log=tmp_path / "log")
    assert (read_log(tmp_path / "log")[1:]) == (again.log, again.history)
    train(again).finish()
    for name in ("growth.jsonl", "growth.json"):
        assert (tmp_path / "log" / name).read_bytes() == (whole / name).read_bytes()


def test_a_log_can_begin_when_a_growth_is_resumed(tmp_path, whole):
    train(made(), 9).save(tmp_path / "saved")
    again = resume(GPT(1), optimizer_for, tmp_path / "saved", log=tmp_path / "log")
    train(again).finish()
    assert lines(tmp_path / "log") == lines(whole)


def test_what_was_done_by_hand_after_a_save_is_cut(tmp_path):
    def again(saved: str) -> None:
        resume(GPT(1), optimizer_for, tmp_path / saved, policy=lambda growth: None, log=tmp_path / "log")

    growth = train(made(tmp_path / "log", policy=lambda growth: None), 5)
    growth.save(tmp_path / "before")
    before = lines(tmp_path / "log")
    growth.deepen()
    growth.save(tmp_path / "after")
    after = lines(tmp_path / "log")
    assert len(after) == len(before) + 1
    again("before")
    assert lines(tmp_path / "log") == before
    (tmp_path / "log/growth.jsonl").unlink()
    again("after")
    assert sorted(lines(tmp_path / "log")) == sorted(after)
    again("before")
    assert lines(tmp_path / "log") == before


def test_damage_after_the_save_is_cut(tmp_path):
    growth = train(made(tmp_path / "log"), 9)
    growth.save(tmp_path / "saved")
    before = lines(tmp_path / "log")
    with open(tmp_path / "log/growth.jsonl", "a") as file:
        file.write("\0\0\0\n")
    resume(GPT(1), optimizer_for, tmp_path / "saved", log=tmp_path / "log")
    assert lines(tmp_path / "log") == before


def a_log(folder: Path) -> None:
    train(made(folder, weights=2), 5)


def a_log_with_other_options(folder: Path) -> None:
    train(made(folder, max_growth=2), 3)


def a_save(folder: Path) -> None:
    train(made(), 3).save(folder)


def a_run(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text('{"version": 1, "recipe": {}}')


def a_file(folder: Path) -> None:
    folder.write_text("mine")


def a_newer_log(folder: Path) -> None:
    folder.mkdir()
    (folder / "growth.json").write_text('{"version": 2}')


TAKEN = {
    a_log: "holds the log of another growth: choose another folder",
    a_log_with_other_options: "holds the log of another growth: choose another folder",
    a_save: "holds a saved growth: choose another folder",
    a_run: "is the folder of a run or of a model: choose '.*growth'",
    a_file: "is a file: choose a folder",
    a_newer_log: "was written by a newer Esper",
}


def contents(path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in (path, *path.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("other", TAKEN)
def test_a_folder_that_holds_something_else_is_refused_before_anything_changes(tmp_path, other):
    other(tmp_path / "taken")
    train(made(), 4).save(tmp_path / "saved")
    before, model = contents(tmp_path / "taken"), GPT(1)
    with pytest.raises(FileError, match=f"^log='.*taken' {TAKEN[other]}"):
        grow(model, optimizer_for(model), total=60, log=tmp_path / "taken")
    with pytest.raises(FileError, match=f"^log='.*taken' {TAKEN[other]}"):
        resume(model, optimizer_for, tmp_path / "saved", log=tmp_path / "taken")
    assert contents(tmp_path / "taken") == before
    assert not model._forward_pre_hooks
    assert len(model.blocks) == 1
    grow(model, optimizer_for(model), total=60, log=tmp_path / "free")


def test_a_log_with_a_damaged_line_is_not_continued(tmp_path):
    growth = train(made(tmp_path / "log"), 9)
    growth.save(tmp_path / "saved")
    told = lines(tmp_path / "log")
    for damage in ("{}", "nonsense", '{"point": 3}', '{"other": {}}', "[]"):
        (tmp_path / "log/growth.jsonl").write_text("\n".join([*told[:2], damage, *told[3:], ""]))
        with pytest.raises(FileError, match=r"^log cannot be continued, line 3 of .*growth.jsonl is damaged"):
            resume(GPT(1), optimizer_for, tmp_path / "saved", log=tmp_path / "log")


@pytest.mark.parametrize("name", ["", 3, True])
def test_a_log_that_is_no_name_is_refused(name):
    with pytest.raises(FileError, match=r"^log must be the name of a folder"):
        log_module.new_log(name)


def test_a_log_that_cannot_be_begun_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    train(made(), 9).save(tmp_path / "saved")
    model = GPT(1)
    with pytest.raises(FileError, match=r"^log cannot be written: .*below"):
        grow(model, optimizer_for(model), total=60, log=tmp_path / "file/below")
    with pytest.raises(FileError, match=r"^log cannot be written: .*below"):
        resume(model, optimizer_for, tmp_path / "saved", log=tmp_path / "file/below")
    assert not model._forward_pre_hooks
    assert len(model.blocks) == 1
    assert resume(model, optimizer_for, tmp_path / "saved").steps == 9


def test_a_growth_is_not_saved_over_its_log(tmp_path):
    growth = train(made(tmp_path / "log"), 4)
    before = contents(tmp_path)
    with pytest.raises(FileError, match=r"log holds the log of a growth: save into another folder, such as .*saved"):
        growth.save(tmp_path / "log")
    assert contents(tmp_path) == before


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file may be longer, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def is_undisturbed(growth: Growth) -> bool:
    """Whether a run ends as one without a log."""
    plain = train(made())
    same = zip(plain.finish().parameters(), growth.finish().parameters(), strict=True)
    return plain.log == growth.log and all(torch.equal(a, b) for a, b in same)


def test_a_full_disk_ends_the_log_with_one_warning_and_no_half_line(tmp_path):
    growth = train(made(tmp_path), 4)
    before = lines(tmp_path)
    with files_of_at_most((tmp_path / "growth.jsonl").stat().st_size + 40), pytest.warns() as told:
        train(growth)
    (warning,) = told
    assert str(warning.message).startswith(f"the log {tmp_path} ends here, and training goes on without it: ")
    assert lines(tmp_path) == before, "the disk has room again, and no line was left out in between"
    assert (tmp_path / "growth.jsonl").read_text().endswith("\n")
    assert is_undisturbed(growth)


def full(folder: Path) -> None:
    (folder / "growth.jsonl").unlink()
    (folder / "growth.jsonl").symlink_to("/dev/full")


def gone(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def forbidden(folder: Path) -> None:
    (folder / "growth.jsonl").unlink()
    (folder / "growth.jsonl").mkdir()


@pytest.mark.parametrize("trouble", [full, gone, forbidden])
def test_trouble_with_the_log_is_said_once_and_stops_nothing(tmp_path, trouble):
    growth = train(made(tmp_path / "log"), 4)
    trouble(tmp_path / "log")
    with pytest.warns(UserWarning, match="ends here, and training goes on without it") as told:
        train(growth)
    assert len(told) == 1
    assert is_undisturbed(growth)


def test_a_header_that_cannot_be_written_is_said_once_and_stops_nothing(tmp_path):
    """It is completed at the first step, when the budget is known."""
    growth = made(tmp_path / "log")
    gone(tmp_path / "log")
    with pytest.warns(UserWarning, match="ends here, and training goes on without it") as told:
        train(growth)
    assert len(told) == 1
    assert is_undisturbed(growth)


def test_a_log_ends_when_a_growth_is_finished(tmp_path):
    growth = train(made(tmp_path), 20)
    growth.finish()
    before = lines(tmp_path)
    growth.finish()
    assert lines(tmp_path) == before
