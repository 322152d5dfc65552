"""A file is what its writer wrote, of the asked kind and a known version, or it is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from esper.leyline.errors import FileError
from esper.leyline.state import Split
from esper.leyline.tensor_files import fits, flatten, match, read, unflatten, write

TENSORS = {
    "whole": torch.arange(6.0).view(2, 3),
    "turned": torch.arange(6.0).view(2, 3).T,
    "half": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
    "flags": torch.tensor([True, False]),
    "none": torch.zeros(0, 4, dtype=torch.int64),
    "one": torch.tensor(3.25, dtype=torch.float64),
}
DESCRIPTION = {"host": "mlp", "widths": [8, 8], "rate": 0.1}


@pytest.fixture
def path(tmp_path) -> Path:
    write(tmp_path / "file", "esper.thing", TENSORS, DESCRIPTION)
    return tmp_path / "file"


def test_what_is_read_lies_in_memory_like_what_torch_makes(path):
    """At multiples of 64 bytes: elsewhere matrix products round differently, and a resumed run leaves its path."""
    assert {x.data_ptr() % 64 for x in read(path, "esper.thing")[0].values()} == {0}


def test_what_was_written_is_read(path):
    tensors, description = read(path, "esper.thing")
    assert description == DESCRIPTION
    assert tensors.keys() == TENSORS.keys()
    for name, x in TENSORS.items():
        assert tensors[name].dtype == x.dtype
        assert torch.equal(tensors[name], x)
    assert [file.name for file in path.parent.iterdir()] == ["file"]


def forge(path: Path, tensors: dict[str, torch.Tensor] | None = None, **metadata: str) -> None:
    """Write the file anew with some of its tensors or of what it says of itself replaced, all else the same."""
    with safe_open(str(path), "pt") as file:
        found, said = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    save_file(found | (tensors or {}), path, said | metadata)


FORGED = {
    "a number": {"tensors": {"whole": torch.arange(6.0).view(2, 3) + 1e-6}},
    "a shape": {"tensors": {"whole": torch.arange(6.0)}},
    "a type": {"tensors": {"whole": torch.arange(6.0).view(2, 3).view(torch.int32)}},
    "one tensor more": {"tensors": {"other": torch.ones(1)}},
    "the names of two": {"tensors": {"whole": TENSORS["turned"].contiguous(), "turned": TENSORS["whole"]}},
    "the description": {"description": json.dumps(DESCRIPTION | {"rate": 0.2})},
}


@pytest.mark.parametrize("what", FORGED)
def test_a_file_of_which_anything_was_changed_does_not_match_its_checksum(path, what):
    forge(path)
    read(path, "esper.thing")
    forge(path, **FORGED[what])
    with pytest.raises(FileError, match="does not match its checksum"):
        read(path, "esper.thing")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"version": "2"}, r"newer Esper \(format version 2, this one reads up to 1\): upgrade Esper"),
        ({"version": "one"}, "it has no version"),
        ({"format": "esper.other"}, "is not an esper.thing file, but esper.other"),
    ],
)
def test_another_version_or_kind_is_refused(path, metadata, message):
    forge(path, **metadata)
    with pytest.raises(FileError, match=message):
        read(path, "esper.thing")


def test_tensors_must_be_exactly_those_that_are_needed():
    needed = {"a": torch.zeros(2, 3), "b": torch.zeros(4)}
    match("file", needed, {"a": torch.ones(2, 3), "b": torch.ones(4)})
    for found in ({"a": torch.ones(2, 3)}, needed | {"c": torch.ones(1)}, needed | {"a": torch.ones(3, 2)}):
        with pytest.raises(FileError, match="file does not fit: 1 tensors are missing, unknown or of another shape"):
            match("file", needed, found)


def test_a_description_must_say_the_same_of_what_is_expected():
    """A tuple is a list in JSON; what nobody asks for may be anything."""
    fits("file", {"widths": (8, 8)}, DESCRIPTION)
    with pytest.raises(FileError, match=r"file holds another widths: \[8, 8\], not \[8, 9\]"):
        fits("file", {"host": "mlp", "widths": (8, 9)}, DESCRIPTION)


def test_records_within_records_are_taken_apart_and_put_together():
    record = {"train": Split(torch.ones(2), torch.zeros(3)), "test": Split(torch.ones(1), torch.zeros(1))}
    flat = flatten(record, "data")
    assert flat.keys() == {"data/train/x", "data/train/y", "data/test/x", "data/test/y"}
    again = unflatten(record, "data", {name: x + 5 for name, x in flat.items()})
    assert isinstance(again["train"], Split)
    assert [part.tolist() for split in again.values() for part in split] == [[6, 6], [5, 5, 5], [6], [5]]
