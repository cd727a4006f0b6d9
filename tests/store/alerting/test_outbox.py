from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from app.alerts.notice import Message
from app.alerts.retry import FAILURES_TO_OPEN, PROBE_EVERY_S
from app.errors import Conflict, DeliveryNotFound
from app.store.alerting import alerts, deliveries, outbox, receivers, silences
from app.store.database import Store
from tests.store.factories import alert, register, silence, webhook_receiver

LEASE_S = 30.0


@pytest.fixture
def add_message(store):
    """Add a message about alerts to a receiver; adds the receiver if new."""
    known = set()

    def add_message(payload="{}", *, to="hook", now_s=100.0, message=None, **given):
        values = {
            "endpoint_id": to,
            "notice_id": payload,
            "job_id": "default/job",
            "rule": "slowdown",
            "kind": "firing",
            "fingerprints": ["aa"],
        }
        with store.write() as conn:
            if to not in known:
                format_ = "pagerduty" if to == "pagerduty" else "standard"
                receivers.add(conn, webhook_receiver(to, format=format_))
                known.add(to)
            message = message or Message(payload)
            return outbox.add(conn, **values | given, message=message, now_s=now_s)

    return add_message


@pytest.fixture
def claim(store):
    def claim(*, now_s, limit=10):
        with store.write() as conn:
            return outbox.claim(conn, now_s=now_s, lease_s=LEASE_S, limit=limit)

    return claim


@pytest.fixture
def deliver(store):
    def deliver(delivery, *, now_s=101.0):
        with store.write() as conn:
            outbox.mark_delivered(conn, delivery, now_s=now_s)

    return deliver


@pytest.fixture
def fail(store):
    def fail(delivery, *, next_at_s, now_s=100.0):
        with store.write() as conn:
            outbox.mark_failed(conn, delivery, detail="HTTP 500", next_at_s=next_at_s, now_s=now_s)

    return fail


@pytest.fixture
def states(store):
    def states():
        with store.read() as conn:
            return {each.notice_id: each.state for each in deliveries.page(conn, "default")[0]}

    return states


def save_alert(store, phase):
    """Save the alert of the messages in this phase."""
    register(store, "default/job")
    with store.write() as conn:
        alerts.save(conn, [alert("default/job", fingerprint="aa", phase=phase)])


def payloads(found):
    return [one.payload for one in found]


def test_message_is_due_at_once_for_each_receiver(add_message, claim):
    delivery_id = add_message("hello")
    assert add_message("again", notice_id="hello") is None
    other_id = add_message("hello", to="other")
    found = claim(now_s=100.0)
    assert {one.delivery_id: one.endpoint_id for one in found} == {
        delivery_id: "hook",
        other_id: "other",
    }
    assert [(one.payload, one.attempt) for one in found] == [("hello", 1), ("hello", 1)]


def test_concurrent_adds_of_one_notice_add_one_message(store, add_message, claim):
    add_message("first")
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda _: add_message("second", rule="r"), range(8)))
    assert len([each for each in ids if each is not None]) == 1
    assert payloads(claim(now_s=100.0)) == ["first", "second"]


def test_a_message_is_claimed_as_it_was_written(add_message, claim):
    written = Message('{"a": "é"}', "text/plain", {"x-a": "b"}, "Ä is slow")
    delivery_id = add_message(message=written, kind="resolved", fingerprints=["aa", "bb"])
    [found] = claim(now_s=100.0)
    assert (found.delivery_id, found.endpoint_id, found.kind) == (delivery_id, "hook", "resolved")
    assert (found.job_id, found.rule, found.fingerprints) == (
        "default/job",
        "slowdown",
        ["aa", "bb"],
    )
    got = Message(found.payload, found.content_type, found.headers, found.subject)
    assert got == written


def test_claimed_delivery_is_free_after_its_claim_lapses(add_message, claim):
    add_message()
    (first,) = claim(now_s=100.0)
    assert claim(now_s=100.0 + LEASE_S - 0.1) == []
    (second,) = claim(now_s=100.0 + LEASE_S)
    assert second == replace(first, attempt=2)


def test_concurrent_senders_claim_each_delivery_once(add_message, claim):
    for number in range(24):
        add_message(to=f"hook-{number % 12}", rule=f"r-{number}", notice_id=f"{number}")
    found = []
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            for share in pool.map(lambda _: claim(now_s=100.0, limit=3), range(4)):
                found += [one.delivery_id for one in share]
    assert len(found) == len(set(found)) == 24


