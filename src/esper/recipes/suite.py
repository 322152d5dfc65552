"""Settings (task, host, learning rate) that exams are held in and that the shipped controller is trained on."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from esper.kasmina import LifecycleConfig
from esper.leyline.errors import unknown
from esper.recipes.config import FleetConfig
from esper.tolaria import EnvConfig, TrainConfig

Option = int | float | str


def _fleet(
    task: str,
    options: dict[str, Option],
    host: str,
    widths: tuple[int, ...],
    lr: float,
    batch: int = 128,
    epochs: int = 20,
) -> FleetConfig:
    env, train = EnvConfig(episode=epochs, group=16), TrainConfig(lr=lr, batch_size=batch)
    return FleetConfig(task=task, options=options, host=host, widths=widths, hosts=48, train=train, env=env)


def _signals(width: int, slots: int = 3, lr: float = 2e-2, task: str = "mnist1d", **options: Option) -> FleetConfig:
    return _fleet(task, options, "cnn1d", (width,) * slots, lr)


def _vectors(task: str, width: int, **options: Option) -> FleetConfig:
    return _fleet(task, options, "mlp", (width,) * 2, 4e-2)


def _pictures(
    *widths: int, host: str = "cnn2d", lr: float = 2e-2, epochs: int = 16, task: str = "glyphs", **options: Option
) -> FleetConfig:
    return _fleet(task, options, host, widths, lr, batch=64, epochs=epochs)


SUITE: dict[str, Callable[[], FleetConfig]] = {
    "mnist1d-4": lambda: _signals(4),
    "mnist1d-8": lambda: _signals(8),
    "mnist1d-16": lambda: _signals(16),
    "spirals": lambda: _vectors("spirals", 6),
    "planted": lambda: _vectors("planted", 4, inputs=4, classes=8),
    "digits-4": lambda: _pictures(4, 4, task="digits"),
    "digits-6": lambda: _pictures(6, 6, task="digits"),
}
"""Settings of exams by name. Their learning rates are within a factor of 2 of the best without growth."""
HELD_OUT = ("digits-4", "digits-6")
"""Settings that the recipe `general` is not trained on; nor is it trained on images, text or transformers."""


def varied(hosts: int = 96) -> tuple[FleetConfig, ...]:
    """Return the 14 settings of the first stage of `general`.

    For three kinds of hosts, growth pays in some settings and not in others; they differ in the number of slots, the
    length of episodes, the amount of data and the learning rate.
    """
    return _at_three_rates(
        hosts,
        _signals(4),
        _signals(8),
        _signals(16, examples=1700),
        _signals(12, lr=1e-2, examples=500),
        _signals(4, slots=2, lr=4e-2, task="waves", noise=0.1),
        _signals(12, slots=2, task="waves", examples=2000),
        _pictures(6, 6),
        _pictures(4, 4, variants=1, shift=0.5),
        _pictures(4, 4, variants=2),
        _pictures(6, 6, 6, lr=1e-2, epochs=12, variants=4, side=12),
        _vectors("spirals", 6, examples=2000),
        _vectors("spirals", 6, arms=5, examples=2000),
        _vectors("spirals", 16, arms=5, examples=2000),
        _vectors("planted", 4, examples=2000),
    )


def later(hosts: int = 96) -> tuple[FleetConfig, ...]:
    """Return the 8 settings that the second stage adds.

    Later slots pay more than the first, small seeds pay, and MLPs have as much data as in exams.
    """
    return _at_three_rates(
        hosts,
        _pictures(4, 8, 16, lr=1e-2, epochs=12, variants=6, side=12, examples=4000),
        _pictures(4, 8, 16, lr=1e-2, epochs=12, variants=6, side=16, examples=3000),
        _pictures(6, 12, 24, lr=1e-2, epochs=12, variants=4, side=16, examples=3000),
        _pictures(8, 8, host="mlp", variants=3, side=12),
        _pictures(6, 6, host="mlp", variants=4, side=16),
        _pictures(6, 6, 6, host="mlp", variants=2, side=10),
        setting("spirals"),
        setting("planted"),
    )


def harder(hosts: int = 96) -> tuple[FleetConfig, ...]:
    """Return the 8 settings that the third stage adds.

    Hosts of familiar sizes have more to learn from more data, and one less: size does not predict what pays.
    """

    def glyphs(host: str, *widths: int, **options: Option) -> FleetConfig:
        return _fleet("glyphs", {"examples": 6000} | options, host, widths, 2e-2, epochs=12)

    return _at_three_rates(
        hosts,
        glyphs("cnn2d", 4, 8, 16, variants=10, noise=0.5),
        glyphs("cnn2d", 6, 12, 24, variants=16, noise=0.5),
        glyphs("cnn2d", 8, 16, 24, variants=6, noise=0.5),
        glyphs("cnn2d", 4, 8, 16, variants=2, examples=3000),
        glyphs("mlp", 8, 8, variants=4, side=16),
        glyphs("mlp", 16, 16, variants=6, side=16),
        glyphs("mlp", 24, 24, variants=10, side=16),
        glyphs("mlp", 12, 12, 12, variants=6, side=12),
    )


def _at_three_rates(hosts: int, *fleets: FleetConfig) -> tuple[FleetConfig, ...]:
    return tuple(replace(fleet, hosts=hosts, rates=(0.5, 1.0, 2.0)) for fleet in fleets)


def _chain(
    task: str,
    host: str,
    width: tuple[int, ...],
    lr: float,
    budget: float,
    batch: int = 32,
    steps: int = 5,
    **options: Option,
) -> FleetConfig:
    """Return hosts whose blocks can be copied, with room for four times as many, on a budget."""
    depths = [tuple(w for w in width for _ in range(times)) for times in (1, 2, 3, 4)]
    return FleetConfig(
        task=task,
        options=options,
        host=host,
        widths=width,
        slots=3,
        sizes=tuple(depths),
        hosts=32,
        train=TrainConfig(lr=lr, batch_size=batch, steps=steps),
        lifecycle=CHEAP,
        env=EnvConfig(budget=budget, group=8),
    )


def _text(task: str, width: int, lr: float, steps: int = 64, context: int = 64) -> FleetConfig:
    """Return transformers of one block that read a text for long enough that a second one can pay."""
    return _chain(task, "gpt", (width,), lr, budget=40, steps=steps, context=context, validation=256)


def _perceptron(task: str, width: int, lr: float, budget: float, **options: Option) -> FleetConfig:
    """Return perceptrons on a budget, which seeds can widen but nothing can deepen."""
    plain = _fleet(task, options, "mlp", (width, width), lr)
    sizes = tuple((width * times,) * 2 for times in (1, 2, 4))
    env = EnvConfig(budget=budget, group=8)
    return replace(plain, sizes=sizes, hosts=32, lifecycle=CHEAP, env=env)


CHEAP = LifecycleConfig(min_training=0, training=3, lesson_every=4, measure_every=8, measure_fossilized=False)
"""What lives on a budget spend on silent lessons and on measuring contributions."""
BUDGETED: dict[str, Callable[[], FleetConfig]] = {
    "phrases-16": lambda: _chain("phrases", "gpt", (16, 16), 1e-2, budget=60, steps=10),
    "source-16": lambda: _text("source", 16, 1e-2),
    "source-32": lambda: _text("source", 32, 6e-3, steps=128),
    "glyphs-8": lambda: _chain("glyphs", "resnet", (8, 16), 1e-2, budget=40, steps=10, variants=6, examples=6000),
    "spirals-6": lambda: _perceptron("spirals", 6, 4e-2, budget=40),
    "planted-4": lambda: _perceptron("planted", 4, 4e-2, budget=40, inputs=4, classes=8),
    "phrases-8": lambda: _chain("phrases", "gpt", (8, 8), 2e-2, budget=60, batch=16, words=24, examples=2000),
    "source-24": lambda: _text("source", 24, 8e-3, context=32),
    "digits-8": lambda: _chain("digits", "resnet", (8, 8), 1e-2, budget=60, batch=64, steps=10),
    "waves-8": lambda: replace(
        _signals(8, task="waves"),
        env=EnvConfig(budget=30, group=8),
        lifecycle=CHEAP,
        sizes=((8, 8, 8), (16, 16, 16), (24, 24, 24)),
    ),
}
"""Settings on a budget, by name."""
UNSEEN = ("phrases-8", "source-24", "digits-8", "waves-8")
"""Those that the recipe `budgeted` is not trained on."""
QUICK_BUDGETED = ("phrases-8", "spirals-6")
"""Those of a quick exam."""


def budgeted(*names: str) -> tuple[FleetConfig, ...]:
    """Return settings on a budget; by default all that the recipe `budgeted` is trained on."""
    for name in names:
        if name not in BUDGETED:
            raise unknown("setting on a budget", name, BUDGETED)
    return tuple(BUDGETED[name]() for name in names or [name for name in BUDGETED if name not in UNSEEN])


def budgeted_text(path: str | Path, width: int = 32) -> FleetConfig:
    """Return the setting on a budget for a text file, read character by character."""
    plain = _text("text", width, 6e-3)
    return replace(plain, options=plain.options | _file(path))


def images(path: str | Path) -> FleetConfig:
    """Return the setting for a file or folder of images, such as CIFAR-10."""
    return _fleet("images", _file(path), "cnn2d", (8, 16, 32), 1e-2, batch=256)


def text(path: str | Path) -> FleetConfig:
    """Return the setting for a text file, read character by character."""
    return _fleet("text", _file(path), "transformer", (32, 32), 6e-3, epochs=12)


def _file(path: str | Path) -> dict[str, Option]:
    return {"path": str(path), "name": Path(path).stem}


def setting(name: str) -> FleetConfig:
    """Return a setting of the suite."""
    if name not in SUITE:
        raise unknown("setting", name, SUITE)
    return SUITE[name]()


def settings(name: str) -> tuple[FleetConfig, ...]:
    """Return the settings of a name: one (mnist1d-4), all sizes of a task (mnist1d), or `all`."""
    sizes = [full for full in SUITE if name in (full, full.partition("-")[0], "all")]
    return tuple(SUITE[full]() for full in sizes) or (setting(name),)


def chosen(names: Sequence[str], image_file: Path | None = None, text_file: Path | None = None) -> list[FleetConfig]:
    """Return settings by name, then those of the user's image and text files."""
    own = [build(path) for build, path in ((images, image_file), (text, text_file)) if path]
    return [*(fleet for name in names for fleet in settings(name)), *own]
