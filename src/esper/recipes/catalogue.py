"""The recipes that come with Esper. Hosts learn at the rate that suits those that never grow, as a lower one would
flatter growth."""

from collections.abc import Callable
from dataclasses import replace

from esper.leyline.errors import unknown
from esper.recipes.config import FleetConfig, Recipe, WarmStartConfig
from esper.recipes.suite import harder, images, later, setting, text, varied
from esper.simic import CollectConfig, LearnConfig, PPOConfig, RentSchedule
from esper.simic.ppo import REVIEWED
from esper.tamiyo.network import GPU, ControllerConfig
from esper.tolaria import Engine, EnvConfig, TrainConfig


def _recipe(name: str, fleet: FleetConfig, updates: int, epochs: int = 4, checkpoint_every: int = 5) -> Recipe:
    """One fleet whose rollouts are whole lives, with rent from the start."""
    learn = LearnConfig(
        updates=updates,
        ppo=PPOConfig(epochs=epochs),
        collect=CollectConfig(horizon=fleet.env.episode),
        rent=RentSchedule(start=0.02),
    )
    return Recipe(name=name, fleets=(fleet,), learn=learn, checkpoint_every=checkpoint_every)


def smoke() -> Recipe:
    """Spirals with tiny hosts: a complete run in less than half a minute on two cores."""
    return _recipe(
        "smoke", _spirals(hosts=8, examples=600, episode=8, group=4), updates=4, epochs=2, checkpoint_every=1
    )


def spirals() -> Recipe:
    """Spirals with hosts of 4 and 4 units: five minutes on two cores."""
    return _recipe("spirals", _spirals(hosts=48, examples=1000, episode=16, group=8), updates=24)


def _spirals(hosts: int, examples: int, episode: int, group: int) -> FleetConfig:
    return FleetConfig(
        task="spirals",
        options={"examples": examples},
        host="mlp",
        widths=(4, 4),
        hosts=hosts,
        train=TrainConfig(lr=4e-2),
        env=EnvConfig(episode=episode, group=group),
    )


def digits() -> Recipe:
    """Handwritten digits of 8 × 8 pixels, small 2-D CNN hosts; for two cores."""
    env, train = EnvConfig(episode=12, group=8), TrainConfig(lr=2e-2)
    fleet = FleetConfig(task="digits", host="cnn2d", widths=(8, 8), hosts=24, train=train, env=env)
    return _recipe("digits", fleet, updates=20)


def mnist1d() -> Recipe:
    """Half of MNIST-1D, weak 1-D CNN hosts, a head start from a plan search: four minutes on two cores."""
    fleet = FleetConfig(
        task="mnist1d",
        options={"examples": 1700},
        host="cnn1d",
        widths=(4, 4, 4),
        hosts=24,
        train=TrainConfig(lr=2e-2, batch_size=32),
        env=EnvConfig(episode=12, group=8),
    )
    plain = _recipe("mnist1d", fleet, updates=8, epochs=2, checkpoint_every=1)
    gentle = replace(plain.learn.ppo, lr=2e-4, entropy_coef=0.001)  # there is something to lose
    start = WarmStartConfig(plans=14, best=1, lives=24, epochs=200)
    return replace(plain, warm_start=start, learn=replace(plain.learn, ppo=gentle))


def mnist1d_gpu() -> Recipe:
    """MNIST-1D for a GPU: 256 hosts at a time, lives of 20 epochs."""
    return _for_a_gpu("mnist1d_gpu", replace(setting("mnist1d-8"), hosts=256))


def general() -> Recipe:
    """A controller for everyone: fourteen kinds of hosts and data, none of them held out, for a GPU."""
    plain = _for_a_gpu("general", *varied())
    ppo = replace(plain.learn.ppo, lr=1e-3, lr_end=1e-4, minibatches=32, anneal=32)
    start = WarmStartConfig(plans=46, best=3, lives=32, epochs=200)  # in each round as many hosts as are learned from
    return replace(plain, warm_start=start, learn=replace(plain.learn, updates=32, ppo=ppo))


