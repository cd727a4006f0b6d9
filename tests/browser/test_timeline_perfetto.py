"""Timelines as Perfetto's own trace processor reads them."""

from collections import Counter

import pytest

from app.engine.replays import prepare
from app.engine.timeline.selection import TimelineSelection, all_workers
from app.engine.timeline.step_run import RUN_KINDS
from app.engine.timeline.writer import trace_event_pieces
from app.synth.job import SimulatedJob
from app.trace.job import Job, Parallelism
from app.trace.ops import Axis, OpKind, OpSpec, OpTypes
from app.trace.window import Window
from tests.browser.perfetto import opened
from tests.browser.waiting import until
from tests.engine.timeline.trace_reader import read
from tests.window_factory import Row, replicas, window

OVERLAPS = """
    SELECT a.name, a.ts, b.name, b.ts FROM slice a JOIN slice b USING (track_id)
    WHERE a.id < b.id AND (a.ts < b.ts + b.dur AND b.ts < a.ts + a.dur OR a.ts = b.ts)
"""
COMPLAINTS = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
SLICES = """
    SELECT process.name, thread.name, slice.name, ts, dur FROM slice
    JOIN thread_track ON track_id = thread_track.id JOIN thread USING (utid)
    JOIN process USING (upid)
"""


def usual():
    """Two steps of a pipeline of two stages with three replicas."""
    sizes, steps = Parallelism(3, 2), (4, 5)
    trace = SimulatedJob(sizes, 4).make(steps)
    return Window(Job.of("made", sizes), 1, 4, steps, trace, state="complete")


def awkward():
    """Overlaps, slices without a length, a clock that is late, a name that needs care."""
    own = OpSpec("all-to-all", OpKind.COLLECTIVE, Axis.DP, stream='experts "1" · \\ 100 %')
    rows = [
        Row("forward-compute", 1 / 3, 0.0),
        Row("forward-compute", 1 / 3, 1.0),
        Row("backward-compute", 1.0, 1 / 7),
        Row("backward-compute", 1.0, 1.5),
        Row("all-to-all", 0.5, 1.0),
        Row("all-to-all", 0.6, 1.0),
        Row("grads-reduce-scatter", 2.5, 0.25),
        Row("optimizer", 3.0, 1e-9),
    ]
    late = [row.on(start_s=row.start_s + 0.2) for row in rows]
    both = [*rows, *(row.on(dp_rank=1) for row in late)]
    steps = [row.on(step=step) for step in (1, 2) for row in both]
    return window(steps, dp_size=2, op_types=OpTypes((own,)))


def large_times():
    """Steps of hours, in which nanoseconds still count."""
    rows = [
        Row("forward-compute", 0.0, 7199.000000001),
        Row("backward-compute", 7199.000000001, 7199.000000001),
        Row("optimizer", 14398.000000002, 0.000000001),
    ]
    return window([row.on(step=step) for step in range(3) for row in replicas(rows, 2)], dp_size=2)


@pytest.mark.parametrize(
    "recorded",
    [
        awkward,
        pytest.param(usual, marks=pytest.mark.nightly),
        pytest.param(large_times, marks=pytest.mark.nightly),
    ],
)
def test_perfetto_reads_every_slice_as_written(chromium, recorded):
    replay = prepare(recorded())
    choice = TimelineSelection(replay.steps, all_workers(replay.groups[0]), RUN_KINDS)
    trace = b"".join(trace_event_pieces(replay, choice))
    with opened(chromium, trace) as perfetto:
        found = Counter(map(tuple, perfetto.ask(SLICES)))
        complaints, overlaps = perfetto.ask(COMPLAINTS), perfetto.ask(OVERLAPS)
        [[deepest]] = perfetto.ask("SELECT max(depth) FROM slice")
    expected = read(iter([trace]))
    assert found == Counter(
        (each.process, each.track, each.name, each.start_ns, each.length_ns)
        for each in expected.operations + expected.steps
    )
    assert (complaints, overlaps, deepest) == ([], [], 0)


@pytest.mark.nightly
def test_perfetto_lists_the_runs_of_a_worker_next_to_each_other(chromium):
    replay = prepare(usual())
    choice = TimelineSelection((4,), all_workers(replay.groups[0]), RUN_KINDS)
    with opened(chromium, b"".join(trace_event_pieces(replay, choice))) as perfetto:
        until(perfetto.page, "app.trace.workspace.children.length >= 19")
        groups = perfetto.page.evaluate(
            "() => app.trace.workspace.children.map(track => track.name)"
        )
        arguments = perfetto.ask(
            "SELECT DISTINCT key FROM slice JOIN args USING (arg_set_id) ORDER BY key"
        )
    workers = [name.rpartition(" · ")[0] for name in groups if name.startswith("dp ")]
    assert len(workers) == 18
    assert [workers[at] for at in range(0, 18, 3) for _ in range(3)] == workers
    assert {key for [key] in arguments} >= {
        f"args.{name}"
        for name in ("step", "seq_id", "microbatch", "chunk", "wait_us", "transfer_us")
    }


@pytest.mark.nightly
def test_perfetto_needs_no_request_to_other_origins(chromium):
    replay = prepare(usual())
    choice = TimelineSelection((4,), all_workers(replay.groups[0]), ("recorded",))
    with opened(chromium, b"".join(trace_event_pieces(replay, choice))) as perfetto:
        assert perfetto.ask("SELECT count(*) > 0 FROM slice") == [[1]]
        hosts = {address.split("/")[2] for address in perfetto.elsewhere}
    # A native trace processor on this machine, and whether its makers are using it.
    assert hosts <= {"127.0.0.1:9001", "storage.cloud.google.com"}
