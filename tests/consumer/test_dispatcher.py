import json
import shutil
import threading
from collections import Counter
from contextlib import ExitStack, closing
from datetime import datetime

import pytest

from app.alerts.matchers import Matcher
from app.alerts.plan import Timing
from app.alerts.rule import Rule
from app.consumer.dispatcher import LOOK_EVERY_S
from app.errors import StoreUnavailable
from app.store import alert_groups, alert_told
from tests.alerts.receiver import receiver
from tests.consumer.place import Crash
from tests.consumer.tellers import JOB, Tellers


@pytest.fixture
def hook():
    with receiver() as hook:
        yield hook


@pytest.fixture
def make_tellers(migrated_file, tmp_path):
    with ExitStack() as open_ones:

        def make(**given):
            url = f"sqlite:///{shutil.copy(migrated_file, tmp_path / 'tellers.db')}"
            return open_ones.enter_context(closing(Tellers(url, **given)))

        yield make


@pytest.fixture
def tellers(make_tellers):
    return make_tellers()


def bodies(hook):
    return [json.loads(body) for _, _, body in hook.requests]


def subjects(hook):
    alerts = [each for body in bodies(hook) for each in body["data"]["alerts"]]
    return [each["labels"]["subject"] for each in alerts]


def types(hook):
    return [body["type"] for body in bodies(hook)]


def test_an_alert_is_told_when_it_fires_and_when_it_is_over(tellers, hook):
    tellers.endpoint("hook", hook.url)
    tellers.fire()
    tellers.tell()
    tellers.pass_time(301)
    tellers.rest()
    tellers.tell()
    assert types(hook) == ["alert.firing", "alert.resolved"]
    assert tellers.states() == ["delivered", "delivered"]
    first, last = bodies(hook)
    assert first["data"]["url"] == "https://paceline.example/jobs/job"
    assert "again" in last["data"]["sentence"]


def test_nothing_due_writes_nothing(tellers):
    tellers.register()
    tellers.fuse.blow(0, AssertionError("wrote"))
    assert tellers.dispatcher.dispatch_due() == 0


def test_a_repeat_comes_after_four_hours_and_not_once_it_is_acknowledged(tellers, hook):
    tellers.endpoint("hook", hook.url)
    mark = tellers.fire()
    tellers.tell()
    tellers.pass_time(4 * 3600)
    tellers.tell()
    assert types(hook) == ["alert.firing"] * 2
    tellers.acknowledge(mark)
    tellers.pass_time(4 * 3600)
    tellers.tell()
    assert len(hook.requests) == 2, "it only knows what fires and what does not"
    with tellers.store.read() as conn:
        assert alert_told.of_group(conn, JOB, "slowdown")[mark].kind == "acknowledged"


def test_each_endpoint_is_told_what_it_wants(tellers, hook):
    with receiver() as critical, receiver() as of_b:
        tellers.endpoint("all", hook.url)
        tellers.endpoint("critical", critical.url, min_severity="critical")
        tellers.endpoint("b", of_b.url, matchers=(Matcher("subject", "b"),), wants_resolved=False)
        tellers.fire("a", rule="cause")
        tellers.fire("b", rule="cause")
        tellers.tell()
        tellers.pass_time(301)
        tellers.rest("a", rule="cause")
        tellers.rest("b", rule="cause")
        tellers.tell()
        assert len(hook.requests) == 2
        assert critical.requests == []
        assert (types(of_b), subjects(of_b)) == (["alert.firing"], ["b"])


def test_what_nobody_was_told_is_told_to_whoever_comes(tellers, hook):
    tellers.fire()
    tellers.tell()
    tellers.pass_time(1000)
    tellers.endpoint("hook", hook.url)
    tellers.tell()
    assert types(hook) == ["alert.firing"]


def test_a_rule_keeps_another_one_back_while_it_fires(tellers, hook):
    tellers.endpoint("hook", hook.url)
    tellers.fire()
    tellers.fire("slow-worker", rule="cause")
    tellers.tell()
    assert [body["data"]["rule"] for body in bodies(hook)] == ["slowdown"]
    tellers.pass_time(301)
    tellers.rest()
    tellers.tell()
    rules = [body["data"]["rule"] for body in bodies(hook)]
    assert sorted(rules) == ["cause", "slowdown", "slowdown"]


def test_the_alert_of_a_host_keeps_those_of_its_workers_back(make_tellers, hook):
    tellers = make_tellers(rules=[Rule("host", "host", 1.1), Rule("worker", "worker", 1.1)])
    tellers.endpoint("hook", hook.url)
    tellers.fire("host-7", rule="host")
    tellers.fire("3-1", rule="worker", labels={"host": "host-7"})
    tellers.fire("4-1", rule="worker", labels={"host": "host-8"})
    tellers.tell()
    assert sorted(subjects(hook)) == ["4-1", "host-7"]


