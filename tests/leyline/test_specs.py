"""Descriptions of hosts are checked when they are made."""

import pytest

from esper.leyline.specs import HostSpec


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (((), 3, (8,)), "inputs must be"),
        (((4,), 0, (8,)), "outputs must be at least 1"),
        (((4,), 3, ()), "widths must be"),
        (((4,), 3, (8, 0)), "widths must be"),
    ],
)
def test_impossible_hosts_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        HostSpec("mlp", *fields)
