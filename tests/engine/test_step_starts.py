"""When steps started: by the median of the hosts' clocks, and never by a clock that is none."""

from dataclasses import replace

import pytest

from app.engine.clocks.measure import Clocks, HostClock
from app.engine.step_starts import step_starts_s
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.window import Window

START_NS = 1_795_488_067_000_000_000
JOB = SimulatedJob(Parallelism(3, 1), 2)
HOSTS = {(dp_rank, 0): f"host-{dp_rank}" for dp_rank in range(3)}


def window(*origin_ns: int) -> Window:
    steps = tuple(range(len(origin_ns)))
    return Window(JOB.job, 1, 0, steps, JOB.make(steps), origin_ns=origin_ns, hosts=HOSTS)


def test_steps_start_at_their_origins():
    found = step_starts_s(window(START_NS, START_NS + 2_000_000_000))
    assert found == {0: pytest.approx(START_NS * 1e-9), 1: pytest.approx(START_NS * 1e-9 + 2)}


def test_one_wrong_clock_does_not_move_the_start():
    """The clock of dp rank 0 is an hour behind: the step's origin is by that clock alone."""
    right = window(START_NS)
    behind = right.trace.dp_rank == 0
    start_s = right.trace.start_s + 3_600.0 * ~behind
    wrong = replace(right, trace=replace(right.trace, start_s=start_s))
    offset_s = {"host-0": -3_600.0, "host-1": 0.0, "host-2": 0.0}
    clocks = Clocks(1e-6, {name: HostClock(at, None, 1e-6) for name, at in offset_s.items()})
    [started_s] = step_starts_s(wrong, clocks).values()
    assert started_s == pytest.approx(START_NS * 1e-9 + 3_600, abs=1)


@pytest.mark.parametrize("origin_ns", [0, 5_000_000_000])
def test_clocks_that_count_from_another_origin_give_no_time(origin_ns):
    assert step_starts_s(window(origin_ns)) == {}


def test_a_step_of_the_future_has_no_time():
    now_s = START_NS * 1e-9 - 120
    assert step_starts_s(window(START_NS), now_s=now_s) == {}
    assert step_starts_s(window(START_NS), now_s=now_s + 100)


def test_without_origins_no_time_is_known():
    assert step_starts_s(replace(window(START_NS), origin_ns=None)) == {}