def further() -> Recipe:
    """Eight more kinds of hosts and data for a controller of `general` (`--warm-start.run RUN`), for a GPU."""
    plain = general()
    ppo = replace(plain.learn.ppo, lr=5e-4, lr_end=5e-5, anneal=8)
    start = replace(plain.warm_start, run="shipped", plans=45, epochs=100)  # it takes part, too
    learn = replace(plain.learn, updates=8, ppo=ppo)
    fleets = (*varied(hosts=48), *later())
    return replace(plain, name="further", fleets=fleets, warm_start=start, learn=learn, checkpoint_every=2)


def wider() -> Recipe:
    """Eight more for a controller of `further` (`--warm-start.run RUN`), blind to the size of hosts, for a GPU."""
    plain = further()
    return replace(
        plain,
        name="wider",
        fleets=(*varied(hosts=48), *later(hosts=48), *harder()),
        controller=replace(plain.controller, size=False),
        warm_start=replace(plain.warm_start, plans=29),
        learn=replace(plain.learn, updates=6, ppo=replace(plain.learn.ppo, anneal=6)),
    )


def practice() -> Recipe:
    """Nothing new: eight updates more for a controller of `wider` (`--warm-start.run RUN`), for a GPU."""
    plain = wider()
    ppo = replace(plain.learn.ppo, entropy_coef=plain.learn.ppo.entropy_end, anneal=8)  # there is something to lose
    start, learn = WarmStartConfig(run="shipped"), replace(plain.learn, updates=8, ppo=ppo)
    return replace(plain, name="practice", warm_start=start, learn=learn)


def _for_a_gpu(name: str, *fleets: FleetConfig) -> Recipe:
    """What has beaten searched plans on MNIST-1D: many small steps, rent from the start, entropy that fades."""
    learn = LearnConfig(
        updates=40,
        ppo=PPOConfig(
            lr=1.5e-3, lr_end=1.5e-4, epochs=4, minibatches=16, entropy_coef=0.02, entropy_end=0.002, anneal=40
        ),
        collect=CollectConfig(horizon=20),
        rent=RentSchedule(start=0.02),
    )
    engine = Engine(device="cuda", precision="bf16")
    return Recipe(name=name, fleets=fleets, controller=ControllerConfig(hidden=128), learn=learn, engine=engine)


def cifar10() -> Recipe:
    """CIFAR-10 from a local file (`--fleets.0.options.path FILE`), for a GPU."""
    return replace(_for_a_gpu("cifar10", images("cifar10.npz")), controller=GPU)


def characters() -> Recipe:
    """A character transformer on a text file (`--fleets.0.options.path FILE`)."""
    fleet = text("text.txt")
    env, train = replace(fleet.env, group=8), replace(fleet.train, batch_size=32)
    return _recipe("characters", replace(fleet, hosts=16, env=env, train=train), updates=20)


def reviewed() -> Recipe:
    """The reviewed system's setting, as far as it was told: its optimiser's defaults, one epoch, lives of 25 epochs."""
    fleet = FleetConfig(task="mnist1d", host="cnn1d", widths=(8, 8, 8), hosts=8, env=EnvConfig(episode=25))
    learn = LearnConfig(
        updates=20, ppo=PPOConfig(**REVIEWED, group_baseline=False), collect=CollectConfig(terminal=False)
    )
    return Recipe(name="reviewed", fleets=(fleet,), learn=learn)


RECIPES: dict[str, Callable[[], Recipe]] = {
    "smoke": smoke,
    "spirals": spirals,
    "digits": digits,
    "mnist1d": mnist1d,
    "mnist1d_gpu": mnist1d_gpu,
    "general": general,
    "further": further,
    "wider": wider,
    "practice": practice,
    "cifar10": cifar10,
    "characters": characters,
    "reviewed": reviewed,
}


def recipe_names() -> tuple[str, ...]:
    """List the names of all recipes."""
    return tuple(RECIPES)


def recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]()
