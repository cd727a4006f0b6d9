"""Old windows become fewer and smaller; what pages need of them stays."""

import shutil
import time
from dataclasses import replace

import pytest
from msgspec import structs
from sqlalchemy import delete, func, select, update

from app.diagnosis.job_history import History
from app.errors import LeaseLost, ObjectStorageUnavailable, WindowNotFound
from app.monitor import observe
from app.result.brief import brief_of
from app.result.stored import split_by_step
from app.result.thin import thinned_result
from app.result.window_result import num_steps, resolution_of, total_s
from app.store import fleet, joint_windows, retention, windows
from app.store import tables as at
from app.store.alerting import alerts
from app.store.database import Store
from app.store.objects import moves
from app.store.retention import RetentionLimits
from app.store.shrinking import thinning
from app.store.shrinking.thinning import ThinningDays
from app.store.windows import StepRow
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.window import Window
from tests.memory_bucket import MemoryBucket
from tests.store.factories import event, register, window

JOB = "default/job"
DAY_S = 86_400.0
HOUR_S = 3600.0
KEEP = RetentionLimits(raw_days=14.0, results_days=180.0)
KEEP_LONG = RetentionLimits(raw_days=170.0, results_days=180.0)
AGES = ThinningDays(steps_days=2.0, windows_days=3.0, hours_days=30.0)
STEPS = 4


@pytest.fixture(scope="module")
def results():
    """Results of a healthy window and of one with a slow worker, of four steps each."""
    found = []
    for faults in ((), (SlowWorker(1, 1, 2.0),)):
        job = SimulatedJob(Parallelism(2, 2), 4, faults=faults)
        seen = Window(job.job, 1, 0, tuple(range(STEPS)), job.make(range(STEPS)), state="complete")
        found.append(observe(seen, History()).result)
    return found


