"""Runs end by the reports of their ranks: closed, told by one alert, and taken back by data."""

from dataclasses import replace

import pytest

from app.alerts.rule import default_rules
from app.consumer.shard import EndedRunTracker
from app.store import exits, jobs
from app.store.database import Store
from app.store.exits import GOES_ON_AFTER_S, QUIET_S
from app.trace.exits import RankExit
from tests.consumer.jobs import HEALTHY, SIZES
from tests.consumer.twin import step_batches


@pytest.fixture
def busy(twin):
    """A twin with the default rules whose job has sent two steps, and its consumer."""
    twin.context = replace(twin.context, default_rules=default_rules())
    twin.register("job", SIZES)
    consumer = twin.consumer()
    twin.push("job", HEALTHY, 0, 1)
    twin.turns(consumer)
    return twin, consumer


def report(twin, rank, outcome, epoch=1, **about):
    dp_rank, stage = divmod(rank, SIZES.pp_size)
    with Store.write(twin.store) as conn:
        now_s = twin.context.unix_time()
        told = RankExit(rank, dp_rank, stage, f"n{rank}", outcome, now_s, **about)
        exits.add(conn, "job", epoch, told)


def ended_as(twin):
    return twin.rows("runs", "ended_as", "is_closed")


def alerts(twin):
    return [tuple(row) for row in twin.rows("alert_events", "rule", "kind")]


def test_a_job_of_which_one_rank_was_killed_and_nothing_more_comes_has_crashed(busy):
    twin, consumer = busy
    report(twin, 3, "killed", signal=9)
    twin.turns(consumer, num_turns=int(QUIET_S) - 8)
    assert ended_as(twin) == [(None, False)]
    twin.turns(consumer, num_turns=20)
    assert ended_as(twin) == [("crashed", True)]
    assert alerts(twin) == [("crashed", "firing")]
    [sentence] = twin.rows("alert_events", "sentence")
    assert "rank 3 (dp 1, stage 1) was killed by SIGKILL" in sentence[0]


def test_a_job_that_goes_on_after_a_failed_rank_has_not_ended(busy):
    twin, consumer = busy
    report(twin, 3, "failed", exit_code=1)
    for step in range(2, 8):
        twin.turns(consumer, num_turns=9)
        twin.push("job", HEALTHY, step)
    twin.turns(consumer)
    assert ended_as(twin) == [(None, False)]


def test_a_crashed_job_is_neither_stalled_nor_silent_hours_later(busy):
    twin, consumer = busy
    for rank in range(4):
        report(twin, rank, "failed", error_type="ValueError")
    twin.turns(consumer, num_turns=8)
    twin.turns(consumer, num_turns=100, each_s=60.0)
    assert twin.rows("runs", "stalled_since_s", "silent_ranks") == [(None, None)]
    assert alerts(twin) == [("crashed", "firing")]


def test_the_next_run_resolves_the_alert_once_it_sends(busy):
    twin, consumer = busy
    for rank in range(4):
        report(twin, rank, "failed", error_type="ValueError")
    twin.turns(consumer, num_turns=8)
    twin.register("job", SIZES, run_key="again")
    twin.turns(consumer, num_turns=12)
    assert alerts(twin) == [("crashed", "firing")]  # it may crash again before it sends
    twin.push("job", HEALTHY, 0, epoch=2)
    twin.turns(consumer, num_turns=12)
    assert alerts(twin) == [("crashed", "firing"), ("crashed", "resolved")]


def test_the_alert_ends_when_the_job_is_archived(busy):
    twin, consumer = busy
    for rank in range(4):
        report(twin, rank, "killed")
    twin.turns(consumer, num_turns=8)
    with Store.write(twin.store) as conn:
        assert jobs.archive(conn, "job", now_s=twin.context.unix_time())
    twin.turns(consumer, num_turns=12)
    assert alerts(twin) == [("crashed", "firing"), ("crashed", "resolved")]


def test_data_long_after_the_end_takes_it_back(busy):
    twin, consumer = busy
    twin.queue.clock_s = twin.unix_clock  # as a real queue's
    for rank in range(4):
        report(twin, rank, "killed")
    twin.turns(consumer, num_turns=8)
    twin.push("job", HEALTHY, 2)  # was on its way
    twin.turns(consumer, num_turns=8)
    assert ended_as(twin) == [("crashed", True)]
    twin.pass_time(GOES_ON_AFTER_S)
    twin.push("job", HEALTHY, 3)
    twin.turns(consumer, num_turns=3)
    assert ended_as(twin) == [(None, False)]
    assert twin.rows("rank_exits") == []


def test_a_run_is_closed_when_what_was_queued_at_its_end_is_done(make_twin):
    twin = make_twin()
    twin.register("job", SIZES)
    first, *_ = step_batches(HEALTHY, 0)
    twin.append("job", first)
    twin.end("job")
    ended = EndedRunTracker(twin.context, 0, {})
    assert ended.ready() == []
    [entry] = twin.entries()
    assert ended.ready() == []  # read, and lost if its consumer dies now
    twin.context.queue.done(0, [entry.entry_id])
    assert [run.job_id for run in ended.ready()] == ["job"]


def test_a_job_whose_ranks_have_all_finished_raises_no_alert(busy):
    twin, consumer = busy
    for rank in range(4):
        report(twin, rank, "finished")
    twin.turns(consumer, num_turns=8)
    assert ended_as(twin) == [("finished", True)]
    assert alerts(twin) == []
