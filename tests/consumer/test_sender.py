"""Rows 45 to 48, 50, 54, 55 and 57 of the fault matrix, and what else a sender has to bear."""

import itertools
import json
import shutil
import threading
import time

import pytest
from standardwebhooks.webhooks import Webhook

from app.alerts.matchers import Matcher
from app.alerts.plan import Timing
from app.alerts.retry import JITTER, RETRY_DELAYS_S
from app.alerts.silence import Silence
from app.consumer import sender as sending
from app.errors import StoreUnavailable
from app.store import endpoints, muting
from app.store import outbox as store_outbox
from tests.alerts.notices import SECRET
from tests.alerts.receiver import Answer, receiver
from tests.consumer.place import Crash
from tests.consumer.tellers import Tellers

DAY_S = 86_400.0
NO_REPEATS = Timing(wait_s=0.0, repeat_s=1e9)


@pytest.fixture
def hook():
    with receiver() as hook:
        yield hook


@pytest.fixture
def make_tellers(migrated_file, tmp_path):
    made: list[Tellers] = []

    def make(**given):
        path = shutil.copy(migrated_file, tmp_path / f"{len(made)}.db")
        made.append(Tellers(f"sqlite:///{path}", **given))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def tellers(make_tellers, hook):
    tellers = make_tellers()
    tellers.endpoint("hook", hook.url)
    return tellers


def outbox(tellers):
    return tellers.rows("outbox", "state", "attempt", "detail")


def test_what_is_due_is_delivered_once_and_signed(tellers, hook):
    tellers.clock.now_s = time.time()  # whoever verifies has no other clock
    tellers.fire()
    assert tellers.tell() == 1
    assert tellers.tell() == 0
    [(_, headers, body)] = hook.requests
    assert Webhook(SECRET).verify(body, headers) == json.loads(body)
    assert headers["webhook-id"].startswith("msg_")
    assert outbox(tellers) == [("delivered", 1, None)]
    [(attempt, status, detail)] = tellers.rows("delivery_attempts", "attempt", "status", "detail")
    assert (attempt, status, detail) == (1, 204, "HTTP 204")


@pytest.mark.parametrize("status", ["silence", "drip"])
def test_row_45_an_endpoint_that_never_ends_its_answer_is_cut_off(make_tellers, hook, status):
    hook.answer = Answer(status)
    tellers = make_tellers(total_s=0.3)
    tellers.endpoint("dead", hook.url)
    tellers.fire()
    tellers.dispatcher.dispatch_due()
    tellers.send()
    assert outbox(tellers) == [("due", 1, "no answer in time")]


@pytest.mark.parametrize("status", ["silence", "drip"])
def test_row_45_an_endpoint_that_never_ends_its_answer_delays_nobody(make_tellers, hook, status):
    hook.answer = Answer(status)
    tellers = make_tellers(total_s=60.0)
    with receiver() as well:
        tellers.endpoint("dead", hook.url)
        tellers.endpoint("well", well.url)
        for number in range(20):
            tellers.fire(job_id=f"default/job-{number}")
        while tellers.dispatcher.dispatch_due():
            pass
        stop = threading.Event()
        thread = threading.Thread(target=tellers.sender.run, args=(stop,))
        thread.start()
        wait_for(lambda: len(well.requests) == 20)
        num_tried = len(hook.requests)
        num_failed = sum(each is not None for _, _, each in outbox(tellers))
        stop.set()
        hook.released.set()
        thread.join()
    assert (num_tried, num_failed) == (2, 0), "nobody has waited for the dead one's first two"


def wait_for(holds, within_s=30.0):
    """Polls: what is waited for happens in other threads, in real time."""
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
        (Answer("reset"), "not reached: the connection was broken off", 5.0),
        (Answer("garbage"), "not reached: the answer is no HTTP", 5.0),
    ],
)
def test_row_46_a_refused_message_comes_again_at_its_time_under_its_id(
    tellers, hook, answer, detail, first_delay_s
):
    hook.answers = [answer]
    tellers.fire()
    tellers.tell()
    assert outbox(tellers) == [("due", 1, detail)]
    tellers.pass_time(first_delay_s - 0.1)
    assert tellers.send() == 0
    tellers.pass_time(0.2)
    assert tellers.send() == 1
    assert outbox(tellers) == [("delivered", 2, None)]
    assert len(hook.ids) == 2
    assert len(set(hook.ids)) == 1


