"""A few cases of `python -m benchmarks unharmed`: real trainings, with a recorder and without."""

from dataclasses import replace

import pytest

from benchmarks.unharmed.cases import Case, Ending
from benchmarks.unharmed.command import Comparison, Result, compared

CASES = [
    Case(Ending(), "works", closes=True),
    Case(Ending("sigterm", "middle"), "works", closes=False),
    Case(Ending("exception", "middle"), "away", closes=False),
    Case(Ending("exit-3", "end"), "wrong-token at start", closes=False),
    Case(Ending("hook", "middle"), "works", closes=True),
    Case(Ending("os-exit-0", "end"), "works", closes=False),
]


@pytest.mark.nightly
def test_no_fault_changes_exit_status_or_losses(tmp_path):
    found, missing = compared(CASES, tmp_path, num_parallel=1)
    assert missing == []
    assert [(each.case.name, each.output) for each in found if not each.is_equal] == []
    assert [each.found.status for each in found] == [0, -15, 1, 3, 0, 0]
    assert not any(each.is_void for each in found)
    # So that the comparison is with something: the recorder was really there, and really broken.
    warned = {each.case.server: each.output for each in found if "paceline:" in each.output}
    assert warned.keys() >= {"away", "wrong-token at start"}
    assert "paceline: " in found[4].output
    assert all(each.requests["registration"] for each in found if each.case.server != "away")
    assert found[0].requests["exits"]


def test_a_difference_is_one():
    case = CASES[0]
    expected = Result(0, {"losses-0-0": "0x1p+0\n" * 6})
    same = Comparison(case, expected, [expected], "", {})
    assert same.is_equal
    assert not same.is_void
    for other in (Result(1, expected.losses), Result(0, {}), Result(0, {"losses-0-0": "0x1.1p+0"})):
        assert not replace(same, found=other).is_equal
        assert replace(same, expected=[expected, other]).is_void
