"""Rows 45 to 48, 50, 54, 55 and 57 of the fault matrix, and other faults of a sender."""

import contextlib
import itertools
import json
import threading
import time

import pytest
from standardwebhooks.webhooks import Webhook

from app.alerts.labels import Matcher, Silence
from app.alerts.planning import NotificationTiming
from app.alerts.receiver import JITTER, RETRY_DELAYS_S
from app.consumer import sender as sending
from app.errors import StoreUnavailable
from app.store.alerting import outbox as store_outbox
from app.store.alerting import silences
from tests.alerts.http_receiver import Answer, receiver
from tests.alerts.notices import SECRET

DAY_S = 86_400.0
NO_REPEATS = NotificationTiming(repeat_s=1e9)


@pytest.fixture
def notifier(notifier, hook):
    notifier.add_receiver("hook", hook.url)
    return notifier


def outbox(notifier):
    return notifier.rows("outbox", "state", "attempt", "detail")


def test_due_message_is_delivered_once_and_signed(notifier, hook):
    notifier.clock.now_s = time.time()  # signatures are verified by the real clock
    notifier.fire()
    assert notifier.dispatch() == 1
    assert notifier.dispatch() == 0
    [(_, headers, body)] = hook.requests
    assert Webhook(SECRET).verify(body, headers) == json.loads(body)
    assert headers["webhook-id"].startswith("msg_")
    assert outbox(notifier) == [("delivered", 1, None)]
    [(attempt, status, detail)] = notifier.rows("delivery_attempts", "attempt", "status", "detail")
    assert (attempt, status, detail) == (1, 204, "HTTP 204")


@pytest.mark.parametrize("status", ["silence", "drip"])
def test_row_45_hanging_receiver_times_out(make_notifier, hook, status):
    hook.answer = Answer(status)
    notifier = make_notifier(total_s=0.3)
    notifier.add_receiver("dead", hook.url)
    notifier.fire()
    notifier.dispatcher.dispatch_due()
    notifier.send()
    assert outbox(notifier) == [("due", 1, "no answer in time")]


@pytest.mark.parametrize("status", ["silence", pytest.param("drip", marks=pytest.mark.nightly)])
def test_row_45_hanging_receiver_delays_no_other(make_notifier, hook, status):
    hook.answer = Answer(status)
    notifier = make_notifier(total_s=60.0)
    with receiver() as well:
        notifier.add_receiver("dead", hook.url)
        notifier.add_receiver("well", well.url)
        for number in range(20):
            notifier.fire(job_id=f"default/job-{number}")
        while notifier.dispatcher.dispatch_due():
            pass
        stop = threading.Event()
        thread = threading.Thread(target=notifier.sender.run, args=(stop,))
        thread.start()
        wait_for(lambda: len(well.requests) == 20)
        num_tried = len(hook.requests)
        num_failed = sum(each is not None for _, _, each in outbox(notifier))
        stop.set()
        hook.released.set()
        thread.join()
    assert (num_tried, num_failed) == (2, 0), "nobody has waited for the dead one's first two"


def wait_for(holds, within_s=30.0):
    """Poll until the condition holds: other threads work in real time."""
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("answer", "detail", "first_delay_s"),
    [
        (Answer(500, body=b"no\0\xffway"), "HTTP 500 no  way", 5.0),
        (Answer(400), "HTTP 400", 5.0),
        (Answer(429), "HTTP 429", 30.0),
        (Answer(502), "HTTP 502", 30.0),
        (Answer(503, {"Retry-After": "9"}), "HTTP 503", 30.0),
        (Answer(500, {"Retry-After": "9"}), "HTTP 500", 9.0),
        (Answer("reset"), "no connection: the connection was broken off", 5.0),
        (Answer("garbage"), "no connection: the answer is not HTTP", 5.0),
    ],
)
def test_row_46_refused_message_is_retried_after_its_delay_under_its_id(
    notifier, hook, answer, detail, first_delay_s
):
    hook.answers = [answer]
    notifier.fire()
    notifier.dispatch()
    assert outbox(notifier) == [("due", 1, detail)]
    notifier.pass_time(first_delay_s - 0.1)
    assert notifier.send() == 0
    notifier.pass_time(0.2)
    assert notifier.send() == 1
    assert outbox(notifier) == [("delivered", 2, None)]
    assert len(hook.ids) == 2
    assert len(set(hook.ids)) == 1


