"""A head start: whoever wins a tournament is imitated, on hosts that serve no other purpose."""

from dataclasses import replace

import pytest
import torch

from esper.leyline.actions import Head, Op
from esper.leyline.errors import EsperError
from esper.recipes import recipe
from esper.recipes.config import Band, Places, WarmStartConfig
from esper.recipes.warm_start import _Rounds, begin, clone_config, contestants, num_rounds, show, unheard
from esper.simic.evaluation import evaluate
from esper.simic.rollout import record_episodes
from esper.simic.search import compare, random_plans
from esper.tamiyo import Controller, ControllerConfig
from esper.tamiyo.controller_files import save_controller
from esper.tamiyo.features import HOST_FEATURES, column_names
from esper.tamiyo.policies import Heuristic, LearnedPolicy, Never
from esper.tolaria import Engine

START = WarmStartConfig(plans=2, hosts=2, best=1, lives=8, epochs=60)
RATES = (0.5, 1.0)
SMALL = ControllerConfig(hidden=32, slot_hidden=16)


def started(rng_seed: int = 0, start: WarmStartConfig = START):
    plain = recipe("smoke")
    (fleet,) = plain.fleets
    fleets = (replace(fleet, options={"examples": 200}, rates=RATES, env=replace(fleet.env, episode=6)),)
    learn = replace(plain.learn, rng_seed=rng_seed)
    asked = replace(plain, fleets=fleets, controller=SMALL, warm_start=start, learn=learn)
    controller = Controller(SMALL, rng_seed)
    return asked, controller, begin(asked, controller)


def test_the_best_is_imitated_on_other_hosts():
    asked, controller, took = started()
    assert took == (2 * 4 + 8, 6 * (2 * 4 + 8))
    (fleet,) = asked.fleets
    env = fleet.build_group(asked.engine, 2, 4, Band.SEARCH)
    tried = [Never(), Heuristic(), *random_plans(env.setting, 2, asked.learn.rng_seed)]
    means = [outcome.objective.mean() for outcome in compare(env, tried, asked.learn.rent.end)]
    best = tried[max(range(4), key=lambda i: means[i])]
    did = {}
    for policy in (best, LearnedPolicy(controller, greedy=True)):
        actions = []
        fresh = fleet.build_group(asked.engine, 6, 1, Band.DEVELOPMENT)
        evaluate(
            fresh, policy, asked.learn.rent.end, on_step=lambda action, step, kept=actions: kept.append(action.clone())
        )
        did[policy.name] = torch.stack(actions)
    mine, theirs = did["learned"], did[best.name]
    grown = theirs[..., Head.OP] == Op.GERMINATE
    assert grown.any(), "there is something to imitate"
    assert (mine[..., Head.OP] == theirs[..., Head.OP]).float().mean() > 0.9
    assert (mine[..., Head.BLUEPRINT] == theirs[..., Head.BLUEPRINT])[grown].float().mean() > 0.9


def test_plans_are_tried_and_imitated_on_hosts_apart():
    """In the same places, at the rates of the fleet; every round of a tournament has hosts of its own."""
    asked = small(run="somewhere")
    (fleet,) = asked.fleets
    places = Places(replace(fleet, rates=RATES, hosts=8), asked.engine)
    tried = _Rounds(places, 2, 4, unheard).build(2, 3, 1)
    assert (tried.config.rng_seed, tried.config.group) == (fleet.env.rng_seed + Band.SEARCH + 1, 3)
    assert tried.fleet.lr.tolist() == pytest.approx([0.02] * 3 + [0.04] * 3)
    controller, before = Controller(SMALL, 1), Controller(SMALL, 2)
    places, known = Places(fleet, asked.engine), replace(asked, known=asked.fleets)
    shown = show(known, places, controller, before)
    env = fleet.build_group(asked.engine, START.lives, 1, Band.SHOW)
    alone = record_episodes(env, [LearnedPolicy(before)], controller, asked.learn.rent.end, asked.learn.reward, 0)
    assert torch.equal(shown.episodes.reward, alone.reward)
    assert shown.took == (START.lives, 4 * START.lives)