@pytest.mark.parametrize("point", range(4))
def test_a_crash_of_the_dispatcher_loses_nothing_and_tells_once(tellers, hook, point):
    tellers.endpoint("hook", hook.url)
    tellers.fire()
    tellers.fuse.blow(point, Crash())
    with pytest.raises(Crash):
        tellers.dispatcher.dispatch_due()
    tellers.pass_time(15)  # its claim lapses
    tellers.tell()
    tellers.pass_time(15)
    tellers.tell()
    assert types(hook) == ["alert.firing"]


def test_an_alert_that_changes_while_its_group_is_claimed_is_looked_at_again(tellers, hook):
    tellers.endpoint("hook", hook.url)
    tellers.fire("a", rule="cause")
    tellers.fuse.then(1, lambda: tellers.fire("b", rule="cause"))  # just after the claim
    tellers.tell()
    tellers.pass_time(60)
    tellers.tell()
    assert sorted(subjects(hook)) == ["a", "b"]


def test_what_comes_just_after_a_notice_waits_for_the_next_one(tellers, hook):
    tellers.endpoint("hook", hook.url)
    tellers.fire("a", rule="cause")
    tellers.tell()
    tellers.fire("b", rule="cause")
    tellers.pass_time(59)
    tellers.tell()
    assert len(hook.requests) == 1
    tellers.pass_time(1)
    tellers.tell()
    assert len(hook.requests) == 2


def test_trouble_with_one_group_is_not_the_end_of_the_others(tellers, hook):
    tellers.endpoint("hook", hook.url)
    tellers.fire(job_id="default/job")
    tellers.fire(job_id="default/other")
    tellers.fuse.blow(2, RuntimeError("unforeseen"))  # after the claim's two points
    tellers.dispatcher.dispatch_due()
    tellers.send()
    assert len(hook.requests) == 1
    tellers.pass_time(15)
    tellers.tell()
    assert len(hook.requests) == 2


def test_a_group_that_takes_the_store_too_long_keeps_no_other_back(tellers, hook):
    tellers.endpoint("hook", hook.url)
    tellers.fire(job_id="default/job")
    tellers.fire(job_id="default/other")
    tellers.fuse.blow(2, StoreUnavailable("it does not answer in time"))  # as above
    assert tellers.dispatcher.dispatch_due() == 2
    tellers.send()
    assert tellers.rows("outbox", "job_id", "state") == [("default/other", "delivered")]
    tellers.pass_time(15)
    tellers.tell()
    assert len(hook.requests) == 2


def test_no_group_is_tried_while_the_store_itself_is_away(tellers, monkeypatch):
    def put_off(*_args, **_given):
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(alert_groups, "put_off", put_off)
    tellers.fire(job_id="default/job")
    tellers.fire(job_id="default/other")
    tellers.fuse.blow(2, StoreUnavailable("no answer"))
    with pytest.raises(StoreUnavailable):
        tellers.dispatcher.dispatch_due()
    assert len(tellers.fuse.passed) == 3


def test_a_store_that_is_away_is_waited_for(tellers, hook):
    tellers.endpoint("hook", hook.url)
    tellers.fire()
    tellers.fuse.blow(0, StoreUnavailable("no answer"))
    tellers.dispatcher.run(Waits(tellers, 100))
    tellers.send()
    assert types(hook) == ["alert.firing"]


def pushed(hook):
    """How each alert stands that was pushed, by its subject, and how often each was pushed."""
    ends: dict[str, float] = {}
    times: Counter[str] = Counter()
    for body in bodies(hook):
        for alert in body:
            subject = alert["labels"]["subject"]
            times[subject] += 1
            ends[subject] = datetime.fromisoformat(alert["endsAt"]).timestamp()
    return ends, times


def test_an_alertmanager_is_told_of_every_alert_and_of_the_end_of_each(make_tellers, hook):
    tellers = make_tellers(rules=[Rule("worker", "worker", 1.1)])
    tellers.endpoint("am", hook.url, format="alertmanager-push", secrets=())
    names = [f"{number}-0" for number in range(120)]
    for name in names:
        tellers.fire(name, rule="worker")
    tellers.tell()
    ends, times = pushed(hook)
    assert times == dict.fromkeys(names, 1)
    assert all(ends_s > tellers.clock() + 3600 for ends_s in ends.values())
    tellers.pass_time(299)
    for name in names:
        tellers.rest(name, rule="worker")
    tellers.pass_time(1)
    tellers.tell()
    ends, times = pushed(hook)
    assert times == dict.fromkeys(names, 2)
    assert all(ends_s <= tellers.clock() for ends_s in ends.values())


