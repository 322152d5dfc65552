"""Reference implementation of PPO: plain loops over hosts, episodes, decisions and heads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from esper.leyline.actions import Head, Op
from esper.simic import PPOConfig
from esper.simic.rollout import Rollout
from esper.tamiyo import Controller
from esper.tamiyo.features import Features
from esper.tamiyo.network import HiddenState, Observation


@dataclass
class Numbers:
    """Numbers that an update reports."""

    grad_norm: float
    grad_norm_clipped: float
    head_grad_norms: list[float]
    samples: list[float]
    approx_kl: list[float]
    advantage_mean: float
    advantage_std: float


def advantages(rollout: Rollout, rewards: Tensor, config: PPOConfig) -> Tensor:
    """Return generalized advantage estimates, computed backwards from the last decision."""
    length, hosts = rewards.shape
    found = torch.zeros(length, hosts)
    for n in range(hosts):
        following = 0.0
        for t in reversed(range(length)):
            delta = rewards[t, n] + config.gamma * rollout.after[t, n] - rollout.choice.value[t, n]
            following = delta + (0.0 if rollout.ended[t, n] else config.gamma * config.lam * following)
            found[t, n] = following
    return found


def subtract_group_mean(raw: Tensor, rollout: Rollout) -> Tensor:
    """Subtract the mean of the other comparable hosts of the group."""
    found = raw.clone()
    for t in range(len(raw)):
        for n in range(raw.shape[1]):
            others = [
                float(raw[t, m])
                for m in range(raw.shape[1])
                if m != n and rollout.groups[m] == rollout.groups[n] and rollout.comparable[t, m]
            ]
            if rollout.comparable[t, n] and others:
                found[t, n] -= sum(others) / len(others)
    return found


def sequence_bounds(rollout: Rollout, recurrent: bool) -> list[tuple[int, int, int]]:
    """Return host, first decision and end of every sequence of a rollout."""
    length, hosts = rollout.reward.shape
    found = []
    for n in range(hosts):
        firsts = [t for t in range(length) if t == 0 or rollout.start[t, n] or not recurrent]
        found += [(n, first, last) for first, last in zip(firsts, [*firsts[1:], length], strict=True)]
    return found


def judged(controller: Controller, rollout: Rollout, n: int, first: int, last: int):
    """Evaluate one sequence with the controller, from its initial hidden state."""
    at = slice(first, last), slice(n, n + 1)
    seen = Observation(Features(*(x[at] for x in rollout.seen.features)), *(x[at] for x in rollout.seen[1:]))
    goes_on = first == 0 and not rollout.start[0, n]
    memory = HiddenState(*(x[n : n + 1] if goes_on else torch.zeros_like(x[n : n + 1]) for x in rollout.memory))
    return controller.judge(seen, memory, rollout.choice.action[at])


def update(
    controller: Controller,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    rewards: Tensor,
    config: PPOConfig,
    generator: torch.Generator,
    entropy_coef: float,
) -> Numbers:
    """Update `controller` in place."""
    raw = advantages(rollout, rewards, config)
    returns = raw + rollout.choice.value
    baselined = subtract_group_mean(raw, rollout) if config.group_baseline else raw
    advantage = (baselined - baselined.mean()) / baselined.std(correction=0)
    bounds = sequence_bounds(rollout, controller.config.recurrent)
    rows = []
    for _ in range(config.epochs):
        for index in torch.randperm(len(bounds), generator=generator).chunk(config.minibatches):
            policy, entropy, kl = ([torch.zeros(())] * len(Head) for _ in range(3))
            counts, value_loss, decisions = [0] * len(Head), torch.zeros(()), 0
            for n, first, last in (bounds[i] for i in index.tolist()):
                new = judged(controller, rollout, n, first, last)
                for t in range(first, last):
                    value_loss = value_loss + 0.5 * (new.value[t - first, 0] - returns[t, n]) ** 2
                    decisions += 1
                    for head in Op(int(rollout.choice.action[t, n, Head.OP])).heads:
                        log_ratio = new.log_probs[t - first, 0, head] - rollout.choice.log_probs[t, n, head]
                        ratio = log_ratio.exp()
                        clipped_ratio = ratio.clamp(1 - config.clip, 1 + config.clip)
                        surrogate = torch.minimum(ratio * advantage[t, n], clipped_ratio * advantage[t, n])
                        policy[head] = policy[head] - surrogate
                        entropy[head] = entropy[head] + new.entropy[t - first, 0, head]
                        kl[head] = kl[head] + (ratio - 1 - log_ratio).detach()
                        counts[head] += 1
            weights = [config.entropy_weights[head.name.lower()] for head in Head]
            loss = config.value_coef * value_loss / decisions
            for head in Head:
                if counts[head]:
                    bonus = entropy_coef * weights[head] / sum(weights) * entropy[head]
                    loss = loss + (policy[head] - bonus) / counts[head]
            optimizer.zero_grad()
            loss.backward()
            norms = gradient_norms(controller)
            norm = torch.cat([p.grad.flatten() for p in controller.parameters()]).norm().item()
            for p in controller.parameters():
                p.grad *= min(1.0, config.max_grad_norm / (norm + 1e-6))
            optimizer.step()
            rows.append((norm, norms, counts, kl))
    steps = len(rows)
    samples = [sum(row[2][head] for row in rows) for head in Head]
    return Numbers(
        grad_norm=sum(row[0] for row in rows) / steps,
        grad_norm_clipped=sum(min(row[0], config.max_grad_norm) for row in rows) / steps,
        head_grad_norms=[sum(row[1][head] for row in rows) / steps for head in Head],
        samples=[count / config.epochs for count in samples],
        approx_kl=[float(sum(row[3][head] for row in rows)) / max(samples[head], 1) for head in Head],
        advantage_mean=baselined.mean().item(),
        advantage_std=baselined.std().item(),
    )


def gradient_norms(controller: Controller) -> list[float]:
    """Return the gradient norm of each head's own parameters."""
    own = {Head.OP: "op.", Head.SLOT: "slot_score.", Head.BLUEPRINT: "blueprint_score."}
    found = []
    for head in Head:
        if head in own:
            gradients = [p.grad.flatten() for name, p in controller.named_parameters() if name.startswith(own[head])]
            found.append(torch.cat(gradients).norm().item())
    sizes = {Head.STYLE: 4, Head.TEMPO: 3, Head.ALPHA_TARGET: 3, Head.ALPHA_SPEED: 4, Head.ALPHA_CURVE: 5}
    rows = iter(dict(controller.named_parameters())["tail.2.weight"].grad)
    return found + [torch.stack([next(rows) for _ in range(size)]).norm().item() for size in sizes.values()]
