"""Law 10: grown models are ordinary, and a training file's next step is identical."""

import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from esper.kasmina import LifecycleConfig, build_host, load_model, register_blueprint, save_model, unregister_blueprint
from esper.kasmina.blueprints.vector import low_rank
from esper.kasmina.host import Host
from esper.leyline import atomic, tensor_files
from esper.leyline.actions import Graft
from esper.leyline.errors import FileError
from esper.leyline.specs import HostSpec
from esper.tolaria import TrainConfig, load_training, save_training
from toys import SEEDS, SPECS, bits, germinate, same_bits, toy_trainer

HASTY = LifecycleConfig(training=1, min_prune_age=0)
OPTIMIZERS = {"adamw": TrainConfig(batch_size=32), "sgd": TrainConfig(batch_size=32, optimizer="sgd", lr=0.05)}


def grown(kind: str, blueprint: str, graft, **options):
    """A host whose first slot holds a blended seed and whose second a silent one."""
    trainer = toy_trainer(kind, examples=64, lifecycle=HASTY, **options)
    trainer.decide(germinate(trainer, blueprint, graft))
    trainer.decide(trainer.space.action())
    trainer.decide(germinate(trainer, blueprint, graft, "s1"))
    assert trainer.host.slot(0).alpha > 0
    return trainer


def drawn(host: Host) -> Host:
    """The host with weights from torch's own generator, as modules of anyone's have them."""
    for p in host.parameters():
        p.data.normal_()
    return host


@pytest.mark.parametrize(("kind", "blueprint", "graft"), SEEDS)
def test_a_model_file_needs_only_the_hosts_constructor(kind, blueprint, graft, tmp_path):
    host = grown(kind, blueprint, graft).host
    save_model(tmp_path / "model.safetensors", host)
    before = torch.get_rng_state()
    loaded = load_model(tmp_path / "model.safetensors", lambda: drawn(build_host(SPECS[kind])))
    assert torch.equal(torch.get_rng_state(), before), "a constructor may draw; loading does not"
    x = toy_trainer(kind).task.validation.x
    assert torch.equal(bits(host(x)), bits(loaded(x)))
    assert same_bits(host.state_dict(), loaded.state_dict())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("kind", "blueprint", "graft"), SEEDS)
def test_after_loading_a_training_file_the_next_steps_are_identical(kind, blueprint, graft, optimizer, tmp_path):
    trainer = grown(kind, blueprint, graft, config=OPTIMIZERS[optimizer])
    save_training(tmp_path / "training.safetensors", trainer)
    resumed = toy_trainer(kind, examples=64, config=OPTIMIZERS[optimizer], lifecycle=HASTY, rng_seed=99)
    load_training(tmp_path / "training.safetensors", resumed)
    prune = trainer.space.action("PRUNE", slot="s0", alpha_speed="3")
    for action in (prune, trainer.space.action()):
        report = trainer.decide(action)
        assert report == resumed.decide(action)
        assert not report.refused
    assert same_bits(trainer.host.state_dict(), resumed.host.state_dict())


def test_a_training_file_survives_another_order_of_registration(tmp_path):
    """Blueprints are stored by name; a new one in front moves the indices, not the seeds."""
    path = tmp_path / "training.safetensors"
    register_blueprint("extra", low_rank, "vector")
    try:
        trainer = grown("mlp", "extra", Graft.ADD)
        save_training(path, trainer)
    finally:
        unregister_blueprint("extra", "vector")
    with pytest.raises(FileError, match="cannot be used: unknown blueprint for vector streams 'extra'"):
        load_training(path, toy_trainer("mlp", examples=64, lifecycle=HASTY))
    register_blueprint("another", low_rank, "vector")
    register_blueprint("extra", low_rank, "vector")
    try:
        resumed = toy_trainer("mlp", examples=64, lifecycle=HASTY)
        load_training(path, resumed)
        assert resumed.space.blueprints[int(resumed.state.blueprint[0, 0])] == "extra"
        assert trainer.decide(trainer.space.action()) == resumed.decide(resumed.space.action())
    finally:
        unregister_blueprint("another", "vector")
        unregister_blueprint("extra", "vector")


class Bomb:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture
def saved(tmp_path) -> Path:
    trainer = grown("mlp", "mlp", Graft.ADD)
    save_training(tmp_path / "training.safetensors", trainer)
    save_model(tmp_path / "model.safetensors", trainer.host)
    return tmp_path


def refuse(path: Path, match: str) -> None:
    """Both loaders refuse this file, and nothing about the trainer changes."""
    trainer = toy_trainer("mlp", examples=64, lifecycle=HASTY)
    before = {k: v.clone() for k, v in trainer.host.state_dict().items()}
    host, optimizer, state = trainer.host, trainer.optimizer, trainer.state
    with pytest.raises(FileError, match=match):
        load_training(path, trainer)
    with pytest.raises(FileError, match=match):
        load_model(path, lambda: build_host(SPECS["mlp"]))
    assert (trainer.host, trainer.optimizer, trainer.state, trainer.epoch) == (host, optimizer, state, 0)
    assert same_bits(before, trainer.host.state_dict())


