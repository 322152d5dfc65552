"""Generate synthetic tasks, independently of the global random generators."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from esper.leyline.errors import EsperError
from esper.leyline.objectives import CLASSIFICATION, LANGUAGE
from esper.leyline.rng import Purpose, key, uniform
from esper.leyline.specs import TaskSpec
from esper.leyline.state import Split
from esper.tasks.data import TaskData, divide


def _normal(count: int, *parts: int | str) -> Tensor:
    """Draw from the standard normal distribution by the Box-Muller transform of hashed keys."""
    u = uniform(key(0, Purpose.DATA, *parts), 2 * count).view(2, count)
    return (torch.sqrt(-2 * torch.log(u[0])) * torch.cos(2 * math.pi * u[1])).float()


def spirals(arms: int = 3, noise: float = 0.08, examples: int = 3000, rng_seed: int = 0) -> TaskData:
    """Classify points in the plane by spiral arm (2 inputs, 3 classes).

    `arms` is the number of classes, `noise` the standard deviation of the noise on both coordinates.
    """
    if arms < 2:
        raise EsperError(f"arms must be at least 2, not {arms}")
    radius, arm = uniform(key(rng_seed, Purpose.DATA, "spirals"), 2 * examples).view(2, examples)
    y = (arm * arms).long()
    angle = 2 * math.pi * y / arms + 1.5 * math.pi * radius
    x = torch.stack([radius * angle.cos(), radius * angle.sin()], -1).float()
    x = 2 * x + noise * _normal(2 * examples, "spirals noise", rng_seed).view(examples, 2)
    spec = TaskSpec("spirals", (2,), arms, CLASSIFICATION)
    validation, test, train = divide(Split(x, y), examples // 6, examples // 6)
    return TaskData(spec, train, validation, test)


WAVES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda phase: torch.sin(2 * math.pi * phase),
    lambda phase: 2 * torch.sin(math.pi * phase) - 1,
    lambda phase: 2 * phase - 1,
    lambda phase: 1 - 2 * phase,
    lambda phase: 4 * (phase - 0.5).abs() - 1,
    lambda phase: torch.where(phase < 0.25, 1.0, -1.0),
    lambda phase: torch.where(phase < 0.5, 1.0, -1.0),
    lambda phase: torch.where(phase < 0.75, 1.0, -1.0),
)
"""One period of a sine, arches, a rising and a falling ramp, a triangle, and three pulses."""


def waves(noise: float = 0.3, length: int = 32, examples: int = 3000, rng_seed: int = 0) -> TaskData:
    """Classify noisy signals by waveform (32×1 signals, 8 classes).

    Each signal shows 1.5 to 4 periods at a random phase. `length` is its number of samples, `noise` the standard
    deviation of the noise on them.
    """
    if length < 8:
        raise EsperError(f"length must be at least 8, not {length}")
    which, frequency, start = uniform(key(rng_seed, Purpose.DATA, "waves"), 3 * examples).view(3, examples, 1)
    y = (which * len(WAVES)).long()
    phase = ((1.5 + 2.5 * frequency) * torch.arange(length) / length + start) % 1
    x = torch.stack([wave(phase) for wave in WAVES], 1)[torch.arange(examples), y[:, 0]].float()
    x = x + noise * _normal(length * examples, "waves noise", rng_seed).view(examples, length)
    spec = TaskSpec("waves", (length, 1), len(WAVES), CLASSIFICATION)
    validation, test, train = divide(Split(x[..., None], y[:, 0]), examples // 6, examples // 6)
    return TaskData(spec, train, validation, test)


def glyphs(
    variants: int = 3,
    shift: float = 0.2,
    noise: float = 0.3,
    classes: int = 10,
    side: int = 8,
    examples: int = 2000,
    rng_seed: int = 0,
) -> TaskData:
    """Classify noisy, shifted patterns (8×8×1 images, 10 classes).

    Each class has several patterns, which are sums of a few slow waves. `variants` is the number of patterns per class:
    the more, the larger a network must be. `shift` is the largest shift as a share of the side.
    """
    if min(variants, classes - 1) < 1 or side < 4:
        raise EsperError(
            f"variants ({variants}) must be positive, classes ({classes}) at least 2 and side ({side}) at least 4"
        )
    waves = torch.cartesian_prod(torch.arange(-2.0, 3.0), torch.arange(0.0, 3.0)).double()
    real, imaginary = _normal(2 * variants * classes * len(waves), "glyphs", rng_seed).view(2, -1, len(waves)).double()
    drawn = torch.complex(real, imaginary) / (1 + waves.norm(dim=-1))
    which, *moved = uniform(key(rng_seed, Purpose.DATA, "glyphs"), 3 * examples).view(3, examples)
    which = (which * len(drawn)).long()
    moved = shift * (2 * torch.stack(moved, -1) - 1)
    at = torch.arange(side).double() / side
    x = (drawn[which] * _turn(moved @ waves.T)) @ _turn(waves @ torch.cartesian_prod(at, at).T)
    x = (x.real / x.real.std()).float() + noise * _normal(x.numel(), "glyphs noise", rng_seed).view(x.shape)
    spec = TaskSpec("glyphs", (side, side, 1), classes, CLASSIFICATION)
    validation, test, train = divide(Split(x.view(examples, *spec.inputs), which % classes), *[examples // 6] * 2)
    return TaskData(spec, train, validation, test)


def _turn(periods: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(periods), 2 * math.pi * periods)


LETTERS = 12
"""Letters of the phrases; one more token separates words."""


def phrases(words: int = 48, context: int = 32, examples: int = 6000, rng_seed: int = 0) -> TaskData:
    """Predict the next letter of phrases in an invented language (32 tokens, 13 classes).

    `words` is the size of its vocabulary. Words have 2 to 5 letters, and each is one of four that may follow the two
    words before it, which are likely to different degrees. `context` is the number of tokens per example.
    """
    if words < 2 or context < 2:
        raise EsperError(f"words ({words}) and context ({context}) must be at least 2")
    lengths = 2 + (4 * uniform(key(rng_seed, Purpose.DATA, "words"), words)).long()
    spelling = (LETTERS * uniform(key(rng_seed, Purpose.DATA, "letters"), words * 6)).long().view(words, 6)
    at = torch.arange(6)
    spelling = torch.where(at == lengths[:, None], LETTERS, spelling).where(at <= lengths[:, None], -1)
    follows = (words * uniform(key(rng_seed, Purpose.DATA, "follows"), words * words * 4)).long().view(words, words, 4)
    drawn = uniform(key(rng_seed, Purpose.DATA, "phrases"), examples * (context + 1)).view(context + 1, examples)
    likely = torch.bucketize(drawn, torch.tensor([0.6, 0.85, 0.95], dtype=drawn.dtype))
    before, last = (words * uniform(key(rng_seed, Purpose.DATA, "first"), 2 * examples)).long().view(2, examples)
    spoken = []
    for choice in likely[: context // 3 + 1]:  # a word has at least three tokens
        before, last = last, follows[before, last, choice]
        spoken.append(spelling[last])
    letters = torch.cat(spoken, 1)
    order = (letters < 0).long().argsort(dim=1, stable=True)[:, : context + 1]  # letters first, without the gaps
    tokens = letters.gather(1, order)
    spec = TaskSpec("phrases", (context,), LETTERS + 1, LANGUAGE)
    validation, test, train = divide(Split(tokens[:, :-1], tokens[:, 1:]), *[examples // 12] * 2)
    return TaskData(spec, train, validation, test)


def planted(width: int = 16, inputs: int = 16, classes: int = 4, examples: int = 6000, rng_seed: int = 0) -> TaskData:
    """Imitate a random network of known width, so that the right size is known (16 inputs, 4 classes).

    The teacher has one hidden layer of `width` units. Its size is among the facts of the task.
    """
    if min(width, inputs, classes - 1) < 1:
        raise EsperError(f"width ({width}) and inputs ({inputs}) must be positive and classes ({classes}) at least 2")
    draws = _normal(width * (inputs + classes), "teacher", rng_seed)
    hidden, out = draws[: width * inputs].view(width, inputs), draws[width * inputs :].view(classes, width)
    x = _normal(examples * inputs, "planted", rng_seed).view(examples, inputs)
    logits = torch.relu(x @ hidden.T) @ out.T
    y = (logits - logits.mean(0)).argmax(-1)
    facts = {"teacher_width": width, "teacher_parameters": width * (inputs + 1) + classes * (width + 1)}
    spec = TaskSpec("planted", (inputs,), classes, CLASSIFICATION, facts)
    validation, test, train = divide(Split(x, y), examples // 6, examples // 6)
    return TaskData(spec, train, validation, test)
