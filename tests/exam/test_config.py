"""Impossible exams."""

from dataclasses import replace

import pytest

from esper.exam.config import QUICK, ExamConfig, quick
from esper.leyline.errors import EsperError
from small_exams import SMALL


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hosts", 1, "hosts must be at least 2"),
        ("rates", (), "rates must hold at least one number, all positive"),
        ("rates", (1.0, -1.0), "rates must hold at least one number, all positive"),
        ("plans", -1, "plans must be at least 0"),
        ("price", -0.1, "price must not be negative"),
    ],
)
def test_an_impossible_exam_is_refused(field, value, message):
    with pytest.raises(EsperError, match=message):
        replace(SMALL, **{field: value})


def test_a_quick_exam_has_fewer_hosts_where_there_are_many_settings():
    assert [quick(ExamConfig(), settings).hosts for settings in (1, 4, 5, 6, 99)] == [16, 16, 12, 10, 2]
    assert quick(ExamConfig(hosts=7, price=0.1), 1) == replace(QUICK, hosts=7, tuned_on=8, price=0.1)
    assert quick(ExamConfig(tuned_on=5), 1).tuned_on == 5
