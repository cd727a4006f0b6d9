"""Delivery order: messages of other alerts, receivers and projects do not wait."""

import threading
import time

from app.alerts.receiver import Receiver
from app.store.alerting import receivers
from app.store.alerting.outbox import MAX_PER_PROJECT
from app.store.alerting.receivers import MAX_RECEIVERS
from tests.alerts.http_receiver import Answer, receiver
from tests.alerts.notices import SECRET
from tests.store.factories import add_message


def test_hanging_receivers_of_a_project_delay_no_other_project(make_notifier, hook):
    notifier = make_notifier(total_s=30.0)
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
        add_messages(notifier, "calm", ["well"] * 3)
        notifier.sender.nudge()
        wait_for(lambda: len(well.requests) == 3)
        # All of them still hang: where one had ended, the next would have begun.
        assert len(hook.requests) == MAX_PER_PROJECT
        stop.set()
        hook.released.set()
        thread.join()


def add_receiver(notifier, project, endpoint_id, url):
    made = Receiver(endpoint_id, project, endpoint_id, "standard", url, (SECRET,))
    with notifier.store.write() as conn:
        receivers.add(conn, made)


def add_messages(notifier, project, endpoint_ids):
    """Add a message to each of these receivers."""
    with notifier.store.write() as conn:
        for number, endpoint_id in enumerate(endpoint_ids):
            add_message(
                conn,
                endpoint_id,
                notice_id=f"{project}-{number}",
                job_id=None,
                rule=None,
                kind="test",
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
