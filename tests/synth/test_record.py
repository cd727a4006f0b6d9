from dataclasses import fields, replace

import numpy as np
import pytest

from app.engine.report import analyse
from app.errors import InvalidRequest
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.drawing import Interruption
from app.synth.job import SimulatedJob
from app.synth.record import JOB_START_NS
from app.synth.schedules import SCHEDULES
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES, Direction
from app.trace.window import OPTIONAL, TRACE_DTYPES
from tests.result_comparison import agree
from tests.results import report_as_json
from tests.synth.custom_fault import CustomFault

MADE = SimulatedJob(Parallelism(3, 2), 4, cluster=Cluster(gpus_per_host=2))


def columns(record):
    held = {each.name: getattr(record, each.name) for each in fields(record)}
    return {name: held[name] for name in (*TRACE_DTYPES, "start_ns", "duration_ns") if name in held}


def rows_of(record, optype):
    return np.flatnonzero(record.optype == OP_CODES[optype])


def test_a_record_is_what_was_made_in_nanoseconds_of_an_absolute_clock():
    record, trace = MADE.record(range(3)), MADE.make(range(3))
    for name in ("step", "dp_rank", "stage", "rank", "optype", "seq_id", "mc", "mb_id"):
        np.testing.assert_array_equal(getattr(record, name), getattr(trace, name))
    np.testing.assert_allclose(record.duration_ns, trace.duration_s * 1e9, atol=1)
    first = record.step == 0
    since_ns = record.start_ns[first] - JOB_START_NS
    np.testing.assert_allclose(since_ns, trace.start_s[first] * 1e9, atol=1)


def test_steps_follow_one_another():
    record = MADE.record(range(4))
    ends = [(record.start_ns + record.duration_ns)[record.step == s].max() for s in range(4)]
    starts = [record.start_ns[record.step == s].min() for s in range(4)]
    gaps_ns = np.array(starts[1:]) - np.array(ends[:-1])
    assert ((gaps_ns > 2e6) & (gaps_ns < 3e6)).all()
    assert record.ended_s == pytest.approx((ends[-1] - JOB_START_NS) / 1e9 + 2e-3, abs=1e-6)


def test_a_record_goes_on_where_the_last_one_ended():
    whole, first = MADE.record(range(5)), MADE.record(range(2))
    more = MADE.record([2, 3, 4], since_s=first.ended_s)
    np.testing.assert_array_equal(np.concatenate([first.start_ns, more.start_ns]), whole.start_ns)


def test_constant_offsets_move_whole_hosts_and_nothing_else():
    record = MADE.record(range(3))
    off = replace(MADE, cluster=Cluster(gpus_per_host=2, clock_offset_s=1.0)).record(range(3))
    np.testing.assert_array_equal(off.duration_ns, record.duration_ns)
    moved_ns = off.start_ns - record.start_ns
    host = np.array([off.hosts[worker] for worker in zip(off.dp_rank, off.stage, strict=True)])
    by_host = [np.unique(moved_ns[host == name]) for name in np.unique(host)]
    assert all(moved.size == 1 for moved in by_host)
    assert len({int(moved[0]) for moved in by_host}) == 3
    assert 1e8 < np.abs(moved_ns).max() <= 1e9


def test_a_drifting_clock_counts_more_or_fewer_nanoseconds():
    cluster = Cluster(gpus_per_host=2, drift_ppm=200)
    record, off = MADE.record(range(3)), replace(MADE, cluster=cluster).record(range(3))
    _, drift = cluster.clocks(MADE.parallelism, MADE.seed)
    of_row = drift[off.dp_rank, off.stage]
    np.testing.assert_allclose(
        off.start_ns - JOB_START_NS, (record.start_ns - JOB_START_NS) * (1 + of_row), atol=1
    )
    np.testing.assert_allclose(off.duration_ns, record.duration_ns * (1 + of_row), atol=1)


def test_parts_are_what_each_worker_recorded_of_a_step():
    record = MADE.record([7, 9])
    parts = list(record.parts())
    keys = [(part.step, part.dp_rank, part.stage) for part in parts]
    assert keys == [(s, d, p) for s in (7, 9) for d in range(3) for p in range(2)]
    for part in parts:
        assert (record.step[part.rows] == part.step).all()
        assert (record.dp_rank[part.rows] == part.dp_rank).all()
        assert (record.stage[part.rows] == part.stage).all()
    assert sum(part.rows.stop - part.rows.start for part in parts) == record.num_ops


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_window_of_a_record_says_what_the_made_trace_says(name):
    made = replace(MADE, num_microbatches=6, schedule=SCHEDULES[name])
    window = made.record(range(4)).window()
    assert window.state == "complete"
    assert window.hosts == made.world.hosts
    assert len(window.origin_ns or ()) == 4
    trace = made.make(range(4))
    np.testing.assert_allclose(window.trace.duration_s, trace.duration_s, atol=2e-9)
    np.testing.assert_allclose(window.trace.start_s, trace.start_s, rtol=0, atol=1e-4)
    of_trace = replace(window, trace=trace, origin_ns=None, hosts={})
    one, other = (report_as_json(analyse(each)) for each in (window, of_trace))
    assert one["slowdown"] == pytest.approx(other["slowdown"], rel=1e-6)
    # Only the record tells what lies between its steps, which it counts to the second one.
    for each in (one, other):
        recorded_s, between_s = (each["step_time_s"].pop(name) for name in ("recorded", "between"))
        each["working_s"] = [a - b for a, b in zip(recorded_s, between_s, strict=True)]
    agree(one["step_time_s"], other["step_time_s"], "step_time_s", relative=1e-6)
    assert one["working_s"] == pytest.approx(other["working_s"], rel=1e-3)


