from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from app.alerts.notice import Message
from app.alerts.receiver import FAILURES_TO_OPEN, PROBE_EVERY_S
from app.errors import Conflict, DeliveryNotFound
from app.store.alerting import alerts, deliveries, outbox, receivers, silences
from app.store.database import Store
from tests.store.alerting.box import LEASE_S, Box
from tests.store.factories import alert, register, silence


@pytest.fixture
def box(store):
    return Box(store)


def save_alert(store, phase):
    """Save the alert of the messages in this phase."""
    register(store, "default/job")
    with store.write() as conn:
        alerts.save(conn, [alert("default/job", fingerprint="aa", phase=phase)])


def test_message_is_due_at_once_for_each_receiver(box):
    delivery_id = box.add("hello")
    assert box.add("again", notice_id="hello") is None
    other_id = box.add("hello", to="other")
    found = box.claim(now_s=100.0)
    assert {one.delivery_id: one.endpoint_id for one in found} == {
        delivery_id: "hook",
        other_id: "other",
    }
    assert [one.attempt for one in found] == [1, 1]


@pytest.mark.sql_sensitive
def test_concurrent_adds_of_one_notice_add_one_message(box):
    box.add("first")
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda _: box.add("second", rule="r"), range(8)))
    assert len([each for each in ids if each is not None]) == 1
    assert box.notices_of(box.claim(now_s=100.0)) == ["first", "second"]


@pytest.mark.sql_sensitive
def test_a_message_is_claimed_as_it_was_written(box):
    written = Message('{"a": "é"}', "text/plain", {"x-a": "b"}, "Ä is slow")
    delivery_id = box.add(message=written, kind="resolved", fingerprints=["aa", "bb"])
    [found] = box.claim(now_s=100.0)
    assert (found.delivery_id, found.endpoint_id, found.kind) == (delivery_id, "hook", "resolved")
    assert (found.job_id, found.rule, found.fingerprints) == (
        "default/job",
        "slowdown",
        ["aa", "bb"],
    )
    got = Message(found.payload, found.content_type, found.headers, found.subject)
    assert got == written


@pytest.mark.sql_sensitive
def test_claimed_delivery_is_free_after_its_claim_lapses(box):
    box.add()
    (first,) = box.claim(now_s=100.0)
    assert box.claim(now_s=100.0 + LEASE_S - 0.1) == []
    (second,) = box.claim(now_s=100.0 + LEASE_S)
    assert second == replace(first, attempt=2)


@pytest.mark.sql_sensitive
def test_concurrent_senders_claim_each_delivery_once(box):
    for number in range(24):
        box.add(to=f"hook-{number % 12}", rule=f"r-{number}", notice_id=f"{number}")
    found = []
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            for share in pool.map(lambda _: box.claim(now_s=100.0, limit=3), range(4)):
                found += [one.delivery_id for one in share]
    assert len(found) == len(set(found)) == 24


def test_receiver_has_at_most_two_attempts_in_flight(box):
    for number in range(5):
        box.add(f"{number}", rule=f"r-{number}")
    first, second = box.claim(now_s=100.0)
    assert box.claim(now_s=100.0) == []
    box.deliver(first)
    assert box.notices_of(box.claim(now_s=101.0)) == ["2"]
    box.deliver(second)
    assert box.notices_of(box.claim(now_s=101.0, limit=1)) == ["3"]


@pytest.mark.sql_sensitive
def test_concurrent_senders_keep_the_limit_of_a_receiver(box):
    for number in range(20):
        box.add(f"{number}", rule=f"r-{number}")
    with ThreadPoolExecutor(8) as pool:
        shares = list(pool.map(lambda _: box.claim(now_s=100.0), range(8)))
    assert sum(len(share) for share in shares) == 2


