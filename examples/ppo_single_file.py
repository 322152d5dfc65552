"""Learn when and where networks should grow: recurrent PPO with masks on `esper:Growth-v0`, all in this file.

    python examples/ppo_single_file.py --updates 40

One fleet trains all hosts side by side, so the vector environment is as fast as the fleet. Nothing of Esper's own PPO
is used: change whatever you like. Prints J of the episodes that ended in each update, beside hosts that never grow.
"""

import time
from dataclasses import dataclass, replace

import gymnasium
import numpy as np
import torch
import tyro
from gymnasium.spaces import MultiDiscrete
from torch import Tensor, nn
from torch.distributions import Categorical


@dataclass
class Args:
    """The knobs."""

    task: str = "spirals"
    """What the hosts learn: a task (`esper tasks`), or a setting on a budget such as phrases-8."""
    host: str = "mlp"
    """Kind of host."""
    width: int = 4
    """Width of both layers of a host: small ones have more to gain."""
    examples: int = 1000
    """Examples that the hosts learn from; 0 takes as many as the task has by default."""
    budget: float = 10.0
    """Compute of an episode, in epochs of a host that never grows."""
    price: float = 0.02
    """Price of growth in J = score - price * ln(1 + growth)."""
    num_envs: int = 64
    """Hosts that live side by side."""
    num_steps: int = 12
    """Decisions of every host in a rollout."""
    updates: int = 40
    """Rollouts, each followed by an improvement of the policy."""
    lr: float = 1e-3
    """Adam's step size, which falls linearly to zero."""
    gamma: float = 1.0
    """Discount. Rewards are rises of J, so that without a discount they add up to J at the end."""
    gae_lambda: float = 0.95
    """Trade-off between bias and variance of advantages."""
    epochs: int = 4
    """Passes over a rollout."""
    minibatches: int = 4
    """Minibatches in a pass; each holds whole sequences of some hosts, as the LSTM needs them."""
    clip: float = 0.2
    """How far the ratio of new to old probabilities may move."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""
    value: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Norm that gradients are clipped to."""
    hidden: int = 64
    """Width of the encoder and of the LSTM."""
    seed: int = 0
    """Seed of the hosts, of the network and of the choices."""
    device: str = "cpu"
    """Device of hosts and policy."""