def test_missing_foreign_and_pickled_files_are_refused(tmp_path):
    refuse(tmp_path / "nothing.safetensors", "there is no file")
    refuse(tmp_path, "there is no file")
    (tmp_path / "text").write_text("not weights at all")
    refuse(tmp_path / "text", "damaged or not a safetensors file")
    (tmp_path / "empty").write_bytes(b"")
    refuse(tmp_path / "empty", "damaged or not a safetensors file")
    save_file({"weight": torch.ones(3)}, tmp_path / "foreign")
    refuse(tmp_path / "foreign", "of an unknown format")
    (tmp_path / "pickle").write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    refuse(tmp_path / "pickle", "damaged or not a safetensors file")
    torch.save({"weight": Bomb(tmp_path / "exploded")}, tmp_path / "torch")
    refuse(tmp_path / "torch", "damaged or not a safetensors file")
    assert not (tmp_path / "exploded").exists()


def test_each_kind_of_file_is_only_itself(saved):
    with pytest.raises(FileError, match=r"esper\.model"):
        load_training(saved / "model.safetensors", toy_trainer("mlp", examples=64))
    with pytest.raises(FileError, match=r"esper\.training"):
        load_model(saved / "training.safetensors", lambda: build_host(SPECS["mlp"]))


@pytest.mark.parametrize("name", ["model", "training"])
def test_truncated_and_corrupted_files_are_refused(saved, name):
    def load(path: Path) -> None:
        if name == "model":
            load_model(path, lambda: build_host(SPECS["mlp"]))
        else:
            load_training(path, toy_trainer("mlp", examples=64, lifecycle=HASTY))

    whole = (saved / f"{name}.safetensors").read_bytes()

    @given(st.integers(0, len(whole) - 1), st.booleans())
    def check(at: int, cut: bool) -> None:
        damaged = whole[:at] if cut else whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :]
        (saved / "damaged").write_bytes(damaged)
        with pytest.raises(FileError):
            load(saved / "damaged")

    check()


@pytest.mark.parametrize("widths", [(8,), (8, 8, 8), (8, 9), (8, 8, 8, 8, 8)])
def test_another_host_is_refused(saved, widths):
    with pytest.raises(FileError, match="another host"):
        load_model(saved / "model.safetensors", lambda: build_host(HostSpec("mlp", (6,), 3, widths)))


def test_a_failed_write_keeps_the_old_file(saved, monkeypatch):
    old = (saved / "model.safetensors").read_bytes()

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full_disk)
    with pytest.raises(FileError, match="No space left"):
        save_model(saved / "model.safetensors", build_host(SPECS["mlp"], 5))
    assert (saved / "model.safetensors").read_bytes() == old
    assert sorted(p.name for p in saved.iterdir()) == ["model.safetensors", "training.safetensors"]


OTHER = {
    "config": {"config": TrainConfig(batch_size=32, lr=0.1)},
    "optimizer": {"config": TrainConfig(batch_size=32, optimizer="sgd")},
    "lifecycle": {},
    "dtype": {"dtype": torch.float64, "lifecycle": HASTY},
}


@pytest.mark.parametrize("name", OTHER)
def test_a_training_file_of_another_setting_is_refused(saved, name):
    trainer = toy_trainer("mlp", examples=64, **OTHER[name])
    host = trainer.host
    with pytest.raises(FileError, match="holds another " + ("config" if name == "optimizer" else name)):
        load_training(saved / "training.safetensors", trainer)
    assert trainer.host is host


BROKEN = {
    "no seeds": lambda d, t: d.pop("seeds"),
    "null seeds": lambda d, t: d.update(seeds=None),
    "unknown graft": lambda d, t: d["seeds"]["s0"].update(graft="LERP"),
    "no slots": lambda d, t: d.pop("slots"),
    "no epoch": lambda d, t: d.pop("epoch"),
    "a word for an epoch": lambda d, t: d.update(epoch="x"),
    "no blueprints": lambda d, t: d.pop("blueprints"),
    "stage 77": lambda d, t: t["state/stage"].fill_(77),
    "blueprint 77": lambda d, t: t["state/blueprint"].fill_(77),
    "half a moment": lambda d, t: t.pop("optimizer/s0/0/exp_avg"),
    "a moment of another shape": lambda d, t: t.update({"optimizer/s0/0/exp_avg": torch.tensor(0.0)}),
    "moments for nobody": lambda d, t: t.update({"optimizer/s7/0/exp_avg": torch.tensor(0.0)}),
    "no state": lambda d, t: t.pop("state/alpha"),
    "no weights": lambda d, t: t.pop("host/segments.0.1.weight"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_well_formed_file_with_the_wrong_content_is_refused(saved, name):
    """The checksum is right, so somebody or another version meant it; it is still a clear error."""
    tensors, description = tensor_files.read(saved / "training.safetensors", "esper.training")
    BROKEN[name](description, tensors)
    tensor_files.write(saved / "broken", "esper.training", tensors, description)
    trainer = toy_trainer("mlp", examples=64, lifecycle=HASTY)
    host, optimizer, state = trainer.host, trainer.optimizer, trainer.state
    with pytest.raises(FileError, match="broken"):
        load_training(saved / "broken", trainer)
    assert (trainer.host, trainer.optimizer, trainer.state, trainer.epoch) == (host, optimizer, state, 0)


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError, match="cannot write"):
        save_model(tmp_path / "file" / "model.safetensors", build_host(SPECS["mlp"]))