@pytest.mark.sql_sensitive
def test_receivers_are_locked_during_a_claim(store, box):
    """An uncommitted claim is not visible and would not be counted."""
    if store.is_sqlite:
        pytest.skip("a write there waits for every other one")
    for number in range(2):
        box.add(f"{number}", rule=f"r-{number}")
    with store.write() as conn:
        assert len(outbox.claim(conn, now_s=100.0, lease_s=LEASE_S, limit=2)) == 2
        box.add("sooner", rule="r-sooner", now_s=50.0)
        box.add("elsewhere", to="other")
        with store.write() as other:
            second = outbox.claim(other, now_s=100.0, lease_s=LEASE_S, limit=9)
    assert box.notices_of(second) == ["elsewhere"]


def test_hanging_receiver_delays_no_other(box):
    for number in range(100):
        box.add(f"{number}", to="hangs", rule=f"r-{number}", now_s=1.0)
    box.claim(now_s=90.0)
    box.add("urgent", to="other")
    assert box.notices_of(box.claim(now_s=100.0)) == ["urgent"]


def test_failing_receiver_gets_one_message_a_minute(store, box):
    for number in range(3):
        box.add(f"{number}", rule=f"r-{number}")
    with store.write() as conn:
        for _ in range(FAILURES_TO_OPEN):
            receivers.mark_failed(conn, "hook", detail="HTTP 500", now_s=100.0)
    probe_s = 100.0 + PROBE_EVERY_S
    assert box.claim(now_s=probe_s - 0.1) == []
    [probe] = box.claim(now_s=probe_s)
    # The claim lapses, as after a crash: not before the next minute.
    assert box.claim(now_s=probe_s + LEASE_S) == []
    assert len(box.claim(now_s=probe_s + PROBE_EVERY_S)) == 1
    with store.write() as conn:
        receivers.mark_succeeded(conn, "hook", probe_s)
    box.deliver(probe)
    assert len(box.claim(now_s=probe_s + 2 * PROBE_EVERY_S)) == 2


@pytest.mark.parametrize("state", ["delivered", "failed", "silenced"])
def test_settled_message_is_not_due_again(store, box, state):
    box.add("a")
    (delivery,) = box.claim(now_s=100.0)
    with store.write() as conn:
        if state == "delivered":
            outbox.mark_delivered(conn, delivery, now_s=101.0)
        elif state == "failed":
            outbox.mark_failed(conn, delivery, detail="HTTP 500", next_at_s=None, now_s=101.0)
        else:
            outbox.mark_silenced(conn, delivery, now_s=101.0)
    assert box.claim(now_s=1e9) == []
    assert box.states() == {"a": state}


@pytest.mark.sql_sensitive
def test_silence_committed_before_a_claim_is_seen_in_its_transaction(store, box):
    box.add()
    for number in range(20):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_mute, store, f"{number}").result()
        with store.write() as conn:
            outbox.claim(conn, now_s=150.0, lease_s=0.0, limit=1)
            assert len(silences.active(conn, "default", now_s=150.0)) == number + 1


def _mute(store, silence_id):
    with store.write() as conn:
        silences.add(conn, silence(silence_id))


@pytest.mark.sql_sensitive
def test_lapsed_claim_cannot_change_the_message(box):
    box.add()
    (late,) = box.claim(now_s=100.0)
    (current,) = box.claim(now_s=200.0)
    box.fail(late, next_at_s=None)
    box.deliver(late, now_s=201.0)
    box.fail(current, next_at_s=300.0, now_s=201.0)
    assert [one.attempt for one in box.claim(now_s=300.0)] == [3]


@pytest.mark.sql_sensitive
def test_messages_of_one_rule_on_one_job_are_claimed_in_order(box):
    box.add("firing")
    box.add("resolved", kind="resolved")
    box.add("of another job", job_id="default/other")
    box.add("of another rule", rule="stalled")
    box.add("to another", to="other")
    first = box.claim(now_s=100.0)
    assert box.notices_of(first) == ["firing", "of another job", "to another"]
    for one in first:
        box.deliver(one)
    second = box.claim(now_s=101.0)
    assert box.notices_of(second) == ["resolved", "of another rule"]


