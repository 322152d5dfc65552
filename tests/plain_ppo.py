"""Proximal policy optimisation written out: loops over hosts, lives, decisions and heads, as a textbook has it."""

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
    """What an update says of itself."""

    grad_norm: float
    grad_norm_clipped: float
    head_gradients: list[float]
    samples: list[float]
    approx_kl: list[float]
    advantage_mean: float
    advantage_std: float


def advantages(rollout: Rollout, rewards: Tensor, config: PPOConfig) -> Tensor:
    """Generalised advantage estimation, from the last decision back."""
    length, hosts = rewards.shape
    found = torch.zeros(length, hosts)
    for n in range(hosts):
        following = 0.0
        for t in reversed(range(length)):
            surprise = rewards[t, n] + config.gamma * rollout.after[t, n] - rollout.choice.value[t, n]
            following = surprise + (0.0 if rollout.ended[t, n] else config.gamma * config.lam * following)
            found[t, n] = following
    return found


def against_siblings(raw: Tensor, rollout: Rollout) -> Tensor:
    """Minus the mean of the others that were born together."""
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


def parts_of_lives(rollout: Rollout, recurrent: bool) -> list[tuple[int, int, int]]:
    """Host, first decision and the one after the last, of each life's part in a rollout."""
    length, hosts = rollout.reward.shape
    found = []
    for n in range(hosts):
        firsts = [t for t in range(length) if t == 0 or rollout.start[t, n] or not recurrent]
        found += [(n, first, last) for first, last in zip(firsts, [*firsts[1:], length], strict=True)]
    return found


def judged(controller: Controller, rollout: Rollout, n: int, first: int, last: int):
    """What a controller thinks of one part of a life, read from the memory with which it began."""
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
    """One update of `controller`, in place."""
    raw = advantages(rollout, rewards, config)
    returns = raw + rollout.choice.value
    compared = against_siblings(raw, rollout) if config.group_baseline else raw
    advantage = (compared - compared.mean()) / compared.std(correction=0)
    lives = parts_of_lives(rollout, controller.config.recurrent)
    rows = []
    for _ in range(config.epochs):
        for which in torch.randperm(len(lives), generator=generator).chunk(config.minibatches):
            policy, entropy, kl = ([torch.zeros(())] * len(Head) for _ in range(3))
            counts, value_loss, decisions = [0] * len(Head), torch.zeros(()), 0
            for n, first, last in (lives[i] for i in which.tolist()):
                new = judged(controller, rollout, n, first, last)
                for t in range(first, last):
                    value_loss = value_loss + 0.5 * (new.value[t - first, 0] - returns[t, n]) ** 2
                    decisions += 1
                    for head in Op(int(rollout.choice.action[t, n, Head.OP])).heads:
                        log_ratio = new.log_probs[t - first, 0, head] - rollout.choice.log_probs[t, n, head]
                        ratio = log_ratio.exp()
                        clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
                        gain = torch.minimum(ratio * advantage[t, n], clipped * advantage[t, n])
                        policy[head] = policy[head] - gain
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
        head_gradients=[sum(row[1][head] for row in rows) / steps for head in Head],
        samples=[count / config.epochs for count in samples],
        approx_kl=[float(sum(row[3][head] for row in rows)) / max(samples[head], 1) for head in Head],
        advantage_mean=compared.mean().item(),
        advantage_std=compared.std().item(),
    )


def gradient_norms(controller: Controller) -> list[float]:
    """Of the parameters that only one head has, head by head."""
    own = {Head.OP: "op.", Head.SLOT: "slot_score.", Head.BLUEPRINT: "blueprint_score."}
    found = []
    for head in Head:
        if head in own:
            gradients = [p.grad.flatten() for name, p in controller.named_parameters() if name.startswith(own[head])]
            found.append(torch.cat(gradients).norm().item())
    sizes = {Head.STYLE: 4, Head.TEMPO: 3, Head.ALPHA_TARGET: 3, Head.ALPHA_SPEED: 4, Head.ALPHA_CURVE: 5}
    rows = iter(dict(controller.named_parameters())["tail.2.weight"].grad)
    return found + [torch.stack([next(rows) for _ in range(size)]).norm().item() for size in sizes.values()]