def test_row_46_refused_connection_and_failed_tls_are_recorded_and_retried(make_notifier, hook):
    notifier = make_notifier()
    with receiver() as gone:
        url = gone.url
    notifier.add_receiver("gone", url)
    notifier.add_receiver("plain", hook.url.replace("http:", "https:"))
    notifier.fire()
    notifier.dispatch()
    details = {(state, num_attempts, detail) for state, num_attempts, detail in outbox(notifier)}
    assert details == {
        ("due", 1, "no connection: connection refused"),
        ("due", 1, "no connection: TLS failed"),
    }
    assert hook.requests == []


def test_row_46_message_fails_after_ten_attempts_in_a_day(make_notifier, hook):
    notifier = make_notifier(timing=NO_REPEATS)
    notifier.add_receiver("hook", hook.url)
    hook.answer = Answer(500)
    notifier.fire()
    at_s: list[float] = []
    while "due" in [*notifier.states(), *([] if at_s else ["due"])]:
        if notifier.dispatch():
            at_s.append(notifier.clock())
        [(next_at_s,)] = notifier.rows("outbox", "next_at_s")
        probe_at_s = notifier.rows("endpoints", "probe_at_s")[0][0] or 0.0
        notifier.clock.now_s = max(next_at_s, probe_at_s, notifier.clock())
    assert outbox(notifier) == [("failed", len(RETRY_DELAYS_S), "HTTP 500")]
    waited_s = [later - sooner for sooner, later in itertools.pairwise(at_s)]
    assert waited_s == pytest.approx(RETRY_DELAYS_S[1:], rel=JITTER)
    assert len(hook.ids) == 10
    assert len(set(hook.ids)) == 1
    assert len(notifier.rows("delivery_attempts", "status")) == 10


@pytest.mark.parametrize("status", [302, 307])
def test_row_47_a_redirect_is_a_failure_and_is_not_followed(notifier, hook, status):
    with receiver() as elsewhere:
        hook.answer = Answer(status, {"Location": elsewhere.url})
        notifier.fire()
        notifier.dispatch()
        assert elsewhere.requests == []
    assert outbox(notifier) == [("due", 1, f"HTTP {status}")]


def test_row_48_receiver_answering_410_is_disabled_and_others_notified(notifier, hook):
    with receiver() as other:
        notifier.add_receiver("other", other.url)
        hook.answer = Answer(410)
        notifier.fire()
        notifier.dispatch()
        notifier.fire("slow-worker", rule="cause", job_id="default/next")
        notifier.dispatch()
        kinds = [json.loads(body)["type"] for _, _, body in other.requests]
        assert sorted(kinds) == ["alert.firing", "alert.firing", "notifier.unhealthy"]
    assert len(hook.requests) == 1
    [(actor, action, object_id, detail)] = notifier.rows(
        "audit", "actor", "action", "object_id", "detail"
    )
    assert (actor, action, object_id) == ("paceline", "endpoint.disable", "hook")
    assert "410" in detail["reason"]
    assert ("failed", 1, "HTTP 410") in outbox(notifier)


def test_row_48_messages_to_a_disabled_receiver_fail_and_can_be_replayed(notifier, hook):
    hook.answers = [Answer(500), Answer(410)]
    notifier.fire(job_id="default/a")
    notifier.dispatch()
    notifier.fire(job_id="default/b")
    notifier.dispatch()
    notifier.pass_time(100)
    notifier.dispatch()
    assert outbox(notifier) == [
        ("failed", 1, "the receiver is disabled"),
        ("failed", 1, "HTTP 410"),
    ]


