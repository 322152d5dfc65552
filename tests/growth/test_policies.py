"""What each policy does, and when; the preview; budgets."""

import json
import math
from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import esper
from conftest_growth import GPT, KINDS, ResNet, run
from esper.growth import Deepen, Doubling, Growth, Plan, Plateau, Probe, SlotAction, grow, resume
from esper.growth.compute import as_call, step_flops
from esper.leyline.errors import EsperError, FileError

X = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(0))


def made(policy: Any, total: int = 100, depth: int = 1, **options: Any) -> Growth:
    torch.manual_seed(1)
    model = GPT(depth)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    return grow(model, optimizer, total=total, policy=policy, blend=2, example=X, **options)


def step(growth: Growth, loss: float | None = None) -> None:
    """One training step; `loss` is what the growth is told instead of the truth."""
    growth.model.train()
    found = growth.model(X).square().mean()
    found.backward()
    growth.optimizer.step()
    growth.optimizer.zero_grad()
    growth.step(found if loss is None else loss)


def depths(growth: Growth) -> list[tuple[float, int]]:
    return [(round(event.progress, 2), event.depth["blocks"]) for event in growth.log if event.kind == "deepen"]


def test_doubling_grows_at_its_shares_of_the_compute():
    growth = made("doubling", total=200)
    while not growth.done:
        step(growth)
    assert [depth for _, depth in depths(growth)] == [2, 4]
    for (share, _), due in zip(depths(growth), Doubling().at, strict=True):
        assert due <= share < due + 0.03


def test_equal_budgets_are_spent_to_the_step_whatever_grows():
    spent = {}
    for policy in ("doubling", Doubling((0.5,)), lambda growth: None):
        growth = made(policy, total=150)
        while not growth.done:
            step(growth)
        assert growth.budget is not None
        assert abs(growth.spent - growth.budget) <= 0.5 * growth.step_cost
        spent[growth.steps] = growth.spent
    assert len(spent) == 3, "whoever grows makes fewer steps"


def test_plateau_grows_once_the_metric_stops_improving():
    growth = made(Plateau(patience=0.1), total=100)
    while growth.depth["blocks"] == 1:
        growth.report(1.0 / min(growth.steps + 1, 20))
        step(growth)
    assert 0.28 < growth.progress < 0.34
    improving = made(Plateau(patience=0.1), total=60)
    while not improving.done:
        improving.report(0.98**improving.steps)
        step(improving)
    assert improving.depth == {"blocks": 1}


@pytest.mark.parametrize("grown_is_better", [True, False])
def test_probe_keeps_the_better_and_pays_for_both(grown_is_better):
    growths: list[Growth] = []

    def evaluate() -> float:
        deep = growths[0].depth["blocks"] > 1
        return 1.0 if deep == grown_is_better else 2.0

    growth = made(Probe(at=(0.2,), length=0.1), evaluate=evaluate, total=200)
    growths.append(growth)
    seen = []
    while not growth.done:
        step(growth)
        seen.append(growth.depth["blocks"])
    assert seen[:30] == [1] * 30
    assert growth.depth == {"blocks": 2 if grown_is_better else 1}
    assert growth.log[-1].kind == ("keep" if grown_is_better else "discard")
    first, back = seen.index(2), seen.index(1, seen.index(2))
    assert growth.budget is not None
    chosen = next(event for event in growth.log if event.kind in ("keep", "discard"))
    assert 0.38 < chosen.progress < 0.45, "two tenths of the budget on top of the first two"
    assert back > first
    assert growth.held == {}
    held = [id(p) for group in growth.optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in growth.model.parameters())


def test_probe_goes_back_to_what_it_tried():
    """The weights that are kept are those of the branch that won, as they were when it was judged."""
    growths: list[Growth] = []
    growth = made(Probe(at=(0.2,), length=0.1), evaluate=lambda: float(growths[0].depth["blocks"] < 2), total=200)
    growths.append(growth)
    grown: dict[str, Tensor] = {}
    while not growth.done:
        before = {name: x.clone() for name, x in growth.model.state_dict().items()}
        phase = growth.policy.phase
        step(growth)
        if phase == "grown" and growth.policy.phase == "bare":
            grown = {name.removeprefix("model/"): x for name, x in growth.held["fork"].tensors.items()}
            assert growth.depth == {"blocks": 1}
        if phase == "bare" and growth.policy.phase == "train":
            kept = growth.model.state_dict()
            assert growth.depth == {"blocks": 2}
            assert all(torch.equal(kept[name], grown[name]) for name in kept)
            break
    assert before


