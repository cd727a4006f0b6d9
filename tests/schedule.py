"""Which tests one worker of xdist runs, one after the other, and which of these groups come first.

A group is never split, so that its fixtures are made once: tests of a file, or of a folder whose
tests share processes. The longest groups are begun first: what is left at the end is short, and no
worker waits for another. (`xdist_group` would name groups, but xdist 3.8 writes them into node ids,
which pytest 9.2 does not let it change.)
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from typing_extensions import override
from xdist.scheduler import LoadScopeScheduling

from tests.costs import ROOT, read_table

# More browsers, or stacks of processes, would take the processors from the tests.
_TOGETHER = ("tests/browser/", "tests/faults/")
_UNKNOWN_S = 2.0  # of a file whose cost is not in the table


@cache
def group_of(path: str) -> str:
    """The name of the group that a file belongs to: its folder's, a half of it, or its own."""
    folder = next((folder for folder in _TOGETHER if path.startswith(folder)), None)
    if folder is None:
        return path
    # Pages that look at the stocked server are one half of the browser's.
    return f"{folder}stocked" if "stocked" in (ROOT / path).read_text() else folder


def costs_of_files(*, at_night: bool) -> dict[str, float]:
    """Seconds of each file that is in the table: computing and waiting."""
    values = {path: row[2:] if at_night else row[:2] for path, row in read_table().items()}
    return {path: sum(map(float, row)) for path, row in values.items() if all(row)}


def longest_first(
    paths: Sequence[str], costs: Mapping[str, float], group_of: Callable[[str], str] = group_of
) -> list[int]:
    """Positions of tests in these files in the order in which they are to run.

    A group's tests stay together, and the files in their order.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for position, path in enumerate(paths):
        groups[group_of(path)].append(position)
    seconds: dict[str, float] = defaultdict(float)
    for path in set(paths):
        seconds[group_of(path)] += costs.get(path, _UNKNOWN_S)
    order = sorted(groups, key=lambda group: (-seconds[group], group))
    return [position for group in order for position in groups[group]]


class GroupScheduling(LoadScopeScheduling):
    """Gives each worker one group after the other, in the order of the collected tests."""

    @override
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """How xdist gives out tests, whatever `--dist` says."""
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests in every worker alike."""
    if hasattr(config, "workerinput"):
        paths = [item.nodeid.partition("::")[0] for item in items]
        costs = costs_of_files(at_night=config.getoption("whole") == "night")
        items[:] = [items[at] for at in longest_first(paths, costs)]