@pytest.mark.sql_sensitive
def test_failed_message_is_outdated_by_a_newer_one(box):
    box.add("firing")
    (first,) = box.claim(now_s=100.0)
    box.fail(first, next_at_s=105.0)
    box.add("resolved", kind="resolved", now_s=101.0)
    assert box.notices_of(box.claim(now_s=101.0)) == ["resolved"]
    assert box.claim(now_s=110.0) == []
    assert box.states()["firing"] == "outdated"


def test_message_with_a_waiting_successor_is_not_retried(box):
    box.add("firing")
    (first,) = box.claim(now_s=100.0)
    box.add("resolved", kind="resolved", now_s=101.0)
    assert box.claim(now_s=101.0) == []
    box.fail(first, next_at_s=105.0, now_s=102.0)
    assert box.notices_of(box.claim(now_s=102.0)) == ["resolved"]
    assert box.claim(now_s=110.0) == []


@pytest.mark.sql_sensitive
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
def test_message_is_outdated_only_if_all_its_alerts_are_covered(box, newer):
    """Otherwise one alert would never be delivered."""
    box.add("both", fingerprints=["aa", "bb"])
    (first,) = box.claim(now_s=100.0)
    box.fail(first, next_at_s=105.0)
    box.add("newer", **newer)
    assert box.states()["both"] == "due"
    assert "both" in box.notices_of(box.claim(now_s=105.0))


@pytest.mark.sql_sensitive
def test_several_newer_messages_can_outdate_one(box):
    box.add("both", fingerprints=["aa", "bb"])
    (first,) = box.claim(now_s=100.0)
    box.add("a", fingerprints=["aa"])
    box.add("b", fingerprints=["bb", "cc"])
    box.fail(first, next_at_s=105.0, now_s=101.0)
    assert box.states() == {"both": "outdated", "a": "due", "b": "due"}


@pytest.mark.sql_sensitive
def test_message_in_flight_is_not_outdated(box):
    box.add("firing")
    (first,) = box.claim(now_s=100.0)
    box.add("resolved", kind="resolved", now_s=101.0)
    assert box.states()["firing"] == "due"
    box.deliver(first)
    assert box.states() == {"firing": "delivered", "resolved": "due"}


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda conn: receivers.disable(conn, "hook", reason="", now_s=1.0), "is disabled"),
        (lambda conn: receivers.remove(conn, "default", "hook"), "was removed"),
    ],
    ids=["disabled", "removed"],
)
def test_messages_to_a_disabled_or_removed_receiver_fail(store, box, end, why):
    box.add()
    box.add(to="other", rule="r")
    with store.write() as conn:
        end(conn)
    assert [one.endpoint_id for one in box.claim(now_s=100.0)] == ["other"]
    with store.read() as conn:
        [failed], _ = deliveries.page(conn, "default", state="failed")
    assert failed.detail is not None
    assert failed.detail.endswith(why)


def test_attempt_in_flight_is_saved_after_disabling_its_receiver(store, box):
    box.add("a")
    (first,) = box.claim(now_s=100.0)
    with store.write() as conn:
        receivers.disable(conn, "hook", reason="", now_s=1.0)
    assert box.claim(now_s=100.0) == []
    box.deliver(first)
    assert box.states() == {"a": "delivered"}


@pytest.mark.sql_sensitive
def test_replay_sends_a_failed_message_under_its_id(store, box):
    delivery_id = box.add("a")
    (first,) = box.claim(now_s=100.0)
    box.fail(first, next_at_s=None)
    save_alert(store, "firing")
    with store.write() as conn:
        outbox.replay(conn, "default", delivery_id, 200.0)
        with pytest.raises(Conflict, match="still due"):
            outbox.replay(conn, "default", delivery_id, 200.0)
    assert box.claim(now_s=199.0) == []
    assert box.claim(now_s=200.0) == [first]
    for project, unknown in (("other", delivery_id), ("default", "msg_x")):
        with pytest.raises(DeliveryNotFound, match=unknown), store.write() as conn:
            outbox.replay(conn, project, unknown, 200.0)


