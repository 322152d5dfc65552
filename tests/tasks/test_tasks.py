"""Tasks: deterministic, disjoint, honest about missing data, and nobody's random state."""

import contextlib
import gzip
import json
import math
import pickle
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from esper.leyline.errors import EsperError
from esper.leyline.objectives import CLASSIFICATION
from esper.leyline.specs import HostSpec, TaskSpec
from esper.leyline.state import Split
from esper.tasks import (
    TaskData,
    load_task,
    load_test,
    packaged,
    register_task,
    synthetic,
    task_names,
    task_summary,
    unregister_task,
)
from esper.tasks.data import divide, standardized
from esper.tolaria import HostTrainer

SIZES = {
    "mnist1d": [3400, 600, 1000],
    "digits": [1200, 300, 297],
    "spirals": [2000, 500, 500],
    "waves": [2000, 500, 500],
    "glyphs": [1334, 333, 333],
    "planted": [4000, 1000, 1000],
}
MADE = tuple(SIZES)


def splits(name: str, **options) -> list[Split]:
    task = load_task(name, **options)
    return [task.train, task.validation, load_test(name, **options)]


@pytest.mark.parametrize("name", MADE)
def test_splits_are_disjoint_deterministic_and_fit_the_spec(name):
    task, parts, again = load_task(name), splits(name), splits(name)
    assert [len(part.x) for part in parts] == SIZES[name]
    rows = [{x.numpy().tobytes() for x in part.x} for part in parts]
    assert not rows[0] & rows[1]
    assert not rows[0] & rows[2]
    assert not rows[1] & rows[2]
    for part, other in zip(parts, again, strict=True):
        assert torch.equal(part.x, other.x)
        assert torch.equal(part.y, other.y)
        assert part.x.shape[1:] == task.spec.inputs
        assert part.x.dtype == torch.float32
        assert set(part.y.unique().tolist()) == set(range(task.spec.outputs))
    assert abs(parts[0].x.mean()) < 0.1
    assert task.spec.objective.direction == "max"


@pytest.mark.parametrize("name", MADE)
def test_loading_never_disturbs_the_random_state(name, tmp_path, monkeypatch):
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    torch.manual_seed(1), np.random.seed(1)
    expected = torch.rand(2).tolist(), np.random.rand()
    torch.manual_seed(1), np.random.seed(1)
    load_task(name)
    assert (torch.rand(2).tolist(), np.random.rand()) == expected


def test_a_damaged_cache_is_made_again_and_never_unpickled(tmp_path, monkeypatch):
    good = load_task("mnist1d").train.x
    whole = (packaged.cache_folder() / "mnist1d.npz").read_bytes()
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))
    cache = tmp_path / "mnist1d.npz"
    cache.write_bytes(whole)
    with np.load(cache) as arrays:
        x, y = arrays["x"], arrays["y"]
    np.savez(tmp_path / "other.npz", x=np.flip(x, 0), y=np.flip(y, 0))
    others = (tmp_path / "other.npz").read_bytes()
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    for damage in (whole[:5000], whole[:90_000] + b"!" + whole[90_001:], b"", bomb, others):
        cache.write_bytes(damage)
        assert packaged._cached(cache) is None
    assert not (tmp_path / "exploded").exists()
    assert torch.equal(load_task("mnist1d").train.x, good)
    assert cache.read_bytes() == whole


class Bomb:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_fewer_examples_of_mnist1d_are_the_first_and_leave_validation_and_test_as_they_are():
    """The last thousand are the package's own test examples."""
    few, all_ = splits("mnist1d", examples=100), splits("mnist1d")
    for part, whole, count in zip(few, all_, (100, 600, 1000), strict=True):
        assert torch.equal(part.x, whole.x[:count])
        assert torch.equal(part.y, whole.y[:count])
    with np.load(packaged.cache_folder() / "mnist1d.npz") as arrays:
        assert np.array_equal(few[2].x[..., 0].numpy(), arrays["x"][4000:])