def test_origins_are_each_steps_first_start_by_any_clock():
    made = replace(MADE, cluster=Cluster(2, clock_offset_s=1.0))
    record = made.record(range(3))
    window = record.window(epoch=4)
    assert window.id == "4-0"
    assert window.origin_ns is not None
    for position, step in enumerate(window.steps):
        mine = record.step == step
        assert window.origin_ns[position] == record.start_ns[mine].min()
        since_ns = record.start_ns[mine] - window.origin_ns[position]
        np.testing.assert_array_equal(window.trace.start_s[mine], since_ns / 1e9)


def silence_of_rank_1_in_step_2(drawn):
    drawn.is_silent[0, drawn.steps == 2, 1] = True


def test_who_is_silent_is_left_out_and_his_step_is_not_analysed():
    made = replace(MADE, faults=(CustomFault(silence_of_rank_1_in_step_2),))
    record, whole = made.record(range(4)), MADE.record(range(4))
    gone = (whole.step == 2) & (whole.dp_rank == 1) & (whole.stage == 0)
    for name, column in columns(record).items():
        np.testing.assert_array_equal(column, getattr(whole, name)[~gone])
    window = record.window()
    assert window.steps == (0, 1, 3)
    assert window.state == "incomplete"
    assert [(each.step, each.missing) for each in window.skipped] == [(2, (1,))]
    assert set(window.trace.step) == {0, 1, 3}
    assert len(window.origin_ns or ()) == 3


def two_pauses_and_a_wait_in_step_1(drawn):
    for at in np.flatnonzero(drawn.steps == 1).tolist():
        drawn.forward_s[1, 0, [3, 2], at, 2] += 0.25
        drawn.forward_delay_s[0, 0, 0, at, 1] += 0.5
        for microbatch in (3, 2):
            drawn.interruptions.append(
                Interruption("gc-pause", 0.25, Direction.FORWARD, 1, 0, microbatch, at, 2)
            )
        drawn.interruptions.append(
            Interruption("data-wait", 0.5, Direction.FORWARD, 0, 0, 0, at, 1)
        )


def test_annotations_are_rows_of_their_own():
    record = replace(MADE, faults=(CustomFault(two_pauses_and_a_wait_in_step_1),)).record(range(3))
    pauses, (wait,) = rows_of(record, "gc-pause"), rows_of(record, "data-wait")
    assert record.step[pauses].tolist() == [1, 1]
    assert record.seq_id[pauses].tolist() == [0, 1]
    assert record.mb_id[pauses].tolist() == [2, 3]
    assert record.rank[pauses].tolist() == [5, 5]
    assert record.duration_ns[pauses].tolist() == [250_000_000] * 2
    computes = rows_of(record, "forward-compute")
    paused, waited = (
        computes[
            (record.step[computes] == 1)
            & (record.dp_rank[computes] == dp_rank)
            & (record.stage[computes] == stage)
        ]
        for dp_rank, stage in ((2, 1), (1, 0))
    )
    inside = paused[2:]
    assert (record.start_ns[pauses] > record.start_ns[inside]).all()
    ends_ns = record.start_ns + record.duration_ns
    assert (ends_ns[pauses] < ends_ns[inside]).all()
    assert abs(ends_ns[wait] - record.start_ns[waited[0]]) <= 1
    keys = [record.step, record.dp_rank, record.stage, record.optype, record.seq_id]
    np.testing.assert_array_equal(np.lexsort(keys[::-1]), np.arange(record.num_ops))
    slowdown = report_as_json(analyse(record.window()))["optype_slowdown"]
    assert not {"gc-pause", "data-wait"} & set(slowdown)


def lengths_and_temperatures(drawn):
    shape = drawn.forward_s.shape[2:]
    drawn.tokens = np.full(shape, 100)
    drawn.seq_len_sq = np.arange(np.prod(shape)).reshape(shape)
    drawn.temperature_c = np.full(drawn.is_silent.shape, 60)
    drawn.temperature_c[1] = 70


def test_optional_columns_stand_where_they_belong():
    costs = OperationCosts(sizes=(("forward-send", 4096),))
    record = replace(MADE, faults=(CustomFault(lengths_and_temperatures),), costs=costs).record(
        range(2)
    )
    computes = np.isin(record.optype, [OP_CODES[f"{d}-compute"] for d in ("forward", "backward")])
    np.testing.assert_array_equal(record.tokens, np.where(computes, 100, -1))
    expected = record.mb_id * 6 + record.step * 3 + record.dp_rank
    np.testing.assert_array_equal(record.seq_len_sq, np.where(computes, expected, -1))
    sends = record.optype == OP_CODES["forward-send"]
    np.testing.assert_array_equal(record.bytes, np.where(sends, 4096, -1))
    optimizer = record.optype == OP_CODES["optimizer"]
    warm = np.where(record.stage == 1, 70, 60)
    np.testing.assert_array_equal(record.temperature_c, np.where(optimizer, warm, -1))
    assert record.sm_clock_mhz is None
    trace = record.window().trace
    for name in OPTIONAL:
        np.testing.assert_array_equal(getattr(trace, name), getattr(record, name))


@pytest.mark.parametrize("steps", [[], [2, 1], [1, 1]])
def test_steps_out_of_order_are_refused(steps):
    with pytest.raises(InvalidRequest, match="steps"):
        MADE.record(steps)
