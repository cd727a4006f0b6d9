"""Reports of recorders: dropped operations and steps that are no training."""

import gzip
from dataclasses import fields, replace

import msgspec

from app.consumer.poison import TURN_BYTES, split_by_memory
from app.ingest.assembly.window_codec import unpack_window
from app.ingest.queue import Entry
from app.ingest.wire import codec
from app.ingest.wire.body import EXTENSIONS
from app.store import hosts, runs, shards
from app.store import jobs as stored_jobs
from app.trace.job import Placement
from app.trace.window import OpColumns
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.twin import step_batches
from tests.ingest.wire.packing import packed


def batches_with(step, *, dropped=None, kind=None, ranks=None):
    """The step's batches, with these reports of the given ranks."""
    kinds = () if kind is None else ((step, kind),)
    return [
        replace(batch, dropped=dropped, step_kinds=kinds)
        if ranks is None or batch.rank in ranks
        else batch
        for batch in step_batches(HEALTHY, step)
    ]


def drops_of(twin):
    with twin.store.read() as conn:
        return stored_jobs.get(conn, "job").drops


def of_worker(twin, dp_rank, stage):
    with twin.store.read() as conn:
        return runs.drops_of_worker(conn, "job", 1, dp_rank, stage)


def skipped(twin):
    [(result,)] = twin.windows("result")
    return {skipped.step: skipped.reason for skipped in result.skipped_steps}


def test_drop_counts_are_kept_by_rank_and_never_decrease(twin):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    twin.push("job", HEALTHY, 0)
    twin.turns(consumer)
    assert (drops_of(twin), of_worker(twin, 0, 0)) == (None, None), "not known until reported"
    first, *_ = step_batches(HEALTHY, 0)
    twin.append("job", *batches_with(1, dropped=5, ranks={first.rank}))
    twin.turns(consumer)
    assert drops_of(twin) == (5, 1, [(0, 0, 5)])
    twin.append("job", *batches_with(2, dropped=3))
    twin.turns(consumer)
    assert drops_of(twin) == (14, 4, [(0, 0, 5), (0, 1, 3), (1, 0, 3), (1, 1, 3)])
    assert of_worker(twin, 1, 0) == 3


def test_unrecorded_step_advances_the_last_step_of_the_run(twin):
    twin.register("job", SIZES)
    twin.push("job", HEALTHY, 0)
    beat = step_batches(HEALTHY, 1)[0]
    nothing = beat.columns.select(slice(0))
    twin.append("job", replace(beat, steps_done=(), columns=nothing, at_step=700))
    twin.turns(twin.consumer())
    with twin.store.read() as conn:
        job = stored_jobs.get(conn, "job")
    assert (job.last_step, job.last_data_s) == (700, twin.unix_clock() - 3)
    assert twin.windows("state", "num_steps") == [("open", 1)]


def test_one_batch_from_the_far_future_moves_no_last_step(twin):
    twin.register("job", SIZES)
    twin.push("job", HEALTHY, 0)
    first, other, *_ = step_batches(HEALTHY, 1)
    nothing = first.columns.select(slice(0))
    consumer = twin.consumer()
    for batch, step, seen in ((first, 900_000, 0), (other, 3, 3), (other, 900_100, 900_000)):
        beat = replace(batch, batch_seq=step, steps_done=(), columns=nothing, at_step=step)
        twin.append("job", beat)
        twin.turns(consumer)
        with twin.store.read() as conn:
            assert stored_jobs.get(conn, "job").last_step == seen


def test_new_consumer_continues_the_drop_counts(twin):
    twin.register("job", SIZES)
    for step in range(4):
        twin.append("job", *batches_with(step, dropped=step))
        twin.turns(twin.consumer(), num_turns=1)
    assert drops_of(twin) == (12, 4, [(0, 0, 3), (0, 1, 3), (1, 0, 3), (1, 1, 3)])


def test_drops_raise_no_alert_and_change_no_figure(twin):
    twin.register("job", SIZES)
    twin.register("other", SIZES)
    for step in range(3):
        twin.append("job", *batches_with(step, dropped=10**9))
        twin.push("other", HEALTHY, step)
    twin.turns(twin.consumer())
    assert twin.rows("alerts") == []
    with_drops, without = twin.windows("slowdown", "verdict", "state", "trace")
    assert with_drops == without


def test_step_of_a_non_training_kind_is_skipped_with_its_reason(twin):
    reason = "a checkpoint was saved in it"
    twin.register("job", SIZES)
    twin.append("job", *batches_with(0, kind="checkpoint"))
    twin.push("job", HEALTHY, 1, 2, 3)
    twin.turns(twin.consumer())
    assert skipped(twin) == {0: reason}
    assert twin.windows("state", "first_step", "num_steps") == [("complete", 0, 3)]
    rows = twin.rows("steps", "step", "skipped_reason")
    assert rows == [(0, reason), (1, None), (2, None), (3, None)]


def test_one_rank_sets_the_kind_of_a_step(twin):
    twin.register("job", SIZES)
    last = step_batches(HEALTHY, 0)[-1]
    twin.append("job", *batches_with(0, kind="eval", ranks={last.rank}))
    twin.push("job", HEALTHY, 1, 2, 3)
    twin.turns(twin.consumer())
    assert list(skipped(twin)) == [0]