def test_row_46_nobody_listening_and_no_tls_are_tried_again(make_tellers, hook):
    tellers = make_tellers()
    with receiver() as gone:
        url = gone.url
    tellers.endpoint("gone", url)
    tellers.endpoint("plain", hook.url.replace("http:", "https:"))
    tellers.fire()
    tellers.tell()
    details = {detail for _, _, detail in outbox(tellers)}
    assert details == {"not reached: nobody listens there", "not reached: TLS failed"}
    assert hook.requests == []


def test_row_46_ten_attempts_in_a_day_and_then_it_is_given_up_and_can_be_seen(make_tellers, hook):
    tellers = make_tellers(timing=NO_REPEATS)
    tellers.endpoint("hook", hook.url)
    hook.answer = Answer(500)
    tellers.fire()
    at_s: list[float] = []
    while "due" in [*tellers.states(), *([] if at_s else ["due"])]:
        if tellers.tell():
            at_s.append(tellers.clock())
        [(next_at_s,)] = tellers.rows("outbox", "next_at_s")
        probe_at_s = tellers.rows("endpoints", "probe_at_s")[0][0] or 0.0
        tellers.clock.now_s = max(next_at_s, probe_at_s, tellers.clock())
    assert outbox(tellers) == [("failed", len(RETRY_DELAYS_S), "HTTP 500")]
    waited_s = [later - sooner for sooner, later in itertools.pairwise(at_s)]
    assert waited_s == pytest.approx(RETRY_DELAYS_S[1:], rel=JITTER)
    assert len(hook.ids) == 10
    assert len(set(hook.ids)) == 1
    assert len(tellers.rows("delivery_attempts", "status")) == 10


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_row_47_a_redirect_is_a_failure_and_is_not_followed(tellers, hook, status):
    with receiver() as elsewhere:
        hook.answer = Answer(status, {"Location": elsewhere.url})
        tellers.fire()
        tellers.tell()
        assert elsewhere.requests == []
    assert outbox(tellers) == [("due", 1, f"HTTP {status}")]


def test_row_48_an_endpoint_that_is_gone_is_disabled_and_the_others_are_told(tellers, hook):
    with receiver() as other:
        tellers.endpoint("other", other.url)
        hook.answer = Answer(410)
        tellers.fire()
        tellers.tell()
        tellers.fire("slow-worker", rule="cause", job_id="default/next")
        tellers.tell()
        kinds = [json.loads(body)["type"] for _, _, body in other.requests]
        assert sorted(kinds) == ["alert.firing", "alert.firing", "notifier.unhealthy"]
    assert len(hook.requests) == 1
    [(actor, action, object_id, detail)] = tellers.rows(
        "audit", "actor", "action", "object_id", "detail"
    )
    assert (actor, action, object_id) == ("paceline", "endpoint.disable", "hook")
    assert "410" in detail["reason"]
    assert ("failed", 1, "HTTP 410") in outbox(tellers)


def test_row_48_what_was_still_to_be_sent_there_fails_and_can_be_replayed(tellers, hook):
    hook.answers = [Answer(500), Answer(410)]
    tellers.fire(job_id="default/a")
    tellers.tell()
    tellers.fire(job_id="default/b")
    tellers.tell()
    tellers.pass_time(100)
    tellers.tell()
    assert outbox(tellers) == [
        ("failed", 1, "the endpoint is disabled"),
        ("failed", 1, "HTTP 410"),
    ]


@pytest.mark.parametrize("point", [1, 2])
def test_row_50_a_sender_killed_between_post_and_mark_sends_again_under_the_same_id(
    tellers, hook, point
):
    tellers.fire()
    tellers.dispatcher.dispatch_due()
    tellers.fuse.blow(point, StoreUnavailable("dead"))  # after the claim, or before the mark
    if point == 1:
        with pytest.raises(StoreUnavailable):
            tellers.sender.send_due()
    else:
        tellers.send()
    assert tellers.send() == 0, "claimed still"
    tellers.pass_time(sending.CLAIM_S)
    assert tellers.send() == 1
    assert len(hook.ids) == point
    assert len(set(hook.ids)) == 1
    assert outbox(tellers) == [("delivered", 2, None)]


