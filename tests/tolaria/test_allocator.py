"""Law: a fleet on a CPU finds the memory that it has freed in place."""

import resource
import sys

import pytest
import torch

import esper


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told to keep freed memory")
def test_an_epoch_of_a_fleet_faults_few_pages_in() -> None:
    task = esper.load_task("digits")
    spec = esper.HostSpec("cnn2d", task.spec.inputs, task.spec.outputs, widths=(16, 16))
    fleet = esper.Fleet(spec, task, range(16), esper.TrainConfig(batch_size=64, steps=3))
    wait = torch.tensor([fleet.space.action("WAIT")] * 16)
    faults = []
    for _ in range(4):
        fleet.decide(wait)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    assert faults[-1] - faults[-2] < 2000
