from dataclasses import replace

import pytest
from sqlalchemy import text

from app.alerts.labels import Matcher
from app.alerts.receiver import (
    FAILURES_TO_OPEN,
    PROBE_EVERY_S,
    SETTINGS_RECEIVER_ID,
    public_address,
)
from app.api.http.principal import ROOT
from app.api.routes.alerts.receivers import own_receiver
from app.errors import Conflict, InvalidRequest, ReceiverNotFound, StoreUnavailable
from app.store.alerting import receivers
from app.store.alerting.receivers import MAX_PUSH_RECEIVERS, MAX_RECEIVERS, ReceiverHealth
from app.store.database import Store
from tests.secret_keys import KEYS
from tests.store.factories import webhook_receiver

WHOLE = webhook_receiver(
    matchers=(Matcher("job", "llm-*", is_negative=True),),
    min_severity="critical",
    wants_resolved=False,
    old_secret_until_s=12.5,
)
SETTINGS_RECEIVER = webhook_receiver(SETTINGS_RECEIVER_ID, project=None)


@pytest.fixture
def added(store):
    def add(*given):
        with store.write() as conn:
            for each in given:
                receivers.add(conn, each)

    return add


@pytest.fixture
def fail(store):
    def fail(now_s, endpoint_id="hook"):
        with store.write() as conn:
            return receivers.mark_failed(conn, endpoint_id, detail="HTTP 500", now_s=now_s)

    return fail


def ids(found):
    return [each.endpoint_id for each in found]


def test_receiver_is_read_back(store, added):
    added(WHOLE)
    with store.read() as conn:
        assert receivers.get(conn, "default", "hook") == WHOLE
        assert receivers.of_ids(conn, ["hook", "nothing"]) == {"hook": WHOLE}


def test_lists_of_receivers_have_no_secrets(store, added):
    added(WHOLE)
    with store.read() as conn:
        [found] = receivers.without_secrets(conn, "default")
    address = public_address(WHOLE.format, WHOLE.url)
    assert found == replace(WHOLE, url=address, secrets=(), headers={})


def test_project_has_its_receivers_and_that_of_the_settings(store, added):
    added(webhook_receiver("b"), webhook_receiver("a"), webhook_receiver("c", project="other"))
    with store.write() as conn:
        receivers.put_settings_receiver(conn, SETTINGS_RECEIVER)
        for project, its in (("default", ["a", "b"]), ("nobody", [])):
            found = receivers.without_secrets(conn, project)
            assert ids(found) == [*its, SETTINGS_RECEIVER_ID]
        assert receivers.get(conn, "default", SETTINGS_RECEIVER_ID) == SETTINGS_RECEIVER
        with pytest.raises(ReceiverNotFound):
            receivers.get(conn, "default", "c")


def test_receivers_of_other_projects_cannot_be_changed(store, added):
    added(webhook_receiver("c", project="other"))
    with store.write() as conn:
        receivers.put_settings_receiver(conn, SETTINGS_RECEIVER)
        for endpoint_id in ("c", SETTINGS_RECEIVER_ID, "nothing"):
            with pytest.raises(ReceiverNotFound, match=endpoint_id):
                receivers.update(conn, webhook_receiver(endpoint_id))
            with pytest.raises(ReceiverNotFound):
                receivers.remove(conn, "default", endpoint_id)
        receivers.update(conn, webhook_receiver("c", project="other", name="new"))
        assert receivers.get(conn, "other", "c").name == "new"
        receivers.remove(conn, "other", "c")
        assert ids(receivers.without_secrets(conn, "other")) == [SETTINGS_RECEIVER_ID]


def test_receiver_of_the_settings_is_added_and_removed(store):
    with store.write() as conn:
        receivers.put_settings_receiver(conn, None)
        receivers.put_settings_receiver(conn, SETTINGS_RECEIVER)
        receivers.mark_failed(conn, SETTINGS_RECEIVER_ID, detail="HTTP 500", now_s=1.0)
        # The next process starts: the health is kept.
        receivers.put_settings_receiver(conn, SETTINGS_RECEIVER)
        assert receivers.health(conn, [SETTINGS_RECEIVER_ID])[SETTINGS_RECEIVER_ID].failures == 1
        receivers.disable(conn, SETTINGS_RECEIVER_ID, reason="HTTP 410", now_s=2.0)
        receivers.put_settings_receiver(conn, SETTINGS_RECEIVER)
        assert not receivers.get(conn, "default", SETTINGS_RECEIVER_ID).is_enabled
        # Another secret resets the failures.
        receivers.put_settings_receiver(conn, replace(SETTINGS_RECEIVER, secrets=("whsec_newer",)))
        assert receivers.get(conn, "default", SETTINGS_RECEIVER_ID).secrets == ("whsec_newer",)
        assert receivers.get(conn, "default", SETTINGS_RECEIVER_ID).is_enabled
        assert receivers.health(conn, [SETTINGS_RECEIVER_ID])[SETTINGS_RECEIVER_ID].failures == 0
        # Another address resets the health.
        receivers.put_settings_receiver(
            conn, replace(SETTINGS_RECEIVER, url="https://other.example")
        )
        assert receivers.get(conn, "default", SETTINGS_RECEIVER_ID).is_enabled
        assert receivers.health(conn, [SETTINGS_RECEIVER_ID])[SETTINGS_RECEIVER_ID].failures == 0
        receivers.put_settings_receiver(conn, None)
        assert receivers.without_secrets(conn, "default") == []


