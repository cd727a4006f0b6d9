"""The order in which xdist's workers take tests: the longest groups of files first.

What is left at the end is short, and no worker waits for another. Tests that share processes follow
each other, so that their fixtures of the session are not kept while others run. Each test is given
out by itself: with pytest 9.2, xdist 3.8 does not see the groups of `--dist loadgroup`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

import pytest

from tests.costs import TABLE

# Folders whose tests share processes: more browsers, or stacks, would take the processors from the
# tests. The pages that look at the stocked server are one half of the browser's.
_TOGETHER = ("tests/browser/", "tests/faults/")
_STOCKED = "stocked"
_UNKNOWN_S = 2.0  # of a file that is not yet in the table


def group_of(path: str, stocked: Set[str]) -> str:
    """The name of the group that a file belongs to: its folder's, a half of it, or its own."""
    folder = next((folder for folder in _TOGETHER if path.startswith(folder)), path)
    return f"{folder}{_STOCKED}" if path in stocked else folder


def costs_of_files() -> dict[str, float]:
    """Seconds of each file when `make costs` last ran: computing and waiting."""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]
    return {path: float(cpu_s) + float(wait_s) for path, cpu_s, wait_s in rows}


def longest_first(
    paths: Sequence[str], costs: Mapping[str, float], stocked: Set[str] = frozenset()
) -> list[int]:
    """Positions of tests in these files in the order in which they are to run.

    A group's tests stay together, and the files in their order. `stocked` are the files with tests
    that look at the stocked server.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for position, path in enumerate(paths):
        groups[group_of(path, stocked)].append(position)
    seconds: dict[str, float] = defaultdict(float)
    for path in set(paths):
        seconds[group_of(path, stocked)] += costs.get(path, _UNKNOWN_S)
    order = sorted(groups, key=lambda group: (-seconds[group], group))
    return [position for group in order for position in groups[group]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests in every worker alike."""
    if not getattr(config.option, "loadgroup", False):
        return
    paths = [item.nodeid.partition("::")[0] for item in items]
    stocked = {
        path
        for item, path in zip(items, paths, strict=True)
        if _STOCKED in getattr(item, "fixturenames", ())
    }
    items[:] = [items[at] for at in longest_first(paths, costs_of_files(), stocked)]
