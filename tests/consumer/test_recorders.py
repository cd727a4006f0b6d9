"""What recorders say of themselves: what they dropped, and which steps are no training."""

import gzip
from dataclasses import fields, replace

import msgspec
import pytest

from app.consumer.parts import TURN_BYTES, in_parts
from app.ingest import codec
from app.ingest.batch import OpColumns
from app.ingest.queue import Entry
from app.ingest.trace_codec import unpack
from app.ingest.wire import EXTENSIONS
from app.store import drops, hosts, shards
from app.store import jobs as stored_jobs
from app.trace.placement import Placement
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.place import step_batches
from tests.ingest.packing import packed


def said(step, *, dropped=None, kind=None, ranks=None):
    """The step's batches, in which the ranks say this."""
    kinds = () if kind is None else ((step, kind),)
    return [
        replace(batch, dropped=dropped, step_kinds=kinds)
        if ranks is None or batch.rank in ranks
        else batch
        for batch in step_batches(HEALTHY, step)
    ]


def drops_of(place):
    with place.store.read() as conn:
        return stored_jobs.get(conn, "job").drops


def of_worker(place, dp_rank, stage):
    with place.store.read() as conn:
        return drops.of_worker(conn, "job", 1, dp_rank, stage)


def skipped(place):
    [(result,)] = place.windows("result")
    return {each["step"]: each["reason"] for each in result["skipped_steps"]}


def test_nobody_has_dropped_anything_before_somebody_says_so(place):
    place.register("job", SIZES)
    place.push("job", HEALTHY, 0)
    place.turns(place.consumer())
    assert drops_of(place) is None
    assert of_worker(place, 0, 0) is None


def test_what_recorders_dropped_is_kept_by_rank_and_never_goes_down(place):
    place.register("job", SIZES)
    consumer = place.consumer()
    first, *_ = step_batches(HEALTHY, 0)
    place.append("job", *said(0, dropped=5, ranks={first.rank}))
    place.turns(consumer)
    assert drops_of(place) == (5, 1, [(0, 0, 5)])
    place.append("job", *said(1, dropped=3))
    place.turns(consumer)
    assert drops_of(place) == (14, 4, [(0, 0, 5), (0, 1, 3), (1, 0, 3), (1, 1, 3)])
    assert of_worker(place, 1, 0) == 3


def test_a_recorder_that_dropped_nothing_says_so(place):
    place.register("job", SIZES)
    place.append("job", *said(0, dropped=0))
    place.turns(place.consumer())
    assert drops_of(place) == (0, 0, [])
    assert of_worker(place, 0, 0) == 0


def test_a_step_that_is_not_recorded_is_one_that_the_run_has_come_to(place):
    place.register("job", SIZES)
    place.push("job", HEALTHY, 0)
    beat = step_batches(HEALTHY, 1)[0]
    nothing = beat.columns.select(slice(0))
    place.append("job", replace(beat, steps_done=(), columns=nothing, at_step=700))
    place.turns(place.consumer())
    with place.store.read() as conn:
        job = stored_jobs.get(conn, "job")
    assert (job.last_step, job.last_data_s) == (700, place.unix_clock() - 3)
    assert place.windows("state", "num_steps") == [("open", 1)]


def test_no_number_is_too_large(place):
    place.register("job", SIZES)
    place.append("job", *said(0, dropped=2**53))
    place.turns(place.consumer())
    assert drops_of(place).total == 2**53


def test_a_consumer_that_takes_over_knows_what_was_dropped(place):
    place.register("job", SIZES)
    for step in range(4):
        place.append("job", *said(step, dropped=step))
        place.turns(place.consumer(), num_turns=1)
    assert drops_of(place) == (12, 4, [(0, 0, 3), (0, 1, 3), (1, 0, 3), (1, 1, 3)])


def test_drops_raise_no_alert_and_change_no_figure(place):
    place.register("job", SIZES)
    place.register("other", SIZES)
    for step in range(3):
        place.append("job", *said(step, dropped=10**9))
        place.push("other", HEALTHY, step)
    place.turns(place.consumer())
    assert place.rows("alerts") == []
    with_drops, without = place.windows("slowdown", "verdict", "state", "trace")
    assert with_drops == without


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("eval", "it was an evaluation, no training"),
        ("checkpoint", "a checkpoint was saved in it"),
        ("first", "it was among the first, which have start-up work in them"),
    ],
)
def test_a_step_of_another_kind_is_not_analysed(place, kind, reason):
    place.register("job", SIZES)
    place.append("job", *said(0, kind=kind))
    place.push("job", HEALTHY, 1, 2, 3)
    place.turns(place.consumer())
    assert skipped(place) == {0: reason}
    assert place.windows("state", "first_step", "num_steps") == [("complete", 0, 3)]
    rows = place.rows("steps", "step", "skipped_reason")
    assert rows == [(0, reason), (1, None), (2, None), (3, None)]


def test_one_rank_is_enough_to_say_what_a_step_is(place):
    place.register("job", SIZES)
    last = step_batches(HEALTHY, 0)[-1]
    place.append("job", *said(0, kind="eval", ranks={last.rank}))
    place.push("job", HEALTHY, 1, 2, 3)
    place.turns(place.consumer())
    assert list(skipped(place)) == [0]


