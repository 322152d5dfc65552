"""Say what came out of a run in one plain sentence, and explain the words that pages use."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from esper.exam.records import ArmReport, ExamReport

STAGES = {
    "DORMANT": "The slot is empty, and a seed may be planted in it.",
    "GERMINATED": "A seed has been planted, and has not begun to train.",
    "TRAINING": "The seed trains beside the host, which does not hear it yet.",
    "BLENDING": "The seed is being blended in: its weight alpha moves to its target.",
    "HOLDING": "The seed is fully blended in, and on probation.",
    "FOSSILIZED": "The seed is a permanent part of the host.",
    "PRUNED": "The seed fades out, and is then removed.",
    "EMBARGOED": "The slot is empty, and stays closed for some epochs.",
    "RESETTING": "The slot is empty, and opens with the next epoch.",
}
OPS = {
    "WAIT": "Change nothing in this epoch.",
    "GERMINATE": "Plant a seed in an empty slot.",
    "SET_ALPHA_TARGET": "Change how strongly the host will hear a seed.",
    "PRUNE": "Remove a seed.",
    "FOSSILIZE": "Make a seed a permanent part of the host.",
    "ADVANCE": "Move a seed on to its next stage.",
}
WORDS: dict[str, Any] = {
    "J": "What the controller maximises: the score minus the price of growth, J = score − price × ln(1 + growth).",
    "growth": "Parameters that were added, divided by those of the host without them; 1 means twice the size.",
    "price": "What growth costs in J: at 0.02, a host that doubles its size must gain 1.4 points of score to pay.",
    "never": "Equal hosts that never grow: the least that growing must beat.",
    "score": "How well a task is done, from 0 to 1: accuracy, or how far a language model's loss is below guessing.",
    "host": "A network that is being trained, and may grow.",
    "slot": "A place in a host where a seed can be planted.",
    "seed": "A small module that is planted in a slot, and adds to what the host computes.",
    "twin": "A copy of a block of the host, planted behind it and blended in.",
    "alpha": "How strongly the host hears a seed, from 0 to 1.",
    "update": "One improvement of the controller, from the decisions of one rollout.",
    "decision": "One choice of the controller for one host; one epoch of training follows.",
    "arm": "A policy or baseline that takes part in an exam; all arms have hosts with equal initial weights.",
    "stages": STAGES,
    "ops": OPS,
}
"""Plain-English explanations, from docs/glossary.md and docs/concepts/score.md."""
ARMS = {
    "never": ("never growing", "never grows"),
    "random": ("random choices", "takes any legal action"),
    "heuristic": (
        "the heuristic",
        "plants the largest seed, one at a time, in the first half of an episode; keeps what contributes, prunes the"
        " rest",
    ),
    "schedule": ("the schedule", "the heuristic's actions at even intervals"),
    "plateau": ("the plateau rule", "the heuristic's actions when the score has stopped rising"),
    "gap": (
        "the gap rule",
        "the heuristic's actions while training and validation loss are close; in the short episodes of the suite they"
        " always are, so this is the heuristic one epoch later",
    ),
    "gradient": (
        "the gradient rule",
        "the heuristic's actions in the slot where the gradient of the loss with respect to the stream is largest",
    ),
    "least gradient": (
        "the least-gradient rule",
        "the heuristic's actions in the slot where that gradient is smallest",
    ),
    "oversized": ("growing everywhere at once", "plants in every slot at once, prunes what contributes nothing"),
    "doubling": ("doubling", "doubles the number of blocks at 0.3 and 0.6 of the budget, by twins"),
    "best plan": (
        "the best random plan",
        "the best of 50 random plans (or `--plans`); the policy has seen none of them",
    ),
    "grid oracle": (
        "the grid oracle",
        "the best of every blueprint in every slot at two times, and of as many pairs of those",
    ),
    "longer": (
        "training longer",
        "never grows, but trains for as many epochs as the FLOPs of the policy would have paid for",
    ),
    "static": (
        "its own topologies from scratch",
        "the topologies that the policy grew, from scratch, for as many epochs",
    ),
    "static, longer": (
        "its own topologies trained longer",
        "the topologies that the policy grew, from scratch, for as many FLOPs",
    ),
    "probe": ("the probe", "tries each doubling on a copy, keeps the better, and pays for both"),
    "replay": ("its own actions replayed", "the actions of the policy on other hosts"),
    "right size": (
        "hosts of the right size",
        "hosts of the teacher's shape, from scratch; excess parameters and regret are relative to these",
    ),
}
"""What each arm of an exam is called in a sentence, and what it does."""
RIVALS = ("never", "heuristic")
"""The arms that a sentence about an exam tells of, where they took part."""


NAMED = 2
"""Largest number of lost comparisons that are named besides those with the main rivals."""
VERBS = {"better": "beats", "level": "is level with", "worse": "loses to"}


def does(arm: str, policy: str) -> str:
    """Say what an arm does; empty for one of the user's own."""
    return "the policy under test" if arm == policy else ARMS.get(arm, ("", ""))[1]


