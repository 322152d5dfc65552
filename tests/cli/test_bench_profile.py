"""A profile counts what a machine does, and what it cannot do without."""

import json

import pytest
import torch
from torch.nn import functional

from esper.cli import main
from esper.cli.bench_needs import needs
from esper.cli.counting import FLOPS, Count, Counter, counted, touched, watched
from esper.kasmina.gates import LifecycleConfig
from esper.tolaria import Fleet, TrainConfig
from toys import SPECS, random_legal, toy_task


def test_operations_bytes_and_products_are_counted():
    a, b = torch.zeros(3, 4), torch.zeros(4, 5)
    assert counted(lambda: a @ b) == Count(operations=1, bytes=4 * (12 + 20 + 15), flops=2 * 3 * 4 * 5)


def test_a_backward_pass_is_counted_too():
    a, b = torch.zeros(3, 4), torch.zeros(4, 5, requires_grad=True)
    assert counted(lambda: (a @ b).sum().backward()).flops == 2 * 2 * 3 * 4 * 5


def test_fused_attention_is_counted():
    q = torch.zeros(2, 3, 5, 4, requires_grad=True)
    products = 2 * 2 * 3 * 5 * 5 * 4
    run = lambda: functional.scaled_dot_product_attention(q, q, q, is_causal=True)  # noqa: E731
    assert counted(run).flops == 2 * products
    assert counted(lambda: run().sum().backward()).flops == (2 + 5) * products


def test_views_and_allocations_move_nothing():
    x = torch.zeros(6)
    assert counted(lambda: (x.view(2, 3).mT[:1].expand(9, 2), torch.empty(5), x.detach())) == Count(0, 0, 0)


def test_repeated_elements_count_once():
    assert touched(torch.zeros(3, dtype=torch.float64).expand(100, 3)) == 24
    assert touched(torch.zeros(0, 4)) == 0


@pytest.mark.parametrize("name", FLOPS)
def test_kernels_that_torch_does_not_see_count_by_what_they_are_given(name):
    """Each pass of a convolution, and of attention, has the FLOPs that torch counts of its own."""
    x, weight = torch.zeros(2, 3, 8, 4), torch.zeros(2, 5, 4, 6)  # rows, batch, length, channels; rows, taps, in, out
    grad = torch.zeros(2, 3, 8, 6)
    q, qkv = (
        torch.zeros(5, 2, 8, 4, requires_grad=True),
        torch.zeros(5, 8, 3 * 2 * 4),
    )  # examples, heads, ...; all heads
    convolve = lambda: functional.conv1d(torch.zeros(3, 4, 8), torch.zeros(6, 4, 5), padding=2)  # noqa: E731
    attend = lambda: functional.scaled_dot_product_attention(q, q, q, is_causal=True)  # noqa: E731
    given, out = {
        "attention": ((qkv, 2), qkv[..., :8]),
        "attention_backward": ((qkv[..., :8], qkv, 2), qkv),
        "conv": ((x, weight, 1), grad),
        "conv_for_input": ((grad, weight, 1, x.shape), x),
        "conv_for_weight": ((grad, x, weight, 1), weight),
    }[name]
    counter = Counter()
    assert watched(lambda *_: out, counter, FLOPS[name])(*given) is out
    forward = counted(attend).flops
    both = counted(lambda: attend().sum().backward()).flops
    of_attention = {"attention": forward, "attention_backward": both - forward}
    assert counter.flops == of_attention.get(name, 2 * counted(convolve).flops)
    assert counter.operations == 1
    assert counter.bytes == sum(touched(t) for t in (*given, out) if isinstance(t, torch.Tensor))


@pytest.mark.parametrize("kind", SPECS)
def test_what_phases_need_is_what_an_epoch_is_charged_for(kind):
    fleet = Fleet(SPECS[kind], toy_task(kind, 64), range(4), TrainConfig(batch_size=16))
    fleet.lifecycle = LifecycleConfig(lesson_every=3, min_prune_age=1, embargo=1)
    generator = torch.Generator().manual_seed(2)
    for _ in range(6):
        fleet.decide(random_legal(fleet.legal(), fleet.space.sizes, generator))
    needed = needs(fleet)
    assert min(need.bytes for need in needed.values()) > 0
    lessons = -(-fleet.num_steps // 3)
    epoch = fleet.num_steps * needed["train step"].flops + lessons * needed["lessons"].flops
    assert epoch + needed["evaluate"].flops + needed["contributions"].flops == int(fleet.flops().sum())


def test_a_profile_is_one_json_object(capsys):
    sizes = ("--hosts", "3", "--decisions", "3", "--batch", "8", "--steps", "2", "--validation", "8", "--top", "4")
    main(["bench", "profile", "--quick", "--json", "--device", "cpu", *sizes])
    (found,) = json.loads(capsys.readouterr().out)["profiles"]
    phases = {row["phase"]: row for row in found["phases"]}
    assert list(phases) == [
        "train step", "lessons", "evaluate", "contributions", "schedule", "all else in a decision"
    ]  # fmt: skip
    step = phases["train step"]
    assert step["calls"] == 2
    assert 0 < step["roofline"] < 1
    assert step["bytes"] > step["needed_bytes"] > 0
    assert step["flops"] >= step["needed_flops"] > 0
    assert len(found["operations"]) == 4
    assert found["decisions_per_s"] > 0
