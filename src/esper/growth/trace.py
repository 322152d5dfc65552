"""Check how a model calls its chains, on fake tensors: nothing is computed and nothing changes."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from esper.growth.chains import Chain, Refusal, stream_in, stream_of
from esper.growth.compute import Call, fake_call, fake_tensors
from esper.growth.twins import arrange


def verify(model: nn.Module, chains: list[Chain], call: Call) -> tuple[list[Chain], list[Refusal]]:
    """Keep the chains that can be deepened.

    Every block is called twice in a row for one trial pass. A chain qualifies if the second call receives exactly what
    the first returned, and returns a stream of the same shape and type: then a silent twin changes nothing.
    """
    kept, refusals = [], []
    for chain in chains:
        reason = _problem(model, chain, call)
        if reason is None:
            kept.append(chain)
        else:
            refusals.append(Refusal(chain.name, reason))
    return kept, refusals


def _problem(model: nn.Module, chain: Chain, call: Call) -> str | None:
    calls: list[tuple[nn.Module, Tensor | None, Any]] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        calls.append((module, stream_of(args, kwargs), output))

    blocks = chain.blocks
    handles = [block.register_forward_hook(note, with_kwargs=True) for block in blocks]
    arrange(chain, [block for block in blocks for _ in range(2)])
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad(), fake_tensors(model, mode):
            args, kwargs = fake_call(call)
            model(*args, **kwargs)
    except Exception as error:
        return f"the model fails when a block is repeated: {str(error).splitlines()[0]}"
    finally:
        arrange(chain, blocks)
        for handle in handles:
            handle.remove()
    return _judge(chain, blocks, calls)


def _judge(chain: Chain, blocks: list[nn.Module], calls: list[tuple[nn.Module, Tensor | None, Any]]) -> str | None:
    expected = [block for block in blocks for _ in range(2)]
    if not calls:
        return "the model does not call its blocks one by one"
    if len(calls) < len(expected):
        return f"the model calls {len(calls)} of {len(expected)} blocks: it counts them by a number of its own"
    if [id(module) for module, _, _ in calls] != [id(block) for block in expected]:
        return "the model does not call its blocks once each, in order"
    for (_, x, output), (_, following, _) in pairwise(calls):
        y = stream_in(output)
        if x is None or y is None:
            return f"its blocks return {type(output).__name__}, not a tensor or a tuple that begins with one"
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"its blocks change the stream from {tuple(x.shape)} to {tuple(y.shape)}"
        if following is not y:
            return "something happens between its blocks: a silent copy would change the result"
    _, last, output = calls[-1]
    y = stream_in(output)
    if last is None or y is None or last.shape != y.shape:
        return "its last block changes the stream's shape"
    chain.shape = tuple(last.shape)
    return None
