"""Alerts that go by the clock: fired by the consumer though nothing comes."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.alerts.defaults import default_rules
from app.alerts.rule import Rule
from app.consumer.standings import standings
from app.errors import StoreUnavailable
from app.store import alert_rules, alerts, projects, scores
from app.store.engine import Store
from app.store.score_tables import score_reports
from app.trace.scores import Score, ScoreReport
from tests.consumer.jobs import HEALTHY, SIZES, SLOW
from tests.consumer.place import slowdown_rules, step_batches

JOB = "default/job"
SILENT_AFTER_S = 300.0


@pytest.fixture
def make(make_place):
    """Makes a place with these rules, and what pushes a window of the job or lets time pass."""

    def make(*rules, **given):
        place = make_place(window_steps=2, usual_rules=rules, **given)
        place.register(JOB, SIZES)
        return place

    return make


def go_on(place, consumer, seconds):
    """Time passes, and the consumer looks at it every five seconds."""
    for _ in range(int(seconds / 5)):
        place.turns(consumer, num_turns=1, each_s=5.0)


def push(place, consumer, numbers, made=SLOW, *, without=()):
    for _ in range(2):
        batches = step_batches(made, next(numbers))
        place.append(JOB, *(each for each in batches if each.rank not in without))
        place.turns(consumer)


def rang(place, *kinds):
    found = place.rows("alert_events", "rule", "kind")
    return [row for row in found if row[1] in (kinds or ("firing", "resolved", "no-data"))]


def by_clock(**given):
    known: dict[str, Any] = {"for_s": 0.0, "keep_firing_s": 0.0, "severity": "critical"}
    return Rule("stalled", "stalled", **known | given)


def test_a_job_that_stalls_is_told_with_no_traffic_at_all(make):
    place = make(by_clock())
    consumer = place.consumer()
    push(place, consumer, itertools.count())
    go_on(place, consumer, SILENT_AFTER_S - 20)
    assert rang(place) == []
    go_on(place, consumer, 30)
    assert rang(place) == [("stalled", "firing")]
    [(sentence,)] = place.rows("alert_events", "sentence")
    assert sentence == "No worker of job has sent anything since step 1."
    assert place.rows("alert_groups", "rule") == [("stalled",)]


def test_it_is_told_once_and_is_over_when_something_comes_again(make):
    place = make(by_clock())
    consumer, numbers = place.consumer(), itertools.count()
    push(place, consumer, numbers)
    go_on(place, consumer, SILENT_AFTER_S + 200)
    assert rang(place) == [("stalled", "firing")]
    push(place, consumer, numbers)
    go_on(place, consumer, 10)
    assert rang(place) == [("stalled", "firing"), ("stalled", "resolved")]
    assert place.rows("alerts") == []


def test_one_that_has_ceased_to_hold_is_on_its_way_down(make):
    place = make(by_clock(keep_firing_s=60.0), silent_after_s=60.0)
    consumer, numbers = place.consumer(), itertools.count()
    push(place, consumer, numbers)
    go_on(place, consumer, 80)
    assert is_waning(place) == [False]
    push(place, consumer, numbers)
    go_on(place, consumer, 10)
    assert is_waning(place) == [True]


def is_waning(place):
    """Of each alert, whether nobody is told now that it has begun."""
    with place.store.read() as conn:
        found = standings(conn, alerts.of_job(conn, JOB), {}, place.unix_clock())
    return [each.is_waning for each in found]


def test_what_fired_by_figures_is_without_data_meanwhile(make):
    place = make(*slowdown_rules(1), by_clock())
    consumer, numbers = place.consumer(), itertools.count()
    push(place, consumer, numbers)
    go_on(place, consumer, SILENT_AFTER_S + 20)
    assert rang(place) == [("slowdown", "firing"), ("stalled", "firing"), ("slowdown", "no-data")]
    push(place, consumer, numbers)
    go_on(place, consumer, 10)
    kinds = rang(place, "data-again", "resolved")
    assert sorted(kinds) == [("slowdown", "data-again"), ("stalled", "resolved")]


def test_a_silent_worker_is_named(make):
    place = make(*default_rules())
    consumer, numbers = place.consumer(), itertools.count()
    push(place, consumer, numbers)
    batches = step_batches(SLOW, 0)
    gone = batches[-1].rank
    for _ in range(int(SILENT_AFTER_S / 10) + 2):
        push(place, consumer, numbers, without={gone})
        go_on(place, consumer, 5)
    assert rang(place) == [("silent-worker", "firing")]
    [sentence] = [row[0] for row in place.rows("alert_events", "sentence") if "silent" in row[0]]
    assert sentence.startswith("1 worker of job has fallen silent by step")
    assert "dp 1, stage 1" in sentence


def test_the_time_that_a_rule_waits_goes_on_over_a_restart_of_the_consumer(make):
    place = make(by_clock(for_s=120.0))
    consumer = place.consumer()
    push(place, consumer, itertools.count())
    go_on(place, consumer, SILENT_AFTER_S + 20)
    assert rang(place, "pending") == [("stalled", "pending")]
    place.pass_time(60.0)
    heir = place.consumer("another")
    go_on(place, heir, 30)
    assert rang(place) == []
    go_on(place, heir, 60)
    assert rang(place) == [("stalled", "firing")]


def test_a_job_that_waits_for_time_stays_in_memory(make):
    place = make(by_clock(for_s=600.0))
    consumer = place.consumer()
    push(place, consumer, itertools.count())
    go_on(place, consumer, SILENT_AFTER_S + 500)
    assert rang(place) == []
    go_on(place, consumer, 150)
    assert rang(place) == [("stalled", "firing")]


def test_a_job_that_has_ended_has_not_stalled(make):
    place = make(by_clock())
    consumer = place.consumer()
    push(place, consumer, itertools.count())
    place.end(JOB)
    go_on(place, consumer, SILENT_AFTER_S + 100)
    assert rang(place, "pending", "firing") == []


def test_who_is_silent_and_its_alert_are_written_together_or_not_at_all(make):
    place = make(by_clock())
    consumer = place.consumer()
    push(place, consumer, itertools.count())
    go_on(place, consumer, SILENT_AFTER_S - 20)
    place.fuse.blow(0, StoreUnavailable("no answer"))
    with pytest.raises(StoreUnavailable):
        go_on(place, consumer, 60)
    assert place.fuse.passed[-1] == "before commit"
    assert rang(place) == []
    assert place.rows("runs", "stalled_since_s") == [(None,)]


def test_a_restart_of_the_consumer_neither_resolves_nor_rings_again(make):
    place = make(*default_rules())
    consumer, numbers = place.consumer(), itertools.count()
    push(place, consumer, numbers)
    gone = step_batches(SLOW, 0)[-1].rank
    for number in range(2 * int(SILENT_AFTER_S / 10) + 4):
        if number == int(SILENT_AFTER_S / 10) + 2:
            assert rang(place) == [("silent-worker", "firing")]
            place.pass_time(60.0)
            consumer = place.consumer("another")
        push(place, consumer, numbers, without={gone})
        go_on(place, consumer, 5)
    assert rang(place) == [("silent-worker", "firing")]
    push(place, consumer, numbers)
    go_on(place, consumer, 10)
    assert rang(place)[1:] == [("silent-worker", "resolved")]


START_WITHIN_S = 1800.0


def test_a_job_that_hangs_before_its_first_step_is_told(make):
    place = make(by_clock())
    consumer = place.consumer()
    go_on(place, consumer, START_WITHIN_S - 20)
    assert rang(place) == []
    go_on(place, consumer, 30)
    assert rang(place) == [("stalled", "firing")]
    [(sentence,)] = place.rows("alert_events", "sentence")
    assert sentence == "No worker of job has sent anything since it began."
    assert place.rows("runs", "stalled_since_s") == [(1.7e9,)]
    go_on(place, place.consumer("another"), 60)
    push(place, place.consumer("a third"), itertools.count())
    assert rang(place)[0] == ("stalled", "firing")


def test_a_job_that_is_started_while_its_consumer_runs_is_watched(make):
    place = make(by_clock())
    consumer = place.consumer()
    push(place, consumer, itertools.count())
    place.register("default/another", SIZES)
    for _ in range(int((START_WITHIN_S + 20) / 200)):
        push(place, consumer, itertools.count())
        go_on(place, consumer, 200)
    found = place.rows("alerts", "job_id", "rule")
    assert found == [("default/another", "stalled")]


def test_a_job_that_takes_long_to_start_rings_nothing(make):
    place = make(*default_rules())
    consumer = place.consumer()
    go_on(place, consumer, START_WITHIN_S - 60)
    late, *others = step_batches(SLOW, 0)
    place.append(JOB, *others)
    go_on(place, consumer, SILENT_AFTER_S - 60)
    place.append(JOB, late)
    go_on(place, consumer, 30)
    assert place.rows("alert_events") == []


def test_a_restart_of_a_stalled_job_does_not_say_that_it_sends_again(make):
    place = make(*slowdown_rules(1), by_clock())
    consumer = place.consumer()
    push(place, consumer, itertools.count())
    go_on(place, consumer, SILENT_AFTER_S + 20)
    place.register(JOB, SIZES, "run-2")
    go_on(place, consumer, 600)
    assert rang(place) == [("slowdown", "firing"), ("stalled", "firing"), ("slowdown", "no-data")]
    go_on(place, consumer, START_WITHIN_S)
    assert rang(place, "resolved") == []
    assert place.rows("runs", "epoch", "stalled_since_s")[1][1] is not None
    place.push(JOB, SLOW, 0, epoch=2)
    go_on(place, consumer, 20)
    assert rang(place, "resolved") == [("stalled", "resolved")]


def test_of_a_run_that_has_not_begun_nothing_is_known(make):
    place = make(*slowdown_rules(1), by_clock())
    consumer = place.consumer()
    push(place, consumer, itertools.count())
    place.register(JOB, SIZES, "run-2")
    go_on(place, consumer, 10)
    assert rang(place) == [("slowdown", "firing"), ("slowdown", "no-data")]
    for step in (0, 1):
        place.push(JOB, SLOW, step, epoch=2)
        place.turns(consumer)
    assert rang(place, "data-again", "resolved") == [("slowdown", "data-again")]


def test_a_rule_that_is_made_after_a_job_has_stalled_tells_of_it(make):
    place = make(*slowdown_rules(1))
    consumer = place.consumer()
    push(place, consumer, itertools.count(), HEALTHY)
    go_on(place, consumer, SILENT_AFTER_S + 200)
    assert rang(place) == []
    now_s = place.unix_clock()
    with Store.write(place.store) as conn:
        projects.make(conn, "default", now_s=now_s)
        rules = [by_clock(for_s=100.0)]
        alert_rules.replace_all(conn, "default", rules, text="", now_s=now_s)
    go_on(place, consumer, 60)
    assert rang(place, "pending") == [("stalled", "pending")]
    go_on(place, consumer, 100)
    assert rang(place) == [("stalled", "firing")]


def test_rules_that_the_service_is_started_with_tell_of_jobs_that_have_stalled_before(make):
    place = make(*slowdown_rules(1))
    consumer = place.consumer()
    push(place, consumer, itertools.count(), HEALTHY)
    go_on(place, consumer, SILENT_AFTER_S + 200)
    place.work = replace(place.work, usual_rules=(by_clock(),))
    place.pass_time(60.0)
    go_on(place, place.consumer("another"), 60)
    assert rang(place) == [("stalled", "firing")]


HASTY = {"silent_after_s": 30.0, "start_within_s": 150.0}


def first_ops(epoch=1):
    """What every worker sends of its first step before it compiles."""
    return [
        replace(each, steps_done=(), columns=each.columns.select(np.arange(1)))
        for each in step_batches(SLOW, 0, epoch)
    ]


def test_a_job_that_compiles_in_its_first_step_has_not_stalled(make):
    place = make(*default_rules(), **HASTY)
    consumer = place.consumer()
    place.append(JOB, *first_ops())
    go_on(place, consumer, 140)
    assert rang(place) == []
    rest = [
        replace(each, batch_seq=1, columns=each.columns.select(np.arange(1, each.columns.num_ops)))
        for each in step_batches(SLOW, 0)
    ]
    place.append(JOB, *rest)
    go_on(place, consumer, 20)
    assert rang(place) == []
    go_on(place, consumer, 20)
    assert rang(place) == [("stalled", "firing")], "then it is as late as any other"


def test_a_worker_that_is_never_heard_of_is_silent_though_no_step_is_whole(make):
    place = make(*default_rules(), silent_after_s=60.0, start_within_s=1e9)
    consumer, numbers = place.consumer(), itertools.count()
    for _ in range(9):
        push(place, consumer, numbers, without={3})
        go_on(place, consumer, 40)
    assert rang(place) == [("silent-worker", "firing")]


def test_a_silent_worker_is_back_once_all_of_a_new_run_have_sent(make):
    place = make(*default_rules(), **HASTY)
    consumer, numbers = place.consumer(), itertools.count()
    push(place, consumer, numbers)
    for _ in range(4):
        push(place, consumer, numbers, without={3})
        go_on(place, consumer, 5)
    assert rang(place) == [("silent-worker", "firing")]
    place.register(JOB, SIZES, "run-2")
    go_on(place, consumer, 30)
    place.append(JOB, *first_ops(epoch=2)[:3])
    go_on(place, consumer, 30)
    assert rang(place) == [("silent-worker", "firing")]
    place.append(JOB, *first_ops(epoch=2)[3:])
    go_on(place, consumer, 10)
    assert rang(place) == [("silent-worker", "firing"), ("silent-worker", "resolved")]


def start_again(place, consumer, name, seconds=35):
    place.register(JOB, SIZES, name)
    go_on(place, consumer, seconds)


def test_a_job_that_fails_at_each_start_is_told(make):
    place = make(by_clock(), **HASTY)
    consumer = place.consumer()
    go_on(place, consumer, 40)
    for number in range(2, 5):
        start_again(place, consumer, f"run-{number}")
        assert rang(place) == []
    for number in range(5, 13):
        start_again(place, consumer, f"run-{number}")
        assert rang(place) == [("stalled", "firing")]


def test_who_has_failed_to_start_long_ago_has_all_the_time_again(make):
    place = make(by_clock(), **HASTY)
    consumer = place.consumer()
    go_on(place, consumer, 2 * HASTY["start_within_s"] + 10)
    start_again(place, consumer, "run-2", HASTY["start_within_s"] - 20)
    assert place.rows("runs", "epoch", "stalled_since_s")[1] == (2, None)
    place.end(JOB)
    go_on(place, consumer, 10)
    start_again(place, consumer, "run-3", HASTY["start_within_s"] - 20)
    assert rang(place) == [("stalled", "firing"), ("stalled", "resolved")]


def score(place):
    score = Score(3, "n3", "s", "late-by", "ms", 0.5, 0.25, None, None, 2, 2, 7, 1.5)
    with Store.write(place.store) as conn:
        scores.add(conn, JOB, ScoreReport("nvrx", (score,), 1), now_s=place.unix_clock())


def test_a_run_of_which_only_scores_come_has_not_stalled(make):
    place = make(by_clock(), **HASTY)
    consumer = place.consumer()
    go_on(place, consumer, 75)
    score(place)
    go_on(place, consumer, 3 * HASTY["start_within_s"])
    assert rang(place) == []
    assert place.rows("runs", "stalled_since_s") == [(None,)]


def test_a_run_that_was_told_to_have_stalled_has_not_once_scores_come(make):
    place = make(by_clock(), **HASTY)
    go_on(place, place.consumer(), 10 * HASTY["start_within_s"])
    assert rang(place) == [("stalled", "firing")]
    score(place)
    go_on(place, place.consumer("another"), 30)
    assert rang(place) == [("stalled", "firing"), ("stalled", "resolved")]
    assert place.rows("runs", "stalled_since_s") == [(None,)]


def test_scores_say_nothing_of_a_job_that_records_operations(make):
    place = make(by_clock(), **HASTY)
    consumer = place.consumer()
    push(place, consumer, itertools.count())
    place.register(JOB, SIZES, "run-2")
    score(place)
    go_on(place, consumer, 2 * HASTY["start_within_s"])
    assert rang(place) == [("stalled", "firing")]


def test_a_run_of_which_only_scores_came_stays_quiet_when_they_are_removed(make):
    place = make(by_clock(), **HASTY)
    consumer = place.consumer()
    score(place)
    go_on(place, consumer, 30)
    with Store.write(place.store) as conn:
        conn.execute(score_reports.delete())
    go_on(place, consumer, 3 * HASTY["start_within_s"])
    assert rang(place) == []


def test_the_time_of_a_start_goes_on_over_a_restart_of_the_consumer(make):
    place = make(by_clock(), **HASTY)
    go_on(place, place.consumer(), 75)
    heir = place.consumer("another")
    go_on(place, heir, 60)
    assert rang(place) == []
    go_on(place, heir, 30)
    assert rang(place) == [("stalled", "firing")]


def test_whoever_begins_to_listen_waits_for_those_who_could_not_reach_it(make):
    place = make(by_clock(), **HASTY)
    place.pass_time(1000.0)
    consumer = place.consumer()
    go_on(place, consumer, HASTY["silent_after_s"] - 10)
    place.append(JOB, *first_ops())
    go_on(place, consumer, 20)
    assert rang(place) == []
