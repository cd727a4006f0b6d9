"""Which tests one worker of xdist runs, one after the other, and which of these groups come first.

With `--dist loadgroup` a group is never split, so that its fixtures are made once. The longest
groups are begun first: what is left at the end is short, and no worker waits for another.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pytest

from tests.costs import TABLE

# One browser, and one server of each kind that pages are looked at on: more of them would take the
# processors from the tests. One stack of processes for the faults.
_TOGETHER = ("tests/browser/", "tests/faults/")
_UNKNOWN_S = 2.0  # of a file that is not yet in the table


def group_of(path: str) -> str:
    """The name of the group that a file belongs to: its folder's, or its own."""
    return next((folder for folder in _TOGETHER if path.startswith(folder)), path)


def costs_of_files() -> dict[str, float]:
    """Seconds of each file when `make costs` last ran: computing and waiting."""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]
    return {path: float(cpu_s) + float(wait_s) for path, cpu_s, wait_s in rows}


def longest_first(paths: Sequence[str], costs: Mapping[str, float]) -> list[int]:
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


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark and sort the tests, where they are given out by group."""
    if not getattr(config.option, "loadgroup", False):
        return
    paths = [item.nodeid.partition("::")[0] for item in items]
    for item, path in zip(items, paths, strict=True):
        item.add_marker(pytest.mark.xdist_group(group_of(path)))
    items[:] = [items[at] for at in longest_first(paths, costs_of_files())]