def test_failing_receiver_is_probed_until_a_success(store, added, fail):
    added(WHOLE)
    first = fail(100.0)
    assert first == ReceiverHealth(1, 100.0, last_detail="HTTP 500")
    for number in range(2, FAILURES_TO_OPEN):
        assert fail(100.0 + number).probe_at_s is None
    broken = fail(200.0)
    assert (broken.failures, broken.failing_since_s) == (FAILURES_TO_OPEN, 100.0)
    assert broken.probe_at_s == 200.0 + PROBE_EVERY_S
    with store.write() as conn:
        assert receivers.health(conn, ["hook", "nothing"]) == {"hook": broken}
        receivers.mark_succeeded(conn, "hook", 300.0)
        healthy = receivers.health(conn, ["hook"])["hook"]
    assert healthy == ReceiverHealth(last_ok_s=300.0, last_detail="HTTP 500")
    assert fail(400.0).failing_since_s == 400.0


def test_failure_of_a_removed_receiver_is_ignored(fail):
    assert fail(1.0) == ReceiverHealth()


def test_enabling_a_receiver_resets_its_health(store, added, fail):
    added(WHOLE)
    fail(1.0)
    with store.write() as conn:
        assert receivers.disable(conn, "hook", reason="r" * 900, now_s=2.0)
        assert not receivers.disable(conn, "hook", reason="again", now_s=3.0)
        health = receivers.health(conn, ["hook"])["hook"]
        assert (health.disabled_at_s, len(health.disabled_reason or "")) == (2.0, 500)
        assert not receivers.get(conn, "default", "hook").is_enabled
        receivers.enable(conn, "hook")
        assert receivers.health(conn, ["hook"])["hook"] == ReceiverHealth()
        assert receivers.get(conn, "default", "hook").is_enabled


def test_changing_a_receiver_can_enable_it(store, added):
    added(WHOLE)
    with store.write() as conn:
        receivers.disable(conn, "hook", reason="HTTP 410", now_s=2.0)
        receivers.update(conn, replace(WHOLE, is_enabled=False, name="new"))
        assert receivers.health(conn, ["hook"])["hook"].disabled_reason == "HTTP 410"
        receivers.update(conn, WHOLE)
        assert receivers.health(conn, ["hook"])["hook"] == ReceiverHealth()


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "x" * 101},
        {"url": "https://a.example/" + "x" * 2048},
        {"url": "https://a.example/\0"},
        {"secrets": ("x" * 513,)},
        {"headers": {"x-a": "x" * 1025}},
        {"matchers": (Matcher("x" * 65, "y"),)},
    ],
)
def test_receivers_over_a_limit_are_refused_without_repeating_secrets(store, wrong):
    with pytest.raises(InvalidRequest) as refused, store.write() as conn:
        receivers.add(conn, webhook_receiver(**wrong))
    assert "xxx" not in str(refused.value)


def test_receivers_of_a_project_are_limited(added):
    added(*(webhook_receiver(f"{n}") for n in range(MAX_RECEIVERS)))
    added(webhook_receiver("another", project="other"))
    with pytest.raises(Conflict, match="the maximum"):
        added(webhook_receiver("one-more"))


def test_alertmanagers_of_a_project_are_limited(store, added):
    push = [webhook_receiver(f"{n}", format="alertmanager-push") for n in range(MAX_PUSH_RECEIVERS)]
    added(*push, webhook_receiver("hook"))
    with pytest.raises(Conflict, match="alertmanager-push"):
        added(webhook_receiver("one-more", format="alertmanager-push"))
    with pytest.raises(Conflict), store.write() as conn:
        receivers.update(conn, webhook_receiver("hook", format="alertmanager-push"))
    with store.write() as conn:
        receivers.update(conn, replace(push[0], name="other"))


def test_receiver_read_for_update_is_locked(pg_url):
    """Otherwise one change would undo a concurrent secret rotation."""
    store = Store(pg_url, keys=KEYS)
    with store.write() as conn:
        receivers.add(conn, webhook_receiver("e"))
    with store.write() as first:
        own_receiver(first, ROOT, "e")
        with pytest.raises(StoreUnavailable), store.write() as second:
            _own_soon(second, "e")
    store.close()


def _own_soon(conn, endpoint_id):
    conn.execute(text("SET LOCAL lock_timeout = '20ms'"))
    return own_receiver(conn, ROOT, endpoint_id)
