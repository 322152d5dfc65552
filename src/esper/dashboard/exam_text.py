"""Say what an exam found: cells and titles of tables, and the sentences below them."""

from collections.abc import Sequence

from esper.exam.records import ArmReport, ExamReport


def cells(arm: ArmReport) -> dict[str, str]:
    """Return the cells of an arm's row in tables, by column. Differences from the policy itself are empty."""
    lies = arm.iqm_interval
    compared = {"ahead": arm.difference, "in score": arm.score_difference}
    chances = {"P(better)": (arm.probability_of_improvement, ".2f"), "p": (arm.p_value, ".3f")}
    return {
        "metric": f"{arm.mean:.3f}",
        "IQM": f"{arm.iqm:.3f}",
        "IQM lies in": f"{lies.low:.3f} to {lies.high:.3f}",
        "growth": f"{arm.growth:.2f}",
        "parameters": f"{arm.params:,.0f}",
        "FLOPs": f"{arm.flops:.1e}",
        "time": f"{arm.seconds:.1f} s",
        "epochs": str(arm.episode),
        "lr": f"{arm.lr:g}",
        "J": f"{arm.j:.3f}",
        **{name: "" if value is None else str(value) for name, value in compared.items()},
        **{name: "" if value is None else f"{value:{form}}" for name, (value, form) in chances.items()},
    }


def headings(exam: ExamReport, columns: Sequence[str]) -> list[str]:
    """Return the titles of table columns, given as keys of `cells`."""
    named = {
        "metric": exam.metric,
        "IQM lies in": "IQM, 95 % CI",
        "ahead": f"{exam.policy} − arm, J",
        "in score": f"{exam.policy} − arm, score",
    }
    return [named.get(column, column) for column in columns]


def about(exam: ExamReport) -> str:
    """Return the sentences below the table: place, size, cost, cautions, and where the exam was held."""
    return " ".join(filter(None, (_budget(exam), _place(exam), _size(exam), _cost(exam), _caution(exam), exam.held)))


def _budget(exam: ExamReport) -> str:
    """Say what every arm spends, if episodes have a budget."""
    if exam.budget is None:
        return ""
    spent = [arm.flops / exam.budget for arm in exam.arms]
    failed = max(arm.sick for arm in exam.arms)
    unless = f", unless it fails before, as up to {failed:.0%} of an arm do" if failed else ""
    shares = f"on average {min(spent):.3f} to {max(spent):.3f} of it"
    return f"Every host of every arm spends {exam.budget:.3g} FLOPs, to the step{unless} ({shares})."


def _place(exam: ExamReport) -> str:
    """Give the policy's gain over never growing as a share of the grid oracle's, if it is known."""
    if exam.of_oracle is None:
        return ""
    share = exam.of_oracle
    reached = f"{share.mean:.0%} (95 % CI {share.low:.0%} to {share.high:.0%})"
    return f"{exam.policy} reaches {reached} of the grid oracle's gain over never growing."


def _size(exam: ExamReport) -> str:
    """Give the size of the policy's hosts and of the task's teacher, if there is a teacher."""
    if exam.right_size is None:
        return ""
    own = exam.arms[0]
    sizes = f"The teacher has {exam.right_size:,.0f} parameters, hosts of {exam.policy} end with {own.params:,.0f}."
    if own.regret is None:
        return sizes
    return f"{sizes} Their J is {own.regret:.3f} below that of hosts of the teacher's shape."


def _cost(exam: ExamReport) -> str:
    """Give the cost of training and searching the arms, if there was any."""
    sentences = [_trained(exam)] if exam.decisions else []
    for arm in exam.arms:
        if arm.searched:
            plan = f" ({arm.plan})" if arm.plan else ""
            sentences.append(f"{arm.name} was chosen by a search over {arm.searched:,} episodes{plan}.")
    return " ".join(sentences)


def _trained(exam: ExamReport) -> str:
    """Give the cost of training the policy, and the episodes per training and setting."""
    trainings = "1 training" if exam.trainings == 1 else f"{exam.trainings} trainings"
    time = f"{exam.seconds / 60:.0f} minutes" if exam.seconds >= 90 else f"{exam.seconds:.0f} seconds"
    took = f"{trainings} of {exam.policy} took {exam.decisions:,} decisions and {time}"
    each = round(exam.lives / max(exam.settings * exam.trainings, 1))
    settings = "" if exam.settings < 2 else f" in each of {exam.settings} settings"
    return f"{took}, with {each:,} episodes per training{settings}."


def _caution(exam: ExamReport) -> str:
    """Name the arms that a wider grid of learning rates might help, if there are any."""
    if not exam.at_the_edge:
        return ""
    return f"Tuned to an end of the grid of learning rates, so a wider grid may help: {', '.join(exam.at_the_edge)}."
