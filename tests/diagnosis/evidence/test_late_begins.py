"""Late begins: what is seen of stops before a step, with and without times between steps."""

import numpy as np
import pytest

from app.diagnosis.case import Case
from app.diagnosis.evidence.stops import (
    begins_apart,
    is_whole,
    late_begins,
    stops_before_steps,
)
from app.trace.window import Floats
from tests.diagnosis.windows import case_of
from tests.window_factory import Row, window

NUM_STEPS, DP_SIZE = 16, 3


def replicas(late_s: Floats) -> Case:
    """Replicas of one stage that begin late, [steps, dp] seconds; each step counts from 0."""
    rows = []
    for step, of_step in enumerate(late_s):
        ends_s = float(of_step.max()) + 2.1
        for dp_rank, late in enumerate(of_step.tolist()):
            ops = [
                Row("forward-compute", late, 1.0, mb_id=0, mc=0),
                Row("backward-compute", late + 1.0, 1.0, mb_id=0, mc=0),
                Row("grads-reduce-scatter", late + 2.0, ends_s - late - 2.0),
            ]
            rows += [each.on(step=step, dp_rank=dp_rank) for each in ops]
    return case_of(window(rows, dp_size=DP_SIZE))


def late_in(*steps: int, seconds: tuple[float, ...] = (0.0, 0.1, 0.3)) -> Floats:
    """[steps, dp], by so many seconds in these steps; another worker is the last one each time."""
    found = np.zeros((NUM_STEPS, DP_SIZE))
    for turn, step in enumerate(steps):
        found[step] = np.roll(seconds, turn)
    return found


def test_lateness_counts_from_the_first_worker_of_the_step():
    late_s = late_in(3, 7)
    found = late_begins(replicas(late_s))
    assert found.late_s[:, :, 0] == pytest.approx(late_s)
    assert found.span_s[3] == pytest.approx(2.4)


def test_stops_that_no_time_between_steps_shows_are_seen_in_part():
    case = replicas(late_in(3, 7, 11))
    stops = stops_before_steps(case)
    assert [(stop.at, stop.place) for stop in stops] == [(3, "begin"), (7, "begin"), (11, "begin")]
    assert [stop.seconds for stop in stops] == pytest.approx([0.3, 0.3, 0.3])
    assert not any(is_whole(case, stop) for stop in stops)


def test_one_late_worker_is_no_stop_of_all():
    late_s = np.zeros((NUM_STEPS, DP_SIZE))
    late_s[3::4, 1] = 0.3
    case = replicas(late_s)
    assert stops_before_steps(case) == ()
    found = begins_apart(case)
    assert found.of_one
    assert [stop.at for stop in found.stops] == [3, 7, 11, 15]


def test_workers_that_are_late_in_turn_begin_apart():
    found = begins_apart(replicas(late_in(3, 7, 11, seconds=(0.0, 0.0, 0.3))))
    assert [stop.at for stop in found.stops] == [3, 7, 11]
    assert not found.of_one


def test_no_step_of_a_healthy_job_begins_late():
    case = replicas(np.random.default_rng(1).uniform(0, 1e-3, (NUM_STEPS, DP_SIZE)))
    assert stops_before_steps(case) == ()
    assert begins_apart(case).stops == ()