def test_a_probe_is_resumed_in_each_of_its_phases(tmp_path):
    def go(growth: Growth, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            step(growth)
            losses.append(float(growth.loss))
        return losses

    for when in (15, 18, 24, 34, 60):
        growth = made(Probe(at=(0.1,), length=0.05), total=200, max_growth=2)
        go(growth, when)
        growth.save(tmp_path / str(when))
        again = resume(GPT(1), lambda m: torch.optim.AdamW(m.parameters(), 1e-3), tmp_path / str(when))
        assert go(again, 40) == go(growth, 40)
        assert again.log == growth.log
        assert again.policy.state_dict() == growth.policy.state_dict()


def test_a_watched_birth_is_still_watched_after_resume(tmp_path):
    growth = made(lambda growth: None, governed=True)
    for _ in range(3):
        step(growth)
    kept = {name: x.clone() for name, x in growth.model.state_dict().items()}
    growth.deepen()
    step(growth)
    growth.save(tmp_path)
    again = resume(GPT(1), lambda m: torch.optim.AdamW(m.parameters()), tmp_path, policy=lambda growth: None)
    again.step(torch.tensor(torch.nan))
    assert again.depth == {"blocks": 1}
    assert all(torch.equal(kept[name], x) for name, x in again.model.state_dict().items())


def test_a_plan_is_read_from_a_file_and_carried_out(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps([{"at": 0.5, "deepen": "blocks", "times": 2}, {"at": 0.2, "deepen": None}]))
    growth = made(str(path), total=200)
    for _ in range(40):
        step(growth)
    growth.save(tmp_path / "saved")
    again = resume(GPT(1), lambda m: torch.optim.AdamW(m.parameters()), tmp_path / "saved")
    while not again.done:
        step(again)
    assert [depth for _, depth in depths(again)] == [2, 4]
    assert [share for share, _ in depths(again)] == pytest.approx([0.2, 0.5], abs=0.03)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no plan"),
        ('{"at": 1}', "must be a list of objects"),
        ('[{"deepen": null}]', "has no 'at'"),
        ('[{"at": 0.5}]', "needs either 'deepen'"),
        ('[{"at": 0.5, "deepen": null, "op": "PRUNE"}]', "needs either 'deepen'"),
        ('[{"at": 0.5, "deepen": null, "tims": 3}]', "unknown field 'tims': did you mean 'times'"),
        ('[{"at": 1.5, "deepen": null}]', "between 0 and 1, not at 1.5"),
        ('[{"at": 0.5, "op": "GERMINAT"}]', "unknown op 'GERMINAT'"),
    ],
)
def test_bad_plans_are_refused(content, message, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(FileError, match=message):
        Plan.read(path)
    with pytest.raises(FileError, match="is no plan"):
        Plan.read(tmp_path / "none.json")


class MLP(nn.Module):
    """Too small for its task."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.head = nn.Linear(16, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


TASK = esper.load_task("planted")


def evaluation(model: nn.Module) -> Callable[[], float]:
    def evaluate() -> float:
        assert not model.training
        assert not torch.is_grad_enabled()
        return float(nn.functional.cross_entropy(model(TASK.validation.x), TASK.validation.y))

    return evaluate


def mlp_growth(policy: Any, **options: Any) -> Growth:
    torch.manual_seed(0)
    model = MLP()
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    options = {"total": 800, "slots": ["fc1", "fc2"], "example": TASK.train.x[:64]} | options
    return grow(model, optimizer, policy=policy, evaluate=evaluation(model), **options)


def one(growth: Growth) -> None:
    """A step on examples that depend on its number."""
    i = torch.randint(len(TASK.train.x), (64,), generator=torch.Generator().manual_seed(growth.steps))
    loss = nn.functional.cross_entropy(growth.model(TASK.train.x[i]), TASK.train.y[i])
    loss.backward()
    growth.optimizer.step()
    growth.optimizer.zero_grad()
    growth.step(loss)


@pytest.mark.parametrize("policy", [None, "learned", esper.Heuristic("low_rank")])
def test_policies_of_fleets_grow_the_slots_of_a_model(policy):
    growth = mlp_growth(policy)
    while not growth.done:
        one(growth)
    planted = [event for event in growth.log if event.kind == "plant"]
    assert planted
    assert growth.num_parameters > growth.num_initial or any(e.kind == "prune" for e in growth.log)
    assert growth.decision == 25
    metrics = [point.metric for point in growth.history if point.metric is not None]
    assert metrics[-1] < metrics[0]
    if isinstance(policy, esper.Heuristic):
        assert all(event.detail.endswith("low_rank") for event in planted)


def test_counterfactual_evaluations_are_charged_and_plain_ones_are_not():
    growth = mlp_growth("heuristic")
    bare = growth.step_cost
    one(growth)
    assert growth.slots.planted
    assert growth.spent == bare, "the first decision evaluates, and no seed is there to measure"
    while not growth.decides_now or growth.slots.planted[0].is_silent:
        before, cost = growth.spent, growth.step_cost
        one(growth)
    validation = step_flops(growth.model, as_call(TASK.validation.x))
    assert growth.spent == before + cost + validation // 3


def test_a_policy_of_fleets_is_resumed_with_its_memory(tmp_path):
    growth = mlp_growth("learned")
    for _ in range(40):
        one(growth)
    saved = growth.progress
    growth.save(tmp_path)
    torch.manual_seed(5)
    model = MLP()
    again = resume(model, lambda m: torch.optim.Adam(m.parameters(), 2e-2), tmp_path, evaluate=evaluation(model))
    for run_on in (growth, again):
        while not run_on.done:
            one(run_on)
    assert any(event.kind == "plant" and event.progress > saved for event in growth.log)
    assert again.log == growth.log
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), growth.model.parameters(), strict=True))


def test_policies_that_need_an_evaluation_say_so():
    growth = mlp_growth("heuristic")
    growth.evaluate = None
    with pytest.raises(EsperError, match="policy 'heuristic' needs evaluate="):
        one(growth)
    bad = mlp_growth("heuristic")
    bad.evaluate = lambda: math.nan
    with pytest.raises(EsperError, match="evaluate must return one finite number"):
        one(bad)
    with pytest.raises(EsperError, match="metric must be a finite number, not nan"):
        bad.report(math.nan)


def test_budgets_in_epochs():
    growth = made("doubling", total=None, epochs=3, steps_per_epoch=7)
    assert growth.budget == 21 * growth.step_cost
    for options, message in (
        ({"epochs": 3}, "epochs needs steps_per_epoch"),
        ({"epochs": 3, "steps_per_epoch": 5, "total": 3}, "give one budget"),
        ({"epochs": 0, "steps_per_epoch": 5}, "the budget must be positive, not 0"),
        ({"total": 3, "governd": True}, "grow takes no such option: 'governd'"),
        ({"total": 3, "decisions": 0}, "decisions must be at least 1, not 0"),
    ):
        with pytest.raises(EsperError, match=message):
            made("doubling", **({"total": None} | options))


@pytest.mark.parametrize("kind", KINDS)
def test_the_preview_says_what_growing_adds_and_changes_nothing(kind):
    torch.manual_seed(1)
    model = KINDS[kind].make(2)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    preview = esper.preview(model, KINDS[kind].inputs())
    rows = {row.name: row for row in preview.rows if row.kind == "chain"}
    assert {name: int(row.what.split()[0]) for name, row in rows.items()} == KINDS[kind].chains
    assert all(torch.equal(before[name], x) for name, x in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    growth = grow(model, torch.optim.AdamW(model.parameters()), total=9, example=KINDS[kind].inputs(), blend=1)
    assert growth.preview() == preview
    count, cost = growth.num_parameters, growth.step_cost
    assert (preview.parameters, preview.step_flops) == (count, cost)
    name, row = next(iter(rows.items()))
    growth.deepen(name)
    assert growth.num_parameters - count == row.parameters * KINDS[kind].chains[name]
    assert growth.step_cost - cost == row.flops * KINDS[kind].chains[name]


def test_the_preview_is_a_table_that_names_slots_and_refusals():
    model = ResNet()
    text = str(esper.preview(model, torch.randn(4, 3, 8, 8), slots="stem"))
    assert "layer2.1  chain  2 × ResBlock" in text
    assert "stem" in text
    assert "conv_light" in text
    refused = nn.Sequential(nn.Linear(4, 4), *[nn.Sequential(nn.Linear(4, 4), nn.ReLU())] * 2)
    assert "nothing would be grown" in str(esper.preview(refused, torch.randn(2, 4)))
    assert "one block is listed twice" in str(esper.preview(refused, torch.randn(2, 4)))
    growth = made("doubling")
    growth._is_checked = False
    with pytest.raises(EsperError, match="cannot be previewed before it is checked"):
        growth.preview()


def test_actions_of_a_callable_are_carried_out():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 8), *(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)

    def policy(growth: Growth) -> list[Deepen | SlotAction] | None:
        if growth.steps == 2:
            return [Deepen(), SlotAction("GERMINATE", {"slot": "0", "blueprint": "mlp"})]
        return None

    growth = grow(model, optimizer, total=100, policy=policy, slots="0", blend=2)
    for _ in range(4):
        one(growth)
    assert growth.depth == {"1": 4}
    assert len(growth.slots.planted) == 1
    assert len(growth.changes) == 2


def test_a_sharded_model_is_refused():
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = GPT()
        fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
        with pytest.raises(EsperError, match="sharded by FSDP cannot be grown"):
            grow(model, torch.optim.AdamW(model.parameters()), total=5)
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_model_goes_through_torch_export_and_onnx(kind, tmp_path):
    torch.manual_seed(1)
    made_of = KINDS[kind]
    model = made_of.make(2)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    growth = grow(model, optimizer, total=50, blend=2, policy=lambda growth: None)
    for i in range(6):
        model.train()
        loss = run(model, made_of.inputs(i)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        growth.step(loss)
        if i == 1:
            growth.deepen()
    model = growth.finish().eval()
    if hasattr(model, "config"):
        model.config.use_cache = False
    batch = made_of.inputs(9)
    args, kwargs = ((), batch) if isinstance(batch, dict) else (batch, {})
    exported = torch.export.export(model, args, kwargs)

    def first(output: Any) -> Tensor:
        return output if isinstance(output, Tensor) else output[0]

    with torch.no_grad():
        expected = first(model(*args, **kwargs))
        torch.testing.assert_close(first(exported.module()(*args, **kwargs)), expected)
    if kind in ("gpt", "tuples"):  # toys; the others stand for what people export
        return
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(exported, args, path, kwargs=kwargs, verbose=False)
    session = onnxruntime.InferenceSession(path)
    given = dict(zip((i.name for i in session.get_inputs()), [*args, *kwargs.values()], strict=True))
    found = session.run(None, {name: x.numpy() for name, x in given.items()})[0]
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=1e-4)


class Recorder:
    """A policy of fleets that waits, and remembers what it saw."""

    name = "recorder"

    def begin(self, setting: Any, num_hosts: int, device: torch.device) -> None:
        self.wait, self.seen = torch.tensor([setting.space.action("WAIT")]), []

    def decide(self, view: Any, fresh: Tensor, uniform: Tensor) -> Tensor:
        self.seen.append((view, bool(fresh), uniform.clone()))
        return self.wait


def test_a_policy_of_fleets_sees_price_limit_and_fresh_draws_once_a_decision():
    policy = Recorder()
    growth = mlp_growth(policy, total=100, price=0.07, max_parameters=1000)
    while not growth.done:
        one(growth)
    assert len(policy.seen) == growth.config.decisions == 25
    assert [fresh for _, fresh, _ in policy.seen] == [True] + [False] * 24
    assert [int(view.signals.age) for view, _, _ in policy.seen] == list(range(25))
    view = policy.seen[3][0]
    assert float(view.rent) == pytest.approx(0.07)
    assert float(view.budget) == pytest.approx(1000 / growth.num_initial - 1)
    assert [float(view.signals.spent) for view, _, _ in policy.seen] == pytest.approx(
        [n / 25 for n in range(25)], abs=0.02
    )
    assert float(view.signals.pace) == 1.0
    assert not torch.equal(policy.seen[0][2], policy.seen[1][2])


def test_a_probe_judges_the_grown_branch_when_it_is_blended_in():
    growths: list[Growth] = []
    judged = []

    def evaluate() -> float:
        judged.append(growths[0].is_blending)
        return 1.0

    torch.manual_seed(1)
    model = GPT(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    probe = Probe(at=(0.2,), length=0.02)
    growth = grow(model, optimizer, total=200, policy=probe, blend=30, example=X, evaluate=evaluate, decisions=1)
    growths.append(growth)
    while not growth.done:
        step(growth)
    assert judged == [False, False, False], "once at the first decision, once for each branch"


def test_a_plan_waits_for_a_blend_to_end_and_loses_nothing():
    growth = made(Plan([(0.1, Deepen()), (0.1, Deepen())]), total=200, max_growth=4)
    while not growth.done:
        step(growth)
    assert growth.depth == {"blocks": 4}


def test_the_preview_counts_seeds_for_the_whole_batch():
    def added(batch: int) -> int | None:
        rows = esper.preview(MLP(), torch.randn(batch, 16), slots="fc1").rows
        return next(row.flops for row in rows if row.what == "mlp")

    assert added(4) == 2 * added(2) > 0
