"""Turn a report into named numbers for experiment trackers."""

from esper.leyline.reports import UpdateReport


def scalars(report: UpdateReport) -> dict[str, float]:
    """Return the numbers of an update under the names that CleanRL and its users know; unknown ones are left out."""
    took = sum(report.seconds.values())
    found: dict[str, float | None] = {
        "charts/objective": report.objective,
        "charts/score": report.score,
        "charts/growth": report.growth,
        "charts/episodes": report.episodes,
        "charts/sick": report.sick,
        "charts/rent": report.rent,
        "charts/reward": report.reward,
        "charts/SPS": report.decisions / took if took else None,
        "losses/policy_loss": report.policy_loss,
        "losses/value_loss": report.value_loss,
        "losses/entropy": report.entropy,
        "losses/approx_kl": report.approx_kl,
        "losses/clipfrac": _mean([h.clip_fraction for h in report.heads]),
        "losses/explained_variance": report.explained_variance,
        "losses/gradient": report.grad_norm,
        "losses/gradient_health": report.gradient_health,
    }
    for head in report.heads:
        found |= {
            f"{head.name}/samples": head.samples,
            f"{head.name}/approx_kl": head.approx_kl,
            f"{head.name}/clipfrac": head.clip_fraction,
            f"{head.name}/entropy": head.entropy,
            f"{head.name}/ratio_min": head.ratio_min,
            f"{head.name}/ratio_max": head.ratio_max,
            f"{head.name}/gradient": head.grad_norm,
        }
    found |= {f"ops/{name.lower()}": count / report.decisions for name, count in report.ops.items()}
    found |= {f"seconds/{phase}": seconds for phase, seconds in report.seconds.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def _mean(values: list[float | None]) -> float | None:
    known = [x for x in values if x is not None]
    return sum(known) / len(known) if known else None
