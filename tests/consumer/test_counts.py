"""Every operation that is taken from the queue is in exactly one count."""

import random
from dataclasses import replace

import pytest

from app.ingest.trace_codec import unpack
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.place import DEADLINE_S, step_batches

NAMES = ("accepted", "duplicate", "conflict", "late", "dead", "lost_batches")


def counts(place):
    [row] = place.rows("ingest_counts", *NAMES)
    return dict(zip(NAMES, row, strict=True))


def num_ops(batches):
    return sum(batch.columns.num_ops for batch in batches)


def test_duplicates_and_conflicts_are_counted_and_change_nothing(place):
    place.register("job", SIZES)
    batches = step_batches(HEALTHY, 0)
    other = replace(batches[0], columns=batches[1].columns)
    place.append("job", *batches, batches[1], other)
    place.turns(place.consumer())
    assert counts(place) == {
        "accepted": num_ops(batches),
        "duplicate": batches[1].columns.num_ops,
        "conflict": other.columns.num_ops,
        "late": 0,
        "dead": 0,
        "lost_batches": 0,
    }
    [(sample,)] = place.rows("ingest_counts", "last_conflict")
    assert sample is not None
    assert (sample["rank"], sample["batch_seq"]) == (batches[0].rank, 0)


def test_counts_outlive_their_consumer(place):
    place.register("job", SIZES)
    for step in range(5):
        place.push("job", HEALTHY, step)
        place.turns(place.consumer(), num_turns=1)
    assert counts(place)["accepted"] == sum(num_ops(step_batches(HEALTHY, s)) for s in range(5))


def test_a_number_that_never_comes_is_a_lost_batch(place):
    place.register("job", SIZES)
    consumer = place.consumer()
    place.push("job", HEALTHY, 0)
    first, *others = step_batches(HEALTHY, 1)
    place.append("job", replace(first, batch_seq=3), *others)
    place.turns(consumer, num_turns=int(DEADLINE_S) + 2)
    assert counts(place)["lost_batches"] == 2
    assert place.windows("num_steps") == [(2,)]


def test_what_was_appended_is_accepted_duplicate_conflict_late_or_dead(place):
    rng = random.Random(4)
    place.register("job", SIZES)
    consumer = place.consumer()
    appended = []
    for step in range(12):
        for batch in step_batches(HEALTHY, step):
            appended += [batch] * rng.choice((0, 1, 1, 1, 2, 3))
            if rng.random() < 0.1:
                appended.append(replace(batch, host="another"))
    rng.shuffle(appended)
    for first in range(0, len(appended), 5):
        place.append("job", *appended[first : first + 5])
        place.turns(consumer, num_turns=1, each_s=rng.choice((1.0, 1.0, 11 * DEADLINE_S)))
    again = [replace(step_batches(HEALTHY, step)[0], batch_seq=100 + step) for step in range(12)]
    place.append("job", *again)
    place.append_bytes("job", b"no batch")
    place.end("job")
    place.turns(consumer)
    found = counts(place)
    assert found.pop("lost_batches") > 0
    assert sum(found.values()) == num_ops([*appended, *again])
    assert min(found["accepted"], found["duplicate"], found["conflict"], found["late"]) > 0
    assert place.queue.reader.backlog(0) == 0


def test_late_batches_revise_a_closed_window_of_the_store(place):
    place.register("job", SIZES)
    consumer = place.consumer()
    late = []
    for step in range(3):
        first, *others = step_batches(HEALTHY, step)
        late.append(first)
        place.append("job", *others)
    place.turns(consumer, num_turns=1)
    place.turns(consumer, num_turns=2, each_s=11 * DEADLINE_S)
    assert place.windows("state", "num_steps", "revision") == [("incomplete", 0, 3)]
    place.append("job", late[1])
    place.turns(place.consumer(), num_turns=1)
    assert place.windows("state", "num_steps", "revision") == [("incomplete", 1, 4)]
    place.append("job", late[2], late[0])
    place.turns(place.consumer(), num_turns=1)
    assert place.windows("state", "num_steps", "revision") == [("complete", 3, 5)]
    assert place.rows("steps", "step", "skipped_reason") == [(0, None), (1, None), (2, None)]
    assert counts(place)["late"] == 0
    assert place.rows("spool") == []


def test_a_revised_window_is_bit_equal_to_one_that_nothing_was_late_for(make_place):
    stored = []
    for is_late in (False, True):
        place = make_place()
        place.register("job", SIZES)
        consumer = place.consumer()
        batches = [step_batches(HEALTHY, step) for step in range(3)]
        if is_late:
            place.append("job", *(batch for step in batches for batch in step[1:]))
            place.turns(consumer, num_turns=1)
            place.turns(consumer, num_turns=2, each_s=11 * DEADLINE_S)
            place.append("job", *(step[0] for step in reversed(batches)))
        else:
            place.append("job", *(batch for step in batches for batch in step))
        place.turns(consumer, num_turns=1)
        [(trace, result, per_step)] = place.windows("trace", "result", "per_step")
        result["window"].pop("revision")
        stored.append((trace, result, per_step))
    assert stored[0] == stored[1]


@pytest.mark.parametrize("is_behind", [True, False], ids=["held back", "up to date"])
def test_what_is_taken_around_the_end_of_a_job_is_in_its_windows(place, is_behind):
    place.register("job", SIZES)
    consumer = place.consumer()
    batches = [step_batches(HEALTHY, step) for step in range(4)]
    for first, *others in batches:
        place.append("job", first, *others[:-1])
    place.end("job")  # says the first rank, while the last one is still sending
    if not is_behind:
        place.turns(consumer)
        assert place.windows("state") == [("incomplete",), ("incomplete",)]
    place.append("job", *(step[-1] for step in batches))
    place.turns(consumer)
    assert place.windows("state", "num_steps") == [("complete", 3), ("complete", 1)]
    sent = num_ops(batch for step in batches for batch in step)
    assert sum(unpack(blob).num_ops for (blob,) in place.windows("trace")) == sent
    found = counts(place)
    assert (found["accepted"], sum(found.values())) == (sent, sent)