def test_imitation_discounts_and_draws_as_the_learning_that_follows():
    plain = recipe("smoke")
    learn = replace(
        plain.learn, ppo=replace(plain.learn.ppo, gamma=0.9), reward=replace(plain.learn.reward, gamma=0.9), rng_seed=7
    )
    found = clone_config(replace(plain, learn=learn, warm_start=START))
    assert (found.gamma, found.rng_seed, found.epochs) == (0.9, 7, START.epochs)
    assert found.minibatches == 4
    three = replace(learn, collect=replace(learn.collect, prices=(0.0, 0.1, 0.2)))
    assert clone_config(replace(plain, learn=three)).minibatches == 3 * 4, "of episodes at three prices"


def test_the_same_seed_starts_the_same_way():
    short = replace(START, lives=2, epochs=2)
    first, second, other = (started(seed, short)[1] for seed in (3, 3, 4))
    mine, again, theirs = (list(c.parameters()) for c in (first, second, other))
    assert all(torch.equal(a, b) for a, b in zip(mine, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def small(widths=(4, 4), prices=(), **start):
    """A recipe with tiny hosts, which goes on from wherever it is told."""
    plain = recipe("smoke")
    (fleet,) = plain.fleets
    fleet = replace(fleet, options={"examples": 200}, widths=widths, env=replace(fleet.env, episode=4))
    learn = replace(plain.learn, collect=replace(plain.learn.collect, prices=prices))
    return replace(plain, fleets=(fleet,), controller=SMALL, warm_start=replace(START, **start), learn=learn)


def test_who_goes_on_from_a_run_begins_with_its_weights(tmp_path):
    before = Controller(SMALL, rng_seed=5)
    save_controller(tmp_path / "controller.safetensors", before)
    after = Controller(SMALL, rng_seed=6)
    asked = small(run=str(tmp_path), plans=0)
    asked = replace(asked, known=asked.fleets)
    assert begin(asked, after) == (0, 0)
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    with pytest.raises(EsperError, match="does not fit"):
        begin(asked, Controller(ControllerConfig(hidden=16)))
    with pytest.raises(EsperError, match="known must list the fleets"):
        begin(replace(asked, known=()), after)


def test_it_shows_itself_where_it_knows_its_way_and_is_tried_elsewhere():
    controller, before = Controller(SMALL), Controller(SMALL)
    known, new = small(run="somewhere"), small(widths=(5, 5), run="somewhere")
    known = replace(known, known=new.fleets)
    (here,), (there,) = known.fleets, new.fleets
    more = replace(there, hosts=99, env=replace(there.env, rng_seed=9))
    itself, other = (show(known, Places(fleet, known.engine), controller, before) for fleet in (more, here))
    assert [policy.controller for policy in itself.best] == [before], "not who is still to learn"
    assert itself.took == (START.lives, 4 * START.lives), "nobody had to be tried"
    tournament = 5 * START.hosts + 2 * 4 * START.hosts  # five take part, two of them in a second round
    assert other.took == (tournament + START.lives, 4 * (tournament + START.lives))
    setting = Places(here, Engine()).env(1, 1, Band.SHOW).setting

    def tried(recipe, fleet, before):
        return [policy.name for policy in contestants(recipe, fleet, setting, before)]

    assert tried(known, more, before) == []
    assert tried(known, here, before) == ["never", "heuristic", "learned", "plan", "plan"]
    assert tried(known, there, None) == ["never", "heuristic", "plan", "plan"], "random weights are not tried"


class Counted(Places):
    """Places that count the lives that begin there."""

    lives = 0

    def env(self, *arguments, **options):
        env = super().env(*arguments, **options)
        reset = env.reset

        def counted():
            self.lives += env.fleet.num_hosts
            return reset()

        env.reset = counted
        return env


def test_a_fleet_is_searched_once_for_all_prices():
    """And the winners at all prices are recorded together, each at its own, as often as at one price alone."""
    lived, prices = [], (0.0, 0.02, 0.5)
    for asked_at in ((0.5,), (0.02,), (0.0,), prices):
        asked = small(prices=asked_at, plans=13)
        places = Counted(asked.fleets[0], asked.engine)
        shown = show(asked, places, Controller(SMALL))
        assert shown.took == (places.lives, 4 * places.lives)
        lived.append(places.lives)
    assert lived[-1] < 2 * lived[0]
    assert shown.best[0] is not shown.best[2], "prices matter"
    rents = torch.tensor(prices).repeat(START.lives)
    paid = shown.episodes.seen.features.host[..., column_names(HOST_FEATURES).index("rent")] / 10
    torch.testing.assert_close(paid, rents.expand_as(paid))
    for i, (winner, price) in enumerate(zip(shown.best, prices, strict=True)):
        env = places.env(START.lives, 1, Band.SHOW)
        alone = record_episodes(env, [winner], Controller(SMALL), [price], asked.learn.reward, asked.learn.rng_seed)
        assert torch.equal(shown.episodes.choice.action[:, i::3], alone.choice.action)


def test_a_controller_is_shown_and_tried_at_every_price():
    prices = (0.0, 0.5)
    asked = replace(small(prices=prices, plans=1), known=small().fleets)
    before, places = Controller(SMALL, 2), Places(asked.fleets[0], asked.engine)
    shown = show(asked, places, Controller(SMALL), before)
    assert [policy.controller for policy in shown.best] == [before, before]
    assert shown.took.lives == 2 * START.lives
    counted = Counted(replace(asked.fleets[0], widths=(5, 5)), asked.engine)
    took = show(asked, counted, Controller(SMALL), before).took
    tried = 3 + len(prices)  # never, the heuristic, a plan; the controller at each price
    assert took.lives == counted.lives == tried * START.hosts + 2 * START.lives


def test_what_was_learned_from_before_counts():
    known, new = small(), small(widths=(5, 5))
    both = replace(new, known=(*known.fleets, replace(new.fleets[0], hosts=3)))
    assert both.learned_from == (*new.fleets, *known.fleets)
    (fleet,) = both.fleets
    crowd = replace(fleet, hosts=8, rates=(0.5, 1.0), env=replace(fleet.env, group=4))
    few = replace(fleet, hosts=4, env=replace(fleet.env, group=2, rng_seed=9))
    assert crowd.alike(few), "neither numbers nor groups of hosts make another setting"
    assert few.alike(crowd)
    assert not both.fleets[0].alike(replace(both.fleets[0], train=replace(both.fleets[0].train, lr=1.0)))


@pytest.mark.parametrize("name", ["hosts", "best", "lives", "epochs"])
def test_impossible_starts_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        WarmStartConfig(**{name: 0})


@pytest.mark.parametrize("prices", [(), (0.0, 0.02, 0.5)])
def test_progress_is_told_from_the_first_fleet_to_the_last_epoch_and_never_falls(prices):
    asked, told = small(prices=prices), []
    asked = replace(asked, fleets=asked.fleets * 2, warm_start=replace(asked.warm_start, plans=7, epochs=3))
    begin(asked, Controller(SMALL), progress=lambda *step: told.append(step))
    search, cloning = ([step for step in told if step[0].startswith(name)] for name in ("search", "cloning"))
    assert told == search + cloning
    assert {total for _, _, total in search} == {2}
    for steps, first, last in ((search, 0.0, 2.0), (cloning, 0, 3)):
        done = [step[1] for step in steps]
        assert done == sorted(done)
        assert done[0] == first
        assert done[-1] <= last
    assert search[0][0] == "search, fleet 1 of 2, round 1 of 2"
    assert search[-1][0] == "search, fleet 2 of 2, recording episodes"
    assert len(search) == 2 * (2 * (4 + 1) + 1), "a step for every decision of both rounds"
    assert [step[0] for step in cloning][1:] == [f"cloning, epoch {epoch} of 3" for epoch in (2, 3, 3)]


@pytest.mark.parametrize(
    ("policies", "best", "rounds"), [(1, 1, 0), (2, 1, 1), (4, 1, 1), (5, 1, 2), (9, 3, 1), (48, 3, 2)]
)
def test_rounds_of_a_tournament_are_known_beforehand(policies, best, rounds):
    assert num_rounds(policies, best) == rounds
