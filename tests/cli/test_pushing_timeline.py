import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.cli.pushing import WallClock, gapless_timeline, push
from app.engine.report import analyse
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.readers.published import trace_files
from app.trace.window import Window
from tests.result_comparison import agree
from tests.results import report_as_json
from tests.shared_traces import SHARED_TRACES, needs_shared
from tests.window_factory import Row, window

BEGIN_NS = 1_800_000_000_000_000_000


class ManualClock(WallClock):
    """A clock that advances only in `wait`."""

    def __init__(self):
        self.time_s = 100.0

    def now_s(self):
        return self.time_s

    def wait(self, seconds):
        self.time_s += seconds


class FakeRecorder:
    """Records the calls that a recorder gets."""

    def __init__(self, clock):
        self.clock = clock
        self.ops = []
        self.extras = []
        self.done = []
        self.recorded_s = []

    def record(self, optype, step, start_ns, duration_ns, seq_id=None, mc=-1, mb_id=-1, **extras):
        self.extras.append(extras)
        self.ops.append((optype, step, start_ns, duration_ns, seq_id, mc, mb_id))
        self.recorded_s.append(self.clock.now_s() - 100.0)

    def step_done(self, step):
        self.done.append((step, len(self.ops)))


def two_short_steps():
    return window(
        [
            Row("forward-compute", 5.0, 1.0, step=3),
            Row("optimizer", 6.0, 1.5, step=3),
            Row("forward-compute", 0.0, 1.0, step=9),
            Row("optimizer", 1.0, 0.5, step=9),
        ]
    )


def push_all(timeline, num_workers, speed):
    clock = ManualClock()
    recorders: list[Any] = [FakeRecorder(clock) for _ in range(num_workers)]
    push(
        timeline,
        recorders,
        begin_ns=BEGIN_NS,
        speed=speed,
        clock=clock,
        progress=lambda num_ops: None,
    )
    return recorders


def test_optional_columns_are_pushed_with_their_operations():
    recorded = two_short_steps()
    columns = {"tokens": np.array([7, -1, 9, -1]), "temperature_c": np.array([-1, 70, -1, -1])}
    extended = replace(recorded, trace=replace(recorded.trace, **columns))
    [recorder] = push_all(gapless_timeline(extended), 1, math.inf)
    assert recorder.extras == [{"tokens": 7}, {"temperature_c": 70}, {"tokens": 9}, {}]
    [plain] = push_all(gapless_timeline(recorded), 1, math.inf)
    assert plain.extras == [{}, {}, {}, {}]


def test_steps_follow_each_other_without_a_gap():
    timeline = gapless_timeline(two_short_steps())
    assert (timeline.start_ns * 1e-9).tolist() == [0.0, 1.0, 2.5, 3.5]
    assert (timeline.end_ns * 1e-9).tolist() == [1.0, 2.5, 3.5, 4.0]
    assert timeline.closes_step.tolist() == [False, True, False, True]


def test_operations_are_pushed_right_after_their_end():
    (recorder,) = push_all(gapless_timeline(two_short_steps()), 1, speed=2.0)
    for recorded_s, ends_s in zip(recorder.recorded_s, [0.5, 1.25, 1.75, 2.0], strict=True):
        assert ends_s <= recorded_s < ends_s + 0.06


def test_every_worker_pushes_its_own_operations_with_their_ids():
    simulated = SimulatedJob(Parallelism(2, 3), 2)
    whole = Window(simulated.job, 1, 0, (0, 1), simulated.make([0, 1]), state="complete")
    recorders = push_all(gapless_timeline(whole), 6, speed=math.inf)
    for worker, recorder in enumerate(recorders):
        mine = whole.trace.select(
            (whole.trace.dp_rank == worker // 3) & (whole.trace.stage == worker % 3)
        )
        given = sorted((op[1], op[4], op[5], op[6]) for op in recorder.ops)
        columns = (mine.step, mine.seq_id, mine.mc, mine.mb_id)
        assert given == sorted(zip(*(column.tolist() for column in columns), strict=True))
        assert [step for step, _ in recorder.done] == [0, 1]


def as_consumed(timeline):
    """The trace as a consumer gets it: seconds since the step's first start, from ns."""
    trace = timeline.trace
    begins = {
        step: timeline.start_ns[trace.step == step].min() for step in np.unique(trace.step).tolist()
    }
    since_ns = timeline.start_ns - np.array([begins[step] for step in trace.step.tolist()])
    return replace(
        trace,
        start_s=since_ns * 1e-9,
        duration_s=(timeline.end_ns - timeline.start_ns) * 1e-9,
    )


@pytest.mark.parametrize("name", ["AR", "flap", "inter", "ovlp"])
@needs_shared
def test_nanoseconds_change_no_figure_of_the_published_traces(name):
    whole = trace_files.read(SHARED_TRACES / f"trace-{name}.parquet")
    replayed = Window(
        whole.job, 1, whole.first_step, whole.steps, as_consumed(gapless_timeline(whole))
    )
    got, want = report_as_json(analyse(replayed)), report_as_json(analyse(whole))
    for figure in ("slowdown", "step_slowdown", "optype_slowdown", "worker_slowdown", "per_step"):
        agree(got[figure], want[figure], figure, relative=1e-6)
    for figure in ("m_s", "m_w"):
        agree(got[figure], want[figure], figure, relative=0, absolute=1e-6)


def test_recorded_overlap_of_successive_steps_is_preserved():
    rows = [
        Row("forward-compute", begins_s, 1.0, step=step, dp_rank=dp_rank)
        for step in (4, 5, 7)
        for dp_rank, begins_s in ((0, 0.0), (1, 0.5))
    ]
    # Step 5 begins 0.3 s before step 4 ends; the time between 5 and 7 is unknown.
    origin_ns = (0, 1_200_000_000, 1_300_000_000)
    overlapping = replace(window(rows, dp_size=2), origin_ns=origin_ns)
    timeline = gapless_timeline(overlapping)
    begins = {step: timeline.start_ns[timeline.trace.step == step].min() for step in (4, 5, 7)}
    assert begins == {4: 0, 5: 1_200_000_000, 7: 2_700_000_000}
    unknown = gapless_timeline(replace(overlapping, origin_ns=None))
    assert unknown.start_ns[unknown.trace.step == 5].min() == 1_500_000_000
