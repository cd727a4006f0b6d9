"""Who has fallen silent, told from when batches come and not from what is in them."""

from dataclasses import replace

import pytest

from app.consumer.silence import SENDING, Silence, Watch
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.place import step_batches

PATIENCE_S = 300.0


@pytest.fixture
def watch():
    watch = Watch(0.0, 1000.0)
    for rank in (0, 1, 2):
        watch.heard(rank, 10.0, 1010.0)
    return watch


def test_everybody_is_sending_until_their_time_is_over(watch):
    assert watch.silence(10.0 + PATIENCE_S - 1, 2000.0, PATIENCE_S, ()) == SENDING


def test_a_rank_is_silent_while_others_go_on(watch):
    watch.heard(0, 200.0, 1200.0)
    watch.heard(2, 309.0, 1309.0)
    assert watch.silence(311.0, 1311.0, PATIENCE_S, ()) == Silence((1,), silent_since_s=1010.0)


def test_a_rank_that_was_never_heard_of_is_silent_since_the_first_one_was(watch):
    for rank in (0, 1, 2):
        watch.heard(rank, 290.0, 1290.0)
    assert watch.silence(311.0, 1311.0, PATIENCE_S, (3,)) == Silence((3,), silent_since_s=1010.0)
    assert watch.silence(309.0, 1309.0, PATIENCE_S, (3,)) == SENDING


def test_of_a_job_that_starts_slowly_nobody_is_late_when_the_first_worker_sends():
    watch = Watch(0.0, 1000.0)
    watch.heard(0, 600.0, 1600.0)
    assert watch.silence(605.0, 1605.0, PATIENCE_S, (1, 2)) == SENDING


@pytest.mark.parametrize("pause_s", [PATIENCE_S - 5, 3 * PATIENCE_S])
def test_after_a_pause_of_all_the_first_to_send_makes_no_other_late(watch, pause_s):
    look(watch, 10, 10 + pause_s)
    again_s = 20 + pause_s
    assert look(watch, again_s, again_s + PATIENCE_S - 5, sending=(0,), unheard=(7,)) == SENDING
    late = look(watch, again_s + PATIENCE_S, again_s + PATIENCE_S + 10, sending=(0,), unheard=(7,))
    assert late.silent_ranks == (1, 2, 7)


def test_a_rank_that_was_silent_before_a_pause_of_all_is_silent_in_it_and_after_it(watch):
    assert look(watch, 10, 320, sending=(0, 1)).silent_ranks == (2,)
    assert look(watch, 320, 320 + PATIENCE_S - 10).silent_ranks == (2,)
    assert look(watch, 330 + PATIENCE_S, 340 + PATIENCE_S, sending=(0,)).silent_ranks == (2,)


def look(watch, from_s, to_s, sending=(), unheard=()):
    """Somebody looks every five seconds, and these ranks send; what is seen in the end."""
    found = SENDING
    for now_s in range(int(from_s), int(to_s) + 1, 5):
        for rank in sending:
            watch.heard(rank, float(now_s), 1000.0 + now_s)
        found = watch.silence(float(now_s), 1000.0 + now_s, PATIENCE_S, unheard)
    return found


def test_when_none_sends_the_job_has_stalled_and_no_rank_is_blamed(watch):
    assert watch.silence(400.0, 1400.0, PATIENCE_S, (3,)) == Silence(stalled_since_s=1010.0)


def test_a_run_of_which_nothing_ever_comes_has_stalled_since_it_registered():
    watch = Watch(0.0, 990.0)
    assert watch.silence(PATIENCE_S - 1, 1299.0, PATIENCE_S, (0, 1)) == SENDING
    stalled = Silence(stalled_since_s=990.0)
    assert watch.silence(PATIENCE_S, 1300.0, PATIENCE_S, (0, 1)) == stalled
    heir = Watch(0.0, 990.0, told=stalled)
    assert heir.silence(1.0, 2000.0, PATIENCE_S, (0, 1)) == stalled


def test_who_could_not_be_heard_is_forgiven(watch):
    watch.forgive(400.0)
    assert watch.silence(400.0 + PATIENCE_S - 1, 2000.0, PATIENCE_S, (3,)) == SENDING


def test_a_run_of_which_nothing_ever_came_is_not_forgiven():
    watch = Watch(100.0, 990.0, waited_s=50.0)
    watch.forgive(200.0)
    assert watch.silence(49.0 + PATIENCE_S, 2000.0, PATIENCE_S, ()) == SENDING
    stalled = Silence(stalled_since_s=990.0)
    assert watch.silence(50.0 + PATIENCE_S, 2000.0, PATIENCE_S, ()) == stalled


def silences(place):
    [row] = place.rows("runs", "silent_ranks", "silent_since_s", "stalled_since_s")
    return row


@pytest.fixture
def busy(place):
    """A place whose job has sent a step, and its consumer."""
    place.register("job", SIZES)
    consumer = place.consumer()
    place.push("job", HEALTHY, 0)
    place.turns(consumer)
    return place, consumer