def test_an_alertmanager_hears_every_five_minutes_what_fires_also_once_it_is_acknowledged(
    tellers, hook
):
    with receiver() as people:
        tellers.endpoint("people", people.url)
        tellers.endpoint("am", hook.url, format="alertmanager-push", secrets=())
        mark = tellers.fire("a", rule="cause")
        tellers.tell()
        tellers.acknowledge(mark)
        for _ in range(50):  # longer than one push lasts
            tellers.pass_time(300)
            tellers.tell()
            assert pushed(hook)[0]["a"] > tellers.clock() + 3600
        assert len(people.requests) == 1
    kinds = [kind for (kind,) in tellers.rows("outbox", "kind")]
    assert sorted(kinds) == ["firing", "firing", "refresh"], "only the last one is kept"
    tellers.rest("a", rule="cause")
    tellers.tell()
    assert pushed(hook)[0]["a"] <= tellers.clock()


def test_what_fires_and_what_it_is_called_follows_its_rule_without_being_told_for_that(
    tellers, hook
):
    with receiver() as am, receiver() as pager:
        tellers.endpoint("hook", hook.url)
        tellers.endpoint("pager", pager.url, min_severity="critical")
        tellers.endpoint("am", am.url, format="alertmanager-push", secrets=())
        tellers.ruled(Rule("cause", "cause", 0.1, labels={"team": "a"}))
        tellers.fire("a", rule="cause", labels={"team": "a", "severity": "warning"})
        tellers.tell()
        tellers.ruled(Rule("cause", "cause", 0.1, severity="critical", labels={"crew": "b"}))
        tellers.pass_time(301)
        tellers.tell()
        assert len(hook.requests) == 1, "that alone is no news"
        tellers.pass_time(4 * 3600)
        tellers.tell()
        (told,) = bodies(hook)[1]["data"]["alerts"]
        assert (told["severity"], told["labels"]["severity"]) == ("critical", "critical")
        assert (told["labels"]["crew"], "team" in told["labels"]) == ("b", False)
        tellers.rest("a", rule="cause")
        tellers.pass_time(301)
        tellers.tell()
        assert types(pager) == ["alert.firing", "alert.resolved"], "once it is critical"
        known = {json.dumps(each[0]["labels"]) for each in bodies(am)}
        assert len(known) == 1, "to an Alertmanager it is one alert from beginning to end"


def test_a_disabled_endpoint_is_told_nothing(tellers, hook):
    tellers.endpoint("hook", hook.url, is_enabled=False)
    tellers.fire()
    tellers.tell()
    assert tellers.states() == []


def test_the_worst_twenty_are_told_and_the_others_counted(make_tellers, hook):
    tellers = make_tellers(rules=[Rule("worker", "worker", 1.1)])
    tellers.endpoint("hook", hook.url)
    for number in range(25):
        tellers.fire(f"{number}-0", rule="worker")
    tellers.tell()
    (message,) = bodies(hook)
    assert len(message["data"]["alerts"]) == 20
    assert message["data"]["num_more"] == 5
    assert "24 other alerts" in message["data"]["sentence"]


def test_a_group_is_looked_at_as_soon_as_it_is_due(make_tellers, hook):
    tellers = make_tellers(timing=Timing(wait_s=0.61))
    tellers.endpoint("hook", hook.url)
    tellers.fire()
    waits = Waits(tellers, 5)
    tellers.dispatcher.run(waits)
    tellers.send()
    assert types(hook) == ["alert.firing"]
    # Not a whole quarter of a second after it; and nobody turns round and round.
    assert waits.passed_s[:3] == pytest.approx(
        [LOOK_EVERY_S, LOOK_EVERY_S, 0.61 - 2 * LOOK_EVERY_S]
    )
    assert waits.passed_s[3:5] == [LOOK_EVERY_S, LOOK_EVERY_S]


class Waits(threading.Event):
    """A stop signal that is set after so many waits, and lets time pass instead of waiting."""

    def __init__(self, tellers, num_waits):
        super().__init__()
        self._tellers, self._left = tellers, num_waits
        self.passed_s: list[float] = []

    def wait(self, timeout=None):
        self._tellers.pass_time(timeout or 0.0)
        self.passed_s.append(timeout or 0.0)
        self._left -= 1
        return self._left < 0
