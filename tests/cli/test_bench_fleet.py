"""The loop that fleets are compared with trains the very networks of the fleet."""

import json

import pytest
import torch

from esper.cli import main
from esper.cli.workloads import WORKLOADS, make_fleet, plain_host, planted, random_task
from esper.kasmina.hosts import build_host
from esper.leyline.actions import TWIN
from esper.leyline.errors import EsperError
from esper.leyline.specs import HostSpec
from esper.tolaria import Engine


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_plain_network_is_the_host_of_the_workload(name):
    """Parameter by parameter, and output by output."""
    workload = WORKLOADS[name].resized(batch=2, steps=1, validation=2)
    host = build_host(HostSpec(workload.kind, workload.inputs, workload.outputs, workload.widths))
    plain, x = plain_host(workload), random_task(workload).train.x
    with torch.no_grad():
        for ours, theirs in zip(host.parameters(), plain.parameters(), strict=True):
            is_kernel = ours.ndim > 2
            theirs.copy_(ours.movedim((-1, -2), (0, 1)) if is_kernel else ours)
        out = plain(x if workload.is_language else x.movedim(-1, 1))
        torch.testing.assert_close(host(x), out, rtol=1e-4, atol=1e-5)


def test_workloads_can_be_made_smaller():
    tokens = WORKLOADS["tokens"]
    assert (tokens.batch, tokens.epoch, tokens.validation) == (32, 1024, 128)
    small = tokens.resized(batch=4)
    assert (small.batch, small.epoch, small.validation) == (4, 128, 128), "as many steps as before"
    assert tokens.resized(steps=3).epoch == 96
    assert tokens.resized(validation=5).validation == 5
    assert tokens.resized() == tokens


def test_seeds_can_be_twins_where_there_are_blocks_to_copy():
    fleet = make_fleet(WORKLOADS["tokens"].resized(1, 1, 1), 2, Engine())
    planted(fleet, 1, twins=True)
    assert {kind.blueprint for kind in fleet.buckets} == {TWIN}
    with pytest.raises(EsperError, match="hosts of kind 'cnn1d' have no blocks to copy; use workload tokens"):
        planted(make_fleet(WORKLOADS["mnist1d"].resized(1, 1, 1), 2, Engine()), 1, twins=True)


def test_transformers_are_measured_like_other_hosts(capsys):
    sizes = ("--batch", "1", "--steps", "1", "--validation", "2", "--hosts", "2")
    main(["bench", "fleet", "--quick", "--json", "--device", "cpu", "--workload", "tokens", "--seeds", "none", *sizes])
    found = json.loads(capsys.readouterr().out)
    assert [(row["workload"], row["way"], row["hosts"]) for row in found["rows"]] == [
        ("tokens", "loop", 4),
        ("tokens", "fleet", 2),
    ]
    assert all(row["samples_per_s"] > 0 for row in found["rows"])
