"""Try a blueprint on small streams before it is registered, and refuse those that would fail in a slot."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from esper.leyline.errors import EsperError
from esper.leyline.specs import SlotSpec, Stream

EXAMPLES = {
    Stream.VECTOR: ((16,), (6,)),
    Stream.SIGNAL: ((12, 8), (1, 6)),
    Stream.IMAGE: ((6, 6, 8), (1, 1, 6)),
    Stream.TOKENS: ((6, 16), (4, 6)),
}
ALIVE = 1e-6
"""Smallest gradient of a trainable parameter, as a share of the largest gradient in its seed."""


def probe(name: str, build: Callable[[SlotSpec], nn.Module], stream: Stream) -> None:
    """Raise an error with the reason if seeds of this blueprint cannot be planted, stacked or trained."""
    for shape in EXAMPLES[stream]:
        _probe(name, build, SlotSpec("probe", stream, shape))


def _probe(name: str, build: Callable[[SlotSpec], nn.Module], slot: SlotSpec) -> None:
    stream = slot.stream

    def check(passed: bool, reason: str) -> None:
        if not passed:
            raise EsperError(f"blueprint {name!r} cannot be used on {stream} streams: {reason}")

    try:
        seeds = [build(slot), build(slot)]
    except Exception as error:
        raise EsperError(f"blueprint {name!r} cannot be built for a slot of shape {slot.shape}: {error}") from error
    check(all(isinstance(seed, nn.Module) for seed in seeds), "build(slot) must return a torch.nn.Module")
    check(any(True for _ in seeds[0].parameters()), "it has no parameters to train")
    frozen = [n for n, p in seeds[0].named_parameters() if not p.requires_grad]
    check(not frozen, f"{', '.join(frozen)} has requires_grad=False; make it a buffer")
    buffers = zip(seeds[0].named_buffers(), seeds[1].buffers(), strict=True)
    drawn = [n for (n, a), b in buffers if not torch.equal(a, b)]
    check(not drawn, f"the buffer {', '.join(drawn)} differs between two seeds; only parameters may be random")
    seeds = [seed.double() for seed in seeds]
    x = torch.randn(3, *slot.shape, dtype=torch.float64)
    try:
        out = seeds[0](x)
    except Exception as error:
        raise EsperError(f"blueprint {name!r} fails on a {stream} stream of shape {tuple(x.shape)}: {error}") from error
    check(
        isinstance(out, Tensor) and out.shape == x.shape,
        f"it must keep the shape {tuple(x.shape)} of the stream, but returns {tuple(getattr(out, 'shape', ()))}",
    )
    check(bool(out.isfinite().all()), "its output is not finite")
    dead = dead_parameters(train(seeds[0], x))
    train(seeds[1], x)
    check(
        torch.allclose(seeds[0](x)[:1], seeds[0](x[:1].repeat(2, *[1] * (x.ndim - 1)))[:1]),
        "the result of an example depends on its batch or on chance; remove batch statistics and dropout",
    )
    check(not dead, f"no gradient reaches {', '.join(dead)} (is a zero layer or a norm in the way?)")
    check(stream is not Stream.TOKENS or is_causal(seeds[0], x), "a position depends on later ones; make it causal")
    trouble = stacking_trouble(seeds, x)
    check(trouble is None, f"stacked with torch.func.vmap it {trouble}")


def stacking_trouble(seeds: list[nn.Module], x: Tensor) -> str | None:
    """Return what goes wrong when seeds run stacked under vmap, or None if they compute what they compute alone."""
    params, buffers = stack_module_state(seeds)
    try:
        stacked = vmap(lambda p, b: functional_call(seeds[0], (p, b), (x,)))(params, buffers)
    except Exception as error:
        return f"fails: {error}"
    alone = torch.stack([seed(x) for seed in seeds])
    return None if torch.allclose(stacked, alone) else "gives other results"


def train(seed: nn.Module, x: Tensor, steps: int = 3) -> list[dict[str, float]]:
    """Train a seed on a fixed target for a few steps, and return the largest gradient of each parameter per step."""
    target = torch.randn_like(x)
    history = []
    for _ in range(steps):
        gradients = torch.autograd.grad((seed(x) - target).square().mean(), list(seed.parameters()), allow_unused=True)
        history.append({})
        for (name, p), g in zip(seed.named_parameters(), gradients, strict=True):
            history[-1][name] = 0.0 if g is None else g.abs().max().item()
            if g is not None:
                p.data.sub_(0.1 * g)
    return history


def dead_parameters(history: list[dict[str, float]]) -> list[str]:
    """Return the names of the parameters that got no gradient in any step."""
    largest = max(max(step.values()) for step in history)
    return [n for n in history[0] if not max(step[n] for step in history) > ALIVE * largest]


def is_causal(seed: nn.Module, x: Tensor) -> bool:
    """Return whether the first positions are independent of the later ones."""
    half = x.shape[1] // 2
    other = torch.cat([x[:, :half], torch.randn_like(x[:, half:])], 1)
    return torch.allclose(seed(x)[:, :half], seed(other)[:, :half])
