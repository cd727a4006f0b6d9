"""The judge of part crashes over made-up hearings: each promise is broken once on purpose."""

import json
from dataclasses import replace

import pytest

from tests.harness.alerts.judge import OwedNotification, SilencedPeriod, num_repeated, wrong
from tests.harness.alerts.listener import FlakyReplies, Inbox, ReceivedNotification

JOB, RULE = "job-1", "worker"
FIRING = {"a": "firing", "b": "firing"}
RESOLVED = {"a": "resolved", "b": "resolved"}


def hearing(delivery_id="m1", at_s=10.0, told=FIRING, endpoint="steady", **given):
    return ReceivedNotification(endpoint, delivery_id, at_s, JOB, RULE, told, **given)


def well(endpoint="steady"):
    """An alert that begins and ends as it should."""
    end = hearing(f"{endpoint}-2", 20.0, RESOLVED, endpoint)
    return [hearing(f"{endpoint}-1", 10.0, FIRING, endpoint), end]


OWED = [
    OwedNotification(endpoint, fingerprint, status, JOB, RULE)
    for endpoint in ("steady", "shaky")
    for fingerprint in "ab"
    for status in ("firing", "resolved")
]
WELL = [*well(), *well("shaky")]


def complaints(hearings, *, deaths_s=(), quiets=()):
    found = wrong(OWED, hearings, deaths_s=deaths_s, quiets=quiets)
    return sorted({each.partition(":")[0] for each in found})


def test_complete_deliveries_have_no_complaints():
    assert complaints(WELL) == []


@pytest.mark.parametrize("missing", range(len(WELL)))
def test_notification_missing_at_one_receiver_is_lost(missing):
    left = [each for at, each in enumerate(WELL) if at != missing]
    assert "lost" in complaints(left)


def test_alert_missing_from_a_notification_is_lost():
    first, *rest = WELL
    assert "lost" in complaints([replace(first, told={"a": "firing"}), *rest])


def test_firing_delivered_after_resolved_is_stale():
    first, second, *rest = WELL
    assert complaints([second, first, *rest]) == ["stale"]


def test_same_content_under_another_delivery_id_is_renewed():
    again = replace(WELL[0], delivery_id="other", at_s=11.0)
    assert complaints([WELL[0], again, *WELL[1:]], deaths_s=[10.5]) == ["renewed"]


def test_repeat_interval_notification_is_not_renewed():
    repeat = replace(WELL[0], delivery_id="other", at_s=11.0, is_repeat=True)
    assert complaints([WELL[0], repeat, *WELL[1:]]) == []


def test_each_process_death_explains_one_repeated_delivery():
    again = [replace(WELL[0], at_s=at_s) for at_s in (12.0, 15.0)]
    hearings = [WELL[0], *again, *WELL[1:]]
    assert complaints(hearings, deaths_s=[11.0, 14.0]) == []
    assert complaints(hearings, deaths_s=[11.0]) == ["repeated"]
    assert complaints(hearings, deaths_s=[11.0, 16.0]) == ["repeated"]
    assert complaints(hearings) == ["repeated"]
    assert dict(num_repeated(hearings)) == {("steady", "steady-1"): 2}


def test_notification_during_a_silence_is_reported():
    assert complaints(WELL, quiets=[SilencedPeriod(JOB, 5.0, 12.0)]) == ["spoken"]
    assert complaints(WELL, quiets=[SilencedPeriod("job-2", 5.0, 12.0)]) == []
    # On its way when the silence began, or told as soon as it was over.
    assert (
        complaints(WELL, quiets=[SilencedPeriod(JOB, 9.5, 19.0), SilencedPeriod(JOB, 21.0, 30.0)])
        == []
    )


def test_pagerduty_resolve_covers_every_alert_of_the_incident():
    heard = Inbox()
    alerts = [{"fingerprint": each, "status": "firing"} for each in "ab"]
    details = {"alerts": alerts, "job_id": JOB, "rule": RULE, "is_repeat": False}
    event = {"event_action": "trigger", "dedup_key": "k", "payload": {"custom_details": details}}
    heard.hear("pager", "m1", json.dumps(event).encode())
    assert heard.knows("pager", "ab", "firing")
    heard.hear("pager", "m2", b'{"event_action": "resolve", "dedup_key": "k"}')
    assert heard.knows("pager", "ab", "resolved")
    assert [each.job for each in heard.of_jobs({JOB})] == [JOB, JOB]


def test_flaky_receiver_accepts_every_notification_by_the_third_attempt():
    refusing = FlakyReplies(["shaky"])
    met = {
        f"m{number}": [refusing.refusal("shaky", f"m{number}") for _ in range(4)]
        for number in range(200)
    }
    kinds = {each for refusals in met.values() for each in refusals if each}
    assert kinds == {500, 503, "reset"}
    assert all(refusals[2:] == [None, None] for refusals in met.values())
    assert 0.2 < sum(refusals[0] is not None for refusals in met.values()) / 200 < 0.5
    assert refusing.refusal("steady", "m1") is None
