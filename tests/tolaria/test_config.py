"""Engines, and the learning rates of seeds."""

import torch

from esper.tolaria import Engine, TrainConfig
from planted_fleets import small_fleet


def test_a_device_is_a_word_only_where_people_write_it():
    assert Engine().place() == torch.device("cpu")
    fleet = small_fleet(2)
    assert fleet.device == torch.device("cpu")
    assert fleet.network.device == torch.device("cpu")


def test_an_engine_computes_and_keeps_in_its_precision():
    """Parameters are kept in fp32 at least."""
    engines = {name: Engine(device="cuda", precision=name) for name in ("bf16", "fp32", "fp64")}
    assert [e.compute for e in engines.values()] == [torch.bfloat16, torch.float32, torch.float64]
    assert [e.dtype for e in engines.values()] == [torch.float32, torch.float32, torch.float64]
    assert Engine.on("cuda:1").precision == "bf16"
    assert Engine.on("cpu").precision == "fp32"


def test_the_rate_of_a_seed_by_its_age():
    """Twice the learning rate for three epochs; a warmup of four."""
    age = torch.arange(1, 7)
    assert TrainConfig().seed_rate(age).tolist() == [1.0] * 6
    assert TrainConfig(newborn_boost=2.0).seed_rate(age).tolist() == [2.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    assert TrainConfig(newborn_boost=2.0, warmup=4).seed_rate(age).tolist() == [0.5, 1.0, 1.5, 1.0, 1.0, 1.0]
