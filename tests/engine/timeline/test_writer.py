"""Timelines, read back as a viewer would."""

import numpy as np
import pytest
from hypothesis import given

from app.engine.replays import prepare
from app.engine.timeline.selection import TimelineSelection, all_workers, num_slices, select
from app.engine.timeline.step_run import RUN_KINDS, play_step
from app.engine.timeline.writer import trace_event_pieces
from tests.engine.timeline.trace_reader import overlaps, read
from tests.example_counts import many
from tests.job_strategies import windows
from tests.window_factory import Row, in_row, window


def timeline_of(recorded, **named):
    replay = prepare(recorded)
    return read(trace_event_pieces(replay, select(replay, **named)))


def whole(replay):
    return TimelineSelection(replay.steps, all_workers(replay.groups[0]), RUN_KINDS)


def two_steps_of_two_replicas():
    """Replica 1 computes twice as long in the second step."""
    rows = []
    for step, slow in ((7, 1.0), (9, 2.0)):
        for dp_rank, forward_s in ((0, 1.0), (1, slow)):
            ops = in_row(("forward-compute", forward_s), ("backward-compute", 1.0))
            end_s = ops[-1].end_s
            sync = Row("grads-reduce-scatter", end_s, slow + 1.5 - end_s)
            ops += [sync, Row("optimizer", sync.end_s, 0.25)]
            rows += [row.on(step=step, dp_rank=dp_rank) for row in ops]
    return window(rows, dp_size=2)


def test_every_operation_has_one_slice_per_run():
    recorded = two_steps_of_two_replicas()
    found = timeline_of(recorded, steps="7,9")
    assert len(found.operations) == 3 * recorded.trace.num_ops
    processes = {f"dp {dp} stage 0 (rank {dp}) · {run}" for dp in (0, 1) for run in RUN_KINDS}
    assert {each.process for each in found.operations} == processes


def test_the_recorded_run_has_the_recorded_times():
    first, second = (
        timeline_of(two_steps_of_two_replicas(), steps=step).of("dp 1 stage 0 (rank 1) · recorded")
        for step in ("7", "9")
    )
    seconds = [(each.name, each.start_ns / 1e9, each.end_ns / 1e9) for each in second]
    assert seconds == [
        ("forward-compute", 0.0, 2.0),
        ("backward-compute", 2.0, 3.0),
        ("grads-reduce-scatter", 3.0, 3.5),
        ("optimizer", 3.5, 3.75),
    ]
    assert first[0].length_ns == 1e9


def test_a_slice_shows_its_wait_for_peers():
    waiting, late = (
        timeline_of(two_steps_of_two_replicas(), steps="9").of(
            f"dp {dp} stage 0 (rank {dp}) · simulated"
        )[2]
        for dp in (0, 1)
    )
    assert waiting.arguments == {
        "step": 9,
        "seq_id": 0,
        "chunk": 0,
        "wait_us": 1_000_000,
        "transfer_us": 500_000,
    }
    assert late.arguments["wait_us"] == 0


def test_steps_follow_each_other_and_every_run_of_a_step_begins_at_once():
    found = timeline_of(two_steps_of_two_replicas(), steps="7-9")
    begins_ns = dict(found.marks)
    longest_ns = max(each.length_ns for each in found.steps if each.name == "step 7")
    assert begins_ns == {"step 7": 0, "step 9": longest_ns}
    assert {(each.track, each.name) for each in found.steps} == {
        (run, step) for run in RUN_KINDS for step in begins_ns
    }
    assert all(each.start_ns == begins_ns[each.name] for each in found.steps)


def test_only_the_chosen_workers_and_runs_are_drawn():
    found = timeline_of(two_steps_of_two_replicas(), workers="1/0", runs="ideal")
    assert {each.process for each in found.operations} == {"dp 1 stage 0 (rank 1) · ideal"}
    assert len(found.operations) == 4


def test_operations_that_overlap_on_one_stream_are_drawn_on_two_tracks():
    rows = [
        Row("forward-compute", 0.0, 1.0),
        Row("backward-compute", 0.75, 1.0),
        Row("optimizer", 2.0, 1.0),
    ]
    found = timeline_of(window(rows), runs="recorded")
    tracks = [(each.track, each.name) for each in found.of("dp 0 stage 0 (rank 0) · recorded")]
    assert tracks == [
        ("compute", "forward-compute"),
        ("compute (2)", "backward-compute"),
        ("step end", "optimizer"),
    ]
    assert sum(each.length_ns for each in found.operations) == 3e9


def test_a_slice_of_zero_length_is_kept():
    rows = in_row(("forward-compute", 0.0), ("backward-compute", 1.0), ("optimizer", 1.0))
    found = timeline_of(window(rows), runs="recorded")
    lengths = {(each.name, each.track): each.length_ns for each in found.operations}
    assert lengths["forward-compute", "compute (2)"] == 0
    assert lengths["backward-compute", "compute"] == 1e9


def test_the_file_comes_in_pieces():
    replay = prepare(window([row.on(step=step) for step in range(800) for row in a_step()]))
    pieces = list(trace_event_pieces(replay, whole(replay)))
    assert len(pieces) > 2
    assert len(read(iter(pieces)).operations) == 3 * 800 * 4


def a_step():
    names = ("forward-compute", "backward-compute", "gc", "optimizer")
    return in_row(*((name, 0.1) for name in names))


@many(100)
@given(windows())
def test_no_slices_overlap_or_are_lost_for_any_recording(recorded):
    replay = prepare(recorded)
    choice = whole(replay)
    found = read(trace_event_pieces(replay, choice))
    assert len(found.operations) == num_slices(replay, choice) == 3 * recorded.trace.num_ops
    assert overlaps(found.operations + found.steps) == []
    assert min(each.start_ns for each in found.operations) >= 0
    assert min(each.length_ns for each in found.operations) >= 0


@many(50)
@given(windows())
def test_a_slice_is_as_long_as_its_operation(recorded):
    replay = prepare(recorded)
    found = read(trace_event_pieces(replay, whole(replay)))
    for kind in RUN_KINDS:
        runs = [play_step(replay.of_step(step), step, kind) for step in replay.steps]
        took_s = sum(np.maximum(run.end_s - run.start_s, 0).sum() for run in runs)
        drawn = [each for each in found.operations if each.process.endswith(kind)]
        drawn_s = sum(each.length_ns for each in drawn) / 1e9
        assert drawn_s == pytest.approx(took_s, abs=1e-9 * len(drawn))