@pytest.mark.parametrize("point", [1, 2])
def test_row_50_sender_crash_repeats_the_message_under_its_id(notifier, hook, point):
    notifier.fire()
    notifier.dispatcher.dispatch_due()
    notifier.crash_points.raise_at(
        point, StoreUnavailable("dead")
    )  # after the claim, or before the mark
    if point == 1:
        with pytest.raises(StoreUnavailable):
            notifier.sender.send_due()
    else:
        notifier.send()
    assert notifier.send() == 0, "claimed still"
    notifier.pass_time(sending.CLAIM_S)
    assert notifier.send() == 1
    assert len(hook.ids) == point
    assert len(set(hook.ids)) == 1
    assert outbox(notifier) == [("delivered", 2, None)]


def test_row_54_message_silenced_before_its_claim_is_not_sent(notifier, hook):
    notifier.fire()
    notifier.dispatcher.dispatch_due()
    notifier.silence()
    assert notifier.send() == 0
    assert hook.requests == []
    assert outbox(notifier) == [("silenced", 1, None)]
    notifier.pass_time(3600)
    notifier.dispatch()
    assert [json.loads(body)["type"] for _, _, body in hook.requests] == ["alert.firing"]


def test_row_54_silenced_message_is_not_retried(notifier, hook):
    hook.answers = [Answer(500)]
    notifier.fire()
    notifier.dispatch()
    notifier.silence()
    notifier.pass_time(10)
    notifier.dispatch()
    assert len(hook.requests) == 1
    assert notifier.states() == ["silenced"]


def test_row_54_resolution_during_a_silence_is_notified_after_it(notifier, hook):
    notifier.fire()
    notifier.dispatch()
    notifier.pass_time(400)
    notifier.resolve()
    notifier.dispatcher.dispatch_due()
    notifier.silence()
    assert notifier.send() == 0
    notifier.pass_time(3600)
    notifier.dispatch()
    assert [json.loads(body)["type"] for _, _, body in hook.requests] == [
        "alert.firing",
        "alert.resolved",
    ]


def test_row_54_partly_silenced_message_is_rewritten(notifier, hook):
    notifier.fire("a", rule="cause")
    notifier.fire("b", rule="cause")
    notifier.dispatcher.dispatch_due()
    notifier.silence(pattern="a")
    assert notifier.send() == 0
    assert subjects(hook) == []
    notifier.pass_time(notifier.context.timing.interval_s)
    assert notifier.dispatch() == 1
    assert subjects(hook) == [{"b"}]
    notifier.pass_time(3600)
    notifier.dispatch()
    assert subjects(hook)[1:] == [{"a", "b"}]
    assert notifier.states() == ["silenced", "delivered", "delivered"]


def subjects(hook):
    """Subjects of the alerts in each message."""
    alert_lists = [json.loads(body)["data"]["alerts"] for _, _, body in hook.requests]
    return [{alert["labels"]["subject"] for alert in alerts} for alerts in alert_lists]


def test_row_54_silence_that_begins_during_a_claim_drops_the_message(notifier, hook, monkeypatch):
    """Claim and silence use the database's clock; the sender reads it once more."""
    claim = store_outbox.claim

    def slow_claim(conn, **given):
        claimed = claim(conn, **given)
        notifier.pass_time(5)
        silence = Silence(
            "late", "default", "silence", (Matcher("subject", "*"),), notifier.clock() - 1,
            notifier.clock() + 3600, "ada", "", notifier.clock() - 1,
        )  # fmt: skip
        silences.add(conn, silence)
        return claimed

    monkeypatch.setattr(store_outbox, "claim", slow_claim)
    notifier.fire()
    notifier.dispatcher.dispatch_due()
    assert notifier.send() == 0
    assert hook.requests == []
    assert notifier.states() == ["silenced"]


