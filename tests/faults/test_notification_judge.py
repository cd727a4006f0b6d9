"""The judge of part crashes over constructed messages: each guarantee is broken once."""

import json
from dataclasses import replace

import pytest

from tests.harness.alerts.judge import OwedNotification, SilencedPeriod, num_repeated, wrong
from tests.harness.alerts.listener import Inbox, ReceivedNotification

JOB, RULE = "job-1", "worker"
FIRING = {"a": "firing", "b": "firing"}
RESOLVED = {"a": "resolved", "b": "resolved"}


def notification(delivery_id="m1", at_s=10.0, statuses=FIRING, receiver="steady", **given):
    return ReceivedNotification(receiver, delivery_id, at_s, JOB, RULE, statuses, **given)


def complete_delivery(receiver="steady"):
    """Firing and resolved notifications of both alerts."""
    end = notification(f"{receiver}-2", 20.0, RESOLVED, receiver)
    return [notification(f"{receiver}-1", 10.0, FIRING, receiver), end]


OWED = [
    OwedNotification(receiver, fingerprint, status, JOB, RULE)
    for receiver in ("steady", "shaky")
    for fingerprint in "ab"
    for status in ("firing", "resolved")
]
COMPLETE = [*complete_delivery(), *complete_delivery("shaky")]


def complaints(received, *, deaths_s=(), silences=()):
    found = wrong(OWED, received, deaths_s=deaths_s, silences=silences)
    return sorted({each.partition(":")[0] for each in found})


def test_complete_deliveries_have_no_complaints():
    assert complaints(COMPLETE) == []


@pytest.mark.parametrize("missing", range(len(COMPLETE)))
def test_notification_missing_at_one_receiver_is_lost(missing):
    left = [each for at, each in enumerate(COMPLETE) if at != missing]
    assert "lost" in complaints(left)


def test_firing_delivered_after_resolved_is_stale():
    first, second, *rest = COMPLETE
    assert complaints([second, first, *rest]) == ["stale"]


def test_same_content_under_another_delivery_id_is_renewed():
    again = replace(COMPLETE[0], delivery_id="other", at_s=11.0)
    assert complaints([COMPLETE[0], again, *COMPLETE[1:]], deaths_s=[10.5]) == ["renewed"]


def test_each_process_death_explains_one_repeated_delivery():
    again = [replace(COMPLETE[0], at_s=at_s) for at_s in (12.0, 15.0)]
    received = [COMPLETE[0], *again, *COMPLETE[1:]]
    assert complaints(received, deaths_s=[11.0, 14.0]) == []
    assert complaints(received, deaths_s=[11.0]) == ["repeated"]
    assert complaints(received, deaths_s=[11.0, 16.0]) == ["repeated"]
    assert complaints(received) == ["repeated"]
    assert dict(num_repeated(received)) == {("steady", "steady-1"): 2}


def test_notification_during_a_silence_is_reported():
    assert complaints(COMPLETE, silences=[SilencedPeriod(JOB, 5.0, 12.0)]) == ["spoken"]
    assert complaints(COMPLETE, silences=[SilencedPeriod("job-2", 5.0, 12.0)]) == []
    # Claimed before the silence began, or delivered right after it ended.
    assert (
        complaints(
            COMPLETE, silences=[SilencedPeriod(JOB, 9.5, 19.0), SilencedPeriod(JOB, 21.0, 30.0)]
        )
        == []
    )


def test_pagerduty_resolve_covers_every_alert_of_the_incident():
    inbox = Inbox()
    alerts = [{"fingerprint": each, "status": "firing"} for each in "ab"]
    details = {"alerts": alerts, "job_id": JOB, "rule": RULE, "is_repeat": False}
    event = {"event_action": "trigger", "dedup_key": "k", "payload": {"custom_details": details}}
    inbox.receive("pager", "m1", json.dumps(event).encode())
    assert inbox.has_status("pager", "ab", "firing")
    inbox.receive("pager", "m2", b'{"event_action": "resolve", "dedup_key": "k"}')
    assert inbox.has_status("pager", "ab", "resolved")
    assert [each.job for each in inbox.of_jobs({JOB})] == [JOB, JOB]
