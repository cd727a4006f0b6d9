"""Marks of a disk that fills, what they stop, and what is said of it."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.errors import DiskFull
from app.store.disk.usage import DiskMarks, DiskUsage, DiskWatch, disk_usage, sqlite_directory

GB = 10**9


class Disk:
    """A disk of 100 GB that a test fills, and its clock."""

    def __init__(self, ample_gb=50):
        self.used_gb = 0.0
        self.now_s = 0.0
        self.watch = DiskWatch(
            [Path("/data")],
            DiskMarks(ample_bytes=ample_gb * GB),
            monotonic=lambda: self.now_s,
            measure=lambda _: self.usage(),
        )

    def usage(self):
        return DiskUsage(int(self.used_gb * GB), int((100 - self.used_gb) * GB))

    def at(self, used_gb):
        """The level a second later, with so much used."""
        self.used_gb, self.now_s = used_gb, self.now_s + 1.0
        return self.watch.level


def test_each_mark_begins_its_level_and_ends_it_two_points_lower():
    disk = Disk()
    rising = [(79.9, "ok"), (80, "warn"), (89.9, "warn"), (90, "raw"), (94.9, "raw"), (95, "stop")]
    falling = [(93.1, "stop"), (92.9, "raw"), (88.1, "raw"), (87.9, "warn"), (77.9, "ok")]
    for used_gb, level in [*rising, *falling]:
        assert disk.at(used_gb) == level, used_gb


def test_operations_stop_before_batches():
    disk = Disk()
    stops = []
    for used_gb in (85, 91, 96):
        disk.at(used_gb)
        try:
            disk.watch.refuse_batches()
            takes = True
        except DiskFull:
            takes = False
        stops.append((disk.watch.stores_operations, takes))
    assert stops == [(True, True), (False, True), (False, False)]


def test_ample_space_is_warned_of_and_used():
    disk = Disk(ample_gb=4)
    assert disk.at(95.5) == "warn"
    assert disk.at(96.5) == "stop"


def test_work_that_writes_stops_only_on_the_last_blocks():
    disk = Disk()
    disk.at(99)
    disk.watch.refuse_writes()
    disk.at(100)
    with pytest.raises(DiskFull):
        disk.watch.refuse_writes()


def test_change_of_level_is_logged_once():
    disk = Disk()
    with capture_logs() as logged:
        for used_gb in (81, 82, 91, 50):
            disk.at(used_gb)
    assert [(each["log_level"], each["event"]) for each in logged] == [
        ("warning", "the disk is 81 % full, with 19 GB free"),
        (
            "warning",
            "the disk is 91 % full, with 9 GB free: the operations of new windows are not stored",
        ),
        ("info", "the disk has room again"),
    ]


def test_disk_is_measured_at_most_twice_a_second():
    disk = Disk()
    disk.at(50)
    disk.used_gb = 99
    assert disk.watch.level == "ok"
    disk.now_s += 0.5
    later: str = disk.watch.level
    assert later == "stop"


def test_fullest_of_several_disks_counts():
    usages = {Path("/a"): DiskUsage(1, 99), Path("/b"): DiskUsage(96, 4)}
    watch = DiskWatch(list(usages), measure=usages.__getitem__)
    assert watch.usage() == usages[Path("/b")]


def test_disks_of_other_servers_stop_nothing():
    watch = DiskWatch()
    watch.refuse_batches()
    watch.refuse_writes()
    assert (watch.usage(), watch.level, watch.sentence()) == (None, "ok", None)


def test_database_on_another_machine_is_watched_by_its_size():
    watch = DiskWatch(marks=DiskMarks(ample_bytes=50 * GB), monotonic=iter(range(9)).__next__)
    watch.database_disk_bytes = 100 * GB
    watch.note_database(91 * GB)
    assert watch.level == "raw"


def test_space_inside_a_database_counts_as_free():
    watch = DiskWatch(marks=DiskMarks(ample_bytes=50 * GB), monotonic=iter(range(99)).__next__)
    watch.database_disk_bytes = 100 * GB
    levels = []
    for reusable_gb in (0, 30):
        watch.note_database(96 * GB, reusable_bytes=reusable_gb * GB)
        levels.append(watch.level)
    assert levels == ["stop", "ok"]
    assert watch.usage() == DiskUsage(66 * GB, 34 * GB, reusable_bytes=30 * GB)


def test_directory_that_is_gone_is_not_known_and_logged_once(tmp_path):
    watch = DiskWatch([tmp_path / "gone"], monotonic=iter(range(9)).__next__)
    with capture_logs() as logged:
        assert watch.usage() is None
        assert watch.usage() is None
    assert [each["event"] for each in logged] == ["disk not measured"]


def test_real_disk_adds_up(tmp_path):
    usage = disk_usage(tmp_path)
    assert usage.free_bytes > 0
    assert 0 <= usage.used_share < 1


@pytest.mark.parametrize(
    ("url", "directory"),
    [
        ("sqlite:////var/lib/p/paceline.db", Path("/var/lib/p")),
        ("sqlite+pysqlite:////a/b.db?timeout=3", Path("/a")),
        ("sqlite:///:memory:", None),
        ("postgresql://u@h/p", None),
    ],
)
def test_directory_of_a_database_url(url, directory):
    assert sqlite_directory(url) == directory
