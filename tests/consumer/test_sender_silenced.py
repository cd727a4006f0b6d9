"""Messages silenced on their way out, and receivers that match later."""

import json
from datetime import datetime

from app.alerts.alert import Detail
from app.store.alerting import notifications
from tests.alerts.http_receiver import receiver


def messages(hook):
    return [json.loads(body)["data"] for _, _, body in hook.requests]


def subjects(hook):
    return [{each["labels"]["subject"] for each in data["alerts"]} for data in messages(hook)]


def begin_notifying(notifier, endpoint_id):
    """Mark a receiver that was created, enabled or widened, as the API does."""
    with notifier.store.write() as conn:
        notifications.mark_new_receiver(conn, endpoint_id, now_s=notifier.clock())
        notifications.wake_project(conn, "default", notifier.clock())


def test_silenced_resolution_has_the_figures_before_and_its_own_time(notifier, hook):
    notifier.add_receiver("hook", hook.url)
    was = Detail(on="slowdown", value=1.42, slowdown=1.42, gpu_hours_lost_per_hour=19, num_gpus=64)
    notifier.fire(detail=was)
    notifier.dispatch()
    notifier.pass_time(400)
    ended_s = notifier.clock()
    notifier.resolve(detail=Detail(on="slowdown", value=1.02, slowdown=1.02, num_gpus=64))
    notifier.dispatcher.dispatch_due()
    notifier.silence()
    notifier.send()
    notifier.pass_time(3600)
    notifier.dispatch()
    _, end = messages(hook)
    assert end["sentence"] == "job runs at 1.02\u00d7 of its ideal again."
    assert end["sub"].startswith("It lasted 7 min and cost about 2.1 GPU-h in all")
    [alert] = end["alerts"]
    assert datetime.fromisoformat(alert["ends_at"]).timestamp() == ended_s


def test_alert_never_notified_resolves_without_a_message(notifier, hook):
    with receiver() as other:
        notifier.add_receiver("hook", hook.url)
        notifier.add_receiver("other", other.url)
        notifier.fire()
        notifier.dispatcher.dispatch_due()
        notifier.silence()
        notifier.send()
        notifier.resolve()
        notifier.pass_time(3600)
        notifier.dispatch()
        assert hook.requests == other.requests == []
    assert notifier.states() == ["silenced", "silenced"]


def test_what_two_silences_held_back_is_sent_when_the_first_of_them_ends(notifier, hook):
    notifier.add_receiver("hook", hook.url)
    for subject in ("a", "b"):
        notifier.fire(subject)
    notifier.dispatcher.dispatch_due()
    for subject, seconds in (("a", 600.0), ("b", 3000.0)):
        notifier.silence(pattern=subject, ends_s=notifier.clock() + seconds)
    notifier.send()
    assert hook.requests == []
    notifier.pass_time(601)
    notifier.dispatch()
    assert subjects(hook) == [{"a"}]


def test_new_receiver_gets_firing_alerts_once(notifier, hook):
    with receiver() as late:
        notifier.add_receiver("hook", hook.url)
        notifier.fire("a", rule="cause")
        notifier.dispatch()
        notifier.pass_time(1000)
        notifier.add_receiver("late", late.url)
        begin_notifying(notifier, "late")
        for _ in range(3):
            notifier.dispatch()
            notifier.pass_time(60)
            with notifier.store.write() as conn:
                notifications.wake_project(conn, "default", notifier.clock())
        assert subjects(late) == [{"a"}]
        assert messages(late)[0]["kind"] == "firing"
        assert len(hook.requests) == 1


def test_new_receiver_gets_no_acknowledged_alerts(notifier, hook):
    with receiver() as late:
        notifier.add_receiver("hook", hook.url)
        mark = notifier.fire()
        notifier.dispatch()
        notifier.acknowledge(mark)
        notifier.dispatch()
        notifier.pass_time(10)
        notifier.add_receiver("late", late.url)
        begin_notifying(notifier, "late")
        notifier.dispatch()
        assert late.requests == []
