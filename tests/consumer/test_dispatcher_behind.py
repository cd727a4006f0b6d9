"""Messages wait while what a job's workers sent is not processed, and are then told late."""

import json

import pytest

from app.alerts.alert import Detail
from app.store import as_of, shards
from tests.consumer.notifier import JOB

SLOW = Detail(on="slowdown", value=1.4, slowdown=1.4, num_gpus=8, gpu_hours_lost_per_hour=2.0)


@pytest.fixture
def behind(make_notifier, hook):
    """A notifier with a receiver, and a function that says how far its one shard is behind."""
    notifier = make_notifier(num_shards=1)
    notifier.add_receiver("hook", hook.url)
    with notifier.store.write() as conn:
        shards.acquire(conn, 0, "me", now_s=notifier.clock(), lease_s=15.0)

    def is_behind(seconds):
        notifier.pass_time(3)  # a group that waits is looked at every 2 s
        with notifier.store.write() as conn:
            as_of.note_taken(conn, "me", {0: seconds}, now_s=notifier.clock())

    return notifier, is_behind


def told(hook):
    found = [json.loads(body) for _, _, body in hook.requests]
    return [(each["type"], each["data"]) for each in found]


def test_what_began_meanwhile_is_told_late_with_both_times(behind, hook):
    notifier, is_behind = behind
    is_behind(60.0)
    notifier.fire(detail=SLOW)
    for _ in range(3):
        notifier.dispatch()
        notifier.pass_time(100)
    assert told(hook) == []
    is_behind(1.0)
    notifier.dispatch()
    [(kind, said)] = told(hook)
    assert kind == "alert.firing"
    assert "Told late: Paceline was behind from 22:13 UTC to 22:18 UTC." in said["sub"]
    assert (said["behind_s"], said["held_since"]) == (1.0, "2023-11-14T22:13:23Z")
    notifier.pass_time(100)
    notifier.resolve()
    is_behind(0.0)
    notifier.dispatch()
    assert told(hook)[1][1]["held_since"] is None


def test_what_fires_is_neither_resolved_nor_repeated_meanwhile(behind, hook):
    notifier, is_behind = behind
    is_behind(0.0)
    mark = notifier.fire(detail=SLOW)
    notifier.dispatch()
    is_behind(60.0)
    notifier.pass_time(100)
    notifier.resolve()
    for _ in range(9):
        notifier.pass_time(3600)
        notifier.dispatch()
    assert [kind for kind, _ in told(hook)] == ["alert.firing"]
    assert notifier.rows("alert_told", "fingerprint", "kind") == [(mark, "firing")]
    is_behind(0.0)
    notifier.dispatch()
    assert [kind for kind, _ in told(hook)] == ["alert.firing", "alert.resolved"]


def test_what_began_and_ended_meanwhile_is_told_once_as_over(behind, hook):
    notifier, is_behind = behind
    notifier.fire("before")
    is_behind(0.0)
    notifier.dispatch()  # the group's interval goes on from here
    hook.requests.clear()
    is_behind(60.0)
    notifier.fire(detail=SLOW)
    notifier.pass_time(1)
    notifier.dispatch()
    notifier.pass_time(35)
    notifier.resolve()
    notifier.dispatch()
    assert told(hook) == []
    is_behind(0.0)
    for _ in range(3):
        notifier.dispatch()
        notifier.pass_time(100)
        is_behind(0.0)
    [(kind, said)] = told(hook)
    assert (kind, said["is_partly_resolved"]) == ("alert.firing", True)
    assert said["sentence"].startswith("This is over: job runs at 1.40\u00d7 of its ideal.")
    assert said["sub"].startswith("It lasted 36 s and cost about 0.02 GPU-h in all")


def test_what_began_meanwhile_and_is_about_to_end_is_told_once_as_over(behind, hook):
    notifier, is_behind = behind
    is_behind(60.0)
    notifier.fire(detail=SLOW, below_s=8.0)
    notifier.dispatch()
    is_behind(0.0)
    notifier.dispatch()
    assert told(hook) == [], "it may soon be over"
    notifier.pass_time(30)
    notifier.resolve()
    is_behind(0.0)
    notifier.dispatch()
    [(kind, said)] = told(hook)
    assert (kind, said["is_partly_resolved"]) == ("alert.resolved", False)
    assert said["sentence"].startswith("This is over")


def test_one_flooded_job_delays_no_other(behind, hook):
    notifier, is_behind = behind
    is_behind(0.0)
    with notifier.store.write() as conn:
        as_of.note_refused(conn, ["default/other"], now_s=notifier.clock())
    notifier.fire(job_id="default/other")
    notifier.fire(job_id=JOB)
    notifier.dispatch()
    assert [said["job_id"] for _, said in told(hook)] == ["job"]


def test_an_alertmanager_is_kept_from_taking_it_for_over(behind, hook):
    notifier, is_behind = behind
    is_behind(0.0)
    notifier.add_receiver("push", hook.url, format="alertmanager-push")
    notifier.fire()
    notifier.dispatch()
    for _ in range(4):
        notifier.pass_time(300)
        notifier.dispatch()
    pushed = [json.loads(body) for _, _, body in hook.requests]
    ends = [each[0]["endsAt"] for each in pushed if isinstance(each, list)]
    assert (len(ends), ends) == (5, sorted(ends))