def test_receiver_has_at_most_two_attempts_in_flight(add_message, claim, deliver):
    for number in range(5):
        add_message(f"{number}", rule=f"r-{number}")
    first, second = claim(now_s=100.0)
    assert claim(now_s=100.0) == []
    deliver(first)
    assert payloads(claim(now_s=101.0)) == ["2"]
    deliver(second)
    assert payloads(claim(now_s=101.0, limit=1)) == ["3"]


def test_concurrent_senders_keep_the_limit_of_a_receiver(add_message, claim):
    for number in range(20):
        add_message(f"{number}", rule=f"r-{number}")
    with ThreadPoolExecutor(8) as pool:
        shares = list(pool.map(lambda _: claim(now_s=100.0), range(8)))
    assert sum(len(share) for share in shares) == 2


def test_receivers_are_locked_during_a_claim(store, add_message):
    """An uncommitted claim is not visible and would not be counted."""
    if store.is_sqlite:
        pytest.skip("a write there waits for every other one")
    for number in range(2):
        add_message(f"{number}", rule=f"r-{number}")
    with store.write() as conn:
        assert len(outbox.claim(conn, now_s=100.0, lease_s=LEASE_S, limit=2)) == 2
        add_message("sooner", rule="r-sooner", now_s=50.0)
        add_message("elsewhere", to="other")
        with store.write() as other:
            second = outbox.claim(other, now_s=100.0, lease_s=LEASE_S, limit=9)
    assert payloads(second) == ["elsewhere"]


def test_hanging_receiver_delays_no_other(add_message, claim):
    for number in range(100):
        add_message(f"{number}", to="hangs", rule=f"r-{number}", now_s=1.0)
    claim(now_s=90.0)
    add_message("urgent", to="other")
    assert payloads(claim(now_s=100.0)) == ["urgent"]


def test_failing_receiver_gets_one_message_a_minute(store, add_message, claim, deliver):
    for number in range(3):
        add_message(f"{number}", rule=f"r-{number}")
    with store.write() as conn:
        for _ in range(FAILURES_TO_OPEN):
            receivers.mark_failed(conn, "hook", detail="HTTP 500", now_s=100.0)
    probe_s = 100.0 + PROBE_EVERY_S
    assert claim(now_s=probe_s - 0.1) == []
    [probe] = claim(now_s=probe_s)
    # The claim lapses, as after a crash: not before the next minute.
    assert claim(now_s=probe_s + LEASE_S) == []
    assert len(claim(now_s=probe_s + PROBE_EVERY_S)) == 1
    with store.write() as conn:
        receivers.mark_succeeded(conn, "hook", probe_s)
    deliver(probe)
    assert len(claim(now_s=probe_s + 2 * PROBE_EVERY_S)) == 2


def test_delivered_message_is_not_due_again(add_message, claim, deliver):
    add_message()
    (delivery,) = claim(now_s=100.0)
    deliver(delivery)
    assert claim(now_s=1e9) == []


def test_silenced_message_is_not_sent(store, add_message, claim, states):
    add_message("a")
    (delivery,) = claim(now_s=100.0)
    with store.write() as conn:
        outbox.mark_silenced(conn, delivery, now_s=100.0)
    assert claim(now_s=1e9) == []
    assert states() == {"a": "silenced"}


def test_silence_committed_before_a_claim_is_seen_in_its_transaction(store, add_message):
    add_message()
    for number in range(20):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_mute, store, f"{number}").result()
        with store.write() as conn:
            outbox.claim(conn, now_s=150.0, lease_s=0.0, limit=1)
            assert len(silences.active(conn, "default", now_s=150.0)) == number + 1


def _mute(store, silence_id):
    with store.write() as conn:
        silences.add(conn, silence(silence_id))


def test_retry_has_the_same_id(add_message, claim, fail):
    add_message()
    (first,) = claim(now_s=100.0)
    fail(first, next_at_s=105.0)
    assert claim(now_s=104.9) == []
    assert claim(now_s=105.0) == [replace(first, attempt=2)]


def test_failed_message_is_not_retried(add_message, claim, fail):
    add_message()
    (first,) = claim(now_s=100.0)
    fail(first, next_at_s=None)
    assert claim(now_s=1e9) == []


def test_lapsed_claim_cannot_change_the_message(add_message, claim, fail, deliver):
    add_message()
    (late,) = claim(now_s=100.0)
    (current,) = claim(now_s=200.0)
    fail(late, next_at_s=None)
    deliver(late, now_s=201.0)
    fail(current, next_at_s=300.0, now_s=201.0)
    assert [one.attempt for one in claim(now_s=300.0)] == [3]


