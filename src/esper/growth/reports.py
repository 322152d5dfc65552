"""Hand a growth's curves to the dashboard: one picture, and one page."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.dashboard.growth import GrowthStory, Mark, Point, draw_growth, growth_html
from esper.leyline.atomic import replace_file

if TYPE_CHECKING:
    from esper.growth.growth import Growth


def plot(growth: "Growth", path: str | Path) -> None:
    """Draw loss and parameters against compute."""
    draw_growth(story_of(growth), path)


def write_page(growth: "Growth", path: str | Path) -> None:
    """Write a page with the picture and what happened when."""
    replace_file(path, growth_html(story_of(growth)))


def story_of(growth: "Growth") -> GrowthStory:
    """Return the contents of a growth's report, as a record without tensors."""
    depth = growth.depth
    marks = [
        Mark(e.kind, e.step, e.progress, e.flops, e.parameters, sum(e.depth[name] for name in depth), e.loss, e.detail)
        for e in growth.log
    ]
    return GrowthStory(
        name=type(growth.model).__name__,
        steps=growth.steps,
        spent=float(growth.spent),
        budget=None if growth.budget is None else float(growth.budget),
        is_over=growth.is_finished or growth.done,
        parameters=(growth.num_initial, growth.num_parameters),
        blocks=(sum(growth.started_with[name] for name in depth), sum(depth.values())),
        points=[Point(m.flops, m.parameters, m.loss, m.metric) for m in growth.history],
        marks=marks,
        options=options_of(growth),
    )


def options_of(growth: "Growth") -> dict[str, Any]:
    """Return how a growth was asked for, its policy by name."""
    return {"policy": _name(growth.policy), **asdict(growth.config)}


def _name(policy: Any) -> str:
    inner = getattr(policy, "policy", None)  # a policy of fleets
    return getattr(inner, "name", None) or getattr(policy, "__qualname__", type(policy).__qualname__)