def test_an_unwritable_cache_costs_time_not_data(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="cannot write"):
        packaged._store(tmp_path / "file" / "cache" / "mnist1d.npz", {"x": np.zeros(3), "y": np.zeros(3)})


def test_other_data_from_the_package_is_noticed():
    with pytest.raises(EsperError, match="generates other data"):
        packaged._expected({"x": np.zeros((5000, 40), np.float32), "y": np.zeros(5000, np.int64)})


@pytest.mark.parametrize(("name", "package"), [("digits", "scikit-learn"), ("mnist1d", "mnist1d")])
def test_a_missing_package_is_named(name, package, tmp_path, monkeypatch):
    monkeypatch.setenv("ESPER_CACHE", str(tmp_path))

    def missing(module: str):
        raise ImportError(module)

    monkeypatch.setattr(packaged, "import_module", missing)
    with pytest.raises(EsperError, match=rf"needs the package {package}: pip install 'esper-nn\[data\]'"):
        load_task(name)


def test_data_is_standardised_channel_by_channel_by_its_first_part_alone():
    """Means 2 and 7, deviations 1 and 0."""
    first, other = standardized(torch.tensor([[1.0, 7.0], [3.0, 7.0]]), torch.tensor([[4.0, 7.0]]))
    assert first.tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    assert other.tolist() == [[2.0, 0.0]]


def test_digits_are_standardised_by_training_data():
    x = load_task("digits").train.x
    assert x.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert x.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)


def test_pieces_follow_each_other_and_the_last_is_what_remains():
    x = torch.arange(10)
    assert [part.x.tolist() for part in divide(Split(x, x), 2, 3)] == [[0, 1], [2, 3, 4], [5, 6, 7, 8, 9]]


def test_points_of_a_spiral_lie_on_its_arms_as_far_as_the_noise_lets_them():
    """At radius r an arm has turned by 1.5 pi r; the plane is twice as large."""

    def off(noise: float) -> torch.Tensor:
        x, y = load_task("spirals", arms=4, noise=noise).train
        clean_x, clean_y = load_task("spirals", arms=4, noise=0.0).train
        assert torch.equal(y, clean_y)
        return x - clean_x

    x, y = load_task("spirals", arms=4, noise=0.0).train
    radius = x.norm(dim=1) / 2
    angle = math.pi / 2 * y + 1.5 * math.pi * radius
    torch.testing.assert_close(x, 2 * radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1), atol=1e-5, rtol=0)
    assert set(y.tolist()) == {0, 1, 2, 3}
    assert off(0.5).std().item() == pytest.approx(0.5, rel=0.05)


OPTIONS = [
    *(("spirals", option, value) for option, value in (("noise", 0.2), ("rng_seed", 1))),
    *(("waves", option, value) for option, value in (("noise", 0.2), ("rng_seed", 1))),
    *(
        ("glyphs", option, value)
        for option, value in (("variants", 2), ("shift", 0.1), ("noise", 0.2), ("rng_seed", 1))
    ),
    *(("planted", option, value) for option, value in (("width", 3), ("rng_seed", 1))),
]


@pytest.mark.parametrize(("name", "option", "value"), OPTIONS)
def test_an_option_changes_the_data(name, option, value):
    """Of examples without noise, where a task has any, so that another seed is not only other noise."""
    still = {"examples": 60} | ({} if name == "planted" or option == "noise" else {"noise": 0.0})
    plain, other = splits(name, **still), splits(name, **still | {option: value})
    assert [len(part.x) for part in other] == [40, 10, 10]
    assert not any(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(plain, other, strict=True))


def test_the_planted_teacher_can_be_learned():
    """A student twice as wide does far better than chance (0.25) in a few epochs; shuffled labels would not let it."""
    task = load_task("planted", width=4)
    student = HostTrainer(HostSpec("mlp", task.spec.inputs, task.spec.outputs, (8,)), task)
    for _ in range(5):
        report = student.decide(student.space.action())
    assert report.score > 0.7