def test_a_window_closes_by_its_training_steps_however_many_others_there_are(place):
    place.register("job", SIZES)
    consumer = place.consumer()
    for step in range(9):
        place.append("job", *said(step, kind="eval"))
    place.push("job", HEALTHY, 9, 10)
    place.turns(consumer)
    assert place.windows("state") == [("open",)]
    place.push("job", HEALTHY, 11)
    place.turns(consumer)
    assert place.windows("state", "first_step", "last_step", "num_steps") == [
        ("complete", 0, 11, 3)
    ]
    # Nothing of them is kept: what is left is as if only the others had been sent.
    [(blob,)] = place.windows("trace")
    assert sorted({*unpack(blob).step.tolist()}) == [9, 10, 11]


def test_a_crash_anywhere_among_them_makes_no_difference(place):
    place.register("job", SIZES)
    for step in range(7):
        kind = "eval" if step % 2 else None
        place.append("job", *said(step, kind=kind, dropped=step))
        place.turns(place.consumer(), num_turns=1)
    assert sorted(skipped_in_all(place)) == [1, 3, 5]
    assert place.windows("first_step", "state", "num_steps") == [(0, "complete", 3), (5, "open", 1)]


def skipped_in_all(place):
    return [
        each["step"] for (result,) in place.windows("result") for each in result["skipped_steps"]
    ]


def test_a_job_that_ends_with_an_evaluation_has_a_last_window_without_figures(place):
    place.register("job", SIZES)
    place.push("job", HEALTHY, 0, 1, 2)
    place.append("job", *said(3, kind="eval"))
    place.turns(place.consumer())
    place.end("job")
    place.turns(place.consumer(), num_turns=8)
    assert place.windows("first_step", "state", "slowdown")[1] == (3, "incomplete", None)


def packed_body(batch):
    """The batch as a client sends it that packs its columns."""
    fields = msgspec.msgpack.decode(codec.encode(batch))
    columns = batch.columns
    for name in ("step", "seq_id", "mc", "mb_id"):
        fields["columns"][name] = packed(getattr(columns, name).tolist(), 1)
    durations = columns.duration_ns.tolist()
    fields["columns"]["start_ns"] = packed(columns.start_ns.tolist(), 2, durations=durations)
    fields["columns"]["duration_ns"] = packed(durations)
    return msgspec.msgpack.encode(fields)


def test_packed_batches_become_the_same_windows(place):
    place.register("job", SIZES)
    place.register("plain", SIZES)
    for step in range(3):
        for batch in step_batches(HEALTHY, step):
            place.append_bytes("job", packed_body(batch))
            place.append("plain", batch)
        place.turns(place.consumer(), num_turns=1)  # each begins from what the last one left
    from_packed, from_plain = place.windows("slowdown", "verdict", "per_step", "trace")
    assert from_packed == from_plain


def test_a_packed_batch_that_nobody_can_take_is_a_dead_letter_with_its_operations_counted(place):
    place.register("job", SIZES)
    [batch, *_] = step_batches(HEALTHY, 0)
    fields = msgspec.msgpack.decode(packed_body(batch))
    fields["optypes"] = ["of-a-newer-version"] * len(fields["optypes"])
    place.append_bytes("job", msgspec.msgpack.encode(fields))
    place.turns(place.consumer())
    assert place.rows("dead_letters", "num_ops") == [(batch.columns.num_ops,)]


def test_a_consumer_says_what_it_can_read(place):
    consumer = place.consumer()
    place.turns(consumer)
    with place.store.read() as conn:
        now_s = place.unix_clock()
        assert shards.known_to_all(conn, EXTENSIONS, now_s=now_s) == list(EXTENSIONS)


def widest():
    """A batch all of whose columns come in a byte a row, and how many bytes they take unpacked."""
    [batch, *_] = step_batches(HEALTHY, 0)
    columns = [each.name for each in fields(OpColumns)]
    whole = msgspec.msgpack.decode(codec.encode(batch))
    whole["columns"] = {name: [0, 1, bytes(10_000)] for name in columns}
    body = msgspec.msgpack.encode(whole)
    read = codec.read(body).columns
    return body, sum(getattr(read, name).nbytes for name in columns)


def test_turns_leave_room_for_what_unpacking_takes():
    body, size = widest()
    entry = Entry("1-0", 0, "job", body, 0.0)
    num_entries = TURN_BYTES // size
    for each in (entry, replace(entry, body=gzip.compress(body, 1))):
        first, *_ = in_parts([each] * 2 * num_entries)
        assert 0.8 * num_entries < len(first) <= num_entries
    huge = replace(entry, body=bytes(TURN_BYTES))
    assert [len(part) for part in in_parts([huge] * 3)] == [1, 1, 1]


def placements_of(place):
    with place.store.read() as conn:
        return hosts.placements(conn, "job", 1)


def test_where_hosts_stand_is_kept_as_it_was_said_last(place):
    place.register("job", SIZES)
    place.push("job", HEALTHY, 0)
    place.turns(place.consumer(), num_turns=1)
    assert placements_of(place) == {}
    first, second, *others = step_batches(HEALTHY, 1)
    placed = [replace(first, placement=Placement("r1", "s1")), replace(second, host="another")]
    place.append("job", *placed, *others)
    place.turns(place.consumer(), num_turns=1)
    assert placements_of(place) == {(0, 0): ("r1", "s1")}
    first, second, *others = step_batches(HEALTHY, 2)
    place.append("job", first, replace(second, placement=Placement(switch="s2")), *others)
    place.turns(place.consumer(), num_turns=1)  # which has begun with what the others left
    assert placements_of(place) == {(0, 0): ("r1", "s1"), (0, 1): (None, "s2")}
