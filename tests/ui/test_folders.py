"""The search for runs and the opening of their files never leave the folder, and never wait."""

import os
import socket
from pathlib import Path

import pytest

from esper.leyline.errors import EsperError, FileError
from esper.ui import folders
from esper.ui.folders import Place, Tree
from ui_toys import write_growth, write_run

SECRET = "a secret outside"


@pytest.fixture
def tree(tmp_path) -> Tree:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.json").write_text(SECRET)
    (tmp_path / "inside").mkdir()
    return Tree(tmp_path / "inside")


def found(tree: Tree) -> set[tuple[str, str]]:
    return {("/".join(place.parts), place.kind) for place in tree.find()}


def test_runs_and_growths_are_found_at_any_depth(tree):
    write_run(tree.path / "first")
    write_run(tree.path / "sweep/a/b", [0.5])
    write_growth(tree.path / "gpt")
    write_growth(write_run(tree.path / "both"))
    kinds = {("first", "run"), ("sweep/a/b", "run"), ("gpt", "growth"), ("both", "run"), ("both", "growth")}
    assert found(tree) == kinds
    assert tree.problems == []
    assert found(Tree(tree.path / "first")) == {("", "run")}
    assert len({place.id for place in tree.find()}) == 5


def test_a_damaged_run_is_found_and_folders_of_other_programs_are_not(tree):
    write_run(tree.path / "lost", [0.5])
    (tree.path / "lost/config.json").unlink()
    for name, text in {"bert": '{"hidden": 3}', "notes": "not json", "saved": '{"config": {}}'}.items():
        (tree.path / name).mkdir()
        (tree.path / name / ("growth.json" if name == "saved" else "config.json")).write_text(text)
    (tree.path / "only").mkdir()
    (tree.path / "only/config.json").write_text('{"version": 1, "recipe": {}}')
    assert found(tree) == {("lost", "run"), ("only", "run")}


def test_links_hidden_folders_and_checkpoints_are_not_entered(tree):
    write_run(tree.path.parent / "outside/run")
    os.symlink(tree.path.parent / "outside", tree.path / "link")
    os.symlink("..", tree.path / "loop")
    for name in (".hidden", "checkpoints", "node_modules"):
        write_run(tree.path / name)
    assert found(tree) == set()
    assert tree.problems == []


def test_the_search_is_bounded(tree, monkeypatch):
    deep = tree.path.joinpath(*"abcdefghij")
    write_run(deep)
    assert found(tree) == set()
    for i in range(20):
        write_run(tree.path / f"{i:02}")
    monkeypatch.setattr(folders, "MOST_FOLDERS", 5)
    assert len(found(tree)) < 5
    assert tree.problems == ["The folder is too large to be searched to its end: 5 folders were looked into."]


def test_a_folder_that_cannot_be_read_is_told_of(tree, monkeypatch):
    write_run(tree.path / "shut")
    enter = folders._enter

    def refusing(name: str, fd: int) -> int:
        if name == "shut":
            raise FileError("no")
        return enter(name, fd)

    monkeypatch.setattr(folders, "_enter", refusing)
    assert found(tree) == set()
    assert tree.problems == ["A folder cannot be read: shut."]


def test_the_folder_may_be_removed_and_made_again(tree):
    tree.path.rmdir()
    assert found(tree) == set()
    assert tree.problems == ["A folder cannot be read: inside."]
    write_run(tree.path / "new")
    assert found(tree) == {("new", "run")}


def test_ids_say_nothing_and_stay():
    places = [Place(("a", "b"), "run"), Place(("a", "b"), "growth"), Place(("ab",), "run"), Place((), "run")]
    ids = [place.id for place in places]
    assert len(set(ids)) == 4
    assert all(len(id) == 16 and int(id, 16) >= 0 for id in ids)
    assert ids == [place.id for place in places]


def special(path: Path, kind: str) -> str:
    """Make something that is no regular file, and return what is said of it."""
    if kind == "link":
        os.symlink(path.parent.parent / "outside/secret.json", path)
        return "config.json is a symbolic link, which is not followed: put the file itself there"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    return "config.json is not a regular file and is not read"


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "socket"])
def test_only_regular_files_are_opened(tree, kind, monkeypatch):
    monkeypatch.chdir(tree.path)  # the path of a socket must be short
    said = special(Path("config.json") if kind == "socket" else tree.path / "config.json", kind)
    with tree.open(()) as folder, pytest.raises(FileError, match=said):
        folder.json("config.json")


@pytest.mark.parametrize(
    ("kind", "said"),
    [("link", r"cannot read config\.json"), ("pipe", r"config\.json is not a regular file")],
    ids=["link", "pipe"],
)
def test_a_file_that_is_replaced_between_looking_and_opening_is_refused(tree, kind, said, monkeypatch):
    path = tree.path / "config.json"
    path.write_text("{}")
    with tree.open(()) as folder:
        seen = folder.stat("config.json")
        path.unlink()
        special(path, kind)
        monkeypatch.setattr(folder, "stat", lambda name: seen)
        with pytest.raises(FileError, match=said):
            folder.json("config.json")


def test_a_folder_that_is_replaced_by_a_link_is_not_entered(tree):
    write_run(tree.path / "a/run")
    write_run(tree.path.parent / "outside/run")
    (tree.path / "a").rename(tree.path / "b")
    os.symlink(tree.path.parent / "outside", tree.path / "a")
    with pytest.raises(FileError, match="the folder of this run is gone"), tree.open(("a", "run")):
        pass


def test_no_file_descriptor_is_left_open(tree):
    write_run(tree.path / "a/b", [0.5])
    special(tree.path / "a/config.json", "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        found(tree)
        for parts in (("a", "b"), ("a",), ("gone",)):
            try:
                with tree.open(parts) as folder:
                    folder.json("config.json")
            except FileError:
                pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_are_read_up_to_a_size(tree):
    (tree.path / "config.json").write_text('"' + "x" * 100 + '"')
    with tree.open(()) as folder:
        assert folder.json("config.json", 102) == "x" * 100
        assert folder.read("missing.json") is None
        with pytest.raises(FileError, match="more than 0 MB"):
            folder.json("config.json", 101)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is nested too deeply"),
        ("9" * 5000, "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
    ],
)
def test_damaged_json_is_one_sentence(tree, text, said):
    (tree.path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with tree.open(()) as folder, pytest.raises(FileError, match=f"config.json is damaged: {said}"):
        folder.json("config.json")


@pytest.mark.parametrize("path", ["nothing", "file"])
def test_a_folder_that_is_none_is_one_sentence(tree, path):
    (tree.path / "file").write_text("")
    with pytest.raises(EsperError, match=path):
        Tree(tree.path / path)


def test_names_are_shown_as_clean_text(tree):
    names = [b"<img src=x onerror=alert(1)>", b"two\nlines", b"\xff\xfe invalid", "right \u202e left".encode()]
    for name in names:
        write_run(Path(os.fsdecode(os.path.join(os.fsencode(tree.path), name))))
    shown = {tree.named(place) for place in tree.find()}
    assert shown == {
        "<img src=x onerror=alert(1)>",
        "two lines",
        "\ufffd\ufffd invalid",
        "right \ufffd left",
    }