def test_waves_are_told_apart_by_their_form_alone():
    """A small host does far better than chance (0.125), though frequency and phase are any."""
    task = load_task("waves", noise=0.1)
    host = HostTrainer(HostSpec("cnn1d", task.spec.inputs, task.spec.outputs, (8, 8)), task)
    for _ in range(5):
        report = host.decide(host.space.action())
    assert report.score > 0.5


def test_glyphs_of_more_variants_ask_for_more():
    """A small host does far better than chance (0.1); the more ways a glyph is written, the worse."""
    found = []
    for variants in (1, 6):
        task = load_task("glyphs", variants=variants, examples=1200)
        host = HostTrainer(HostSpec("cnn2d", task.spec.inputs, task.spec.outputs, (6, 6)), task)
        for _ in range(6):
            report = host.decide(host.space.action())
        found.append(report.score)
    assert found[0] > found[1] + 0.2
    assert found[1] > 0.2


def test_glyphs_are_moved_as_far_as_asked():
    still, moved = (load_task("glyphs", variants=1, shift=shift, noise=0.0).train for shift in (0.0, 0.2))
    for digit in range(10):
        assert still.x[still.y == digit].std(0).max() < 1e-5, "without shift and noise all are the same"
        assert moved.x[moved.y == digit].std(0).max() > 0.1


def test_the_planted_teacher_is_known():
    spec = load_task("planted", width=5, inputs=7, classes=3).spec
    assert spec.facts == {"teacher_width": 5, "teacher_parameters": 5 * 8 + 3 * 6}
    assert load_task("planted", rng_seed=1).train.x.ne(load_task("planted", rng_seed=2).train.x).any()


def test_a_task_of_ones_own_in_one_line():
    """What its builder returns for the options is what is trained, validated and tested on."""

    def build(offset: float = 0.0) -> TaskData:
        parts = (Split(torch.full((4, 2), offset + i), torch.tensor([0, 1, 0, 1])) for i in range(3))
        return TaskData(TaskSpec("mine", (2,), 2, CLASSIFICATION), *parts)

    register_task("mine", build)
    try:
        task, test = load_task("mine", offset=5.0), load_test("mine", offset=5.0)
        assert [part.x[0, 0].item() for part in (task.train, task.validation, test)] == [5.0, 6.0, 7.0]
        assert [part.x[0, 0].item() for part in splits("mine")] == [0.0, 1.0, 2.0]
        assert not hasattr(task, "test")
        with pytest.raises(EsperError, match="already exists"):
            register_task("mine", build)
    finally:
        unregister_task("mine")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_task("mnist"), "unknown task 'mnist': did you mean 'mnist1d'"),
        (lambda: load_task("spirals", arm=4), "unknown option of task 'spirals' 'arm': did you mean 'arms'"),
        (lambda: load_task("spirals", arms=1), "arms must be at least 2"),
        (lambda: load_task("planted", width=0), "width"),
        (lambda: load_task("waves", length=4), "length must be at least 8"),
        (lambda: load_task("glyphs", variants=0), "variants .0. must be positive"),
        (lambda: load_task("glyphs", side=2), "side .2. at least 4"),
        (lambda: load_task("spirals", examples=5), "5 examples are too few"),
        (lambda: load_task("images"), "needs your data: set path to an .npz"),
        (lambda: load_task("images", path="/nowhere"), "/nowhere does not exist: task 'images' needs an .npz"),
        (lambda: load_task("text", path="/nowhere"), "/nowhere does not exist: task 'text' needs a plain text"),
    ],
)
def test_what_cannot_be_loaded_says_what_would(call, message):
    with pytest.raises(EsperError, match=message):
        call()


def pictures(count: int, side: int = 4, channels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(5))
    x = generator.integers(0, 256, (count, side, side, channels), dtype=np.uint8)
    return x, np.arange(count) % 3


def write_npz(folder: Path, x, y) -> Path:
    np.savez(folder / "data.npz", x_train=x[:48], y_train=y[:48], x_test=x[48:], y_test=y[48:])
    return folder / "data.npz"


