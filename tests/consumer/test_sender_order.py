"""Delivery order: messages of other alerts, receivers and projects do not wait."""

import json
import shutil
import threading
import time

import pytest

from app.alerts.notice import Message
from app.alerts.receiver import Receiver
from app.consumer.sender import CHECK_EVERY_S
from app.store.alerting import outbox, receivers
from app.store.alerting.outbox import MAX_PER_PROJECT
from app.store.alerting.receivers import MAX_RECEIVERS
from tests.alerts.http_receiver import Answer, receiver
from tests.alerts.notices import SECRET
from tests.consumer.notifier import NotifierTwin


@pytest.fixture
def notifier(migrated_file, tmp_path):
    path = shutil.copy(migrated_file, tmp_path / "notifier.db")
    notifier = NotifierTwin(f"sqlite:///{path}", total_s=30.0)
    yield notifier
    notifier.close()


def subjects(hook):
    """Subjects of the alerts in each message."""
    alert_lists = [json.loads(body)["data"]["alerts"] for _, _, body in hook.requests]
    return [{alert["labels"]["subject"] for alert in alerts} for alerts in alert_lists]


def refuse_resolution(notifier, hook):
    """Resolve an alert and refuse four delivery attempts: the next one is minutes away."""
    notifier.fire("a", rule="cause")
    notifier.dispatch()
    notifier.pass_time(301)
    notifier.resolve("a", rule="cause")
    hook.answer = Answer(500)
    for wait_s in (0, 5, 15, 60):
        notifier.pass_time(wait_s)
        assert notifier.dispatch() == 1
    hook.answer = Answer(204)
    hook.requests.clear()


def test_new_alert_does_not_wait_for_a_refused_message(notifier, hook):
    notifier.add_receiver("hook", hook.url)
    refuse_resolution(notifier, hook)
    notifier.fire("b", rule="cause")
    notifier.dispatch()
    assert subjects(hook) == [{"b"}]
    notifier.pass_time(60)
    notifier.dispatch()
    assert subjects(hook) == [{"b"}, {"a"}], "soon after it took something"


def test_receiver_with_one_incident_gets_no_resolution_after_a_new_firing(notifier, hook):
    notifier.add_receiver("pager", hook.url, format="pagerduty", secrets=("k" * 32,))
    refuse_resolution(notifier, hook)
    notifier.fire("b", rule="cause")
    notifier.dispatch()
    notifier.pass_time(1000)
    notifier.dispatch()
    assert [json.loads(body)["event_action"] for _, _, body in hook.requests] == ["trigger"]
    assert notifier.states() == ["delivered", "outdated", "delivered"]


def test_hanging_receivers_of_a_project_delay_no_other_project(notifier, hook):
    hook.answer = Answer("silence")
    with receiver() as well:
        for number in range(MAX_RECEIVERS):
            add_receiver(notifier, "loud", f"hangs-{number}", hook.url)
        add_receiver(notifier, "calm", "well", well.url)
        add_messages(notifier, "loud", [f"hangs-{each % MAX_RECEIVERS}" for each in range(600)])
        stop = threading.Event()
        thread = threading.Thread(target=notifier.sender.run, args=(stop,))
        thread.start()
        wait_for(lambda: len(hook.requests) == MAX_PER_PROJECT)
        began_s = time.monotonic()
        add_messages(notifier, "calm", ["well"] * 3)
        notifier.sender.nudge()
        wait_for(lambda: len(well.requests) == 3)
        took_s = time.monotonic() - began_s
        assert len(hook.requests) == MAX_PER_PROJECT
        stop.set()
        hook.released.set()
        thread.join()
    assert took_s < 1.0 + CHECK_EVERY_S


def add_receiver(notifier, project, endpoint_id, url):
    made = Receiver(endpoint_id, project, endpoint_id, "standard", url, (SECRET,))
    with notifier.store.write() as conn:
        receivers.add(conn, made)


def add_messages(notifier, project, endpoint_ids):
    """Add a message to each of these receivers."""
    with notifier.store.write() as conn:
        for number, endpoint_id in enumerate(endpoint_ids):
            outbox.add(
                conn,
                endpoint_id=endpoint_id,
                notice_id=f"{project}-{number}",
                job_id=None,
                rule=None,
                kind="test",
                message=Message("{}"),
                fingerprints=(),
                now_s=notifier.clock(),
                project=project,
            )


def wait_for(holds, within_s=60.0):
    """Poll until the condition holds: other threads work in real time."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)
