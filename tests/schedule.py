"""Which tests one worker of xdist runs, one after the other, and which of these groups come first.

With `--dist loadgroup` a group is never split, so tests that share a costly fixture of the session
(a stack of processes, a stocked server) are one group and the fixture is made once. The longest
groups are begun first: what is left at the end is short, and no worker waits for another.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import pytest

from tests.costs import TABLE

# Fixtures of the session that take seconds to make: their tests are a group each.
_SHARED = ("session_stack", "stocked", "alert_service")
_UNKNOWN_S = 2.0  # of a file that is not yet in the table


class _Item(Protocol):
    """What is asked of a test."""

    @property
    def nodeid(self) -> str: ...

    @property
    def fixturenames(self) -> list[str]: ...


def group_of(item: _Item) -> str:
    """The name of a test's group: a shared fixture's, or its file."""
    shared = next((name for name in _SHARED if name in item.fixturenames), None)
    return shared or item.nodeid.partition("::")[0]


def costs_of_files() -> dict[str, float]:
    """Seconds of each file when `make costs` last ran: computing and waiting."""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]
    return {path: float(cpu_s) + float(wait_s) for path, cpu_s, wait_s in rows}


def longest_first(items: Sequence[_Item], costs: Mapping[str, float]) -> list[int]:
    """Positions of the tests in the order in which they are to run; a group's stay together."""
    groups: dict[str, list[int]] = defaultdict(list)
    seconds: dict[str, float] = defaultdict(float)
    files: dict[str, int] = defaultdict(int)
    for item in items:
        files[item.nodeid.partition("::")[0]] += 1
    for position, item in enumerate(items):
        path = item.nodeid.partition("::")[0]
        groups[group_of(item)].append(position)
        seconds[group_of(item)] += costs.get(path, _UNKNOWN_S) / files[path]
    order = sorted(groups, key=lambda group: -seconds[group])
    return [position for group in order for position in groups[group]]


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark and sort the tests, where they are given out by group."""
    if not getattr(config.option, "loadgroup", False):
        return
    tests = [item for item in items if isinstance(item, pytest.Function)]
    others = [item for item in items if not isinstance(item, pytest.Function)]
    for test in tests:
        test.add_marker(pytest.mark.xdist_group(group_of(test)))
    items[:] = [*(tests[at] for at in longest_first(tests, costs_of_files())), *others]