def write_idx(folder: Path, x, y) -> Path:
    x = x[..., 0]
    for part, rows in (("train", slice(0, 48)), ("t10k", slice(48, None))):
        head = b"\0\0\x08\x03" + np.asarray(x[rows].shape, ">u4").tobytes()
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + x[rows].tobytes()))
        head = b"\0\0\x08\x01" + np.asarray(y[rows].shape, ">u4").tobytes()
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(head + y[rows].astype(np.uint8).tobytes())
    return folder


def write_strips(folder: Path, x, y) -> Path:
    for name, rows in (
        ("data_batch_1", slice(0, 24)),
        ("data_batch_2", slice(24, 48)),
        ("test_batch", slice(48, None)),
    ):
        Image.fromarray(x[rows].reshape(len(x[rows]), -1, 3)).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(y[:48].tolist()))
    (folder / "test_lables.json").write_text(json.dumps(y[48:].tolist()))
    (folder / "package.json").write_text("{}")
    return folder


def write_folders(folder: Path, x, y) -> Path:
    for i, (picture, label) in enumerate(zip(x, y, strict=True)):
        home = folder / ("train" if i < 48 else "test") / f"class{label}"
        home.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(home / f"{i:03}.png")
    return folder


def write_one_folder(folder: Path, x, y) -> Path:
    for i, (picture, label) in enumerate(zip(x, y, strict=True)):
        (folder / f"class{label}").mkdir(exist_ok=True)
        Image.fromarray(picture).save(folder / f"class{label}" / f"{i:03}.png")
    return folder


WRITERS = (write_npz, write_idx, write_strips, write_folders, write_one_folder)


@pytest.mark.parametrize("write", WRITERS)
def test_images_in_every_form(write, tmp_path):
    x, y = pictures(60)
    path = write(tmp_path, x, y)
    train, validation, test = splits("images", path=path)
    channels = 1 if write is write_idx else 3
    assert load_task("images", path=path).spec.inputs == (4, 4, channels)
    assert len(train.x) + len(validation.x) + len(test.x) == 60
    assert len(test.x) == (10 if write is write_one_folder else 12)
    assert [set(part.y.tolist()) for part in (validation, test)] == [{0, 1, 2}] * 2, "every class is in every part"
    torch.testing.assert_close(train.x.mean((0, 1, 2)), torch.zeros(channels), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.x.std((0, 1, 2), correction=0), torch.ones(channels))
    # Every picture is there exactly once, with its own label: undo the standardisation on one channel.
    raw = torch.from_numpy(x[..., 0]).float().flatten(1)
    found = torch.cat([part.x[..., 0].flatten(1) for part in (train, validation, test)])
    labels = torch.cat([part.y for part in (train, validation, test)])
    slope = found.std() / raw.std()
    back = ((found - found.mean()) / slope + raw.mean()).round()
    match = (back[:, None] - raw[None]).abs().amax(-1) < 2
    assert match.sum(1).tolist() == match.sum(0).tolist() == [1] * 60
    assert torch.equal(labels, torch.from_numpy(y)[match.int().argmax(1)])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: np.savez(f / "a.npz", x=np.zeros(3)) or f / "a.npz", "must hold x_train"),
        (lambda f: np.savez(f / "a.npz", x_train=np.zeros((2, 4, 4)), y_train=np.zeros(2)) or f / "a.npz", "uint8"),
        (lambda f: np.savez(f / "a.npz", x_train=np.array([{}]), y_train=np.zeros(2)) or f / "a.npz", "plain .npz"),
        (lambda f: (f / "a.npz").write_bytes(b"nonsense") and f / "a.npz", "plain .npz"),
        (lambda f: (f / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03xx") and f, "damaged"),
        (lambda f: (f / "train-images-idx3-ubyte.gz").write_bytes(b"nonsense") and f, "damaged"),
        (lambda f: np.save(f / "a.npy", np.zeros(3)) or f / "a.npy", "plain .npz"),
        (
            lambda f: (
                np.savez(f / "a.npz", x_train=np.zeros((0, 4, 4), np.uint8), y_train=np.zeros(0, int)) or f / "a.npz"
            ),
            "no images",
        ),
        (
            lambda f: np.savez(f / "a.npz", x_train=pictures(9)[0], y_train=pictures(9)[1] - 1) or f / "a.npz",
            "integer labels of at least 0",
        ),
        (
            lambda f: (
                np.savez(
                    f / "a.npz",
                    x_train=pictures(9)[0],
                    y_train=np.zeros(9, int),
                    x_test=pictures(9)[0],
                    y_test=pictures(9)[1],
                )
                or f / "a.npz"
            ),
            "classes that are not in training",
        ),
        (lambda f: f, "is not in a known format; use an .npz"),
        (lambda f: (f / ".a").mkdir() or (f / ".b").mkdir() or f, "is not in a known format"),
        (
            lambda f: write_strips(f, *pictures(60)) and [p.unlink() for p in f.glob("data*.png")] and f,
            "no PNG strips for training",
        ),
        (
            lambda f: (write_strips(f, *pictures(60)) and Image.new("RGB", (9, 4)).save(f / "data_batch_3.png")) or f,
            "differ in width",
        ),
        (lambda f: (write_strips(f, *pictures(60)) and (f / "train_lables.json").unlink()) or f, "labels"),
        (lambda f: write_strips(f, *pictures(60)) and (f / "train_lables.json").write_text("[1") and f, "JSON list"),
        (lambda f: write_one_folder(f, *pictures(9)) and (f / "class0/x.png").write_text("?") and f, "readable image"),
        (
            lambda f: (write_one_folder(f, *pictures(9)) and Image.new("RGB", (2, 2)).save(f / "class0/z.png")) or f,
            "size",
        ),
    ],
)
def test_damaged_images_are_refused(damage, message, tmp_path):
    with pytest.raises(EsperError, match=message):
        load_task("images", path=damage(tmp_path))