def test_window_closes_by_its_number_of_training_steps(twin):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    for step in range(9):
        twin.append("job", *batches_with(step, kind="eval"))
    twin.push("job", HEALTHY, 9, 10)
    twin.turns(consumer)
    assert twin.windows("state") == [("open",)]
    twin.push("job", HEALTHY, 11)
    twin.turns(consumer)
    assert twin.windows("state", "first_step", "last_step", "num_steps") == [("complete", 0, 11, 3)]
    # The trace has operations of the training steps only.
    [(blob,)] = twin.windows("trace")
    assert sorted({*unpack_window(blob).ops.step.tolist()}) == [9, 10, 11]


def test_job_ending_with_an_evaluation_has_a_window_without_figures(twin):
    twin.register("job", SIZES)
    twin.push("job", HEALTHY, 0, 1, 2)
    twin.append("job", *batches_with(3, kind="eval"))
    twin.turns(twin.consumer())
    twin.end("job")
    twin.turns(twin.consumer(), num_turns=8)
    assert twin.windows("first_step", "state", "slowdown")[1] == (3, "incomplete", None)


def packed_body(batch):
    """The batch with packed columns, as a newer client sends it."""
    fields = msgspec.msgpack.decode(codec.encode(batch))
    columns = batch.columns
    for name in ("step", "seq_id", "mc", "mb_id"):
        fields["columns"][name] = packed(getattr(columns, name).tolist(), 1)
    durations = columns.duration_ns.tolist()
    fields["columns"]["start_ns"] = packed(columns.start_ns.tolist(), 2, durations=durations)
    fields["columns"]["duration_ns"] = packed(durations)
    return msgspec.msgpack.encode(fields)


def test_packed_batches_give_the_same_windows(twin):
    twin.register("job", SIZES)
    twin.register("plain", SIZES)
    for step in range(3):
        for batch in step_batches(HEALTHY, step):
            twin.append_bytes("job", packed_body(batch))
            twin.append("plain", batch)
        twin.turns(twin.consumer(), num_turns=1)  # each starts from the stored state
    from_packed, from_plain = twin.windows("slowdown", "verdict", "per_step", "trace")
    assert from_packed == from_plain


def test_invalid_packed_batch_is_a_dead_letter_with_its_operation_count(twin):
    twin.register("job", SIZES)
    [batch, *_] = step_batches(HEALTHY, 0)
    fields = msgspec.msgpack.decode(packed_body(batch))
    fields["optypes"] = ["of-a-newer-version"] * len(fields["optypes"])
    twin.append_bytes("job", msgspec.msgpack.encode(fields))
    twin.turns(twin.consumer())
    assert twin.rows("dead_letters", "num_ops") == [(batch.columns.num_ops,)]


def test_consumer_announces_its_extensions(twin):
    consumer = twin.consumer()
    twin.turns(consumer)
    with twin.store.read() as conn:
        now_s = twin.unix_clock()
        assert shards.extensions_known_to_all(conn, EXTENSIONS, now_s=now_s) == list(EXTENSIONS)


def widest():
    """A batch whose columns take one byte a row, and its unpacked size in bytes."""
    [batch, *_] = step_batches(HEALTHY, 0)
    columns = [each.name for each in fields(OpColumns)]
    whole = msgspec.msgpack.decode(codec.encode(batch))
    whole["columns"] = {name: [0, 1, bytes(10_000)] for name in columns}
    body = msgspec.msgpack.encode(whole)
    read = codec.read_entry(body).columns
    return body, sum(getattr(read, name).nbytes for name in columns)


def test_turns_are_split_by_unpacked_size():
    body, size = widest()
    entry = Entry("1-0", 0, "job", body, 0.0)
    num_entries = TURN_BYTES // size
    for each in (entry, replace(entry, body=gzip.compress(body, 1))):
        first, *_ = split_by_memory([each] * 2 * num_entries)
        assert 0.8 * num_entries < len(first) <= num_entries
    huge = replace(entry, body=bytes(TURN_BYTES))
    assert [len(part) for part in split_by_memory([huge] * 3)] == [1, 1, 1]


def placements_of(twin):
    with twin.store.read() as conn:
        return hosts.placements(conn, "job", 1)


def test_last_reported_placement_of_each_host_is_kept(twin):
    twin.register("job", SIZES)
    twin.push("job", HEALTHY, 0)
    twin.turns(twin.consumer(), num_turns=1)
    assert placements_of(twin) == {}
    first, second, *others = step_batches(HEALTHY, 1)
    placed = [replace(first, placement=Placement("r1", "s1")), replace(second, host="another")]
    twin.append("job", *placed, *others)
    twin.turns(twin.consumer(), num_turns=1)
    assert placements_of(twin) == {(0, 0): ("r1", "s1")}
    first, second, *others = step_batches(HEALTHY, 2)
    twin.append("job", first, replace(second, placement=Placement(switch="s2")), *others)
    twin.turns(twin.consumer(), num_turns=1)  # starts from the stored placements
    assert placements_of(twin) == {(0, 0): ("r1", "s1"), (0, 1): (None, "s2")}