def called(arm: str) -> str:
    """Return what an arm is called in a sentence."""
    return ARMS[arm][0] if arm in ARMS else f"“{arm}”"


def exam_sentence(exam: ExamReport) -> str:
    """Say in one sentence what an exam showed, wins and losses alike: its main rivals, and a count of the others."""
    compared = [arm for arm in exam.arms if arm.difference is not None]
    rivals = [arm for arm in compared if arm.name in RIVALS] or compared[:2]
    others = [arm for arm in compared if arm not in rivals]
    if len(others) == 1:
        rivals, others = rivals + others, []
    name = "controller" if exam.policy == "learned" else f"policy “{exam.policy}”"
    held = [f"{exam.trainings} trainings"] * (exam.trainings > 1) + [f"{exam.data} data"] * (not exam.final)
    how = f" ({', '.join(held)})" if held else ""
    place = f"On {exam.hosts} fresh hosts of {exam.task}{how} the {name}"
    if not rivals:
        return f"{place} reaches J {exam.by_name[exam.policy].j:.3f}."
    return f"{place} {_against(rivals)}{_against_others(others)}."


def _against(arms: Sequence[ArmReport]) -> str:
    """Say how the policy compares with several arms, one verdict after the other."""
    clauses = []
    for verdict, verb in VERBS.items():
        met = [arm for arm in arms if arm.verdict == verdict]
        leads = (f" by {abs(arm.difference.mean):.3f}" if arm.difference else "" for arm in met)
        named = [called(arm.name) + (lead if verdict != "level" else "") for arm, lead in zip(met, leads, strict=True)]
        if named:
            clauses.append(f"{verb} {_listed(named)}{' in J' if verdict != 'level' else ''}")
    return _listed(clauses)


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _against_others(arms: Sequence[ArmReport]) -> str:
    if not arms:
        return ""
    lost = [called(arm.name) for arm in arms if arm.verdict == "worse"]
    named = f" ({', '.join(lost)})" if 0 < len(lost) <= NAMED else ""
    return f"; of {len(arms)} other arms it {_tally(arms)}{named}"


def _tally(arms: Sequence[ArmReport], rival: str = "") -> str:
    """Count the verdicts on arms, which may all be those on one rival; what did not happen is left out."""
    counts = Counter(arm.verdict for arm in arms)
    said: list[str] = []
    for verdict, verb in VERBS.items():
        if counts[verdict]:
            whom = f" {'it' if said else called(rival)} in" if rival else ""
            said.append(f"{verb}{whom} {counts[verdict]}")
    return _listed(said)


def exams_sentence(exams: Sequence[ExamReport]) -> str:
    """Say in one sentence what all exams of a run showed."""
    if len(exams) == 1:
        return exam_sentence(exams[0])
    met = {rival: [exam.by_name[rival] for exam in exams if rival in exam.by_name] for rival in RIVALS}
    told = "; it ".join(_tally(arms, rival) for rival, arms in met.items() if arms)
    return f"In {len(exams)} exams on fresh hosts the controller {told or 'met neither of its main rivals'}."


def run_sentence(
    *,
    state: str,
    updates: int,
    of: int | None = None,
    objective: float | None = None,
    never: float | None = None,
    exams: Sequence[ExamReport] = (),
) -> str:
    """Say in one sentence what came out of a run so far.

    Args:
        state: What the run is doing: running, stopped, done or damaged.
        updates: Updates made.
        of: Updates to be made.
        objective: The latest J of the controller's hosts.
        never: J of hosts that never grow.
        exams: The exams of the controller.
    """
    if exams:
        return exams_sentence(exams)
    if not updates:
        return {
            "running": "The run has begun, and its first update is under way.",
            "done": "A trained controller, without a log of its training.",
            "damaged": "Nothing of this run could be read.",
        }.get(state, "The run stopped before its first update.")
    made = f"{updates} update{'s' if updates != 1 else ''}"
    if of is not None and updates < of:
        made = f"{updates} of {of} updates"
    if objective is None:
        return f"No episode has ended in {made}, so J is not known yet."
    reach = f"The controller's hosts reach J {objective:.3f} after {made}"
    if state == "stopped" and of is not None and updates < of:
        reach = f"The run stopped after {made}, when the controller's hosts reached J {objective:.3f}"
    return f"{reach}; hosts that never grow reach {never:.3f}." if never is not None else f"{reach}."
