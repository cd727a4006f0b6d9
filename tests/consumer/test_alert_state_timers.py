"""Alerts that fire by time, without any batch."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.alerts.rule import Rule, default_rules
from app.errors import StoreUnavailable
from app.store import projects
from app.store.alerting import alert_rules
from app.store.database import Store
from tests.consumer.jobs import HEALTHY, SIZES, SLOW
from tests.consumer.twin import slowdown_rules, step_batches

JOB = "default/job"
SILENT_AFTER_S, START_WITHIN_S = 30.0, 150.0


@pytest.fixture
def make(make_twin):
    """A function that makes a twin with these rules and a registered job."""

    def make(*rules, **given):
        limits = {"silent_after_s": SILENT_AFTER_S, "start_within_s": START_WITHIN_S}
        twin = make_twin(window_steps=2, default_rules=rules, **limits | given)
        twin.register(JOB, SIZES)
        return twin

    return make


def run_for(twin, consumer, seconds):
    """Advance time with a consumer turn every five seconds."""
    for _ in range(int(seconds / 5)):
        twin.turns(consumer, num_turns=1, each_s=5.0)


def push(twin, consumer, numbers, made=SLOW, *, without=()):
    for _ in range(2):
        batches = step_batches(made, next(numbers))
        twin.append(JOB, *(each for each in batches if each.rank not in without))
        twin.turns(consumer)


def alert_events(twin, *kinds):
    found = twin.rows("alert_events", "rule", "kind")
    return [row for row in found if row[1] in (kinds or ("firing", "resolved", "no-data"))]


def stalled_rule(**given):
    known: dict[str, Any] = {"for_s": 0.0, "keep_firing_s": 0.0, "severity": "critical"}
    return Rule("stalled", "stalled", **known | given)


def test_stalled_alert_fires_once_and_resolves_with_the_next_batch(make):
    twin = make(stalled_rule())
    consumer, numbers = twin.consumer(), itertools.count()
    push(twin, consumer, numbers)
    run_for(twin, consumer, SILENT_AFTER_S + 200)
    assert alert_events(twin) == [("stalled", "firing")]
    push(twin, consumer, numbers)
    run_for(twin, consumer, 10)
    assert alert_events(twin) == [("stalled", "firing"), ("stalled", "resolved")]
    assert twin.rows("alerts") == []


def test_alerts_on_figures_have_no_data_while_a_job_is_stalled(make):
    twin = make(*slowdown_rules(1), stalled_rule())
    consumer, numbers = twin.consumer(), itertools.count()
    push(twin, consumer, numbers)
    run_for(twin, consumer, SILENT_AFTER_S + 20)
    assert alert_events(twin) == [
        ("slowdown", "firing"),
        ("stalled", "firing"),
        ("slowdown", "no-data"),
    ]
    push(twin, consumer, numbers)
    run_for(twin, consumer, 10)
    kinds = alert_events(twin, "data-again", "resolved")
    assert sorted(kinds) == [("slowdown", "data-again"), ("stalled", "resolved")]


def test_silent_worker_is_named_in_its_alert(make):
    twin = make(*default_rules())
    consumer, numbers = twin.consumer(), itertools.count()
    push(twin, consumer, numbers)
    batches = step_batches(SLOW, 0)
    silent_rank = batches[-1].rank
    for _ in range(int(SILENT_AFTER_S / 10) + 2):
        push(twin, consumer, numbers, without={silent_rank})
        run_for(twin, consumer, 5)
    assert alert_events(twin) == [("silent-worker", "firing")]
    [sentence] = [row[0] for row in twin.rows("alert_events", "sentence") if "silent" in row[0]]
    assert sentence.startswith("1 worker of job has fallen silent by 22:13 UTC, step")
    assert "dp 1, stage 1" in sentence


def test_pending_time_continues_after_a_consumer_restart(make):
    twin = make(stalled_rule(for_s=120.0))
    consumer = twin.consumer()
    push(twin, consumer, itertools.count())
    run_for(twin, consumer, SILENT_AFTER_S + 20)
    assert alert_events(twin, "pending") == [("stalled", "pending")]
    twin.pass_time(60.0)
    successor = twin.consumer("another")
    run_for(twin, successor, 30)
    assert alert_events(twin) == []
    run_for(twin, successor, 60)
    assert alert_events(twin) == [("stalled", "firing")]


def test_ended_job_is_not_stalled(make):
    twin = make(stalled_rule())
    consumer = twin.consumer()
    push(twin, consumer, itertools.count())
    twin.end(JOB)
    run_for(twin, consumer, SILENT_AFTER_S + 100)
    assert alert_events(twin, "pending", "firing") == []


def test_silent_ranks_and_their_alert_are_saved_together(make):
    twin = make(stalled_rule())
    consumer = twin.consumer()
    push(twin, consumer, itertools.count())
    run_for(twin, consumer, SILENT_AFTER_S - 20)
    twin.crash_points.raise_at(0, StoreUnavailable("no answer"))
    with pytest.raises(StoreUnavailable):
        run_for(twin, consumer, 60)
    assert twin.crash_points.passed[-1] == "before commit"
    assert alert_events(twin) == []
    assert twin.rows("runs", "stalled_since_s") == [(None,)]


@pytest.mark.nightly
def test_consumer_restart_neither_resolves_nor_refires_an_alert(make):
    twin = make(*default_rules(), silent_after_s=300.0)
    consumer, numbers = twin.consumer(), itertools.count()
    push(twin, consumer, numbers)
    silent_rank = step_batches(SLOW, 0)[-1].rank
    for number in range(64):
        if number == 32:
            assert alert_events(twin) == [("silent-worker", "firing")]
            twin.pass_time(60.0)
            consumer = twin.consumer("another")
        push(twin, consumer, numbers, without={silent_rank})
        run_for(twin, consumer, 5)
    assert silence_events(twin) == ["firing"]
    # The others have figures meanwhile, which are slow for long enough.
    assert ("slowdown", "firing") in alert_events(twin)
    assert alert_events(twin, "no-data") == []
    push(twin, consumer, numbers)
    run_for(twin, consumer, 10)
    assert silence_events(twin) == ["firing", "resolved"]


def silence_events(twin):
    return [kind for rule, kind in alert_events(twin) if rule == "silent-worker"]


def test_job_that_hangs_before_its_first_step_is_alerted(make):
    twin = make(stalled_rule())
    consumer = twin.consumer()
    run_for(twin, consumer, START_WITHIN_S - 20)
    assert alert_events(twin) == []
    run_for(twin, consumer, 30)
    assert alert_events(twin) == [("stalled", "firing")]
    [(sentence,)] = twin.rows("alert_events", "sentence")
    assert sentence == "No worker of job has sent anything since it began."
    assert twin.rows("runs", "stalled_since_s") == [(1.7e9,)]
    run_for(twin, twin.consumer("another"), 60)
    push(twin, twin.consumer("a third"), itertools.count())
    assert alert_events(twin)[0] == ("stalled", "firing")


def test_job_registered_while_the_consumer_runs_is_watched(make):
    twin = make(stalled_rule())
    consumer = twin.consumer()
    push(twin, consumer, itertools.count())
    twin.register("default/another", SIZES)
    for _ in range(int((START_WITHIN_S + 20) / 20)):
        push(twin, consumer, itertools.count())
        run_for(twin, consumer, 15)
    found = twin.rows("alerts", "job_id", "rule")
    assert found == [("default/another", "stalled")]


def test_slow_start_of_a_job_raises_no_alert(make):
    twin = make(*default_rules())
    consumer = twin.consumer()
    run_for(twin, consumer, START_WITHIN_S - 60)
    late, *others = step_batches(SLOW, 0)
    twin.append(JOB, *others)
    run_for(twin, consumer, SILENT_AFTER_S - 10)
    twin.append(JOB, late)
    run_for(twin, consumer, 10)
    assert twin.rows("alert_events") == []


def test_restart_of_a_stalled_job_does_not_resolve_its_alert(make):
    twin = make(*slowdown_rules(1), stalled_rule())
    consumer = twin.consumer()
    push(twin, consumer, itertools.count())
    run_for(twin, consumer, SILENT_AFTER_S + 20)
    twin.register(JOB, SIZES, "run-2")
    run_for(twin, consumer, 600)
    assert alert_events(twin) == [
        ("slowdown", "firing"),
        ("stalled", "firing"),
        ("slowdown", "no-data"),
    ]
    run_for(twin, consumer, START_WITHIN_S)
    assert alert_events(twin, "resolved") == []
    assert twin.rows("runs", "epoch", "stalled_since_s")[1][1] is not None
    twin.push(JOB, SLOW, 0, epoch=2)
    run_for(twin, consumer, 20)
    assert alert_events(twin, "resolved") == [("stalled", "resolved")]


def test_run_without_batches_has_no_silent_ranks(make):
    twin = make(*slowdown_rules(1), stalled_rule())
    consumer = twin.consumer()
    push(twin, consumer, itertools.count())
    twin.register(JOB, SIZES, "run-2")
    run_for(twin, consumer, 10)
    assert alert_events(twin) == [("slowdown", "firing"), ("slowdown", "no-data")]
    for step in (0, 1):
        twin.push(JOB, SLOW, step, epoch=2)
        twin.turns(consumer)
    assert alert_events(twin, "data-again", "resolved") == [("slowdown", "data-again")]


def test_new_rule_applies_to_jobs_stalled_before(make):
    twin = make(*slowdown_rules(1))
    consumer = twin.consumer()
    push(twin, consumer, itertools.count(), HEALTHY)
    run_for(twin, consumer, SILENT_AFTER_S + 200)
    assert alert_events(twin) == []
    now_s = twin.unix_clock()
    with Store.write(twin.store) as conn:
        projects.create_if_missing(conn, "default", now_s=now_s)
        rules = [stalled_rule(for_s=100.0)]
        alert_rules.replace_all(conn, "default", rules, text="", now_s=now_s)
    run_for(twin, consumer, 60)
    assert alert_events(twin, "pending") == [("stalled", "pending")]
    run_for(twin, consumer, 100)
    assert alert_events(twin) == [("stalled", "firing")]


def first_ops(epoch=1):
    """The first operation of each worker, sent before the first step compiles."""
    return [
        replace(each, steps_done=(), columns=each.columns.select(np.arange(1)))
        for each in step_batches(SLOW, 0, epoch)
    ]


def test_job_compiling_in_its_first_step_is_not_stalled(make):
    twin = make(*default_rules())
    consumer = twin.consumer()
    twin.append(JOB, *first_ops())
    run_for(twin, consumer, 140)
    assert alert_events(twin) == []
    rest = [
        replace(each, batch_seq=1, columns=each.columns.select(np.arange(1, each.columns.num_ops)))
        for each in step_batches(SLOW, 0)
    ]
    twin.append(JOB, *rest)
    run_for(twin, consumer, 20)
    assert alert_events(twin) == []
    run_for(twin, consumer, 20)
    assert alert_events(twin) == [("stalled", "firing")], "then it is as late as any other"


def test_worker_without_batches_is_silent_without_a_complete_step(make):
    twin = make(*default_rules(), silent_after_s=60.0, start_within_s=1e9)
    consumer, numbers = twin.consumer(), itertools.count()
    for _ in range(9):
        push(twin, consumer, numbers, without={3})
        run_for(twin, consumer, 40)
    assert alert_events(twin) == [("silent-worker", "firing")]


def test_silent_worker_alert_resolves_once_all_ranks_of_a_new_run_send(make):
    twin = make(*default_rules())
    consumer, numbers = twin.consumer(), itertools.count()
    push(twin, consumer, numbers)
    for _ in range(4):
        push(twin, consumer, numbers, without={3})
        run_for(twin, consumer, 5)
    assert alert_events(twin) == [("silent-worker", "firing")]
    twin.register(JOB, SIZES, "run-2")
    run_for(twin, consumer, 30)
    twin.append(JOB, *first_ops(epoch=2)[:3])
    run_for(twin, consumer, 30)
    assert alert_events(twin) == [("silent-worker", "firing")]
    twin.append(JOB, *first_ops(epoch=2)[3:])
    run_for(twin, consumer, 10)
    assert alert_events(twin) == [("silent-worker", "firing"), ("silent-worker", "resolved")]


def restart_job(twin, consumer, name, seconds=35):
    twin.register(JOB, SIZES, name)
    run_for(twin, consumer, seconds)


def test_job_that_fails_at_each_start_is_alerted(make):
    twin = make(stalled_rule())
    consumer = twin.consumer()
    run_for(twin, consumer, 40)
    for number in range(2, 5):
        restart_job(twin, consumer, f"run-{number}")
        assert alert_events(twin) == []
    for number in range(5, 13):
        restart_job(twin, consumer, f"run-{number}")
        assert alert_events(twin) == [("stalled", "firing")]


def test_start_timeout_continues_after_a_consumer_restart(make):
    twin = make(stalled_rule())
    run_for(twin, twin.consumer(), 75)
    successor = twin.consumer("another")
    run_for(twin, successor, 60)
    assert alert_events(twin) == []
    run_for(twin, successor, 30)
    assert alert_events(twin) == [("stalled", "firing")]


def test_new_consumer_waits_for_delayed_batches_before_alerting(make):
    twin = make(stalled_rule())
    twin.pass_time(1000.0)
    consumer = twin.consumer()
    run_for(twin, consumer, SILENT_AFTER_S - 10)
    twin.append(JOB, *first_ops())
    run_for(twin, consumer, 20)
    assert alert_events(twin) == []