@pytest.mark.sql_sensitive
@pytest.mark.parametrize("phase", ["pending", None])
def test_firing_of_a_resolved_alert_is_not_replayed(store, box, phase):
    """A receiver would open an incident that nothing closes."""
    delivery_id = box.add("a")
    (first,) = box.claim(now_s=100.0)
    box.fail(first, next_at_s=None)
    if phase is not None:
        save_alert(store, phase)
    with pytest.raises(Conflict, match="none of its alerts is firing"), store.write() as conn:
        outbox.replay(conn, "default", delivery_id, 200.0)
    assert box.states() == {"a": "failed"}


@pytest.mark.sql_sensitive
@pytest.mark.parametrize("kind", ["resolved", "acknowledged"])
def test_resolution_of_a_firing_alert_is_not_replayed(store, box, kind):
    """A receiver would close or mute its incident until the repeat hours later."""
    delivery_id = box.add("a", kind=kind)
    (first,) = box.claim(now_s=100.0)
    box.deliver(first)
    save_alert(store, "firing")
    with pytest.raises(Conflict, match="sent again, it would"), store.write() as conn:
        outbox.replay(conn, "default", delivery_id, 200.0)


@pytest.mark.sql_sensitive
def test_shared_incident_is_closed_by_replay_only_without_firing_alerts(store, box):
    given = {"kind": "resolved", "fingerprints": ["bb"]}
    ids = {to: box.add("a", to=to, format=to, **given) for to in ("pagerduty", "standard")}
    for each in box.claim(now_s=100.0):
        box.deliver(each)
    save_alert(store, "firing")
    with store.write() as conn:
        outbox.replay(conn, "default", ids["standard"], 200.0)
        with pytest.raises(Conflict, match="would close it"):
            outbox.replay(conn, "default", ids["pagerduty"], 200.0)


@pytest.mark.sql_sensitive
def test_acknowledgement_can_be_replayed_while_it_holds(store, box):
    delivery_id = box.add("a", kind="acknowledged")
    (first,) = box.claim(now_s=100.0)
    box.deliver(first)
    save_alert(store, "firing")
    with store.write() as conn:
        alerts.acknowledge(conn, "aa", by="ada", at_s=150.0)
        outbox.replay(conn, "default", delivery_id, 200.0)
    assert box.claim(now_s=200.0) == [first]


@pytest.mark.sql_sensitive
def test_disabled_receiver_gets_no_replay(store, box):
    delivery_id = box.add()
    (first,) = box.claim(now_s=100.0)
    box.fail(first, next_at_s=None)
    with store.write() as conn:
        receivers.disable(conn, "hook", reason="", now_s=1.0)
    with pytest.raises(Conflict, match="enable it first"), store.write() as conn:
        outbox.replay(conn, "default", delivery_id, 200.0)


@pytest.mark.sql_sensitive
def test_messages_to_a_receiver_whose_key_is_not_here_stay_for_other_senders(url, box):
    box.add()
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
    [delivery] = box.claim(now_s=200.0)
    assert delivery.attempt == 1


@pytest.mark.sql_sensitive
def test_a_receiver_switched_off_whose_key_is_not_here_has_no_messages_due(url, box, store):
    box.add()
    with store.write() as conn:
        receivers.disable(conn, "hook", reason="broken", now_s=100.0)
    keyless = Store(url)
    with keyless.write() as conn:
        assert outbox.has_due(conn, now_s=101.0)
        assert outbox.claim(conn, now_s=101.0, lease_s=LEASE_S, limit=9) == []
        assert not outbox.has_due(conn, now_s=101.0)
    keyless.close()