def test_whatever_is_wrong_with_an_archive_it_is_a_clear_error(tmp_path):
    x, y = pictures(12)
    np.savez_compressed(tmp_path / "good.npz", x_train=x, y_train=y)
    whole = (tmp_path / "good.npz").read_bytes()
    for at in range(0, len(whole), 3):
        (tmp_path / "bad.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        with contextlib.suppress(EsperError):
            load_task("images", path=tmp_path / "bad.npz")


def test_images_of_a_class_that_the_test_folder_lacks_do_not_shift_the_others(tmp_path):
    x, y = pictures(60)
    keep = (np.arange(60) < 48) | (y != 0)
    _, _, test = splits("images", path=write_folders(tmp_path, x[keep], y[keep]))
    assert sorted(test.y.tolist()) == [1] * 4 + [2] * 4


def test_text_predicts_the_next_character(tmp_path):
    """The last tenths of the text, in its own order, are validation and test."""
    content = " ".join(map(str, range(300)))
    (tmp_path / "book.txt").write_text(content)
    task = load_task("text", path=tmp_path / "book.txt", context=16)
    alphabet = sorted(set(content))
    assert task.spec.outputs == len(alphabet) == 11
    pieces = splits("text", path=tmp_path / "book.txt", context=16)
    assert [len(part.x) for part in pieces] == [56, 6, 6]
    read = "".join(alphabet[code] for part in pieces for code in part.x.flatten().tolist())
    ahead = "".join(alphabet[code] for part in pieces for code in part.y.flatten().tolist())
    assert read == content[: 68 * 16]
    assert ahead == content[1 : 68 * 16 + 1]
    with pytest.raises(EsperError, match="too short"):
        load_task("text", path=tmp_path / "book.txt", context=500)
    with pytest.raises(EsperError, match=r"context \(0\) must be positive"):
        load_task("text", path=tmp_path / "book.txt", context=0)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EsperError, match="not a plain text file"):
        load_task("text", path=tmp_path / "binary")


