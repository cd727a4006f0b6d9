import json
import threading
from collections import Counter
from dataclasses import replace
from datetime import datetime

import pytest

from app.alerts.labels import Matcher
from app.alerts.rule import Rule
from app.consumer.dispatcher import POLL_S, Dispatcher
from app.errors import StoreUnavailable
from app.store import service_state
from app.store.alerting import alerts, notifications
from tests.alerts.http_receiver import receiver
from tests.consumer.twin import Crash


def bodies(hook):
    return [json.loads(body) for _, _, body in hook.requests]


def subjects(hook):
    alerts = [each for body in bodies(hook) for each in body["data"]["alerts"]]
    return [each["labels"]["subject"] for each in alerts]


def types(hook):
    return [body["type"] for body in bodies(hook)]


def test_alert_is_notified_when_firing_and_resolved(notifier, hook):
    notifier.add_receiver("hook", hook.url)
    notifier.fire()
    notifier.dispatch()
    notifier.pass_time(301)
    notifier.resolve()
    notifier.dispatch()
    assert types(hook) == ["alert.firing", "alert.resolved"]
    assert notifier.states() == ["delivered", "delivered"]
    first, last = bodies(hook)
    assert first["data"]["url"] == "https://paceline.example/jobs/job"
    assert "again" in last["data"]["sentence"]


def test_each_receiver_gets_its_matching_alerts(notifier, hook):
    with receiver() as critical, receiver() as of_b:
        notifier.add_receiver("all", hook.url)
        notifier.add_receiver("critical", critical.url, min_severity="critical")
        notifier.add_receiver(
            "b", of_b.url, matchers=(Matcher("subject", "b"),), wants_resolved=False
        )
        notifier.fire("a", rule="cause")
        notifier.fire("b", rule="cause")
        notifier.dispatch()
        notifier.pass_time(301)
        notifier.resolve("a", rule="cause")
        notifier.resolve("b", rule="cause")
        notifier.dispatch()
        assert len(hook.requests) == 2
        assert critical.requests == []
        assert (types(of_b), subjects(of_b)) == (["alert.firing"], ["b"])


def test_host_alert_inhibits_alerts_of_its_workers(make_notifier, hook):
    notifier = make_notifier(rules=[Rule("host", "host", 1.1), Rule("worker", "worker", 1.1)])
    notifier.add_receiver("hook", hook.url)
    notifier.fire("host-7", rule="host")
    notifier.fire("3-1", rule="worker", labels={"host": "host-7"})
    notifier.fire("4-1", rule="worker", labels={"host": "host-8"})
    notifier.dispatch()
    assert sorted(subjects(hook)) == ["4-1", "host-7"]


@pytest.mark.parametrize("point", range(4))
def test_dispatcher_crash_loses_and_repeats_no_message(notifier, hook, point):
    notifier.add_receiver("hook", hook.url)
    notifier.fire()
    notifier.crash_points.raise_at(point, Crash())
    with pytest.raises(Crash):
        notifier.dispatcher.dispatch_due()
    notifier.pass_time(15)  # its claim lapses
    notifier.dispatch()
    notifier.pass_time(15)
    notifier.dispatch()
    assert types(hook) == ["alert.firing"]


def test_error_in_one_group_does_not_stop_the_others(notifier, hook):
    notifier.add_receiver("hook", hook.url)
    notifier.fire(job_id="default/job")
    notifier.fire(job_id="default/other")
    notifier.crash_points.raise_at(2, RuntimeError("unforeseen"))  # after the claim's two points
    notifier.dispatcher.dispatch_due()
    notifier.send()
    assert len(hook.requests) == 1
    notifier.pass_time(15)
    notifier.dispatch()
    assert len(hook.requests) == 2


