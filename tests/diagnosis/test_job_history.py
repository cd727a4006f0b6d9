from dataclasses import replace

import numpy as np
import pytest

from app.diagnosis import job_history as histories
from app.diagnosis.job_history import History, extended_history, pack, unpack
from app.diagnosis.statistics.change_points import level_changes


def of_steps(*steps, level=1.0, sizes=(2, 3), names=("compute_s",)):
    """A history in which the seconds say which steps they are of."""
    seconds = level * np.array(steps, np.float64)
    signals = {name: np.tile(seconds[:, None, None], (1, *sizes)) for name in names}
    return History(np.array(steps, np.int64), seconds, signals)


def same(one, other):
    return pack(one) == pack(other)


def test_history_joins_consecutive_windows():
    both = of_steps(1, 2, 5).extended(of_steps(6, 8))
    assert same(both, of_steps(1, 2, 5, 6, 8))


def test_a_repeated_window_is_stored_once():
    once = of_steps(1, 2).extended(of_steps(3, 4))
    assert same(once.extended(of_steps(3, 4)), once)


def test_a_revised_window_replaces_its_steps():
    before = of_steps(1, 2, 4, 6)
    revised = before.extended(of_steps(2, 3, 4, level=10.0))
    assert revised.steps.tolist() == [1, 2, 3, 4, 6]
    assert revised.step_s.tolist() == [1.0, 20.0, 30.0, 40.0, 6.0]
    assert revised.signals["compute_s"][:, 1, 2].tolist() == [1.0, 20.0, 30.0, 40.0, 6.0]


def remembered(num_steps, *, slow_from=None, window=8, sizes=(2, 3)):
    """The history after so many steps, in windows."""
    history = History()
    for first in range(0, num_steps, window):
        new = of_steps(*range(first, first + window), sizes=sizes)
        seconds = np.where(new.steps >= (slow_from or num_steps), 1.3, 1.0)
        history = history.extended(History(new.steps, seconds, new.signals))
    return history


