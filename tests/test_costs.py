"""Budgets of tests, and the order in which their groups are begun."""

from tests.costs import NOT_JUDGED, Budgets, Cost, over_budget
from tests.schedule import group_of, longest_first

PLANNED_S = {"tests/api": 100.0, "tests/cli": 100.0, "tests/store": 100.0, "tests": 1.0}
BUDGETS = Budgets(PLANNED_S, waits_s=5.0)


def costs_of(slower=1.0, **by_file_s):
    usual = {f"{folder}/test_a.py": Cost(slower * of_s) for folder, of_s in PLANNED_S.items()}
    return usual | by_file_s


def test_a_folder_may_take_half_more_than_its_budget_and_a_small_one_its_imports():
    small = [over_budget(costs_of(**{"tests/test_b.py": Cost(s)}), BUDGETS) for s in (7.0, 7.1)]
    assert [len(complaints) for complaints in small] == [0, 1]
    costs = costs_of(**{"tests/store/disk/test_b.py": Cost(50.0)})
    assert over_budget(costs, BUDGETS) == []
    costs["tests/store/test_a.py"].cpu_s += 0.1
    [complaint] = over_budget(costs, BUDGETS)
    assert complaint.startswith("tests/store took 150.1 s of CPU: 100 s planned, 150 s allowed")


def test_a_slower_machine_may_take_longer_in_all_folders():
    costs = costs_of(slower=1.6, **{"tests/test_b.py": Cost(0.0, 7.9)})
    assert over_budget(costs, BUDGETS) == []
    longer = costs | {"tests/test_b.py": Cost(0.0, 8.6)}
    assert over_budget(longer, BUDGETS) == ["tests waited for 9 s: at most 8 s"]
    [complaint] = over_budget(costs | {"tests/cli/test_a.py": Cost(241.0)}, BUDGETS)
    assert complaint.startswith("tests/cli took 241.0 s of CPU: 100 s planned, 240 s allowed")
    assert over_budget(costs_of(slower=2.1), BUDGETS)[0].startswith(NOT_JUDGED)


def test_waits_are_summed_over_all_folders():
    costs = {"tests/store/test_a.py": Cost(0.0, 3.0), "tests/test_b.py": Cost(0.0, 2.5)}
    assert over_budget(costs, BUDGETS) == ["tests waited for 6 s: at most 5 s"]


def test_a_folder_without_a_budget_is_over_it():
    [complaint] = over_budget({"tests/new/test_a.py": Cost(0.1)}, BUDGETS)
    assert complaint.startswith("tests/new has no budget")


def test_a_group_stays_together_and_the_longest_is_begun_first():
    short, long, first, second = ("a/short", "a/long", "browser/1", "browser/2")
    paths = [short, long, short, first, second]
    costs = {short: 1.0, long: 10.0, first: 6.0, second: 5.0}
    assert longest_first(paths, costs, folder_or_file) == [3, 4, 1, 0, 2]
    costs[first] = 1.0
    assert longest_first(paths, costs, folder_or_file) == [1, 3, 4, 0, 2]


def folder_or_file(path):
    return "pages" if "browser" in path else path


def test_the_pages_of_the_stocked_server_are_a_group_and_other_files_are_alone():
    assert group_of("tests/browser/test_hosts.py") == "tests/browser/stocked"
    assert group_of("tests/browser/test_job_findings.py") == "tests/browser/"
    assert group_of("tests/store/test_backup.py") == "tests/store/test_backup.py"
