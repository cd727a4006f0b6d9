"""A consumer on a disk that fills: operations are left out first, then it waits, and loses none."""

from pathlib import Path

import pytest

from app.errors import DiskFull
from app.store.disk.usage import DiskMarks, DiskUsage, DiskWatch
from tests.consumer.jobs import HEALTHY, SIZES


class Disk:
    """A disk of 100 bytes whose used ones a test sets; it is measured at every look."""

    def __init__(self):
        self.used = 0
        self.looks = 0.0
        self.watch = DiskWatch(
            [Path("/data")], DiskMarks(), monotonic=self._later, measure=lambda _: self._usage()
        )

    def _later(self):
        self.looks += 1.0
        return self.looks

    def _usage(self):
        # Many bytes, so that none of these is a disk without a block left.
        return DiskUsage(self.used << 20, (100 - self.used) << 20)


@pytest.fixture
def disk():
    return Disk()


@pytest.fixture
def twin(make_twin, disk):
    return make_twin(disk=disk.watch)


def stored(twin):
    """Of each window: its first step, how many were analysed, whether it has operations."""
    rows = twin.windows("first_step", "num_steps", "trace")
    return [(first, num_steps, trace is not None) for first, num_steps, trace in rows]


def test_windows_are_stored_without_operations_from_the_second_mark_on(twin, disk):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    for used, steps in [(89, range(3)), (90, range(3, 6)), (97, range(6, 9)), (50, range(9, 12))]:
        disk.used = used
        twin.push("job", HEALTHY, *steps)
        twin.turns(consumer)
    assert stored(twin) == [
        (0, 3, True),
        (3, 3, False),
        (6, 3, False),
        (9, 3, True),
    ]
    [(accepted, late, dead)] = twin.rows("ingest_counts", "accepted", "late", "dead")
    assert (accepted, late, dead) == (HEALTHY.make(range(12)).num_ops, 0, 0)


def test_nothing_is_read_while_nothing_can_be_written(twin, disk):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    twin.turns(consumer)
    twin.push("job", HEALTHY, 0, 1, 2)
    disk.used = 100
    with pytest.raises(DiskFull):
        twin.turns(consumer)
    assert twin.entries() != [], "the entries are still undelivered"
    assert twin.windows("first_step") == []


def test_it_goes_on_when_there_is_space(twin, disk):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    twin.push("job", HEALTHY, 0, 1, 2)
    disk.used = 100
    with pytest.raises(DiskFull):
        twin.turns(consumer)
    disk.used = 50
    twin.turns(consumer)
    assert stored(twin) == [(0, 3, True)]
