import numpy as np
import pytest

from app.diagnosis.evidence.job_changes import job_changes
from app.diagnosis.job_history import ExtendedHistory
from app.result.finding import Culprit
from app.result.join import MAX_CHANGES
from app.trace.job import Parallelism

SIZES = Parallelism(2, 2)
HOSTS = {(0, 0): "host-0", (0, 1): "host-1", (1, 0): "host-2", (1, 1): "host-2"}


def course(step_s, compute_s=None, first=100):
    signals = {} if compute_s is None else {"compute_s": np.asarray(compute_s, np.float64)}
    step_s = np.asarray(step_s, np.float64)
    return ExtendedHistory(np.arange(first, first + step_s.size), step_s, signals, 0)


def compute(*slow, num_steps=30, begin=12, ratio=1.5, level=0.02):
    """[n, 2, 2], these workers slow from a position on."""
    values = np.full((num_steps, 2, 2), level)
    for worker in slow:
        values[(slice(begin, None), *worker)] *= ratio
    return values


def found(*args, **kwargs):
    return job_changes(course(*args, **kwargs), HOSTS, SIZES)


def test_a_steady_job_has_no_changes():
    assert found(np.ones(30), compute()) == ()
    assert found(np.ones(2), compute(num_steps=2)) == ()


def test_rise_and_recovery_of_step_time_are_two_changes():
    up, down = found([1.0] * 10 + [1.5] * 10 + [1.0] * 10)
    assert up.as_json() == {
        "step": 110,
        "until_step": 110,
        "what": "step-time",
        "before_s": pytest.approx(1.0),
        "after_s": pytest.approx(1.5),
        "ratio": pytest.approx(1.5),
        "culprits": [],
    }
    assert (down.step, down.after_s / down.before_s) == (120, pytest.approx(1 / 1.5))


@pytest.mark.parametrize(
    ("slow", "culprits"),
    [
        ([(0, 1)], (Culprit(0, 1, "host-1"),)),
        ([(1, 0), (1, 1)], (Culprit(host="host-2"),)),
        ([(0, 0), (0, 1), (1, 0), (1, 1)], ()),
    ],
    ids=["one", "a host", "everybody"],
)
def test_workers_that_change_together_are_one_change(slow, culprits):
    [one] = found(np.ones(30), compute(*slow))
    assert (one.step, one.what, one.culprits) == (112, "compute", culprits)
    assert (one.before_s, one.after_s) == (pytest.approx(0.02), pytest.approx(0.03))


def test_workers_that_change_at_different_steps_are_separate_changes():
    values = compute((0, 0), begin=8)
    values[20:, 1, 1] *= 2
    first, second = found(np.ones(30), values)
    assert (first.step, first.culprits) == (108, (Culprit(0, 0, "host-0"),))
    assert (second.step, second.culprits) == (120, (Culprit(1, 1, "host-2"),))


def test_a_large_job_groups_a_stage_and_all_workers():
    sizes, rng = Parallelism(100, 4), np.random.default_rng(2)
    for stages, culprits in (([2], (Culprit(stage=2),)), ([0, 1, 2, 3], ())):
        values = 0.02 * np.exp(0.01 * rng.standard_normal((40, 100, 4)))
        values[25:, :, stages] *= 1.3
        [one] = job_changes(course(np.ones(40), values), {}, sizes)
        assert (one.step, one.culprits) == (125, culprits)


def test_only_the_newest_changes_are_listed():
    up_and_down = np.where(np.arange(400) // 8 % 2, 1.0, 2.0)
    many = found(up_and_down)
    assert len(many) == MAX_CHANGES
    assert many[-1].step == 100 + 392
    assert [each.step for each in many] == sorted(each.step for each in many)


@pytest.mark.parametrize(("position", "num_changes"), [(4, 0), (5, 0), (6, 1), (12, 1)])
def test_a_fall_after_the_first_steps_is_warm_up(position, num_changes):
    falls = compute((1, 0), begin=position, ratio=0.5)
    assert len(found(np.ones(30), falls)) == num_changes


def test_a_rise_after_the_first_steps_is_a_change():
    (one,) = found(np.ones(30), compute((1, 0), begin=4))
    assert one.step == 104
