"""What a silence held back on its way out, once it is over; and who hears of what at all."""

import json
import shutil
from contextlib import closing
from datetime import datetime

import pytest

from app.alerts.alert import Detail
from app.alerts.matchers import Matcher
from app.store import alert_groups, newcomers
from tests.alerts.receiver import receiver
from tests.consumer.tellers import Tellers


@pytest.fixture
def hook():
    with receiver() as hook:
        yield hook


@pytest.fixture
def tellers(migrated_file, tmp_path):
    url = f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'tellers.db')}"
    with closing(Tellers(url)) as made:
        yield made


def messages(hook):
    return [json.loads(body)["data"] for _, _, body in hook.requests]


def subjects(hook):
    return [{each["labels"]["subject"] for each in data["alerts"]} for data in messages(hook)]


def begin(tellers, endpoint_id):
    """As the API does it with an endpoint that is created, enabled, or wants other alerts."""
    with tellers.store.write() as conn:
        newcomers.begin(conn, endpoint_id, now_s=tellers.clock())
        alert_groups.wake_project(conn, "default", tellers.clock())


def test_the_end_that_a_silence_held_back_has_the_figures_of_before_and_its_own_moment(
    tellers, hook
):
    tellers.endpoint("hook", hook.url)
    was = Detail(on="slowdown", value=1.42, slowdown=1.42, gpu_hours_lost_per_hour=19, num_gpus=64)
    tellers.fire(detail=was)
    tellers.tell()
    tellers.pass_time(400)
    ended_s = tellers.clock()
    tellers.rest(detail=Detail(on="slowdown", value=1.02, slowdown=1.02, num_gpus=64))
    tellers.dispatcher.dispatch_due()
    tellers.silence()
    tellers.send()
    tellers.pass_time(3600)
    tellers.tell()
    _, end = messages(hook)
    assert end["sentence"] == "job runs at 1.02\u00d7 of its ideal again."
    assert end["sub"].startswith("It had cost 19 GPU-h an hour")
    [alert] = end["alerts"]
    assert datetime.fromisoformat(alert["ends_at"]).timestamp() == ended_s


def test_of_a_mixed_message_that_is_held_back_the_others_are_told_at_once_and_as_new(tellers, hook):
    tellers.endpoint("hook", hook.url)
    tellers.fire("a", rule="cause")
    tellers.fire("b", rule="cause")
    tellers.dispatcher.dispatch_due()
    tellers.silence(pattern="a")
    tellers.send()
    assert tellers.tell() == 1
    assert subjects(hook) == [{"b"}]
    assert not messages(hook)[0]["is_repeat"]


def test_what_nobody_was_told_since_it_was_silenced_ends_in_silence(tellers, hook):
    with receiver() as other:
        tellers.endpoint("hook", hook.url)
        tellers.endpoint("other", other.url)
        tellers.fire()
        tellers.dispatcher.dispatch_due()
        tellers.silence()
        tellers.send()
        tellers.rest()
        tellers.pass_time(3600)
        tellers.tell()
        assert hook.requests == other.requests == []
    assert tellers.states() == ["silenced", "silenced"]


def test_an_endpoint_that_comes_later_hears_at_once_and_once_what_fires(tellers, hook):
    with receiver() as late:
        tellers.endpoint("hook", hook.url)
        tellers.fire("a", rule="cause")
        tellers.tell()
        tellers.pass_time(1000)
        tellers.endpoint("late", late.url)
        begin(tellers, "late")
        for _ in range(3):
            tellers.tell()
            tellers.pass_time(60)
            with tellers.store.write() as conn:
                alert_groups.wake_project(conn, "default", tellers.clock())
        assert subjects(late) == [{"a"}]
        assert messages(late)[0]["kind"] == "firing"
        assert len(hook.requests) == 1


def test_what_somebody_looks_after_is_not_told_to_who_comes_later(tellers, hook):
    with receiver() as late:
        tellers.endpoint("hook", hook.url)
        mark = tellers.fire()
        tellers.tell()
        tellers.acknowledge(mark)
        tellers.tell()
        tellers.pass_time(10)
        tellers.endpoint("late", late.url)
        begin(tellers, "late")
        tellers.tell()
        assert late.requests == []


def test_an_alert_that_nobody_wants_is_not_told_together_with_one_that_somebody_wants(
    tellers, hook
):
    with receiver() as of_b:
        tellers.endpoint("a", hook.url, matchers=(Matcher("subject", "a"),))
        tellers.fire("a", rule="cause")
        tellers.fire("b", rule="cause")
        tellers.tell()
        tellers.pass_time(100)
        tellers.endpoint("b", of_b.url, matchers=(Matcher("subject", "b"),))
        tellers.tell()
        assert (subjects(hook), subjects(of_b)) == ([{"a"}], [{"b"}])