def test_slow_group_delays_no_other(notifier, hook):
    notifier.add_receiver("hook", hook.url)
    notifier.fire(job_id="default/job")
    notifier.fire(job_id="default/other")
    notifier.crash_points.raise_at(2, StoreUnavailable("it does not answer in time"))  # as above
    assert notifier.dispatcher.dispatch_due() == 2
    notifier.send()
    assert notifier.rows("outbox", "job_id", "state") == [("default/other", "delivered")]
    notifier.pass_time(15)
    notifier.dispatch()
    assert len(hook.requests) == 2


def test_no_group_is_planned_during_a_store_outage(notifier, monkeypatch):
    def put_off(*_args, **_given):
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(notifications, "postpone_group", put_off)
    notifier.fire(job_id="default/job")
    notifier.fire(job_id="default/other")
    notifier.crash_points.raise_at(2, StoreUnavailable("no answer"))
    with pytest.raises(StoreUnavailable):
        notifier.dispatcher.dispatch_due()
    assert len(notifier.crash_points.passed) == 3


def test_dispatcher_resumes_after_a_store_outage(notifier, hook):
    notifier.add_receiver("hook", hook.url)
    notifier.fire()
    notifier.crash_points.raise_at(0, StoreUnavailable("no answer"))
    notifier.dispatcher.run(StopAfterWaits(notifier, 100))
    notifier.send()
    assert types(hook) == ["alert.firing"]


def pushed_alerts(hook):
    """Last pushed status of each alert by subject, and how often each was pushed."""
    ends: dict[str, float] = {}
    times: Counter[str] = Counter()
    for body in bodies(hook):
        for alert in body:
            subject = alert["labels"]["subject"]
            times[subject] += 1
            ends[subject] = datetime.fromisoformat(alert["endsAt"]).timestamp()
    return ends, times


def test_alertmanager_gets_every_firing_and_resolution(make_notifier, hook):
    notifier = make_notifier(rules=[Rule("worker", "worker", 1.1)])
    notifier.add_receiver("am", hook.url, format="alertmanager-push", secrets=())
    names = [f"{number}-0" for number in range(120)]
    for name in names:
        notifier.fire(name, rule="worker")
    notifier.dispatch()
    ends, times = pushed_alerts(hook)
    assert times == dict.fromkeys(names, 1)
    assert all(ends_s > notifier.clock() + 3600 for ends_s in ends.values())
    notifier.pass_time(299)
    for name in names:
        notifier.resolve(name, rule="worker")
    notifier.pass_time(1)
    notifier.dispatch()
    ends, times = pushed_alerts(hook)
    assert times == dict.fromkeys(names, 2)
    assert all(ends_s <= notifier.clock() for ends_s in ends.values())


def test_alertmanager_gets_refreshes_of_acknowledged_alerts_too(notifier, hook):
    with receiver() as people:
        notifier.add_receiver("people", people.url)
        notifier.add_receiver("am", hook.url, format="alertmanager-push", secrets=())
        mark = notifier.fire("a", rule="cause")
        notifier.dispatch()
        notifier.acknowledge(mark)
        for _ in range(50):  # longer than one push lasts
            notifier.pass_time(300)
            notifier.dispatch()
            assert pushed_alerts(hook)[0]["a"] > notifier.clock() + 3600
        assert len(people.requests) == 1
    kinds = [kind for (kind,) in notifier.rows("outbox", "kind")]
    assert sorted(kinds) == ["firing", "firing", "refresh"], "only the last one is kept"
    notifier.resolve("a", rule="cause")
    notifier.dispatch()
    assert pushed_alerts(hook)[0]["a"] <= notifier.clock()


