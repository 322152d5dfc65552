"""Arms of exams on a budget that train hosts of fixed sizes from scratch: each size, the best in hindsight, a sweep.

The sizes are those that a setting declares in `sizes`. All spend the FLOPs that hosts of the setting's own size would:
larger hosts make fewer steps.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esper.exam.runs import ArmResult, ArmRun, Traced, run_traced
from esper.exam.sitting import Played, Sitting
from esper.kasmina.cost import host_cost
from esper.kasmina.host import num_parameters
from esper.kasmina.hosts import build_host
from esper.simic.evaluation import Outcome, evaluate
from esper.tamiyo.policies import Never

HINDSIGHT, SWEEP = "hindsight", "sweep"


def name_of(widths: Sequence[int]) -> str:
    """Return the name of the arm of one size, such as `fixed 4 × 32` for four blocks of 32 channels."""
    same = len(set(widths)) == 1
    return f"fixed {f'{len(widths)} × {widths[0]}' if same else '-'.join(map(str, widths))}"


def resized(sitting: Sitting, widths: tuple[int, ...], share: float = 1.0, host: str | None = None) -> Sitting:
    """Return a sitting with hosts of another size, or kind; on a budget, they spend a share of the same FLOPs."""
    fleet = replace(sitting.fleet, widths=widths, host=host or sitting.fleet.host)
    if (budget := fleet.env.budget) is None:
        return sitting.in_shape(fleet)
    bare = sitting.hosts.example.fleet.spec
    size = host_cost(replace(bare, kind=fleet.host, widths=widths, slots=1)).train
    env = replace(fleet.env, budget=budget * share * host_cost(bare).train / size)
    return sitting.in_shape(replace(fleet, slots=1, env=env))


def growth_of(sitting: Sitting, widths: tuple[int, ...]) -> float:
    """Return how much larger hosts of another size are than bare ones."""
    bare = sitting.hosts.example.fleet.spec
    return num_parameters(build_host(replace(bare, widths=widths))) / num_parameters(build_host(bare)) - 1


def priced(sitting: Sitting, outcome: Outcome, growth: float) -> Outcome:
    """Let hosts of another size pay for it."""
    return outcome._replace(
        objective=outcome.objective - sitting.rent * math.log1p(growth),
        growth=torch.full_like(outcome.growth, growth),
    )


def tried(sitting: Sitting) -> list[tuple[float, float]]:
    """Return the best learning rate of every size and its mean J, both on tuning hosts."""

    def choose() -> list[float]:
        found = []
        for widths in sitting.fleet.sizes:
            other = resized(sitting, widths)
            rates = other.tuner.grid
            outcome = evaluate(other.hosts.tuning(sitting.config.tuned_on, rates), Never(), sitting.rent)
            paid = priced(sitting, outcome, growth_of(sitting, widths))
            means = paid.objective.view(-1, len(rates)).mean(0).tolist()
            found += [rates[means.index(max(means))], max(means)]
        return found

    if not sitting.tried_sizes:
        numbers = list(sitting.tuner.chosen(f"learning rates of {len(sitting.fleet.sizes)} sizes", choose))
        sitting.tried_sizes = list(zip(numbers[::2], numbers[1::2], strict=True))
    return sitting.tried_sizes


def fixed(sitting: Sitting, widths: tuple[int, ...]) -> ArmResult:
    """Train hosts of one size from scratch."""
    lr, _ = tried(sitting)[sitting.fleet.sizes.index(widths)]
    other, name = resized(sitting, widths), name_of(widths)
    sitting.tell(f"{name} on the hosts that count")
    arm = other.play(name, [Never()], lr)
    runs = [run._replace(outcome=priced(sitting, run.outcome, growth_of(sitting, widths))) for run in arm.runs]
    return arm._replace(runs=runs, paired=False)


def hindsight(sitting: Sitting, played: Played) -> ArmResult:
    """Return what the size does that was best on the tuning hosts, each size at its own learning rate."""
    found = tried(sitting)
    best = max(range(len(found)), key=lambda n: found[n][1])
    arm = played.others[name_of(sitting.fleet.sizes[best])]
    return arm._replace(name=HINDSIGHT, plan=arm.name)


def rungs(sizes: int) -> list[int]:
    """Return how many sizes are left in each round of a sweep: all, then the better half, until one is left."""
    left = [sizes]
    while left[-1] > 1:
        left.append(-(-left[-1] // 2))
    return left


def sweep(sitting: Sitting, played: Played) -> ArmResult:
    """Choose the size by successive halving, and pay for it.

    For every host that counts, one of each size is trained. The budget of one host is divided evenly over the rounds,
    and that of a round evenly over the sizes that are left in it; after each round the better half goes on, by J on the
    validation data. The last one left has spent the sum of its parts, and its learning rate follows the share of that
    sum. All sizes together have spent one budget, to a step of each.
    """
    sitting.tell(f"{SWEEP} on the hosts that count")
    sizes, left = sitting.fleet.sizes, rungs(len(sitting.fleet.sizes))
    parts = [1 / (len(left) * count) for count in left]
    ends = [sum(parts[: n + 1]) / sum(parts) for n in range(len(parts))]
    traces, lives = [], []
    for widths, (lr, _) in zip(sizes, tried(sitting), strict=True):
        env = resized(sitting, widths, sum(parts)).hosts.scored(lr)
        env.pause_at(ends[:-1])
        trace, growth = run_traced(env, Never(), sitting.rent, sitting.rng_seed), growth_of(sitting, widths)
        traces.append(trace.paying(sitting.rent * math.log1p(growth), priced(sitting, trace.outcome, growth)))
        life = env.life()
        assert life is not None
        lives.append(life)
    chosen, spent, failed = halved(traces, torch.stack(lives), ends, left)
    fields = zip(*(trace.outcome for trace in traces), strict=True)
    outcome = Outcome(*(torch.stack(values).gather(0, chosen[None])[0] for values in fields))
    outcome = outcome._replace(flops=spent, sick=failed.to(outcome.sick))
    seconds, step = sum(trace.seconds for trace in traces), sum(trace.step for trace in traces)
    run = ArmRun(outcome, [], [], traces[0].topology, seconds, step)
    lr = float(torch.tensor([rate for rate, _ in tried(sitting)])[chosen.cpu()].mean())
    return ArmResult(SWEEP, [run], sitting.fleet.env.decisions, lr, paired=False)


def halved(
    traces: Sequence[Traced], lives: Float[Tensor, "Z N"], ends: Sequence[float], left: Sequence[int]
) -> tuple[Int[Tensor, " N"], Float[Tensor, " N"], Bool[Tensor, " N"]]:
    """Return which size is left for every host, what all sizes have spent together, and where one of them failed.

    Args:
        traces: Training of each size on all hosts.
        lives: FLOPs of these trainings as a whole.
        ends: Share of its training that a size has behind it after each round.
        left: Number of sizes in each round.
    """
    going = torch.ones_like(lives, dtype=torch.bool)
    spent, failed = torch.zeros_like(lives[0]), torch.zeros_like(going[0])
    for end, count in zip(ends, [*left[1:], 0], strict=True):
        worth = torch.stack([trace.at(end) for trace in traces])
        failed |= ((worth == -torch.inf) & going).any(0)
        ranked = worth.clamp(min=-1.0e30).masked_fill(~going, -torch.inf)  # failed ones before those that are out
        stays = torch.zeros_like(going).scatter(0, ranked.topk(max(count, 1), dim=0).indices, value=True)
        leaves = going & ~stays if count else going
        paid = torch.stack([trace.spent_at(end) for trace in traces]) * lives
        spent += paid.where(leaves, 0.0).sum(0)
        going = stays
    return going.float().argmax(0), spent, failed