def test_messages_of_one_rule_on_one_job_are_claimed_in_order(add_message, claim, deliver):
    add_message("firing")
    add_message("resolved", kind="resolved")
    add_message("of another job", job_id="default/other")
    add_message("of another rule", rule="stalled")
    add_message("to another", to="other")
    first = claim(now_s=100.0)
    assert payloads(first) == ["firing", "of another job", "to another"]
    for one in first:
        deliver(one)
    second = claim(now_s=101.0)
    assert payloads(second) == ["resolved", "of another rule"]


def test_messages_about_no_alert_do_not_wait(add_message, claim):
    for number in range(2):
        add_message(f"{number}", job_id=None, rule=None, kind="test", fingerprints=[])
    assert len(claim(now_s=100.0)) == 2


def test_failed_message_is_outdated_by_a_newer_one(add_message, claim, fail, states):
    add_message("firing")
    (first,) = claim(now_s=100.0)
    fail(first, next_at_s=105.0)
    add_message("resolved", kind="resolved", now_s=101.0)
    assert payloads(claim(now_s=101.0)) == ["resolved"]
    assert claim(now_s=110.0) == []
    assert states()["firing"] == "outdated"


def test_message_with_a_waiting_successor_is_not_retried(add_message, claim, fail):
    add_message("firing")
    (first,) = claim(now_s=100.0)
    add_message("resolved", kind="resolved", now_s=101.0)
    assert claim(now_s=101.0) == []
    fail(first, next_at_s=105.0, now_s=102.0)
    assert payloads(claim(now_s=102.0)) == ["resolved"]
    assert claim(now_s=110.0) == []


@pytest.mark.parametrize(
    "newer",
    [
        {"fingerprints": ["aa"]},
        {"fingerprints": ["aa", "bb"], "kind": "acknowledged"},
        {"fingerprints": ["aa", "bb"], "rule": "stalled"},
        {"fingerprints": ["aa", "bb"], "job_id": "default/other"},
        {"fingerprints": ["aa", "bb"], "to": "other"},
    ],
)
def test_message_is_outdated_only_if_all_its_alerts_are_covered(
    add_message, claim, fail, states, newer
):
    """Otherwise one alert would never be delivered."""
    add_message("both", fingerprints=["aa", "bb"])
    (first,) = claim(now_s=100.0)
    fail(first, next_at_s=105.0)
    add_message("newer", **newer)
    assert states()["both"] == "due"
    assert "both" in payloads(claim(now_s=105.0))


def test_several_newer_messages_can_outdate_one(add_message, claim, fail, states):
    add_message("both", fingerprints=["aa", "bb"])
    (first,) = claim(now_s=100.0)
    add_message("a", fingerprints=["aa"])
    add_message("b", fingerprints=["bb", "cc"])
    fail(first, next_at_s=105.0, now_s=101.0)
    assert states() == {"both": "outdated", "a": "due", "b": "due"}


def test_message_in_flight_is_not_outdated(add_message, claim, deliver, states):
    add_message("firing")
    (first,) = claim(now_s=100.0)
    add_message("resolved", kind="resolved", now_s=101.0)
    assert states()["firing"] == "due"
    deliver(first)
    assert states() == {"firing": "delivered", "resolved": "due"}


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda conn: receivers.disable(conn, "hook", reason="", now_s=1.0), "is disabled"),
        (lambda conn: receivers.remove(conn, "default", "hook"), "was removed"),
    ],
    ids=["disabled", "removed"],
)
def test_messages_to_a_disabled_or_removed_receiver_fail(store, add_message, claim, end, why):
    add_message()
    add_message(to="other", rule="r")
    with store.write() as conn:
        end(conn)
    assert [one.endpoint_id for one in claim(now_s=100.0)] == ["other"]
    with store.read() as conn:
        [failed], _ = deliveries.page(conn, "default", state="failed")
    assert failed.detail is not None
    assert failed.detail.endswith(why)


def test_attempt_in_flight_is_saved_after_disabling_its_receiver(
    store, add_message, claim, deliver, states
):
    add_message("a")
    (first,) = claim(now_s=100.0)
    with store.write() as conn:
        receivers.disable(conn, "hook", reason="", now_s=1.0)
    assert claim(now_s=100.0) == []
    deliver(first)
    assert states() == {"a": "delivered"}


def test_replay_sends_a_failed_message_under_its_id(store, add_message, claim, fail, states):
    delivery_id = add_message("a")
    (first,) = claim(now_s=100.0)
    fail(first, next_at_s=None)
    save_alert(store, "firing")
    with store.write() as conn:
        outbox.replay(conn, "default", delivery_id, 200.0)
        with pytest.raises(Conflict, match="still due"):
            outbox.replay(conn, "default", delivery_id, 200.0)
    assert claim(now_s=199.0) == []
    assert claim(now_s=200.0) == [first]
    for project, unknown in (("other", delivery_id), ("default", "msg_x")):
        with pytest.raises(DeliveryNotFound, match=unknown), store.write() as conn:
            outbox.replay(conn, project, unknown, 200.0)