class Agent(nn.Module):
    """An LSTM between an encoder and two linear heads: the logits of all choices, and the value."""

    def __init__(self, seen: int, sizes: list[int], hidden: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.encoder = nn.Sequential(nn.Linear(seen, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.lstm = nn.LSTMCell(hidden, hidden)
        self.actor, self.critic = nn.Linear(hidden, sum(sizes)), nn.Linear(hidden, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def blank(self, hosts: int) -> tuple[Tensor, Tensor]:
        """Return the memory of episodes that have just begun."""
        zeros = self.critic.weight.new_zeros(hosts, self.lstm.hidden_size)
        return zeros, zeros

    def remember(self, obs: Tensor, memory: tuple[Tensor, Tensor], fresh: Tensor) -> tuple[Tensor, Tensor]:
        """Return the memory after an observation. Where an episode is fresh, what came before is forgotten."""
        kept = (~fresh).float()[:, None]
        return self.lstm(self.encoder(obs), (memory[0] * kept, memory[1] * kept))

    def judge(
        self, hidden: Tensor, mask: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return an action (a sampled one if none is given), its log-probability, the entropy and the value."""
        logits = self.actor(hidden).masked_fill(~mask, -1e8).split(self.sizes, -1)
        heads = [Categorical(logits=each) for each in logits]
        if action is None:
            action = torch.stack([head.sample() for head in heads], -1)
        log_prob = torch.stack([head.log_prob(action[..., h]) for h, head in enumerate(heads)]).sum(0)
        entropy = torch.stack([head.entropy() for head in heads]).sum(0)
        return action, log_prob, entropy, self.critic(hidden)[..., 0]


@dataclass
class Rollout:
    """Decisions over time: (T, N) and more axes."""

    obs: Tensor
    mask: Tensor
    fresh: Tensor
    """Whether this is the first decision of an episode."""
    action: Tensor
    log_prob: Tensor
    value: Tensor
    reward: Tensor
    done: Tensor
    memory: tuple[Tensor, Tensor]
    """What the LSTM remembered before the first of these decisions, (N, M)."""
    ends: list[float]
    """J of the episodes that ended."""


class Player:
    """The environment and where it stands between two rollouts."""

    def __init__(self, args: Args) -> None:
        asked = {"task": args.task, "host": args.host, "widths": (args.width, args.width), "device": args.device}
        asked["options"] = {"examples": args.examples} if args.examples else {}
        limits = {"budget": args.budget, "price": args.price, "terminal": True}  # the observation says what is left
        self.envs = gymnasium.make_vec("esper:Growth-v0", num_envs=args.num_envs, **asked, **limits)
        assert isinstance(self.envs.single_action_space, MultiDiscrete)
        self.sizes: list[int] = self.envs.single_action_space.nvec.tolist()
        self.device = torch.device(args.device)
        obs, info = self.envs.reset(seed=args.seed)
        self.obs, self.mask = self.tensor(obs), self.tensor(info["action_mask"])
        self.fresh = torch.ones(args.num_envs, dtype=torch.bool, device=self.device)
        self.memory: tuple[Tensor, Tensor] | None = None

    def tensor(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).to(self.device)

    @torch.no_grad()
    def collect(self, agent: Agent, steps: int) -> Rollout:
        """Let the policy decide for all hosts, some times."""
        self.memory = self.memory or agent.blank(len(self.fresh))
        before, rows, ends = self.memory, [], []
        for _ in range(steps):
            self.memory = agent.remember(self.obs, self.memory, self.fresh)
            action, log_prob, _, value = agent.judge(self.memory[0], self.mask)
            obs, reward, terminated, truncated, info = self.envs.step(action.cpu().numpy())
            done = terminated | truncated
            earned = self.tensor(reward).float()
            rows.append([self.obs, self.mask, self.fresh, action, log_prob, value, earned, self.tensor(done)])
            # a fresh host takes the place of one whose episode has ended: its observation and mask are here already
            self.obs, self.mask, self.fresh = self.tensor(obs), self.tensor(info["action_mask"]), self.tensor(done)
            if done.any():
                ends += info["final_info"]["j"][done].tolist()
        columns = [torch.stack(column) for column in zip(*rows, strict=True)]
        return Rollout(*columns, memory=before, ends=ends)

    @torch.no_grad()
    def value(self, agent: Agent) -> Tensor:
        """Return what the policy expects from here on."""
        assert self.memory is not None
        return agent.judge(agent.remember(self.obs, self.memory, self.fresh)[0], self.mask)[3]


def advantages(rollout: Rollout, last: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Return generalized advantages (arXiv:1506.02438, equation 16)."""
    found, running = torch.zeros_like(rollout.reward), torch.zeros_like(last)
    following = last
    for t in reversed(range(len(found))):
        alive = (~rollout.done[t]).float()
        delta = rollout.reward[t] + gamma * following * alive - rollout.value[t]
        running = delta + gamma * gae_lambda * alive * running
        found[t], following = running, rollout.value[t]
    return found


def loss_of(agent: Agent, rollout: Rollout, rows: Tensor, advantage: Tensor, args: Args) -> Tensor:
    """Return the clipped loss of some hosts' sequences."""
    memory, hiddens = (rollout.memory[0][rows], rollout.memory[1][rows]), []
    for obs, fresh in zip(rollout.obs[:, rows], rollout.fresh[:, rows], strict=True):
        memory = agent.remember(obs, memory, fresh)
        hiddens.append(memory[0])
    _, log_prob, entropy, value = agent.judge(torch.stack(hiddens), rollout.mask[:, rows], rollout.action[:, rows])
    ratio = (log_prob - rollout.log_prob[:, rows]).exp()
    gain = advantage[:, rows]
    returns = gain + rollout.value[:, rows]
    gain = (gain - gain.mean()) / (gain.std() + 1e-8)
    surrogate = torch.minimum(ratio * gain, ratio.clamp(1 - args.clip, 1 + args.clip) * gain)
    return args.value * (value - returns).square().mean() - surrogate.mean() - args.entropy * entropy.mean()


def never(args: Args, episodes: int = 32) -> float:
    """Return the mean J of hosts that never grow."""
    player = Player(replace(args, num_envs=episodes, seed=args.seed + 1_000_000))
    wait = np.zeros((episodes, len(player.sizes)), dtype=np.int64)
    while True:
        *_, info = player.envs.step(wait)
        if "final_info" in info:  # all end together: they spend the same
            return float(info["final_info"]["j"].mean())


def train(args: Args) -> list[float]:
    """Train a policy. Returns the mean J of the episodes that ended in each update."""
    torch.manual_seed(args.seed)
    player, curve, started = Player(args), [], time.perf_counter()
    agent = Agent(player.obs.shape[1], player.sizes, args.hidden).to(player.device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
    print(f"never growing: J {never(args):.3f}", flush=True)
    for update in range(args.updates):
        optimizer.param_groups[0]["lr"] = args.lr * (1 - update / args.updates)
        rollout = player.collect(agent, args.num_steps)
        advantage = advantages(rollout, player.value(agent), args.gamma, args.gae_lambda)
        for _ in range(args.epochs):
            for rows in torch.randperm(args.num_envs, device=player.device).chunk(args.minibatches):
                optimizer.zero_grad()
                loss_of(agent, rollout, rows, advantage, args).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
        curve.append(float(np.mean(rollout.ends)) if rollout.ends else float("nan"))
        decisions = (update + 1) * args.num_envs * args.num_steps
        speed = decisions / (time.perf_counter() - started)
        print(f"update {update:3}  decisions {decisions:7,}  J {curve[-1]:.3f}  {speed:,.0f} decisions/s", flush=True)
    player.envs.close()
    return curve


if __name__ == "__main__":
    train(tyro.cli(Args))
