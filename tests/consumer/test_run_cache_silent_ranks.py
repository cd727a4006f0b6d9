"""Silent ranks, by the arrival times of batches and not by their content."""

from dataclasses import replace

import pytest

from app.consumer.run_cache import NONE_SILENT, RankWatch
from app.store import as_of
from app.store.runs import SilentRanks
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.twin import step_batches

TIMEOUT_S = 300.0


@pytest.fixture
def watch():
    watch = RankWatch(0.0, 1000.0)
    for rank in (0, 1, 2):
        watch.note_batch(rank, 10.0, 1010.0)
    return watch


def test_no_rank_is_silent_before_the_timeout(watch):
    assert watch.silent_ranks(10.0 + TIMEOUT_S - 1, 2000.0, TIMEOUT_S, ()) == NONE_SILENT


def test_rank_is_silent_while_others_send(watch):
    watch.note_batch(0, 200.0, 1200.0)
    watch.note_batch(2, 309.0, 1309.0)
    assert watch.silent_ranks(311.0, 1311.0, TIMEOUT_S, ()) == SilentRanks(
        (1,), silent_since_s=1010.0
    )


def test_rank_never_seen_is_silent_since_the_first_batch(watch):
    for rank in (0, 1, 2):
        watch.note_batch(rank, 290.0, 1290.0)
    assert watch.silent_ranks(311.0, 1311.0, TIMEOUT_S, (3,)) == SilentRanks(
        (3,), silent_since_s=1010.0
    )
    assert watch.silent_ranks(309.0, 1309.0, TIMEOUT_S, (3,)) == NONE_SILENT


def test_first_batch_of_a_slow_start_makes_no_other_rank_silent():
    watch = RankWatch(0.0, 1000.0)
    watch.note_batch(0, 600.0, 1600.0)
    assert watch.silent_ranks(605.0, 1605.0, TIMEOUT_S, (1, 2)) == NONE_SILENT


@pytest.mark.parametrize("pause_s", [TIMEOUT_S - 5, 3 * TIMEOUT_S])
def test_first_rank_after_a_pause_of_all_makes_no_other_silent(watch, pause_s):
    watch_ranks(watch, 10, 10 + pause_s)
    again_s = 20 + pause_s
    assert (
        watch_ranks(watch, again_s, again_s + TIMEOUT_S - 5, sending=(0,), never_seen=(7,))
        == NONE_SILENT
    )
    late = watch_ranks(
        watch, again_s + TIMEOUT_S, again_s + TIMEOUT_S + 10, sending=(0,), never_seen=(7,)
    )
    assert late.silent_ranks == (1, 2, 7)


def test_silent_rank_stays_silent_during_and_after_a_pause_of_all(watch):
    assert watch_ranks(watch, 10, 320, sending=(0, 1)).silent_ranks == (2,)
    assert watch_ranks(watch, 320, 320 + TIMEOUT_S - 10).silent_ranks == (2,)
    assert watch_ranks(watch, 330 + TIMEOUT_S, 340 + TIMEOUT_S, sending=(0,)).silent_ranks == (2,)


def watch_ranks(watch, from_s, to_s, sending=(), never_seen=()):
    """Check every five seconds while these ranks send; return the last result."""
    found = NONE_SILENT
    for now_s in range(int(from_s), int(to_s) + 1, 5):
        for rank in sending:
            watch.note_batch(rank, float(now_s), 1000.0 + now_s)
        found = watch.silent_ranks(float(now_s), 1000.0 + now_s, TIMEOUT_S, never_seen)
    return found


def test_job_without_batches_is_stalled_and_has_no_silent_rank(watch):
    assert watch.silent_ranks(400.0, 1400.0, TIMEOUT_S, (3,)) == SilentRanks(stalled_since_s=1010.0)


def test_run_without_any_batch_is_stalled_since_its_registration():
    watch = RankWatch(0.0, 990.0)
    assert watch.silent_ranks(TIMEOUT_S - 1, 1299.0, TIMEOUT_S, (0, 1)) == NONE_SILENT
    stalled = SilentRanks(stalled_since_s=990.0)
    assert watch.silent_ranks(TIMEOUT_S, 1300.0, TIMEOUT_S, (0, 1)) == stalled
    successor = RankWatch(0.0, 990.0, saved=stalled)
    assert successor.silent_ranks(1.0, 2000.0, TIMEOUT_S, (0, 1)) == stalled


def saved_silence(twin):
    [row] = twin.rows("runs", "silent_ranks", "silent_since_s", "stalled_since_s")
    return row


@pytest.fixture
def busy(twin):
    """A twin whose job has sent a step, and its consumer."""
    twin.register("job", SIZES)
    consumer = twin.consumer()
    twin.push("job", HEALTHY, 0)
    twin.turns(consumer)
    return twin, consumer


def run_for(twin, consumer, seconds, *batches):
    """Advance time, then append these batches."""
    twin.turns(consumer, num_turns=int(seconds / 10), each_s=10.0)
    twin.append("job", *batches)
    twin.turns(consumer, num_turns=2, each_s=6.0)


def test_silent_rank_is_saved_announced_and_recovers_with_its_next_batch(busy):
    twin, consumer = busy
    silent, *others = step_batches(HEALTHY, 1)
    for _ in range(3):
        run_for(twin, consumer, 85, *others)
    assert saved_silence(twin) == (None, None, None)
    run_for(twin, consumer, 40, *others)
    ranks, since_s, stalled_s = saved_silence(twin)
    assert ranks == (silent.rank,)
    assert since_s == pytest.approx(1.7e9, abs=15.0)  # first batch of the job
    assert stalled_s is None
    assert {"event": "job", "job_id": "job"} in twin.announced.messages
    run_for(twin, consumer, 20, silent)
    twin.turns(consumer, each_s=6.0)
    assert saved_silence(twin) == (None, None, None)


