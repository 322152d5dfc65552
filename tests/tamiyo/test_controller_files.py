"""A controller survives a file, and files that do not fit are refused in one sentence."""

import json
import pickle

import pytest
import torch

from esper.leyline.errors import FileError
from esper.leyline.tensor_files import read, write
from esper.tamiyo import Controller, ControllerConfig
from esper.tamiyo.controller_files import CONTROLLER_FORMAT, READS, load_controller, save_controller
from small_views import act, seen

CONFIGS = (
    ControllerConfig(hidden=16, slot_hidden=8),
    ControllerConfig(recurrent=False, hidden=24, layer_norm=False, telemetry=False, size=False),
)


@pytest.mark.parametrize("config", CONFIGS)
def test_it_decides_as_before(config, tmp_path):
    controller = Controller(config, rng_seed=5)
    save_controller(tmp_path / "c.safetensors", controller)
    loaded = load_controller(tmp_path / "c.safetensors")
    assert loaded.config == config
    for (name, a), (other, b) in zip(controller.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(a, b)
    for a, b in zip(act(controller, seen()), act(loaded, seen()), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("field", "value"),
    [("host_features", ["time_left", "phase_of_the_moon"]), ("choices", {"op": ["WAIT"]}), ("families", ["norm"])],
)
def test_one_that_means_other_things_is_refused(field, value, tmp_path):
    path = tmp_path / "c.safetensors"
    save_controller(path, Controller(CONFIGS[0]))
    tensors, description = read(path, CONTROLLER_FORMAT)
    write(path, CONTROLLER_FORMAT, tensors, description | {field: value})
    with pytest.raises(FileError, match=f"holds another {field}"):
        load_controller(path)


def without(names, feature, tensors, weight):
    """Return names and tensors as if a feature had not existed."""
    kept = [i for i in range(tensors[weight].shape[1]) if i >= len(names) or names[i] != feature]
    return [name for name in names if name != feature], tensors | {weight: tensors[weight][:, kept]}


@pytest.mark.parametrize("config", CONFIGS)
def test_features_that_are_newer_than_a_controller_mean_nothing_to_it(config, tmp_path):
    path, controller = tmp_path / "c.safetensors", Controller(config, rng_seed=5)
    save_controller(path, controller)
    tensors, description = read(path, CONTROLLER_FORMAT)
    for features, feature in (("host_features", "score"), ("slot_features", "dearest")):
        weight, column = READS[features], description[features].index(feature)
        controller.state_dict()[weight][:, column] = 0.0
        description[features], tensors = without(description[features], feature, tensors, weight)
    write(path, CONTROLLER_FORMAT, tensors, description)
    loaded = load_controller(path).state_dict()
    assert all(torch.equal(x, loaded[name]) for name, x in controller.state_dict().items())


def test_a_runs_folder_will_do(tmp_path):
    save_controller(tmp_path / "controller.safetensors", Controller(CONFIGS[0], rng_seed=5))
    assert load_controller(tmp_path).config == CONFIGS[0]
    with pytest.raises(FileError, match=r"there is no file .*controller\.safetensors"):
        load_controller(tmp_path / "..")


def test_weights_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    save_controller(path, Controller(CONFIGS[0]))
    tensors, description = read(path, CONTROLLER_FORMAT)
    description["config"]["hidden"] = 32
    write(path, CONTROLLER_FORMAT, tensors, description)
    with pytest.raises(FileError, match="does not fit"):
        load_controller(path)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a file was executed",))


@pytest.mark.parametrize("content", [pickle.dumps(Bomb()), b"", json.dumps({}).encode()])
def test_nothing_is_ever_unpickled(content, tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(FileError, match="damaged or not a safetensors file"):
        load_controller(path)
