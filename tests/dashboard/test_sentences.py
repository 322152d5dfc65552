"""What came out of a run, in one plain sentence; and words for everything that pages name."""

from dataclasses import replace

import pytest

from esper.dashboard.sentences import ARMS, OPS, STAGES, WORDS, does, exam_sentence, run_sentence
from esper.exam import arms as exam_arms
from esper.exam.records import Interval
from esper.leyline import Op, Stage
from telemetry_toys import arm, exam

OURS = arm("learned")
BETTER, LEVEL, WORSE = (0.077, 0.05, 0.1), (0.01, -0.1, 0.1), (-0.04, -0.06, -0.02)


def test_every_stage_op_and_arm_has_words():
    assert set(STAGES) == {stage.name for stage in Stage}
    assert set(OPS) == {op.name for op in Op}
    assert {arm.name: arm.does for arm in exam_arms.ARMS} == {name: does for name, (_, does) in ARMS.items()}
    assert {"J", "growth", "price", "never", "stages", "ops"} <= WORDS.keys()


def test_words_are_whole_sentences():
    said = [*(text for text in WORDS.values() if isinstance(text, str)), *STAGES.values(), *OPS.values()]
    assert all(text[0].isupper() and text.endswith(".") for text in said)


def test_an_exam_is_told_with_wins_and_losses():
    told = exam_sentence(exam(OURS, arm("never", *BETTER), arm("heuristic", *LEVEL)))
    assert told == (
        "On 30 fresh hosts of digits the controller beats never growing by 0.077 in J and is level with the heuristic."
    )
    others = [arm("random", *BETTER), arm("longer", *WORSE), arm("gap", *LEVEL)]
    told = exam_sentence(exam(OURS, arm("never", *WORSE), *others))
    assert told == (
        "On 30 fresh hosts of digits the controller loses to never growing by 0.040 in J; of 3 other arms it beats 1,"
        " is level with 1 and loses to 1 (training longer)."
    )


def test_an_exam_says_on_what_it_was_held():
    held = replace(exam(OURS, arm("never", *LEVEL)), data="validation", trainings=5, policy="mine")
    held = replace(held, arms=(replace(OURS, name="mine"), *held.arms[1:]))
    assert exam_sentence(held) == (
        "On 30 fresh hosts of digits (5 trainings, validation data) the policy “mine” is level with never growing."
    )
    assert exam_sentence(exam(OURS)) == "On 30 fresh hosts of digits the controller reaches J 0.500."
    told = exam_sentence(exam(OURS, arm("never", *BETTER), arm("heuristic", *BETTER), arm("my rule", *LEVEL)))
    assert told == (
        "On 30 fresh hosts of digits the controller beats never growing by 0.077 and the heuristic by 0.077 in J and is"
        " level with “my rule”."
    )


def test_a_lead_that_is_not_shown_is_no_win():
    unsure = replace(arm("never"), difference=Interval(0.1, 0.05, 0.2), p_value=0.2)
    assert "is level with never growing" in exam_sentence(exam(OURS, unsure))


def test_several_exams_are_counted():
    won, lost = exam(OURS, arm("never", *BETTER), arm("heuristic", *WORSE)), exam(OURS, arm("never", *LEVEL))
    assert run_sentence(state="done", updates=3, exams=[won, won, lost]) == (
        "In 3 exams on fresh hosts the controller beats never growing in 2 and is level with it in 1; it loses to the"
        " heuristic in 2."
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"state": "done", "updates": 40, "of": 40, "objective": 0.882, "never": 0.805},
            "The controller's hosts reach J 0.882 after 40 updates; hosts that never grow reach 0.805.",
        ),
        (
            {"state": "running", "updates": 1, "of": 40, "objective": 0.5},
            "The controller's hosts reach J 0.500 after 1 of 40 updates.",
        ),
        ({"state": "done", "updates": 1, "objective": 0.5}, "The controller's hosts reach J 0.500 after 1 update."),
        (
            {"state": "stopped", "updates": 2, "of": 40, "objective": 0.5, "never": 0.6},
            "The run stopped after 2 of 40 updates, when the controller's hosts reached J 0.500; hosts that never grow"
            " reach 0.600.",
        ),
        ({"state": "running", "updates": 2}, "No episode has ended in 2 updates, so J is not known yet."),
        ({"state": "running", "updates": 0}, "The run has begun, and its first update is under way."),
        ({"state": "stopped", "updates": 0}, "The run stopped before its first update."),
        ({"state": "done", "updates": 0}, "A trained controller, without a log of its training."),
        ({"state": "damaged", "updates": 0}, "Nothing of this run could be read."),
    ],
)
def test_a_run_without_an_exam_is_told_by_its_last_j(given, said):
    assert run_sentence(**given) == said


def test_what_arms_do():
    assert does("learned", "learned") == "the policy under test"
    assert does("never", "learned") == "never grows"
    assert does("my rule", "learned") == ""