def test_row_55_receiver_failing_for_a_day_is_disabled_and_outbox_bounded(make_notifier, hook):
    notifier = make_notifier(timing=NO_REPEATS)
    notifier.add_receiver("hook", hook.url)
    with receiver() as other:
        notifier.add_receiver("other", other.url)
        hook.answer = Answer(500)
        began_s = notifier.clock()
        for hour in range(26):
            notifier.fire(job_id=f"default/job-{hour}")
            for _ in range(2):
                notifier.dispatch()
                notifier.pass_time(1800)
        disabled_at_s, reason = notifier.rows("endpoints", "disabled_at_s", "disabled_reason")[0]
        kinds = [json.loads(body)["type"] for _, _, body in other.requests]
    assert DAY_S <= disabled_at_s - began_s <= DAY_S + 4000
    assert "24 hours" in reason
    assert kinds.count("notifier.unhealthy") == 1
    mine = notifier.rows("outbox", "endpoint_id", "state")
    assert {state for endpoint, state in mine if endpoint == "hook"} == {"failed"}
    assert len([state for endpoint, state in mine if endpoint == "hook"]) <= 26


def test_row_57_success_status_of_a_receiver_is_trusted_and_saved(notifier, hook):
    hook.answer = Answer(200, body=b"thrown away")
    notifier.fire()
    notifier.dispatch()
    assert outbox(notifier) == [("delivered", 1, None)]
    assert notifier.rows("delivery_attempts", "status", "detail") == [(200, "HTTP 200")]


def test_message_that_cannot_be_sent_fails_and_delays_no_other(make_notifier, hook):
    notifier = make_notifier()
    notifier.add_receiver("hook", hook.url)
    notifier.add_receiver("no key", hook.url, secrets=("whsec_!",))
    notifier.fire()
    notifier.dispatch()
    assert sorted(outbox(notifier)) == [
        ("delivered", 1, None),
        ("due", 1, "an error of Paceline's own: its log has the traceback"),
    ]


@pytest.mark.nightly
def test_receivers_that_hang_reset_or_redirect_while_alerts_fire_delay_no_other(make_notifier):
    """Each new alert is at the good receiver soon, and nobody follows a redirect."""
    notifier = make_notifier(total_s=20.0)
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        hooks = {name: stack.enter_context(receiver()) for name in (*BAD_ANSWERS, "good", "inside")}
        for name, answer in BAD_ANSWERS.items():
            hooks[name].answer = answer
        redirect = {"location": hooks["inside"].url}
        hooks["redirect"].answer = Answer(307, redirect)
        hooks["see other"].answer = Answer(303, redirect)
        for name in (*BAD_ANSWERS, "good"):
            notifier.add_receiver(name.replace(" ", "_"), hooks[name].url)
        thread = threading.Thread(target=notifier.sender.run, args=(stop,))
        thread.start()
        delays_s = []
        for number in range(6):
            notifier.fire(job_id=f"default/job-{number}")
            while notifier.dispatcher.dispatch_due():
                pass
            notifier.sender.nudge()
            began_s = time.monotonic()
            wait_for(lambda number=number: len(hooks["good"].requests) == number + 1)
            delays_s.append(time.monotonic() - began_s)
        for hook in hooks.values():
            hook.released.set()
        stop.set()
        thread.join()
        tried = {name: len(hooks[name].requests) for name in hooks}
    assert max(delays_s) < 5.0, "the bad ones take 20 s each"
    assert tried["inside"] == 0
    assert all(tried[name] > 0 for name in BAD_ANSWERS)
    assert tried["good"] == 6


BAD_ANSWERS = {
    "silent": Answer("silence"),
    "dripping": Answer("drip"),
    "reset": Answer("reset"),
    "garbage": Answer("garbage"),
    "redirect": Answer(307),
    "see other": Answer(303),
}
