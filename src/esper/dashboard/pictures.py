"""Draw figures of a run: learning curves, exams, chosen ops, contributions of seeds, health of heads."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from esper.dashboard.style import (
    EARTH,
    GREEN,
    INK,
    QUIET,
    SLOT_COLORS,
    by_magnitude,
    count_whole,
    drawing,
    name_points,
    quieten,
    spoken,
)
from esper.exam.records import ExamReport, Life
from esper.leyline.actions import Op
from esper.leyline.reports import UpdateReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROFILE_COLORS = ("#8a949c", "#2166ac", "#b35806", "#762a83", "#01665e", "#c51b7d", "#8c510a", "#4d4d4d")
CURVES = {
    "J at the end of episodes": ("objective", GREEN),
    "score": ("score", INK),
    "growth": ("growth", EARTH),
    "entropy": ("entropy", QUIET),
    "approximate KL": ("approx_kl", QUIET),
    "explained variance": ("explained_variance", QUIET),
}
HEALTH = {"entropy": "entropy", "approximate KL": "approx_kl", "clip fraction": "clip_fraction"}


def draw_learning(reports: Sequence[UpdateReport], path: Path) -> None:
    """Draw learning curves over updates."""
    with drawing(path, 9, 4.2) as figure:
        for ax, (title, (name, color)) in zip(figure.subplots(2, 3).flat, CURVES.items(), strict=True):
            known = [(r.update, getattr(r, name)) for r in reports if getattr(r, name) is not None]
            ax.plot(
                [x for x, _ in known],
                [y for _, y in known],
                color=color,
                lw=2,
                marker="o",
                ms=3 if len(known) < 30 else 0,
            )
            ax.set_title(title, loc="left", fontsize=9, color=INK)
            quieten(ax)
            ax.margins(y=0.15)
            count_whole(ax)
        figure.supxlabel("update", color=QUIET, fontsize=9)


def draw_exam(exam: ExamReport, path: Path) -> None:
    """Draw the difference in J between the policy under test and each baseline, with confidence intervals."""
    others = [arm for arm in exam.arms if arm.difference is not None]
    with drawing(path, 8, 1.2 + 0.42 * len(others)) as figure:
        ax = figure.subplots()
        for row, arm in enumerate(others):
            assert arm.difference is not None
            color = {"better": GREEN, "worse": EARTH, "level": QUIET}[arm.verdict]
            ax.plot([arm.difference.low, arm.difference.high], [row, row], color=color, lw=3, solid_capstyle="round")
            ax.plot(arm.difference.mean, row, "o", color=color, ms=8)
            ax.annotate(
                f"{arm.difference.mean:+.3f}",
                (arm.difference.mean, row),
                xytext=(0, 8),
                textcoords="offset points",
                ha="center",
                color=INK,
            )
        ax.axvline(0, color=INK, lw=1)
        ax.set_yticks(range(len(others)), [f"against {arm.name}" for arm in others])
        ax.set_ylim(len(others) - 0.5, -0.7)
        ax.set_xlabel(f"J of {exam.policy} minus J of the other policy, paired by host: mean and 95 % interval")
        quieten(ax, grid=False)


def draw_frontier(exam: ExamReport, path: Path) -> None:
    """Draw the score of each policy against its parameters and its FLOPs."""
    with drawing(path, 9, 3.4) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        scores = [sum(arm.scores) / len(arm.scores) for arm in exam.arms]
        for ax, (field, name) in zip(axes, {"params": "parameters", "flops": "FLOPs per episode"}.items(), strict=True):
            for arm, y in zip(exam.arms, scores, strict=True):
                own = arm.name == exam.policy
                ax.plot(getattr(arm, field), y, "o", color=GREEN if own else QUIET, ms=9 if own else 6, zorder=2 + own)
            by_magnitude(ax, "{:,.0f}" if field == "params" else "{:.0e}")
            ax.set_xlabel(name)
            ax.margins(x=0.25, y=0.15)
            quieten(ax)
        axes[0].set_ylabel(f"{exam.data} score, mean")
        figure.draw_without_rendering()  # sets the coordinates of points
        for ax, field in zip(axes, ("params", "flops"), strict=True):
            name_points(ax, [(arm.name, getattr(arm, field), y) for arm, y in zip(exam.arms, scores, strict=True)])


def draw_profiles(exam: ExamReport, path: Path) -> None:
    """Draw performance profiles: the share of hosts that score above each threshold."""
    thresholds = sorted({score for arm in exam.arms for score in arm.scores})
    with drawing(path, 8, 3.2) as figure:
        ax = figure.subplots()
        for i, arm in enumerate(exam.arms):
            own = arm.name == exam.policy
            shares = [arm.above(threshold) for threshold in thresholds]
            color = GREEN if own else PROFILE_COLORS[i % len(PROFILE_COLORS)]
            style = "-" if i <= len(PROFILE_COLORS) else "--"
            ax.plot(thresholds, shares, style, color=color, lw=2.6 if own else 1.2, label=arm.name, zorder=2 + own)
        ax.set_xlabel(f"threshold of the {exam.data} score")
        ax.set_ylabel("share of hosts above it")
        ax.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
        quieten(ax)


def draw_actions(reports: Sequence[UpdateReport], lives: Sequence[Life], path: Path) -> None:
    """Draw the share of each op: by decision in exam episodes, and by update in training."""
    now = _by_decision(lives)
    over_training = [[r.ops.get(op.name, 0) / r.decisions for r in reports] for op in Op]
    both = [(over_training, "update", "in training")] if reports else []
    if now:
        both.insert(0, (now, "decision of an episode", f"in {len(lives)} episodes of the exam"))
    with drawing(path, 9, 2.6) as figure:
        axes = figure.subplots(1, len(both), sharey=True, squeeze=False)[0]
        for ax, (shares, axis, title) in zip(axes, both, strict=True):
            _heat(ax, shares, axis, title)
        axes[0].set_yticks(range(len(Op)), [spoken(op.name) for op in Op])


def _by_decision(lives: Sequence[Life]) -> list[list[float]]:
    """Return the share of each op at each decision, among the episodes that last that long."""
    longest = max((len(life.epochs) for life in lives), default=0)
    days = [[life.epochs[d].op for life in lives if d < len(life.epochs)] for d in range(longest)]
    return [[day.count(op.name) / len(day) for day in days] for op in Op] if days else []


def _heat(ax: "Axes", shares: list[list[float]], axis: str, title: str) -> None:
    ax.imshow(shares, aspect="auto", cmap="Greens", vmin=0, vmax=1, interpolation="nearest")
    ax.set_xlabel(axis)
    count_whole(ax)
    ax.set_title(title, loc="left", fontsize=9, color=INK)
    ax.tick_params(colors=QUIET, length=0)
    ax.spines[:].set_visible(False)
    if len(shares[0]) <= 26:
        for row, values in enumerate(shares):
            for column, share in enumerate(values):
                if share >= 0.05:
                    color = "white" if share > 0.6 else INK
                    ax.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=6.5, color=color)


def draw_contributions(lives: Sequence[Life], path: Path) -> None:
    """Draw the contribution of each seed at the end of an episode, by blueprint and slot."""
    seeds = [(slot.blueprint, s, slot.contribution) for life in lives for s, slot in enumerate(life.epochs[-1].slots)]
    known = [(str(name), s, worth) for name, s, worth in seeds if name is not None and worth is not None]
    names = sorted({name for name, _, _ in known})
    slots = sorted({s for _, s, _ in known})
    with drawing(path, 8, 1.3 + 0.3 * max(len(names), 1)) as figure:
        ax = figure.subplots()
        for s in slots:
            here = [(names.index(name), worth) for name, at, worth in known if at == s]
            rows = [row + (s - (max(slots) + min(slots)) / 2) * 0.18 for row, _ in here]
            color, label = SLOT_COLORS[s % len(SLOT_COLORS)], lives[0].epochs[0].slots[s].name
            ax.plot([worth for _, worth in here], rows, "o", color=color, alpha=0.6, ms=5, mew=0, label=label)
        ax.axvline(0, color=INK, lw=1)
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.set_xlabel("validation score with the seed minus without it, at the end of an episode")
        quieten(ax, grid=False)
        if slots:
            ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


def draw_heads(reports: Sequence[UpdateReport], path: Path) -> None:
    """Draw the entropy, approximate KL and clip fraction of each head over updates; white where it was unused."""
    heads = [head.name for head in reports[0].heads]
    with drawing(path, 9, 0.9 + 0.24 * len(heads)) as figure:
        axes = figure.subplots(1, 3, sharey=True)
        for ax, (title, name) in zip(axes, HEALTH.items(), strict=True):
            values = [[_nan(getattr(r.heads[h], name)) for r in reports] for h in range(len(heads))]
            image = ax.imshow(values, aspect="auto", cmap="Greens", interpolation="nearest", vmin=0)
            figure.colorbar(image, ax=ax, fraction=0.05).outline.set_visible(False)
            ax.set_title(title, loc="left", fontsize=9, color=INK)
            ax.set_xlabel("update")
            count_whole(ax)
            ax.tick_params(colors=QUIET, length=0)
            ax.spines[:].set_visible(False)
        axes[0].set_yticks(range(len(heads)), [spoken(name) for name in heads])


def _nan(x: float | None) -> float:
    return float("nan") if x is None else x