def test_rule_change_relabels_alerts_without_a_message(notifier, hook):
    with receiver() as am, receiver() as pager:
        notifier.add_receiver("hook", hook.url)
        notifier.add_receiver("pager", pager.url, min_severity="critical")
        notifier.add_receiver("am", am.url, format="alertmanager-push", secrets=())
        notifier.set_rules(Rule("cause", "cause", 0.1, labels={"team": "a"}))
        notifier.fire("a", rule="cause", labels={"team": "a", "severity": "warning"})
        notifier.dispatch()
        notifier.set_rules(Rule("cause", "cause", 0.1, severity="critical", labels={"crew": "b"}))
        notifier.pass_time(301)
        notifier.dispatch()
        assert len(hook.requests) == 1, "that alone is no news"
        notifier.pass_time(4 * 3600)
        notifier.dispatch()
        (sent_alert,) = bodies(hook)[1]["data"]["alerts"]
        assert (sent_alert["severity"], sent_alert["labels"]["severity"]) == (
            "critical",
            "critical",
        )
        assert (sent_alert["labels"]["crew"], "team" in sent_alert["labels"]) == ("b", False)
        notifier.resolve("a", rule="cause")
        notifier.pass_time(301)
        notifier.dispatch()
        assert types(pager) == ["alert.firing", "alert.resolved"], "once it is critical"
        known = {json.dumps(each[0]["labels"]) for each in bodies(am)}
        assert len(known) == 1, "to an Alertmanager it is one alert from beginning to end"


def test_disabled_receiver_gets_nothing(notifier, hook):
    notifier.add_receiver("hook", hook.url, is_enabled=False)
    notifier.fire()
    notifier.dispatch()
    assert notifier.states() == []


def test_due_group_is_planned_at_once(make_notifier, hook):
    notifier = make_notifier(group_wait_s=0.61)
    notifier.add_receiver("hook", hook.url)
    notifier.fire()
    notifier.dispatcher.wake()
    waits = StopAfterWaits(notifier, 5)
    notifier.dispatcher.run(waits)
    notifier.send()
    assert types(hook) == ["alert.firing"]
    # Within a quarter of a second, and without a busy loop.
    assert waits.passed_s == pytest.approx([0.02, POLL_S, POLL_S, 0.09, POLL_S, POLL_S])


class StopAfterWaits(threading.Event):
    """A stop signal set after `num_waits` waits and advances the clock instead of waiting."""

    def __init__(self, notifier, num_waits):
        super().__init__()
        self._tellers, self._left = notifier, num_waits
        self.passed_s: list[float] = []

    def wait(self, timeout=None):
        self._tellers.pass_time(timeout or 0.0)
        self.passed_s.append(timeout or 0.0)
        self._left -= 1
        return self._left < 0


def test_a_repeat_names_the_assignee_and_the_last_note(notifier, hook):
    notifier.add_receiver("a", hook.url)
    mark = notifier.fire()
    notifier.dispatch()
    with notifier.store.write() as conn:
        alerts.assign(conn, mark, to="Maria", by="ada", at_s=notifier.clock())
        alerts.set_note(conn, mark, text="drained", by="ada", at_s=notifier.clock())
    notifier.pass_time(4 * 3600 + 60)
    notifier.dispatch()
    first, repeat = (json.loads(body)["data"] for _, _, body in hook.requests)
    assert "Assigned" not in first["sub"]
    assert repeat["sub"].endswith("Assigned to Maria. Note: drained.")
    assert (repeat["alerts"][0]["assigned_to"], repeat["alerts"][0]["note"]) == ("Maria", "drained")


@pytest.mark.parametrize(
    ("own", "saved", "expected"),
    [
        (None, None, None),
        (None, "http://10.0.0.7:8642", "http://10.0.0.7:8642/jobs/job"),
        ("https://p.example", "http://10.0.0.7:8642", "https://p.example/jobs/job"),
    ],
)
def test_links_point_to_the_own_settings_or_to_the_address_that_the_api_saved(
    notifier, hook, own, saved, expected
):
    notifier.dispatcher = Dispatcher(replace(notifier.context, base_url=own))
    if saved is not None:
        with notifier.store.write() as conn:
            service_state.save_pages_url(conn, saved)
    notifier.add_receiver("a", hook.url)
    notifier.fire()
    notifier.dispatch()
    [(_, _, body)] = hook.requests
    assert json.loads(body)["data"]["url"] == expected
