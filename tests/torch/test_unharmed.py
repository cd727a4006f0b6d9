"""A few cases of `python -m benchmarks unharmed`: real trainings, with a recorder and without."""

from benchmarks.unharmed.cases import Case, Ending
from benchmarks.unharmed.command import Comparison, Result, chosen, compared

CASES = [
    Case(Ending(), "works", closes=True),
    Case(Ending("sigterm", "middle"), "works", closes=False),
    Case(Ending("sigterm-handled", "end"), "nonsense", closes=False),
    Case(Ending("exception", "middle"), "away", closes=False),
    Case(Ending("exit-3", "end"), "wrong-token", closes=False),
    Case(Ending("workers", "middle"), "dies", closes=True),
    Case(Ending("hook", "middle"), "works", closes=True),
]


def test_no_fault_changes_exit_status_or_losses(tmp_path):
    found, missing = compared(CASES, tmp_path, num_workers=1)
    assert missing == []
    assert [(each.case.name, each.output) for each in found if not each.is_equal] == []
    assert [each.found.status for each in found] == [0, -15, 0, 1, 3, 0, 0]
    assert all(each.found.losses for each in found)
    # So that the comparison is with something: the recorder was really there, and really broken.
    warned = {each.case.server: each.output for each in found if "paceline:" in each.output}
    assert warned.keys() >= {"away", "wrong-token"}
    assert "an error of its own" in found[-1].output


def test_a_difference_is_one():
    case = CASES[0]
    expected = Result(0, {"losses-0-0": "0x1p+0\n"})
    assert Comparison(case, expected, expected, "", 1.0).is_equal
    for other in (Result(1, expected.losses), Result(0, {}), Result(0, {"losses-0-0": "0x1.1p+0"})):
        assert not Comparison(case, other, expected, "", 1.0).is_equal


def test_drawn_cases_cover_all_servers_and_places_and_are_the_same_for_a_seed():
    cases = chosen(200, 20, 1)
    assert cases == chosen(200, 20, 1) != chosen(200, 20, 2)
    assert len(set(cases)) == 200
    assert sum(each.ending.is_torchrun for each in cases) == 20
    assert len({each.server for each in cases}) == 7
    assert {each.ending.place for each in cases} == {"", "start", "middle", "end"}
