"""The built-in recipes. Hosts learn at the rate that is best without growth, because a lower one flatters growth."""

from collections.abc import Callable
from dataclasses import replace

from esper.leyline.errors import unknown
from esper.recipes.config import FleetConfig, PretrainConfig, Recipe, WarmStartConfig
from esper.recipes.suite import budgeted as on_a_budget
from esper.recipes.suite import harder, images, later, setting, text, varied
from esper.simic import CollectConfig, LearnConfig, PPOConfig, RentSchedule
from esper.simic.ppo import REVIEWED
from esper.simic.rewards import RewardConfig
from esper.tamiyo.network import GPU, ControllerConfig
from esper.tolaria import Engine, EnvConfig, TrainConfig


def _recipe(name: str, fleet: FleetConfig, updates: int, epochs: int = 4, checkpoint_every: int = 5) -> Recipe:
    """One fleet, rollouts of whole episodes, and full rent from the first update."""
    learn = LearnConfig(
        updates=updates,
        ppo=PPOConfig(epochs=epochs),
        collect=CollectConfig(horizon=fleet.env.episode),
        rent=RentSchedule(start=0.02),
    )
    return Recipe(name=name, fleets=(fleet,), learn=learn, checkpoint_every=checkpoint_every)


def smoke() -> Recipe:
    """Spirals with tiny MLP hosts; under half a minute on 2 CPU cores."""
    return _recipe(
        "smoke", _spirals(hosts=8, examples=600, episode=8, group=4), updates=4, epochs=2, checkpoint_every=1
    )


def smoke_workers() -> Recipe:
    """Spirals with four kinds of tiny MLP hosts, to try `--workers 2` or 4; half a minute on 2 CPU cores."""
    fleet = _spirals(hosts=4, examples=600, episode=8, group=4)
    plain = _recipe("smoke_workers", fleet, updates=4, epochs=2, checkpoint_every=1)
    return replace(plain, fleets=tuple(replace(fleet, widths=(n, n)) for n in (4, 6, 8, 10)), exam=4)


def spirals() -> Recipe:
    """Spirals with small MLP hosts; 5 minutes on 2 CPU cores."""
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
    """Handwritten digits (8 × 8 pixels) with small 2-D CNN hosts; 7 minutes on 2 CPU cores."""
    env, train = EnvConfig(episode=12, group=8), TrainConfig(lr=2e-2)
    fleet = FleetConfig(task="digits", host="cnn2d", widths=(8, 8), hosts=24, train=train, env=env)
    return _recipe("digits", fleet, updates=20)


def mnist1d() -> Recipe:
    """Half of MNIST-1D with small 1-D CNN hosts and a warm start by plan search; 4 minutes on 2 CPU cores."""
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
    ppo = replace(plain.learn.ppo, lr=2e-4, entropy_coef=0.001)  # small steps keep what the warm start found
    start = WarmStartConfig(plans=14, best=1, lives=24, epochs=200)
    return replace(plain, warm_start=start, learn=replace(plain.learn, ppo=ppo))


def mnist1d_gpu() -> Recipe:
    """MNIST-1D with 256 hosts at a time and episodes of 20 epochs; 4 minutes on an H200 GPU."""
    return _for_a_gpu("mnist1d_gpu", replace(setting("mnist1d-8"), hosts=256))