def hour_ago(days):
    """The beginning of a whole hour, and of a day, at least so many days ago."""
    return (time.time() // DAY_S - days) * DAY_S


def save(store, result, number, *, at_s, trace=b"ops", job_id=JOB):
    """Save the result as the window of this number, as consumers do."""
    first = STEPS * number
    numbers = list(range(first, first + STEPS))
    moved = structs.replace(
        result,
        window=structs.replace(result.window, id=f"1-{first}"),
        steps=tuple(numbers),
        structures=(tuple(numbers),),
        step_started_s=tuple(at_s + step for step in range(STEPS)),
    )
    rest, per_step = split_by_step(moved)
    record = window(
        first, last_step=first + STEPS - 1, revision=1, state="complete", num_steps=STEPS,
        num_ops=10, slowdown=result.slowdown, verdict="ok", result=rest, per_step=per_step,
        trace=trace, updated_s=at_s,
    )  # fmt: skip
    times = result.step_time_s
    rows = [
        StepRow(1, step, times.recorded[n], times.simulated[n], times.ideal[n],
                result.step_slowdown[n], f"1-{first}", started_s=at_s + n)
        for n, step in enumerate(numbers)
    ]  # fmt: skip
    with store.write() as conn:
        windows.save(conn, job_id, record)
        windows.save_steps(conn, job_id, rows)
        fleet.save_losses(conn, job_id, record, fleet.losses_of(rest, num_gpus=4), num_gpus=4)
        fleet.save_brief(conn, job_id, 1, first, brief_of(rest, num_gpus=4))


def fill(store, results, *, days, num_windows=6, every_s=1200.0, recent=True):
    """Windows of some hours so many days ago, the second one slow, and four that stay whole."""
    register(store, JOB)
    for number in range(num_windows):
        save(store, results[number == 1], number, at_s=hour_ago(days) + number * every_s,
             trace=b"slow" if number == 1 else b"ops")  # fmt: skip
    for number in range(num_windows, num_windows + 4 * recent):
        save(store, results[0], number, at_s=time.time())


def thin(store, ages=AGES, keep=KEEP):
    found: dict[str, int] = {}
    for each in retention.sweep(store, keep, ages):
        found[each.kind] = found.get(each.kind, 0) + each.number
    return found


def listed(store):
    with store.read() as conn:
        return [each.window_id for each in windows.page(conn, JOB)[0]][::-1]


def read(store, window_id, **options):
    with store.read() as conn:
        return windows.get(conn, JOB, window_id, **options)


def sums(store):
    """What totals over all of a job's windows are made of."""
    with store.read() as conn:
        losses = at.window_losses.c
        totals = conn.execute(
            select(
                losses.kind, losses.name, func.sum(losses.gpu_s), func.sum(losses.gpu_s_recorded)
            ).group_by(losses.kind, losses.name)
        ).all()  # fmt: skip
        span = joint_windows.whole_run(conn, JOB, 1)
        assert span is not None
        times = windows.step_time_sums(conn, JOB, since=(1, 0))
        whole = joint_windows.read_range(conn, JOB, span)
        lost_s = windows.gpu_s_lost(conn, JOB, span, num_gpus=4)
    return {
        "losses": {(kind, name): (gpu_s, of or 0.0) for kind, name, gpu_s, of in totals},
        "steps": span.num_steps,
        "ideal_s": sum(each.ideal_s for each in times.values()),
        "simulated_s": sum(each.simulated_s for each in times.values()),
        "slowdown": whole.slowdown,
        "recorded_s": total_s(whole, "recorded"),
        "num_steps": num_steps(whole),
        "gpu_hours_lost": whole.gpu_hours_lost,
        "findings": {finding.cause: finding.cost for finding in whole.findings or ()},
        "workers": whole.worker_slowdown,
        "forward_s": whole.stage_compute_s and whole.stage_compute_s.forward[1],
        "lost_s": lost_s,
    }


def assert_same(after, before):
    apart = {"losses", "workers", "lost_s"}  # lost against an hour's ideal, not each window's
    for name in before.keys() - apart:
        assert after[name] == pytest.approx(before[name]), name
    for mine, theirs in zip(after["workers"], before["workers"], strict=True):
        assert mine == pytest.approx(theirs)
    assert after["losses"].keys() == before["losses"].keys()
    for key, values in before["losses"].items():
        assert after["losses"][key] == pytest.approx(values)


def test_figures_by_step_go_first_and_the_steps_of_a_window_become_one_row(store, results):
    fill(store, results, days=2.5 // 1 + 1)  # between two and three whole days
    before = sums(store)
    assert thin(store, replace(AGES, windows_days=9.0)) == {"windows' figures by step": 6}
    assert_same(sums(store), before)
    found = read(store, "1-0", per_step=True)
    assert found.per_step is None
    assert resolution_of(found) == "window"
    assert found.step_time_s == results[0].step_time_s
    assert read(store, "1-24", per_step=True).thinned is None
    with store.read() as conn:
        row = windows.step_series(conn, JOB, last=3)[-1]
    assert (row.step, row.last_step, row.num_steps) == (0, 3, STEPS)
    assert row.recorded_s == pytest.approx(sum(results[0].step_time_s.recorded) / STEPS)
    assert thin(store, replace(AGES, windows_days=9.0)) == {}


@pytest.mark.sql_sensitive
def test_windows_of_an_hour_become_one_with_the_sums_and_causes_of_all(store, results):
    fill(store, results, days=5)  # three windows in each of two hours
    before = sums(store)
    found = thin(store)
    assert found["windows, joined by the hour,"] == 4
    assert listed(store) == ["1-0", "1-12", "1-24", "1-28", "1-32", "1-36"]
    assert_same(sums(store), before)
    hour = read(store, "1-0")
    assert hour.thinned.resolution == "hour"
    assert hour.window.num_windows == 3
    assert hour.thinned.recorded.window.id == "1-4", "the slowest keeps its operations"
    assert "slow-worker" in {finding.cause for finding in hour.findings}
    assert "slow-worker" not in {finding.cause for finding in read(store, "1-12").findings}
    assert thin(store) == {}


def test_hours_become_days_and_stay_bounded(store, results):
    fill(store, results, days=40, num_windows=40, every_s=600.0)  # seven hours of one day
    before = sums(store)
    found = thin(store)
    assert found["windows, joined by the day,"] == 39
    assert listed(store)[0] == "1-0"
    assert_same(sums(store), before)
    day = read(store, "1-0")
    assert day.thinned.resolution == "day"
    assert len(day.steps) <= 24
    assert num_steps(day) == 160
    with store.read() as conn:
        rows = windows.step_series(conn, JOB, last=159)
    assert len(rows) <= 24
    assert sum(row.num_steps or 0 for row in rows) == 160
    assert [(row.last_step or 0) + 1 for row in rows[:-1]] == [row.step for row in rows[1:]]
    assert rows[-1].last_step == 159


def test_ids_of_windows_in_links_lead_to_the_hour_that_has_them(store, results):
    fill(store, results, days=5)
    thin(store)
    assert read(store, "1-8").window.id == "1-0"
    with store.read() as conn:
        assert windows.summary(conn, JOB, "1-4").window_id == "1-0"
        span = windows.window_range(conn, JOB, "1-4", "1-20")
        assert span.first_steps == [0, 12]
    for none in ("1-99", "1-25", "2-0"):  # 1-25 is inside a window that is not thinned
        with pytest.raises(WindowNotFound), store.read() as conn:
            windows.get(conn, JOB, none)


def test_operations_are_kept_of_the_window_that_an_alert_links_to(store, results):
    fill(store, results, days=5)
    linked = event(JOB, at_s=hour_ago(5))
    with store.write() as conn:
        detail = structs.replace(linked.detail, window_id="1-8")
        alerts.add_event(conn, replace(linked, detail=detail))
    thin(store)
    assert read(store, "1-0").thinned.recorded.window.id == "1-8"
    with store.read() as conn:
        assert windows.trace(conn, JOB, "1-0") == b"ops"


def test_the_last_windows_of_a_run_stay_whole_however_old(store, results):
    fill(store, results, days=60, recent=False)
    thin(store)
    assert listed(store) == ["1-0", "1-8", "1-12", "1-16", "1-20"]
    assert read(store, "1-20", per_step=True).per_step is not None
    with store.read() as conn:
        judged = joint_windows.judged_windows(conn, JOB)
        assert (joint_windows.read_judged(conn, JOB, judged).slowdown or 0.0) > 1


def test_a_window_that_changes_while_it_is_read_is_left_for_later(store, results, monkeypatch):
    fill(store, results, days=5, num_windows=3)
    thinned = thinned_result

    def revised(*given):
        save(store, results[1], 0, at_s=hour_ago(5))
        with store.write() as conn:
            conn.execute(at.windows.update().where(at.windows.c.first_step == 0).values(revision=7))
        return thinned(*given)

    monkeypatch.setattr(thinning, "thinned_result", revised)
    assert "windows, joined by the hour," not in thin(store)
    monkeypatch.undo()
    assert listed(store)[:3] == ["1-0", "1-4", "1-8"]
    assert thin(store)["windows, joined by the hour,"] == 2


def test_an_unreadable_result_stops_no_other(store, results):
    fill(store, results, days=5)
    with store.write() as conn:
        broken = at.windows.update().where(at.windows.c.first_step == 0)
        conn.execute(broken.values(result={"slowdown": 1.0}))  # of no record
    assert thin(store)["windows, joined by the hour,"] == 2
    assert listed(store)[:4] == ["1-0", "1-4", "1-8", "1-12"]


def test_a_dry_run_counts_what_would_be_thinned(store, results):
    fill(store, results, days=5)
    counted = {each.kind: each.number for each in retention.count_old(store, KEEP, AGES)}
    assert listed(store)[:3] == ["1-0", "1-4", "1-8"]
    assert counted == thin(store)


def test_another_process_that_sweeps_is_not_disturbed(store, results):
    fill(store, results, days=5)

    def taken(_):
        raise LeaseLost("another process")

    with pytest.raises(LeaseLost):
        list(thinning.thin(store, AGES, taken))
    assert len(listed(store)) == 10


def test_times_inside_thinned_steps_are_found(store, results):
    fill(store, results, days=5)
    thin(store, replace(AGES, windows_days=9.0))
    took_s = sum(results[0].step_time_s.recorded)
    for share, expected in ((0.9, (0, 0)), (1.1, None)):
        from_s = hour_ago(5) + share * took_s
        with store.read() as conn:
            found = windows.windows_between(conn, JOB, 1, from_s=from_s, to_s=from_s + 0.01)
        assert found == expected


@pytest.fixture
def bucket():
    return MemoryBucket()


@pytest.fixture
def plain(migrated_file, tmp_path):
    """Another database, whose operations move nowhere."""
    path = tmp_path / "plain.db"
    shutil.copy(migrated_file, path)
    store = Store(f"sqlite:///{path}")
    yield store
    store.close()


def move(store, bucket, number=100):
    """Move the operations of so many old windows, the oldest first; how many there were."""
    moved = 0
    while moved < number and moves.move_one(store, bucket, after_s=HOUR_S):
        moved += 1
    return moved


def delete_all(store, bucket):
    """Delete what is not needed, long after all moves have ended; how many objects."""
    its = at.window_objects.c.claimed_s
    with store.write() as conn:
        conn.execute(update(at.window_objects).values(claimed_s=its - DAY_S))
    return moves.delete_some(store, bucket)


def operations(store, bucket, window_id):
    with store.snapshot() as conn:
        return moves.fetch(bucket, moves.find(conn, JOB, window_id))


def old_windows(store, bucket, num_old=6):
    """All that is stored of the windows that are thinned, and their operations."""
    of = at.windows.c
    query = select(at.windows).where(of.first_step < STEPS * num_old).order_by(of.first_step)
    with store.read() as conn:
        rows = [dict(row._mapping) for row in conn.execute(query)]
    for row in rows:
        row["trace"] = operations(store, bucket, f"1-{row['first_step']}")
    return rows


HOURS_FIRST = replace(AGES, hours_days=90.0)
NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("days", "stages", "num_moved"),
    [
        pytest.param(5, [AGES], [2], id="hours, some of them moved"),
        pytest.param(5, [AGES], [1], id="hours, what is kept is not moved", marks=NIGHTLY),
        pytest.param(40, [AGES], [6], id="days", marks=NIGHTLY),
        pytest.param(40, [HOURS_FIRST, AGES], [6, 0], id="hours, then days", marks=NIGHTLY),
        pytest.param(40, [HOURS_FIRST, AGES], [1, 6], id="hours, which move, then days"),
    ],
)
def test_windows_in_a_bucket_become_the_same_as_those_in_the_database(
    store, plain, bucket, results, days, stages, num_moved
):
    for each in (store, plain):
        fill(each, results, days=days)
    for ages, number in zip(stages, num_moved, strict=True):
        move(store, bucket, number)
        assert thin(store, ages, KEEP_LONG) == thin(plain, ages, KEEP_LONG)
    expected = old_windows(plain, None)
    assert len(expected) == (2 if days == 5 else 1)
    assert expected[0]["trace"] == b"slow"
    assert old_windows(store, bucket) == expected
    move(store, bucket)
    delete_all(store, bucket)
    assert len(bucket.objects) == len(expected)
    assert old_windows(store, bucket) == expected


def test_objects_of_windows_that_became_part_of_another_are_deleted(store, bucket, results):
    fill(store, results, days=5)
    assert move(store, bucket) == 6
    bucket.is_away = True
    assert thin(store, AGES, KEEP_LONG)["windows, joined by the hour,"] == 4
    with pytest.raises(ObjectStorageUnavailable):
        moves.delete_some(store, bucket)
    assert len(bucket.objects) == 6
    bucket.is_away = False
    assert moves.delete_some(store, bucket) == 4
    assert delete_all(store, bucket) == 0
    assert sorted(bucket.objects) == [f"{JOB}/1-12-1.pw", f"{JOB}/1-4-1.pw"]
    assert operations(store, bucket, "1-8") == b"slow"


@pytest.mark.parametrize("how", ["retention", "deleted"])
def test_the_object_of_an_hour_goes_with_it(store, bucket, results, how):
    fill(store, results, days=5, num_windows=3, every_s=900.0)
    move(store, bucket)
    thin(store, AGES, KEEP_LONG)
    moves.delete_some(store, bucket)
    if how == "retention":
        # The hour is as old as its last window, that of the operations is older.
        days = (time.time() - hour_ago(5) - 1800.0) / DAY_S
        thin(store, AGES, replace(KEEP_LONG, raw_days=days + 600.0 / DAY_S))
        assert operations(store, bucket, "1-0") == b"slow"
        thin(store, AGES, replace(KEEP_LONG, raw_days=days - 600.0 / DAY_S))
    else:
        with store.write() as conn:
            conn.execute(delete(at.window_losses))
            conn.execute(delete(at.windows).where(at.windows.c.first_step == 0))
    assert delete_all(store, bucket) == 1
    assert bucket.objects == {}


def test_a_window_that_becomes_part_of_an_hour_while_it_moves_loses_nothing(store, bucket, results):
    class Slow(MemoryBucket):
        def put(self, name, data):
            thin(store, AGES, KEEP_LONG)
            bucket.put(name, data)

    fill(store, results, days=5, num_windows=3)
    assert move(store, Slow(), 1) == 1
    assert listed(store)[0:2] == ["1-0", "1-12"]
    assert list(bucket.objects) == [f"{JOB}/1-0-1.pw"]
    assert operations(store, bucket, "1-0") == b"slow"
    assert delete_all(store, bucket) == 1
    assert move(store, bucket) == 1
    assert bucket.objects == {f"{JOB}/1-0-3.pw": b"slow"}
    assert operations(store, bucket, "1-0") == b"slow"


def test_windows_that_move_while_they_are_read_are_left_for_later(
    store, bucket, results, monkeypatch
):
    fill(store, results, days=5, num_windows=3)
    thinned = thinned_result

    def moved(*given):
        move(store, bucket)
        return thinned(*given)

    monkeypatch.setattr(thinning, "thinned_result", moved)
    assert "windows, joined by the hour," not in thin(store, AGES, KEEP_LONG)
    monkeypatch.undo()
    assert thin(store, AGES, KEEP_LONG)["windows, joined by the hour,"] == 2
    assert operations(store, bucket, "1-0") == b"slow"