def test_row_54_what_is_silenced_before_it_is_claimed_is_not_sent(tellers, hook):
    tellers.fire()
    tellers.dispatcher.dispatch_due()
    tellers.silence()
    assert tellers.send() == 0
    assert hook.requests == []
    assert outbox(tellers) == [("silenced", 1, None)]
    tellers.pass_time(3600)
    tellers.tell()
    assert [json.loads(body)["type"] for _, _, body in hook.requests] == ["alert.firing"]


def test_row_54_what_waits_for_a_retry_is_not_sent_once_it_is_silenced(tellers, hook):
    hook.answers = [Answer(500)]
    tellers.fire()
    tellers.tell()
    tellers.silence()
    tellers.pass_time(10)
    tellers.tell()
    assert len(hook.requests) == 1
    assert tellers.states() == ["silenced"]


def test_row_54_the_end_of_an_alert_that_came_in_a_silence_is_told_after_it(tellers, hook):
    tellers.fire()
    tellers.tell()
    tellers.pass_time(400)
    tellers.rest()
    tellers.dispatcher.dispatch_due()
    tellers.silence()
    assert tellers.send() == 0
    tellers.pass_time(3600)
    tellers.tell()
    assert [json.loads(body)["type"] for _, _, body in hook.requests] == [
        "alert.firing",
        "alert.resolved",
    ]


def test_row_54_the_end_in_a_message_that_tells_of_a_beginning_too_is_not_lost(tellers, hook):
    tellers.fire("a", rule="cause")
    tellers.tell()
    tellers.pass_time(301)
    tellers.rest("a", rule="cause")
    tellers.fire("b", rule="cause")
    tellers.dispatcher.dispatch_due()
    tellers.silence()
    tellers.send()
    assert tellers.states() == ["delivered", "silenced"]
    tellers.pass_time(3600)
    tellers.tell()
    last = json.loads(hook.requests[-1][2])["data"]["alerts"]
    found = {alert["labels"]["subject"]: alert["status"] for alert in last}
    assert found == {"a": "resolved", "b": "firing"}


def test_row_54_of_several_alerts_that_of_which_one_is_silenced_another_message_tells(
    tellers, hook
):
    tellers.fire("a", rule="cause")
    tellers.fire("b", rule="cause")
    tellers.dispatcher.dispatch_due()
    tellers.silence(pattern="a")
    assert tellers.send() == 0
    assert subjects(hook) == []
    tellers.pass_time(tellers.desk.timing.interval_s)
    assert tellers.tell() == 1
    assert subjects(hook) == [{"b"}]
    tellers.pass_time(3600)
    tellers.tell()
    assert subjects(hook)[1:] == [{"a", "b"}]
    assert tellers.states() == ["silenced", "delivered", "delivered"]


def test_row_54_each_of_several_that_were_silenced_is_told_when_its_own_silence_ends(tellers, hook):
    tellers.fire("a", rule="cause")
    tellers.fire("b", rule="cause")
    tellers.dispatcher.dispatch_due()
    tellers.silence(pattern="a", ends_s=tellers.clock() + 600)
    tellers.silence(pattern="b", ends_s=tellers.clock() + 3000)
    assert tellers.send() == 0
    tellers.pass_time(600)
    tellers.tell()
    assert subjects(hook) == [{"a"}]


def subjects(hook):
    """Of which alerts each message tells."""
    told = [json.loads(body)["data"]["alerts"] for _, _, body in hook.requests]
    return [{alert["labels"]["subject"] for alert in alerts} for alerts in told]


def test_row_54_a_silence_that_begins_while_a_sender_claims_holds_back_what_it_has_claimed(
    tellers, hook, monkeypatch
):
    """Both go by the database's clock, and the sender asks it once more."""
    claim = store_outbox.claim

    def slow_claim(conn, **given):
        claimed = claim(conn, **given)
        tellers.pass_time(5)
        silence = Silence(
            "late", "default", "silence", (Matcher("subject", "*"),), tellers.clock() - 1,
            tellers.clock() + 3600, "ada", "", tellers.clock() - 1,
        )  # fmt: skip
        muting.add(conn, silence)
        return claimed

    monkeypatch.setattr(store_outbox, "claim", slow_claim)
    tellers.fire()
    tellers.dispatcher.dispatch_due()
    assert tellers.send() == 0
    assert hook.requests == []
    assert tellers.states() == ["silenced"]


