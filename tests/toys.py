"""Tiny hosts, tiny tasks, and the tables that the laws are tested over."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina.blueprints import blueprint_names
from esper.kasmina.hosts import host_kind, host_kinds
from esper.leyline.actions import GRAFTS, STYLES, Graft, Head, Op
from esper.leyline.objectives import CLASSIFICATION, LANGUAGE
from esper.leyline.specs import HostSpec, Stream, TaskSpec
from esper.leyline.state import Split, Task
from esper.tolaria import Fleet, HostTrainer, TrainConfig

SPECS = {
    "mlp": HostSpec("mlp", (6,), 3, (8, 8)),
    "cnn1d": HostSpec("cnn1d", (12, 2), 3, (4, 6)),
    "cnn2d": HostSpec("cnn2d", (6, 7, 1), 3, (4, 6)),
    "transformer": HostSpec("transformer", (6,), 5, (8, 8)),
    "gpt": HostSpec("gpt", (6,), 5, (8,), slots=2),
    "resnet": HostSpec("resnet", (6, 7, 1), 3, (4, 6)),
}
assert set(SPECS) == set(host_kinds()), "every kind of host needs a toy"

STYLE_OF = {graft: next(name for name, style in STYLES.items() if style.graft is graft) for graft in GRAFTS}
SEEDS = [(kind, name, graft) for kind in SPECS for name in blueprint_names(host_kind(kind).stream) for graft in GRAFTS]
"""Every host × blueprint × style."""
CHAINS = [kind for kind in SPECS if host_kind(kind).block is not None]
"""The kinds of hosts that can grow twins."""


def toy_task(kind: str, examples: int = 192, validation: int = 64, dtype: torch.dtype = torch.float32) -> Task:
    """Something this host can learn a little of."""
    spec, generator = SPECS[kind], torch.Generator().manual_seed(7)
    count = examples + validation
    if host_kind(kind).stream is Stream.TOKENS:
        x = torch.randint(spec.outputs, (count, *spec.inputs), generator=generator)
        y = (x + x.roll(1, 1)) % spec.outputs
        objective = LANGUAGE
    else:
        x = torch.randn(count, *spec.inputs, generator=generator)
        teacher = torch.randn(x[0].numel(), spec.outputs, generator=generator)
        y = (x.flatten(1) @ teacher).argmax(1)
        x, objective = x.to(dtype), CLASSIFICATION
    train, held = (
        Split(*pair) for pair in zip(x.split([examples, validation]), y.split([examples, validation]), strict=True)
    )
    return Task(TaskSpec(f"toy {kind}", spec.inputs, spec.outputs, objective), train, held)


def toy_trainer(kind: str, *, dtype: torch.dtype = torch.float32, examples: int = 192, **options) -> HostTrainer:
    config = options.pop("config", TrainConfig(batch_size=32))
    return HostTrainer(SPECS[kind], toy_task(kind, examples, dtype=dtype), config, dtype=dtype, **options)


def germinate(
    trainer: HostTrainer | Fleet, blueprint: str, graft: Graft = Graft.ADD, slot: str = "s0"
) -> tuple[int, ...]:
    """The action that plants this seed."""
    return trainer.space.action("GERMINATE", slot=slot, blueprint=blueprint, style=STYLE_OF[graft], tempo=3)


def plant_in_training(trainer: HostTrainer, blueprint: str, graft: Graft, slot: str = "s0") -> None:
    """A newborn at the beginning of its first epoch."""
    assert not trainer.act(germinate(trainer, blueprint, graft, slot))
    trainer.begin_epoch()


def bits(x: torch.Tensor) -> torch.Tensor:
    """The integer view of a tensor: tells -0 from 0, and one NaN from another."""
    size = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.detach().view(size)


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(bits(a[k]), bits(b[k])) for k in a)


def random_legal(allowed: torch.Tensor, sizes: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """A legal op and slot for every host, WAIT less often than the rest, and any choice of the other heads."""
    weight = allowed.double() * torch.tensor([0.3] + [1.0] * (len(Op) - 1)).double()[:, None]
    picked = torch.multinomial(weight.flatten(1), 1, generator=generator)[:, 0]
    actions = (torch.rand(len(allowed), len(sizes), generator=generator) * torch.tensor(sizes)).long()
    actions[:, Head.OP], actions[:, Head.SLOT] = picked // allowed.shape[2], picked % allowed.shape[2]
    return actions


def rows_of(fleet: Fleet, host: int) -> dict[str, torch.Tensor]:
    """The parameters of one host of a fleet, under the names they have in a host alone."""
    rows = {name: p[host] for name, p in fleet.trunk.layout.views(fleet.trunk.flat).items()}
    for kind, bucket in fleet.buckets.items():
        for row in (bucket.hosts == host).nonzero()[0]:
            seed = bucket.stack.layout.views(bucket.stack.flat)
            gated = fleet.state.graft[host, kind.slot] == Graft.GATE
            own = {name: p[row] for name, p in seed.items() if gated or not name.startswith("g.")}
            rows |= {f"slots.{kind.slot}.seed.{name}": p for name, p in own.items()}
    return rows


@contextmanager
def counting_products() -> Iterator[FlopCounterMode]:
    """Torch's own count, with attention as its matrix products: torch does not count its fused attention on CPUs."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        yield counter