def go_on(place, consumer, seconds, *batches):
    """Time passes, in which these come at the end."""
    place.turns(consumer, num_turns=int(seconds / 10), each_s=10.0)
    place.append("job", *batches)
    place.turns(consumer, num_turns=2, each_s=6.0)


def test_a_silent_rank_is_named_and_everybody_told(busy):
    place, consumer = busy
    silent, *others = step_batches(HEALTHY, 1)
    for _ in range(3):
        go_on(place, consumer, 85, *others)
    assert silences(place) == (None, None, None)
    go_on(place, consumer, 40, *others)
    ranks, since_s, stalled_s = silences(place)
    assert ranks == [silent.rank]
    assert since_s == pytest.approx(1.7e9, abs=15.0)  # we did not listen at first
    assert stalled_s is None
    assert {"event": "job", "job_id": "job"} in place.heard.messages


def test_whose_rank_is_silent_is_told_whatever_the_order_of_ranks(make_place):
    place = make_place(start_within_s=0.0)  # or a step that is not whole would have half an hour
    place.register("job", SIZES)
    consumer = place.consumer()
    reversed_ranks = [
        [
            replace(batch, rank=SIZES.num_workers - 1 - batch.rank)
            for batch in step_batches(HEALTHY, step)
        ]
        for step in range(2)
    ]
    place.append("job", *reversed_ranks[0][:-1])  # the last worker is never heard of
    place.turns(consumer)
    silent, *others = reversed_ranks[1][:-1]
    for _ in range(3):
        go_on(place, consumer, 85, *others)
    go_on(place, consumer, 40, *others)
    [(ranks, workers)] = place.rows("runs", "silent_ranks", "silent_workers")
    never = reversed_ranks[0][-1]
    theirs = {each.rank: each.dp_rank * SIZES.pp_size + each.stage for each in (silent, never)}
    assert dict(zip(ranks, workers, strict=True)) == theirs


def test_a_rank_that_the_job_does_not_have_is_never_called_silent(busy):
    place, consumer = busy
    [first, *_] = step_batches(HEALTHY, 1)
    place.append("job", replace(first, rank=999, dp_rank=SIZES.dp_size))
    for step in range(1, 4):
        go_on(place, consumer, 150, *step_batches(HEALTHY, step))
    assert silences(place) == (None, None, None)


def test_a_silence_ends_with_the_next_batch(busy):
    place, consumer = busy
    silent, *others = step_batches(HEALTHY, 1)
    go_on(place, consumer, 290, *others)
    go_on(place, consumer, 20, silent)
    place.turns(consumer, each_s=6.0)
    assert silences(place) == (None, None, None)


def test_a_job_of_which_nothing_comes_has_stalled_without_any_data(busy):
    place, consumer = busy
    go_on(place, consumer, 310)
    ranks, since_s, stalled_s = silences(place)
    assert (ranks, since_s) == (None, None)
    assert stalled_s == pytest.approx(1.7e9, abs=1.0)


def test_a_stalled_job_is_let_go_of_and_comes_back(busy):
    place, consumer = busy
    go_on(place, consumer, 500)
    go_on(place, consumer, 0, *step_batches(HEALTHY, 1))
    place.turns(consumer, each_s=6.0)
    assert silences(place) == (None, None, None)
    assert place.windows("num_steps") == [(2,)]


def test_a_clock_that_is_set_makes_nobody_silent_and_closes_nothing(busy):
    place, consumer = busy
    place.append("job", *step_batches(HEALTHY, 1)[1:])
    for jump_s in (3600.0, -7200.0):
        place.unix_clock.now_s += jump_s
        place.turns(consumer, each_s=6.0)
    assert silences(place) == (None, None, None)
    assert place.windows("state", "num_steps") == [("open", 1)]


def test_what_waits_in_the_queue_makes_nobody_silent(busy, monkeypatch):
    place, consumer = busy
    monkeypatch.setattr(place.work.queue, "oldest", lambda _shard, **_besides: "1-0")
    go_on(place, consumer, 500)
    assert silences(place) == (None, None, None)
    monkeypatch.undo()
    go_on(place, consumer, 200)
    assert silences(place) == (None, None, None)
    go_on(place, consumer, 200)
    assert silences(place)[2] is not None


def test_what_comes_all_the_time_hides_no_silence(busy, monkeypatch):
    place, consumer = busy
    silent, *others = step_batches(HEALTHY, 1)
    real = place.work.queue.oldest
    # Whenever we look, the newest entry has just come and nobody has taken it.
    monkeypatch.setattr(place.work.queue, "newest", lambda _shard: f"{int(place.clock() * 1e6)}-0")
    monkeypatch.setattr(
        place.work.queue, "oldest", lambda shard, **_besides: place.work.queue.newest(shard)
    )
    for number, batch in enumerate(others * 12):
        place.append("job", replace(batch, batch_seq=1 + number // 3))
        place.turns(consumer, num_turns=1, each_s=10.0)
    assert silences(place)[0] == [silent.rank]
    assert real(0) is None