def general() -> Recipe:
    """The controller that ships with Esper: four stages, 30 settings in the end; 50 minutes on a large GPU."""
    plain = _for_a_gpu("general", *varied(hosts=48), *later(hosts=48), *harder())
    ppo = replace(plain.learn.ppo, lr=5e-4, lr_end=5e-5, minibatches=32, anneal=8)
    learn = replace(plain.learn, updates=8, ppo=ppo)
    first = replace(learn, updates=32, ppo=replace(ppo, lr=1e-3, lr_end=1e-4, anneal=32))
    third = replace(learn, updates=6, ppo=replace(ppo, anneal=6))
    start = WarmStartConfig(plans=46, best=3, lives=32, epochs=200)
    later_start = replace(start, plans=45, epochs=100)  # the controller takes part in place of one plan
    pretrain = (
        PretrainConfig(fleets=varied(), warm_start=start, learn=first, reveal=("size",)),
        PretrainConfig(fleets=(*varied(hosts=48), *later()), warm_start=later_start, learn=learn, reveal=("size",)),
        PretrainConfig(fleets=plain.fleets, warm_start=replace(later_start, plans=29), learn=third),
    )
    last = replace(learn, ppo=replace(ppo, entropy_coef=ppo.entropy_end or 0.0))  # less entropy keeps what was cloned
    controller = replace(plain.controller, size=False)
    return replace(plain, pretrain=pretrain, controller=controller, learn=last, checkpoint_every=2).seeded(0)


def budgeted() -> Recipe:
    """Lives on a budget of compute, at any price of growth: six settings; 10 minutes on an H200 GPU."""
    small_steps = PPOConfig(  # larger ones lose what was cloned within four updates: benchmark/results.md
        lr=5e-5, lr_end=5e-6, minibatches=16, entropy_coef=0.001, anneal=8, gamma=1.0, target_kl=0.02
    )
    learn = LearnConfig(
        updates=8,
        ppo=small_steps,
        reward=RewardConfig(gamma=1.0),
        collect=CollectConfig(horizon=40, prices=(0.0, 0.02, 0.1)),
        rent=RentSchedule(start=0.02),
    )
    start = WarmStartConfig(plans=13, hosts=2, best=1, lives=32, epochs=100)  # 16 contestants: at first 32 hosts
    return Recipe(
        name="budgeted",
        fleets=on_a_budget(),
        controller=ControllerConfig(hidden=128, size=False),
        warm_start=start,
        learn=learn,
        engine=Engine(device="cuda", precision="fp32"),
        exam=0,
        checkpoint_every=2,
    )


def _for_a_gpu(name: str, *fleets: FleetConfig) -> Recipe:
    """Many small steps, full rent from the first update, and an entropy bonus that fades."""
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
    """CIFAR-10 from a local file (`--fleets.0.options.path FILE`); 40 minutes on an H200 GPU."""
    return replace(_for_a_gpu("cifar10", images("cifar10.npz")), controller=GPU)


def characters() -> Recipe:
    """A text file (`--fleets.0.options.path FILE`), character by character; hours on 2 CPU cores."""
    fleet = text("text.txt")
    env, train = replace(fleet.env, group=8), replace(fleet.train, batch_size=32)
    return _recipe("characters", replace(fleet, hosts=16, env=env, train=train), updates=20)


def reviewed() -> Recipe:
    """MNIST-1D with the PPO settings of the system reviewed before Esper; 15 minutes on 2 CPU cores."""
    fleet = FleetConfig(task="mnist1d", host="cnn1d", widths=(8, 8, 8), hosts=8, env=EnvConfig(episode=25))
    learn = LearnConfig(
        updates=20, ppo=PPOConfig(**REVIEWED, group_baseline=False), collect=CollectConfig(terminal=False)
    )
    return Recipe(name="reviewed", fleets=(fleet,), learn=learn)


RECIPES: dict[str, Callable[[], Recipe]] = {
    "smoke": smoke,
    "smoke_workers": smoke_workers,
    "spirals": spirals,
    "digits": digits,
    "mnist1d": mnist1d,
    "mnist1d_gpu": mnist1d_gpu,
    "general": general,
    "budgeted": budgeted,
    "cifar10": cifar10,
    "characters": characters,
    "reviewed": reviewed,
}


def recipe_names() -> tuple[str, ...]:
    """Return the names of all built-in recipes."""
    return tuple(RECIPES)


def recipe(name: str) -> Recipe:
    """Return a built-in recipe.

    Args:
        name: One of `recipe_names()`.

    Raises:
        EsperError: There is no recipe of this name; the message suggests the closest one.

    Example:
        ```python
        from dataclasses import replace

        short = replace(recipe("spirals"), exam=0)
        ```
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]()