@pytest.mark.parametrize("phase", ["pending", None])
def test_firing_of_a_resolved_alert_is_not_replayed(store, add_message, claim, fail, states, phase):
    """A receiver would open an incident that nothing closes."""
    delivery_id = add_message("a")
    (first,) = claim(now_s=100.0)
    fail(first, next_at_s=None)
    if phase is not None:
        save_alert(store, phase)
    with pytest.raises(Conflict, match="none of its alerts is firing"), store.write() as conn:
        outbox.replay(conn, "default", delivery_id, 200.0)
    assert states() == {"a": "failed"}


def test_resolution_can_be_replayed(store, add_message, claim, fail):
    delivery_id = add_message("a", kind="resolved")
    (first,) = claim(now_s=100.0)
    fail(first, next_at_s=None)
    with store.write() as conn:
        outbox.replay(conn, "default", delivery_id, 200.0)
    assert claim(now_s=200.0) == [first]


@pytest.mark.parametrize("kind", ["resolved", "acknowledged"])
def test_resolution_of_a_firing_alert_is_not_replayed(store, add_message, claim, deliver, kind):
    """A receiver would close or mute its incident until the repeat hours later."""
    delivery_id = add_message("a", kind=kind)
    (first,) = claim(now_s=100.0)
    deliver(first)
    save_alert(store, "firing")
    with pytest.raises(Conflict, match="sent again, it would"), store.write() as conn:
        outbox.replay(conn, "default", delivery_id, 200.0)


def test_shared_incident_is_closed_by_replay_only_without_firing_alerts(
    store, add_message, claim, deliver
):
    given = {"kind": "resolved", "fingerprints": ["bb"]}
    ids = {to: add_message("a", to=to, **given) for to in ("pagerduty", "standard")}
    for each in claim(now_s=100.0):
        deliver(each)
    save_alert(store, "firing")
    with store.write() as conn:
        outbox.replay(conn, "default", ids["standard"], 200.0)
        with pytest.raises(Conflict, match="would close it"):
            outbox.replay(conn, "default", ids["pagerduty"], 200.0)


def test_acknowledgement_can_be_replayed_while_it_holds(store, add_message, claim, deliver):
    delivery_id = add_message("a", kind="acknowledged")
    (first,) = claim(now_s=100.0)
    deliver(first)
    save_alert(store, "firing")
    with store.write() as conn:
        alerts.acknowledge(conn, "aa", by="ada", at_s=150.0)
        outbox.replay(conn, "default", delivery_id, 200.0)
    assert claim(now_s=200.0) == [first]


def test_disabled_receiver_gets_no_replay(store, add_message, claim, fail):
    delivery_id = add_message()
    (first,) = claim(now_s=100.0)
    fail(first, next_at_s=None)
    with store.write() as conn:
        receivers.disable(conn, "hook", reason="", now_s=1.0)
    with pytest.raises(Conflict, match="enable it first"), store.write() as conn:
        outbox.replay(conn, "default", delivery_id, 200.0)


def test_messages_to_a_receiver_whose_key_is_not_here_stay_for_other_senders(
    url, add_message, claim
):
    add_message()
    keyless = Store(url)
    with keyless.read() as conn:
        assert not outbox.has_due(conn, now_s=100.0)
        assert outbox.has_due(conn, now_s=200.0), "somebody should say why it waits"
    with keyless.write() as conn:
        assert outbox.claim(conn, now_s=200.0, lease_s=LEASE_S, limit=9) == []
        assert "there is no key" in receivers.without_key(conn)["hook"]
        assert outbox.note_why_waiting(conn, "hook", "no key", now_s=200.0) == 1
        assert not outbox.has_due(conn, now_s=200.0)
    keyless.close()
    [delivery] = claim(now_s=200.0)
    assert delivery.attempt == 1


def test_a_receiver_switched_off_whose_key_is_not_here_has_no_messages_due(url, add_message, store):
    add_message()
    with store.write() as conn:
        receivers.disable(conn, "hook", reason="broken", now_s=100.0)
    keyless = Store(url)
    with keyless.write() as conn:
        assert outbox.has_due(conn, now_s=101.0)
        assert outbox.claim(conn, now_s=101.0, lease_s=LEASE_S, limit=9) == []
        assert not outbox.has_due(conn, now_s=101.0)
    keyless.close()
