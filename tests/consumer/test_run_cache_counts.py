"""Every operation that is taken from the queue is in exactly one count."""

import random
from dataclasses import replace

import pytest
from msgspec import structs

from app.ingest.assembly.window_codec import unpack_window
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.twin import DEADLINE_S, step_batches

NAMES = ("accepted", "duplicate", "conflict", "late", "dead", "lost_batches")


def counts(twin):
    [row] = twin.rows("ingest_counts", *NAMES)
    return dict(zip(NAMES, row, strict=True))


def num_ops(batches):
    return sum(batch.columns.num_ops for batch in batches)


def test_duplicates_and_conflicts_are_counted_and_change_nothing(twin):
    twin.register("job", SIZES)
    batches = step_batches(HEALTHY, 0)
    other = replace(batches[0], columns=batches[1].columns)
    twin.append("job", *batches, batches[1], other)
    twin.turns(twin.consumer())
    assert counts(twin) == {
        "accepted": num_ops(batches),
        "duplicate": batches[1].columns.num_ops,
        "conflict": other.columns.num_ops,
        "late": 0,
        "dead": 0,
        "lost_batches": 0,
    }
    [(sample,)] = twin.rows("ingest_counts", "last_conflict")
    assert sample is not None
    assert (sample["rank"], sample["batch_seq"]) == (batches[0].rank, 0)


def test_missing_batch_number_counts_as_a_lost_batch(twin):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    twin.push("job", HEALTHY, 0)
    first, *others = step_batches(HEALTHY, 1)
    twin.append("job", replace(first, batch_seq=3), *others)
    twin.turns(consumer, num_turns=int(DEADLINE_S) + 2)
    assert counts(twin)["lost_batches"] == 2
    assert twin.windows("num_steps") == [(2,)]


def test_every_appended_operation_is_in_exactly_one_count(twin):
    rng = random.Random(4)
    twin.register("job", SIZES)
    consumer = twin.consumer()
    appended = []
    for step in range(12):
        for batch in step_batches(HEALTHY, step):
            appended += [batch] * rng.choice((0, 1, 1, 1, 2, 3))
            if rng.random() < 0.1:
                appended.append(replace(batch, host="another"))
    rng.shuffle(appended)
    for first in range(0, len(appended), 5):
        twin.append("job", *appended[first : first + 5])
        twin.turns(consumer, num_turns=1, each_s=rng.choice((1.0, 1.0, 11 * DEADLINE_S)))
    again = [replace(step_batches(HEALTHY, step)[0], batch_seq=100 + step) for step in range(12)]
    twin.append("job", *again)
    twin.append_bytes("job", b"no batch")
    twin.end("job")
    twin.turns(consumer)
    found = counts(twin)
    assert found.pop("lost_batches") > 0
    assert sum(found.values()) == num_ops([*appended, *again])
    assert min(found["accepted"], found["duplicate"], found["conflict"], found["late"]) > 0
    assert twin.queue.reader.backlog(0) == 0


def test_revised_window_equals_one_without_late_batches(make_twin):
    stored = []
    for is_late in (False, True):
        twin = make_twin()
        twin.register("job", SIZES)
        consumer = twin.consumer()
        batches = [step_batches(HEALTHY, step) for step in range(3)]
        if is_late:
            twin.append("job", *(batch for step in batches for batch in step[1:]))
            twin.turns(consumer, num_turns=1)
            twin.turns(consumer, num_turns=2, each_s=11 * DEADLINE_S)
            twin.append("job", *(step[0] for step in reversed(batches)))
        else:
            twin.append("job", *(batch for step in batches for batch in step))
        twin.turns(consumer, num_turns=1)
        [(trace, result, per_step)] = twin.windows("trace", "result", "per_step")
        window = structs.replace(result.window, revision=None)
        stored.append((trace, structs.replace(result, window=window), per_step))
    assert stored[0] == stored[1]


@pytest.mark.parametrize("is_behind", [True, False], ids=["held back", "up to date"])
def test_batches_around_the_end_of_a_job_are_in_its_windows(twin, is_behind):
    twin.register("job", SIZES)
    consumer = twin.consumer()
    batches = [step_batches(HEALTHY, step) for step in range(4)]
    for first, *others in batches:
        twin.append("job", first, *others[:-1])
    twin.end("job")  # reported by the first rank while the last one still sends
    if not is_behind:
        twin.turns(consumer)
        assert twin.windows("state") == [("incomplete",), ("incomplete",)]
    twin.append("job", *(step[-1] for step in batches))
    twin.turns(consumer)
    assert twin.windows("state", "num_steps") == [("complete", 3), ("complete", 1)]
    sent = num_ops(batch for step in batches for batch in step)
    assert sum(unpack_window(blob).ops.num_ops for (blob,) in twin.windows("trace")) == sent
    found = counts(twin)
    assert (found["accepted"], sum(found.values())) == (sent, sent)
