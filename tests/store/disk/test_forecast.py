"""Days left by samples of a week, and who saves them."""

import pytest

from app.store.disk import forecast as forecasting
from app.store.disk.forecast import DiskSample, add_sample, bytes_per_s, forecast, read_samples
from app.store.disk.usage import DiskUsage
from app.store.tables import disk_samples

DAY_S = 86_400.0


def growing(per_day, *, hours, every_s=600.0):
    """Samples of a disk that grows by so many bytes a day."""
    count = int(hours * 3600 / every_s) + 1
    return [DiskSample(n * every_s, int(1e9 + per_day * n * every_s / DAY_S)) for n in range(count)]


def test_disk_that_grows_by_3_gb_a_day_with_30_gb_free_lasts_10_days():
    found = forecast(DiskUsage(70 * 10**9, 30 * 10**9), growing(3e9, hours=24))
    assert found.days_left == pytest.approx(10.0, rel=1e-6)
    assert (found.usage.free_bytes, found.usage.used_share) == (30 * 10**9, 0.7)


def test_line_is_of_all_samples_not_of_the_first_and_last():
    samples = growing(3e9, hours=24)
    last = samples[-1]
    with_a_jump = [*samples[:-1], DiskSample(last.at_s, last.used_bytes + 3 * 10**9)]
    # The jump alone would double a line through the ends.
    assert bytes_per_s(with_a_jump) == pytest.approx(3e9 / DAY_S, rel=0.05)


@pytest.mark.parametrize(
    "samples",
    [
        [],
        growing(3e9, hours=0.9),
        growing(3e9, hours=3, every_s=3600.0),
        growing(0, hours=24),
        growing(-3e9, hours=24),
    ],
    ids=["none", "under an hour", "too few", "not growing", "shrinking"],
)
def test_nothing_is_said_of(samples):
    assert forecast(DiskUsage(70, 30), samples).days_left is None


def test_one_of_many_processes_saves_a_sample_every_ten_minutes(store, monkeypatch):
    clock = iter([0.0, 0.0, 599.0, 600.0, 600.0])  # two looks where one is saved
    monkeypatch.setattr(forecasting, "now_s", lambda _conn: next(clock))
    saved = [add_sample(store, DiskUsage(used, 1)) for used in (5, 6, 7)]
    assert saved == [True, False, True]
    with store.read() as conn:
        assert read_samples(conn) == [(0.0, 5), (600.0, 7)]


def test_samples_of_more_than_a_week_ago_and_of_the_future_go(store, monkeypatch):
    with store.write() as conn:
        rows = [{"at_s": at_s, "used_bytes": 1} for at_s in (0.0, 2 * DAY_S, 9 * DAY_S)]
        conn.execute(disk_samples.insert(), rows)
    monkeypatch.setattr(forecasting, "now_s", lambda _conn: 8 * DAY_S)
    assert add_sample(store, DiskUsage(2, 1))
    with store.read() as conn:
        assert [each.at_s for each in read_samples(conn)] == [2 * DAY_S, 8 * DAY_S]