def test_source_predicts_the_next_character_of_files_in_an_order_of_their_own(tmp_path, monkeypatch):
    """Tests and installed packages are left out; what is not printable counts as the end of a line."""
    lib = tmp_path / "lib"
    written = {"a.py": "x = 1\n", "pack/b.py": "\ty = 'ä'\r\n", "pack/c.py": "z = 3\n", "d.py": "def f():\n"}
    left_out = {"test/e.py": "E", "pack/tests/f.py": "F", "site-packages/g.py": "G", "h.txt": "H"}
    for name, content in (written | left_out).items():
        (lib / name).parent.mkdir(parents=True, exist_ok=True)
        (lib / name).write_bytes(content.encode())
    monkeypatch.setattr(packaged.sysconfig, "get_path", {"stdlib": str(lib)}.get)
    whole = "".join(written[name] for name in sorted(written, key=lambda name: sha256(name.encode()).digest()))
    assert whole != "".join(written[name] for name in sorted(written)), "the order of names would do"
    expected = "".join(c if c in packaged.CHARACTERS else "\n" * len(c.encode()) for c in whole)
    options = {"context": 2, "characters": len(expected)}
    pieces = splits("source", **options)
    assert [len(part.x) for part in pieces] == [13, 1, 1]
    for ahead, codes in enumerate(zip(*((part.x, part.y) for part in pieces), strict=True)):
        read = "".join(packaged.CHARACTERS[code] for code in torch.cat(codes).flatten().tolist())
        assert read == expected[ahead : len(read) + ahead]
    assert load_task("source", **options).spec.outputs == len(packaged.CHARACTERS) == 96
    with pytest.raises(EsperError, match=f"characters must be at most {len(expected)}, the source that is installed"):
        load_task("source")
    for wrong in ({"context": 0}, {"context": 64, "characters": 640}):
        with pytest.raises(EsperError, match="must be above 10 times context"):
            load_task("source", **wrong)


def test_the_installed_source_can_be_learned_from():
    pieces = splits("source", validation=256)
    assert [len(part.x) for part in pieces] == [12500, 256, 1562]
    assert all(part.x.min() >= 0 and part.x.max() < 96 for part in pieces)
    rows = [{x.numpy().tobytes() for x in part.x} for part in pieces]
    assert len(rows[0] & rows[2]) < 0.02 * len(rows[2]), "comments such as rows of dashes repeat, nothing else"


def test_every_task_has_a_name():
    made = ("mnist1d", "digits", "spirals", "waves", "glyphs", "planted", "phrases", "source")
    assert task_names() == (*made, "images", "text")


@pytest.mark.parametrize("name", task_names())
def test_every_task_has_a_summary_of_one_line(name):
    """It names inputs and classes, where they do not depend on the user's data."""
    summary = task_summary(name)
    assert summary.endswith(".")
    assert len(summary) <= 100
    if name in MADE:
        spec = load_task(name).spec
        inputs = f"({'×'.join(map(str, spec.inputs))} " if len(spec.inputs) > 1 else f"({spec.inputs[0]} inputs"
        assert inputs in summary
        assert f"{spec.outputs} classes" in summary


def test_summaries_of_registered_tasks():
    def documented() -> TaskData:
        """Tell left from right.

        More about it.
        """
        raise NotImplementedError

    builders = {"documented": documented, "partial": partial(documented), "silent": lambda: documented()}
    for name, build in builders.items():
        register_task(name, build)
    try:
        assert [task_summary(name) for name in builders] == ["Tell left from right."] * 2 + [""]
    finally:
        for name in builders:
            unregister_task(name)
    with pytest.raises(EsperError, match="unknown task 'spiral': did you mean 'spirals'"):
        task_summary("spiral")


def test_options_have_their_types_and_a_builder_that_says_nothing_takes_what_it_gets():
    with pytest.raises(EsperError, match="option examples of task 'spirals' must be of type int, not 'many'"):
        load_task("spirals", examples="many")
    register_task("half", partial(synthetic.spirals, examples=300))
    try:
        assert len(load_task("half", arms=2).train.x) == 200
    finally:
        unregister_task("half")