def test_history_thins_out_older_steps():
    steps = remembered(4000).steps
    assert steps.size <= histories.MAX_STEPS
    assert set(range(4000 - histories.MAX_STEPS // 2, 4000)) <= set(steps.tolist())
    assert steps[0] == 0
    assert 3 <= (steps < 1000).sum() <= (steps < 2000).sum() / 1.5


def test_history_keeps_the_steps_around_a_lasting_change():
    for num_steps in (1600, 4000):
        history = remembered(num_steps, slow_from=1203)
        [change] = level_changes(history.step_s)
        assert history.steps[change.position] == 1203


def test_history_of_a_very_large_job_is_shorter():
    history = remembered(160, window=16, sizes=(256, 32))
    assert history.signals["compute_s"].size <= histories.MAX_VALUES
    assert set(range(128, 160)) <= set(history.steps.tolist())


def test_history_with_many_changes_drops_the_oldest_steps():
    steps = np.arange(2000)
    history = History().extended(History(steps, np.where(steps // 5 % 2, 1.0, 2.0), {}))
    assert history.num_steps <= histories.MAX_STEPS
    assert history.steps[-1] == 1999


def test_history_restarts_where_job_sizes_change():
    assert same(of_steps(1, 2).extended(of_steps(3, sizes=(4, 3))), of_steps(3, sizes=(4, 3)))


def test_a_signal_missing_in_some_windows_is_nan_there():
    old = of_steps(1, names=("compute_s", "launch_s"))
    both = old.extended(of_steps(2, names=("compute_s", "transfer_s")))
    assert both.signals["compute_s"][:, 0, 0].tolist() == [1.0, 2.0]
    for name, known in (("launch_s", [True, False]), ("transfer_s", [False, True])):
        assert np.isfinite(both.signals[name]).all(axis=(1, 2)).tolist() == known


def test_an_empty_window_leaves_the_history_unchanged():
    assert same(of_steps(1, 2).extended(History()), of_steps(1, 2))


def test_unpacked_history_equals_the_packed_one():
    rng = np.random.default_rng(0)
    steps = np.arange(9)
    new = History(steps, rng.random(9), {"compute_s": rng.random((9, 2, 2))})
    kept = History().extended(new)
    again = unpack(pack(kept))
    assert same(again, kept)
    for one, other in ((again.step_s, kept.step_s), (again.steps, kept.steps)):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()
    assert (again.signals["compute_s"] == kept.signals["compute_s"]).all()
    np.testing.assert_allclose(kept.step_s, new.step_s, rtol=1e-6)


def test_an_empty_history_can_be_stored():
    assert unpack(pack(History())).num_steps == 0


@pytest.mark.parametrize(
    "blob", [b"", b"\xc1", b"\x81", pack(of_steps(1)).replace(b"\x01", b"\x09", 1)]
)
def test_foreign_bytes_are_refused(blob):
    with pytest.raises(ValueError, match=r"history|histories"):
        unpack(blob)


def test_extended_history_is_history_before_the_window_and_the_window():
    course = extended_history(of_steps(1, 2, 5, 9), of_steps(4, 5, 6, level=10.0))
    assert course.steps.tolist() == [1, 2, 4, 5, 6]
    assert course.step_s.tolist() == [1.0, 2.0, 40.0, 50.0, 60.0]
    assert course.num_before == 2
    assert extended_history(History(), of_steps(4, 5)).num_before == 0


def suspected(history, **causes):
    return replace(history, suspected=causes)


def test_causes_of_earlier_windows_are_remembered_and_stored():
    older = suspected(of_steps(1, 2), gc=(1, 2), link=(None, 2))
    both = older.extended(suspected(of_steps(3, 4), gc=(1, 4)))
    assert both.suspected == {"gc": (1, 4), "link": (None, 2)}
    assert unpack(pack(both)).suspected == both.suspected
    # What began at a later step is not known before it.
    assert suspected(of_steps(1, 2, 3), gc=(3, 3), link=(1, 3)).before(3).suspected == {
        "link": (1, 2)
    }


@pytest.mark.parametrize(
    ("known", "onset"),
    [
        ({}, 24),  # no window before showed it
        ({"gc": (12, 23)}, 12),
        ({"gc": (12, 9)}, 12),  # two windows ago
        ({"gc": (None, 23)}, None),  # before the record
        ({"gc": (2, 4)}, 24),  # another time
    ],
)
def test_onset_of_a_cause_that_earlier_windows_showed(known, onset):
    before = replace(of_steps(*range(24)), suspected=known)
    history = extended_history(before, of_steps(*range(24, 32)))
    assert histories.onset_by_earlier_windows(history, "gc", 24) == onset


def test_times_of_steps_are_stored_to_the_last_digit():
    started_s = np.array([1_795_488_067.123456, np.nan])
    history = History(np.array([3, 4]), np.array([1.5, 2.5]), started_s=started_s)
    kept = unpack(pack(history))
    assert kept.clock() == {3: (1_795_488_067.123456, 1.5)}
    newer = History(np.array([5]), np.array([1.0]), started_s=np.array([1_795_488_070.0]))
    assert set(kept.extended(newer).clock()) == {3, 5}
    assert set(History(np.array([1]), np.array([1.0])).extended(newer).clock()) == {5}


def test_the_usual_step_is_that_before_it_became_slower():
    took_s = np.concatenate([np.full(40, 0.5), np.full(80, 1.0)])
    took_s *= np.random.default_rng(1).uniform(0.99, 1.01, took_s.size)
    history = History(np.arange(took_s.size), took_s)
    assert history.usual_step_s(np.full(8, 1.0)) == pytest.approx(0.5, rel=0.02)
    assert history.before(40).usual_step_s(np.full(8, 0.5)) == pytest.approx(0.5, rel=0.02)
    assert history.before(15).usual_step_s(np.full(8, 0.5)) is None