def test_row_55_an_endpoint_that_takes_nothing_for_a_day_is_disabled_and_its_outbox_bounded(
    make_tellers, hook
):
    tellers = make_tellers(timing=NO_REPEATS)
    tellers.endpoint("hook", hook.url)
    with receiver() as other:
        tellers.endpoint("other", other.url)
        hook.answer = Answer(500)
        began_s = tellers.clock()
        for hour in range(30):
            tellers.fire(job_id=f"default/job-{hour}")
            for _ in range(6):
                tellers.tell()
                tellers.pass_time(600)
        disabled_at_s, reason = tellers.rows("endpoints", "disabled_at_s", "disabled_reason")[0]
        kinds = [json.loads(body)["type"] for _, _, body in other.requests]
    assert DAY_S <= disabled_at_s - began_s <= DAY_S + 4000
    assert "24 hours" in reason
    assert kinds.count("notifier.unhealthy") == 1
    mine = tellers.rows("outbox", "endpoint_id", "state")
    assert {state for endpoint, state in mine if endpoint == "hook"} == {"failed"}
    assert len([state for endpoint, state in mine if endpoint == "hook"]) <= 26


def test_row_57_a_receiver_that_lies_is_believed_and_the_log_says_what_it_said(tellers, hook):
    hook.answer = Answer(200, body=b"thrown away")
    tellers.fire()
    tellers.tell()
    assert outbox(tellers) == [("delivered", 1, None)]
    assert tellers.rows("delivery_attempts", "status", "detail") == [(200, "HTTP 200")]


def test_after_five_failures_in_a_row_there_is_one_probe_a_minute(tellers, hook):
    hook.answer = Answer(500)
    for number in range(12):
        tellers.fire(job_id=f"default/job-{number}")
    while tellers.dispatcher.dispatch_due():
        pass
    tellers.send()
    assert len(hook.requests) in (5, 6), "two at once, so that the sixth may be under way"
    before = len(hook.requests)
    tellers.pass_time(59)
    assert tellers.send() == 0
    tellers.pass_time(2)
    tellers.send()
    assert len(hook.requests) == before + 1
    hook.answer = Answer(204)
    tellers.pass_time(61)
    tellers.send()
    tellers.pass_time(100)
    tellers.send()
    assert set(tellers.states()) == {"delivered"}


def test_messages_of_one_rule_on_one_job_arrive_in_order(tellers, hook):
    hook.answers = [Answer(500)]
    tellers.fire()
    tellers.tell()
    tellers.pass_time(301)
    tellers.rest()
    tellers.tell()
    kinds = [json.loads(body)["type"] for _, _, body in hook.requests]
    assert kinds == ["alert.firing", "alert.resolved"], "what is over is no news any more"
    assert tellers.states() == ["outdated", "delivered"]


def test_several_senders_send_each_message_once(tellers, hook):
    senders = [sending.Sender(tellers.desk) for _ in range(3)]
    for number in range(6):
        tellers.fire(job_id=f"default/job-{number}")
    while tellers.dispatcher.dispatch_due():
        pass
    while sum(each.send_due() for each in senders):
        for each in senders:
            each.settle()
    assert len(set(hook.ids)) == len(hook.ids) == 6
    for each in senders:
        each.close()


def test_an_endpoint_that_is_removed_gets_no_more(tellers, hook):
    hook.answer = Answer(500)
    tellers.fire()
    tellers.tell()
    with tellers.store.write() as conn:
        endpoints.remove(conn, "default", "hook")
    tellers.pass_time(10)
    assert tellers.tell() == 0
    assert outbox(tellers) == [("failed", 1, "the endpoint is no longer there")]


def test_a_message_that_cannot_be_sent_is_given_up_in_the_end_and_delays_no_other(
    make_tellers, hook
):
    tellers = make_tellers()
    tellers.endpoint("hook", hook.url)
    tellers.endpoint("no key", hook.url, secrets=("whsec_!",))
    tellers.fire()
    tellers.tell()
    assert sorted(outbox(tellers)) == [
        ("delivered", 1, None),
        ("due", 1, "an error of Paceline's own: its log has the traceback"),
    ]


def test_a_sender_that_dies_takes_no_message_with_it(tellers, hook):
    tellers.fire()
    tellers.dispatcher.dispatch_due()
    tellers.fuse.blow(0, Crash())
    with pytest.raises(Crash):
        tellers.sender.send_due()
    assert tellers.send() == 1
    assert tellers.states() == ["delivered"]
