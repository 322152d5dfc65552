"""Arms of exams on a budget that train hosts of fixed sizes from scratch: each size, the best in hindsight, a sweep.

The sizes are those that a setting declares in `sizes`. All spend the FLOPs that hosts of the setting's own size would:
larger hosts make fewer steps.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from esper.exam.runs import ArmResult, ArmRun, run_traced
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


def resized(sitting: Sitting, widths: tuple[int, ...], share: float = 1.0) -> Sitting:
    """Return a sitting with hosts of another size that spend a share of the same FLOPs."""
    env, bare = sitting.fleet.env, sitting.hosts.example.fleet.spec
    assert env.budget is not None
    epochs = env.budget * share * host_cost(bare).train / step_cost(sitting, widths)
    return sitting.in_shape(replace(sitting.fleet, widths=widths, slots=1, env=replace(env, budget=epochs)))


def step_cost(sitting: Sitting, widths: tuple[int, ...]) -> int:
    """Return the FLOPs of training hosts of another size on one example."""
    return host_cost(replace(sitting.hosts.example.fleet.spec, widths=widths, slots=1)).train


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
    sum. All sizes together have spent one budget.
    """
    sitting.tell(f"{SWEEP} on the hosts that count")
    sizes, left = sitting.fleet.sizes, rungs(len(sitting.fleet.sizes))
    parts = [1 / (len(left) * count) for count in left]
    ends = [sum(parts[: n + 1]) / sum(parts) for n in range(len(parts))]
    traces, steps = [], []
    for widths, (lr, _) in zip(sizes, tried(sitting), strict=True):
        other = resized(sitting, widths, sum(parts))
        traces.append(run_traced(other.hosts.scored(lr), Never(), sitting.rent, sitting.rng_seed))
        growth = growth_of(sitting, widths)
        traces[-1] = traces[-1].paying(sitting.rent * math.log1p(growth), priced(sitting, traces[-1].outcome, growth))
        steps.append(sitting.fleet.train.batch_size * step_cost(sitting, widths))
    alive = torch.ones(len(sizes), sitting.config.hosts, dtype=torch.bool, device=traces[0].spent.device)
    whole = torch.stack([trace.outcome.flops for trace in traces])
    per_step = torch.tensor(steps, device=whole.device)[:, None]
    spent = torch.zeros_like(whole[0])
    for end, count in zip(ends, [*left[1:], 0], strict=True):
        worth = torch.stack([trace.at(end) for trace in traces]).masked_fill(~alive, -torch.inf)
        going_on = torch.zeros_like(alive).scatter(0, worth.topk(max(count, 1), dim=0).indices, value=True)
        leaving = alive & ~going_on if count else alive
        spent += ((whole * end / per_step).round() * per_step * leaving).sum(0)
        alive = going_on
    chosen = alive.float().argmax(0)
    fields = zip(*(trace.outcome for trace in traces), strict=True)
    outcome = Outcome(*(torch.stack(values).gather(0, chosen[None])[0] for values in fields))
    seconds = sum(trace.seconds for trace in traces)
    run = ArmRun(outcome._replace(flops=spent), [], [], traces[0].topology, seconds)
    lr = float(torch.tensor([rate for rate, _ in tried(sitting)])[chosen.cpu()].mean())
    return ArmResult(SWEEP, [run], sitting.fleet.env.decisions, lr, paired=False)