def test_worker_of_a_silent_rank_is_known_in_any_rank_order(make_twin):
    twin = make_twin(start_within_s=0.0)  # else an incomplete first step has half an hour
    twin.register("job", SIZES)
    consumer = twin.consumer()
    reversed_ranks = [
        [
            replace(batch, rank=SIZES.num_workers - 1 - batch.rank)
            for batch in step_batches(HEALTHY, step)
        ]
        for step in range(2)
    ]
    twin.append("job", *reversed_ranks[0][:-1])  # the last worker never sends
    twin.turns(consumer)
    silent, *others = reversed_ranks[1][:-1]
    for _ in range(3):
        run_for(twin, consumer, 85, *others)
    run_for(twin, consumer, 40, *others)
    [(ranks, workers)] = twin.rows("runs", "silent_ranks", "silent_workers")
    never = reversed_ranks[0][-1]
    theirs = {each.rank: each.dp_rank * SIZES.pp_size + each.stage for each in (silent, never)}
    assert dict(zip(ranks, workers, strict=True)) == theirs


def test_rank_outside_the_job_is_never_silent(busy):
    twin, consumer = busy
    [first, *_] = step_batches(HEALTHY, 1)
    twin.append("job", replace(first, rank=999, dp_rank=SIZES.dp_size))
    for step in range(1, 4):
        run_for(twin, consumer, 150, *step_batches(HEALTHY, step))
    assert saved_silence(twin) == (None, None, None)


def test_job_without_further_batches_is_saved_as_stalled(busy):
    twin, consumer = busy
    run_for(twin, consumer, 310)
    ranks, since_s, stalled_s = saved_silence(twin)
    assert (ranks, since_s) == (None, None)
    assert stalled_s == pytest.approx(1.7e9, abs=1.0)


def test_stalled_job_is_evicted_and_loaded_again(busy):
    twin, consumer = busy
    run_for(twin, consumer, 500)
    run_for(twin, consumer, 0, *step_batches(HEALTHY, 1))
    twin.turns(consumer, each_s=6.0)
    assert saved_silence(twin) == (None, None, None)
    assert twin.windows("num_steps") == [(2,)]


def test_set_clock_makes_no_rank_silent_and_closes_no_window(busy):
    twin, consumer = busy
    twin.append("job", *step_batches(HEALTHY, 1)[1:])
    for jump_s in (3600.0, -7200.0):
        twin.unix_clock.now_s += jump_s
        twin.turns(consumer, each_s=6.0)
    assert saved_silence(twin) == (None, None, None)
    assert twin.windows("state", "num_steps") == [("open", 2)]


def test_queued_batches_make_no_rank_silent(busy, monkeypatch):
    twin, consumer = busy
    monkeypatch.setattr(twin.context.queue, "oldest", lambda _shard, **_besides: "1-0")
    run_for(twin, consumer, 500)
    assert saved_silence(twin) == (None, None, None)
    monkeypatch.undo()
    run_for(twin, consumer, 10)
    assert saved_silence(twin)[2] is not None, "all that had come is taken: nothing did for long"


def test_batches_count_from_when_they_came_not_from_when_they_are_taken(busy):
    twin, consumer = busy
    silent, *others = step_batches(HEALTHY, 1)
    twin.append("job", replace(silent, batch_seq=1))
    held = twin.context.queue.read
    twin.context.queue.read = lambda *_args, **_options: []
    for number in range(40):
        twin.append("job", *(replace(batch, batch_seq=1 + number) for batch in others))
        twin.turns(consumer, num_turns=1, each_s=10.0)
    assert saved_silence(twin) == (None, None, None)
    twin.context.queue.read = held
    run_for(twin, consumer, 20)
    assert saved_silence(twin)[0] == (silent.rank,)


def refuse(twin, *job_ids):
    with twin.store.write() as conn:
        as_of.note_refused(conn, job_ids, now_s=twin.context.database_time(conn))


@pytest.mark.parametrize("refused", ["job", as_of.EVERY_JOB])
def test_refused_pushes_make_no_rank_silent_until_they_are_tried_again(busy, refused):
    twin, consumer = busy
    for _ in range(60):
        refuse(twin, refused, "other")
        run_for(twin, consumer, 10)
    assert saved_silence(twin) == (None, None, None)
    run_for(twin, consumer, 0)
    assert saved_silence(twin) == (None, None, None), "a worker tries again within 30 s"
    run_for(twin, consumer, 40)
    assert saved_silence(twin)[2] is not None


def test_refused_pushes_of_another_job_excuse_no_rank(busy):
    twin, consumer = busy
    for _ in range(60):
        refuse(twin, "other")
        run_for(twin, consumer, 10)
    assert saved_silence(twin)[2] is not None


def test_constant_backlog_hides_no_silent_rank(busy, monkeypatch):
    twin, consumer = busy
    silent, *others = step_batches(HEALTHY, 1)
    real = twin.context.queue.oldest
    # The newest entry is always fresh and still in the queue.
    monkeypatch.setattr(twin.context.queue, "newest", lambda _shard: f"{int(twin.clock() * 1e6)}-0")
    monkeypatch.setattr(
        twin.context.queue, "oldest", lambda shard, **_besides: twin.context.queue.newest(shard)
    )
    for number, batch in enumerate(others * 12):
        twin.append("job", replace(batch, batch_seq=1 + number // 3))
        twin.turns(consumer, num_turns=1, each_s=10.0)
    assert saved_silence(twin)[0] == (silent.rank,)
    assert real(0) is None
