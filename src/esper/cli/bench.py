"""Options of `esper bench`: the measurements, which need torch, are imported when they run."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from esper.cli.flags import Flag, optional
from esper.cli.sizes import Size
from esper.leyline.errors import EsperError

Precision = Literal["fp32", "bf16"]
Seeds = Literal["none", "one", "full", "twins", "live"]
Learner = Literal["esper", "sb3_recurrent", "sb3_maskable"]


def check_sizes(asked: object, *names: str) -> None:
    """Raise an error if one of these options is given and not positive."""
    for name in names:
        if (size := getattr(asked, name)) is not None and size < 1:
            raise EsperError(f"{name} must be at least 1, not {size}")


@dataclass(frozen=True, kw_only=True)
class BenchFleet:
    """Measure how fast hosts train, one by one and as a fleet.

    One by one means plain PyTorch, on a GPU also with CUDA streams and with CUDA graphs. Ratios are to plain PyTorch in
    fp32 on the same workload.
    """

    device: Annotated[str | None, optional("DEVICE", "the GPU if there is one")] = None
    """Device to run on: cpu or cuda."""
    workload: Annotated[tuple[str, ...], arg(metavar="NAME ...")] = ("mnist1d",)
    """Hosts and batches to measure: mnist1d (widths 8-8-8, batch 64), tiny2d (8×8 pixels, widths 16-32-64, batch 64),
    cifar (32×32 pixels, widths 32-64-128, batch 128), small2d (32×32 pixels, widths 8-16-32, batch 512), tokens
    (transformers of 4 blocks with 64 channels, context 128, batch 32)."""
    hosts: Annotated[tuple[int, ...] | None, optional("N ...", "1 4 16 64, on a GPU also 256 1024")] = None
    """Fleet sizes to measure."""
    seeds: Annotated[tuple[Seeds, ...], arg(metavar="SEEDS ...")] = ("none", "one", "full", "live")
    """Seeds in each host: none; one; full: one in every slot; twins: a twin in every slot, for tokens; live: random
    legal actions in staggered episodes."""
    precision: Annotated[tuple[Precision, ...] | None, optional("PRECISION ...", "fp32, on a GPU also bf16")] = None
    """Precisions to measure: fp32, bf16."""
    decisions: Annotated[int | None, optional("N", "25, on a GPU 200")] = None
    """Decisions of a live fleet."""
    batch: Annotated[int | None, optional("N", "that of the workload")] = None
    """Examples of a batch."""
    steps: Annotated[int | None, optional("N", "those of the workload")] = None
    """Training steps of an epoch."""
    validation: Annotated[int | None, optional("N", "those of the workload")] = None
    """Examples that hosts are evaluated on."""
    memory_budget: Annotated[Size, optional("SIZE", "no limit")] = None
    """Memory that a fleet may use, such as 2GB; batches are split until they fit."""
    quick: Flag = False
    """Give a coarse answer in less than a minute on two cores."""
    json: Flag = False
    """Print one JSON object instead of a table."""

    def run(self) -> None:
        check_sizes(self, "batch", "steps", "validation")
        if any(n < 1 for n in self.hosts or ()):
            raise EsperError(f"hosts must be positive, not {' '.join(map(str, self.hosts or ()))}")
        from esper.cli.bench_fleet import measure_fleets

        measure_fleets(self)


@dataclass(frozen=True, kw_only=True)
class BenchProfile:
    """Measure where the time of a fleet goes.

    For every phase of a decision: operations, bytes and FLOPs; what must be computed and moved; and the share of the
    roofline, which a matrix product and a copy of the same run define.
    """

    device: Annotated[str | None, optional("DEVICE", "the GPU if there is one")] = None
    """Device to run on: cpu or cuda."""
    workload: Annotated[tuple[str, ...], arg(metavar="NAME ...")] = ("mnist1d",)
    """Workloads to profile, those of `esper bench fleet`."""
    hosts: int = 32
    """Hosts of the fleet."""
    seeds: Annotated[Seeds, arg(metavar="SEEDS")] = "live"
    """Seeds in each host, as for `esper bench fleet`."""
    precision: Annotated[Precision | None, optional("PRECISION", "fp32, on a GPU bf16")] = None
    """Precision of activations: fp32, bf16."""
    decisions: Annotated[int | None, optional("N", "12")] = None
    """Random decisions before a live fleet is profiled."""
    batch: Annotated[int | None, optional("N", "that of the workload")] = None
    """Examples of a batch."""
    steps: Annotated[int | None, optional("N", "those of the workload")] = None
    """Training steps of an epoch."""
    validation: Annotated[int | None, optional("N", "those of the workload")] = None
    """Examples that hosts are evaluated on."""
    top: int = 20
    """Operations to list."""
    quick: Flag = False
    """Give a coarse answer in less than a minute on two cores."""
    json: Flag = False
    """Print one JSON object instead of tables."""

    def run(self) -> None:
        check_sizes(self, "hosts", "decisions", "batch", "steps", "validation", "top")
        from esper.cli.bench_profile import measure_profiles

        measure_profiles(self)


@dataclass(frozen=True, kw_only=True)
class BenchPPO:
    """Measure one PPO update beside those of sb3-contrib.

    3 slots and 13 blueprints, an LSTM of 512, one epoch, one thread, equal minibatches. Ratios are to RecurrentPPO with
    a shared LSTM.
    """

    device: Annotated[str, arg(metavar="DEVICE")] = "cpu"
    """Device for Esper: cpu or cuda. The others always run on the CPU."""
    learners: Annotated[tuple[Learner, ...], arg(metavar="NAME ...")] = ("esper", "sb3_recurrent", "sb3_maskable")
    """Learners to measure: esper, sb3_recurrent, sb3_maskable."""
    minibatches: Annotated[tuple[int, ...] | None, optional("N ...", "1 4 8, with --quick 1 4")] = None
    """Minibatches of one update."""
    hosts: int = 8
    """Episodes in the rollout."""
    decisions: int = 150
    """Decisions of each episode."""
    quick: Flag = False
    """Give a coarse answer in less than a minute on two cores."""
    json: Flag = False
    """Print one JSON object instead of a table."""

    def run(self) -> None:
        for name in ("hosts", "decisions"):
            if getattr(self, name) < 1:
                raise EsperError(f"{name} must be at least 1, not {getattr(self, name)}")
        if max(self.steps) > self.hosts:
            raise EsperError(f"minibatches ({max(self.steps)}) hold whole episodes, and there are only {self.hosts}")
        if min(self.steps) < 1:
            raise EsperError(f"minibatches must be at least 1, not {min(self.steps)}")
        from esper.cli.bench_ppo import measure_updates

        measure_updates(self)

    @property
    def steps(self) -> tuple[int, ...]:
        """The minibatches to measure."""
        return self.minibatches or ((1, 4) if self.quick else (1, 4, 8))


@dataclass(frozen=True, kw_only=True)
class BenchPrecision:
    """Compare bf16 with fp32 on equal hosts; needs a GPU.

    Weights at the start, data order and growth are the same; the difference in J has a 95 % interval.
    """

    device: Annotated[str, arg(metavar="DEVICE")] = "cuda"
    """CUDA device to run on."""
    task: Annotated[str, arg(metavar="NAME")] = "planted"
    """Task to train on, one of `esper tasks`."""
    host: Annotated[str, arg(metavar="KIND")] = "mlp"
    """Kind of host, such as cnn1d."""
    hosts: int = 30
    """Hosts in each fleet."""
    epochs: int = 20
    """Epochs of training."""
    rent: float = 0.02
    """Price of growth: J = score - rent * ln(1 + growth)."""
    json: Flag = False
    """Print one JSON object instead of lines."""

    def run(self) -> None:
        for name, least in (("hosts", 2), ("epochs", 1)):
            if getattr(self, name) < least:
                raise EsperError(f"{name} must be at least {least}, not {getattr(self, name)}")
        from esper.cli.bench_precision import compare_precisions

        compare_precisions(self)


@dataclass(frozen=True, kw_only=True)
class BenchGrow:
    """Measure what growth costs a training step while nothing grows.

    A residual network and a transformer: attached to growth, with twins that are being blended in, with twins that are
    blended in, and finished. Ratios are to a plain model of equal depth, timed in turns.
    """

    device: Annotated[str | None, optional("DEVICE", "the GPU if there is one")] = None
    """Device to run on: cpu or cuda."""
    pairs: Annotated[int | None, optional("N", "300, on a GPU 25 of 10 steps each")] = None
    """Times that a step is measured with growth and without."""
    quick: Flag = False
    """Give a coarse answer in less than a minute on two cores."""
    json: Flag = False
    """Print one JSON object instead of a table."""

    def run(self) -> None:
        if self.pairs is not None and self.pairs < 6:
            raise EsperError(f"pairs must be at least 6 for a 95 % interval, not {self.pairs}")
        from esper.cli.bench_grow import measure_growth

        measure_growth(self)
