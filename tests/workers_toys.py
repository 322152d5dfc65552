"""Processes that exchange numbers on this machine, and a training that they can share."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from esper.leyline.tensor_files import write
from esper.simic import CollectConfig, LearnConfig, PPOConfig, RentSchedule
from esper.simic.rollout import Rollout
from esper.simic.train import Training
from esper.simic.workers import ALONE, Workers
from small_fleets import controller_for, make_env

PPO = PPOConfig(minibatches=4, accumulate=2, entropy_end=0.0, anneal=3, weight_decay=0.01)
CONFIG = LearnConfig(
    updates=5,
    ppo=PPO,
    collect=CollectConfig(horizon=4, prices=(0.0, 0.02)),
    rent=RentSchedule(end=0.05, updates=3),
    rng_seed=3,
)


def begin(workers: Workers = ALONE, config: LearnConfig = CONFIG, recurrent: bool = True) -> Training:
    """Two fleets that differ in everything, dealt over the workers."""
    kinds = [("mlp", 4, {"episode": 7, "group": 2, "rng_seed": 1}), ("cnn1d", 3, {"episode": 5, "rng_seed": 2})]
    envs = [make_env(kind, hosts, staggered=True, **options) for kind, hosts, options in workers.share(kinds)]
    return Training(envs, controller_for(recurrent), config, workers)


def watched(training: Training) -> tuple[list[Rollout], list[Tensor]]:
    """Return lists that get the rollouts and the gradients of every optimizer step from now on."""
    rollouts: list[Rollout] = []
    gradients: list[Tensor] = []
    update, total = training.learner.update, training.learner.total

    def updated(rollout, reward=None):
        rollouts.append(rollout)
        return update(rollout, reward)

    def totalled(parts):
        found = total(parts)
        gradients.append(torch.cat([p.grad.flatten() for p in training.controller.parameters()]))
        return found

    training.learner.update, training.learner.total = updated, totalled
    return rollouts, gradients


def write_trace(path: Path, training: Training, updates: int) -> list[dict]:
    """Train, write what was chosen and learned from, and return the reports."""
    rollouts, gradients = watched(training)
    reports = [training.step() for _ in range(updates)]
    every = [training.workers.joined(rollout.choice.action, 1) for rollout in rollouts]
    rewards = [training.workers.joined(rollout.reward, 1) for rollout in rollouts]
    scale = training.scale
    write(
        path,
        "trace",
        {
            "actions": torch.stack(every),
            "rewards": torch.stack(rewards),
            "gradients": torch.stack(gradients),
            "scale": torch.stack([scale.count, scale.mean, scale.squares]),
            "weights": torch.cat([p.detach().flatten() for p in training.controller.parameters()]),
        },
        {},
    )
    return reports


def joined_group(rank: int, size: int, file: str) -> Workers:
    """Join the other processes that were given this file."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    return Workers(rank, size)


def spawned(script: Path, folder: Path, size: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """Run a script in several processes at once: it gets its rank, their number and a folder."""
    env = os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{Path(__file__).parent}"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(size), str(folder)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = [worker.communicate(timeout=240) for worker in workers]
    return [
        subprocess.CompletedProcess(worker.args, worker.returncode, *told)
        for worker, told in zip(workers, said, strict=True)
    ]
