from dataclasses import fields, replace

import pytest
from sqlalchemy import event as events
from sqlalchemy import text

from app.alerts.breaker import FAILURES_TO_OPEN, PROBE_EVERY_S
from app.alerts.endpoint import OF_SETTINGS
from app.alerts.matchers import Matcher
from app.api.endpoint_access import own
from app.api.principal import ROOT
from app.errors import Conflict, EndpointNotFound, InvalidRequest, StoreUnavailable
from app.store import endpoints
from app.store.endpoint_limits import MAX_ENDPOINTS, MAX_PUSHED_TO
from app.store.endpoints import Health
from app.store.engine import Store
from tests.store.factories import endpoint

WHOLE = endpoint(
    matchers=(Matcher("job", "llm-*", is_negative=True),),
    min_severity="critical",
    wants_resolved=False,
    old_secret_until_s=12.5,
)
OF_ALL = endpoint(OF_SETTINGS, project=None)


@pytest.fixture
def added(store):
    def add(*given):
        with store.write() as conn:
            for each in given:
                endpoints.add(conn, each)

    return add


@pytest.fixture
def fail(store):
    def fail(now_s, endpoint_id="hook"):
        with store.write() as conn:
            return endpoints.failed(conn, endpoint_id, detail="HTTP 500", now_s=now_s)

    return fail


def ids(found):
    return [each.endpoint_id for each in found]


def test_an_endpoint_is_read_as_it_was_added(store, added):
    added(WHOLE)
    with store.read() as conn:
        assert endpoints.get(conn, "default", "hook") == WHOLE
        assert endpoints.for_project(conn, "default") == [WHOLE]
        assert endpoints.of_ids(conn, ["hook", "nothing"]) == {"hook": WHOLE}


def test_a_list_has_no_secret_and_never_reads_one(store, added):
    added(WHOLE)
    asked = []
    with store.read() as conn:
        events.listen(conn, "before_cursor_execute", lambda *given: asked.append(given[2]))
        [found] = endpoints.listed(conn, "default")
    assert found == replace(WHOLE, secrets=(), headers={})
    assert asked
    assert not any("endpoints.secrets" in each or "headers" in each for each in asked)


def test_a_project_has_its_own_endpoints_and_the_one_of_the_environment(store, added):
    added(endpoint("b"), endpoint("a"), endpoint("c", project="other"))
    with store.write() as conn:
        endpoints.put_settings_endpoint(conn, OF_ALL)
        for find in (endpoints.listed, endpoints.for_project):
            assert ids(find(conn, "default")) == ["a", "b", OF_SETTINGS]
            assert ids(find(conn, "nobody")) == [OF_SETTINGS]
        assert endpoints.get(conn, "default", OF_SETTINGS) == OF_ALL
        with pytest.raises(EndpointNotFound):
            endpoints.get(conn, "default", "c")


def test_nobody_changes_or_removes_what_is_not_the_projects_own(store, added):
    added(endpoint("c", project="other"))
    with store.write() as conn:
        endpoints.put_settings_endpoint(conn, OF_ALL)
        for endpoint_id in ("c", OF_SETTINGS, "nothing"):
            with pytest.raises(EndpointNotFound, match=endpoint_id):
                endpoints.update(conn, endpoint(endpoint_id))
            with pytest.raises(EndpointNotFound):
                endpoints.remove(conn, "default", endpoint_id)
        endpoints.update(conn, endpoint("c", project="other", name="new"))
        assert endpoints.get(conn, "other", "c").name == "new"
        endpoints.remove(conn, "other", "c")
        assert ids(endpoints.for_project(conn, "other")) == [OF_SETTINGS]


def test_the_environments_endpoint_comes_and_goes(store):
    with store.write() as conn:
        endpoints.put_settings_endpoint(conn, None)
        endpoints.put_settings_endpoint(conn, OF_ALL)
        endpoints.failed(conn, OF_SETTINGS, detail="HTTP 500", now_s=1.0)
        # The next process starts: how it fares is known as before.
        endpoints.put_settings_endpoint(conn, OF_ALL)
        assert endpoints.health(conn, [OF_SETTINGS])[OF_SETTINGS].failures == 1
        endpoints.disable(conn, OF_SETTINGS, reason="HTTP 410", now_s=2.0)
        endpoints.put_settings_endpoint(conn, OF_ALL)
        assert not endpoints.get(conn, "default", OF_SETTINGS).is_enabled
        # With another secret it may well be taken.
        endpoints.put_settings_endpoint(conn, replace(OF_ALL, secrets=("whsec_newer",)))
        assert endpoints.get(conn, "default", OF_SETTINGS).secrets == ("whsec_newer",)
        assert endpoints.get(conn, "default", OF_SETTINGS).is_enabled
        assert endpoints.health(conn, [OF_SETTINGS])[OF_SETTINGS].failures == 0
        # Another address begins anew.
        endpoints.put_settings_endpoint(conn, replace(OF_ALL, url="https://other.example"))
        assert endpoints.get(conn, "default", OF_SETTINGS).is_enabled
        assert endpoints.health(conn, [OF_SETTINGS])[OF_SETTINGS].failures == 0
        endpoints.put_settings_endpoint(conn, None)
        assert endpoints.for_project(conn, "default") == []


def test_failures_in_a_row_break_an_endpoint_until_it_takes_a_message(store, added, fail):
    added(WHOLE)
    first = fail(100.0)
    assert first == Health(1, 100.0, last_detail="HTTP 500")
    for number in range(2, FAILURES_TO_OPEN):
        assert fail(100.0 + number).probe_at_s is None
    broken = fail(200.0)
    assert (broken.failures, broken.failing_since_s) == (FAILURES_TO_OPEN, 100.0)
    assert broken.probe_at_s == 200.0 + PROBE_EVERY_S
    with store.write() as conn:
        assert endpoints.health(conn, ["hook", "nothing"]) == {"hook": broken}
        endpoints.succeeded(conn, "hook", 300.0)
        healthy = endpoints.health(conn, ["hook"])["hook"]
    assert healthy == Health(last_ok_s=300.0, last_detail="HTTP 500")
    assert fail(400.0).failing_since_s == 400.0


def test_the_failure_of_an_endpoint_that_is_gone_says_nothing(fail):
    assert fail(1.0) == Health()


def test_an_endpoint_is_disabled_once_and_enabled_as_if_it_had_never_failed(store, added, fail):
    added(WHOLE)
    fail(1.0)
    with store.write() as conn:
        assert endpoints.disable(conn, "hook", reason="r" * 900, now_s=2.0)
        assert not endpoints.disable(conn, "hook", reason="again", now_s=3.0)
        health = endpoints.health(conn, ["hook"])["hook"]
        assert (health.disabled_at_s, len(health.disabled_reason or "")) == (2.0, 500)
        assert not endpoints.get(conn, "default", "hook").is_enabled
        endpoints.enable(conn, "hook")
        assert endpoints.health(conn, ["hook"])["hook"] == Health(last_detail="HTTP 500")
        assert endpoints.get(conn, "default", "hook").is_enabled


def test_a_person_enables_it_by_a_change_too(store, added):
    added(WHOLE)
    with store.write() as conn:
        endpoints.disable(conn, "hook", reason="HTTP 410", now_s=2.0)
        endpoints.update(conn, replace(WHOLE, is_enabled=False, name="new"))
        assert endpoints.health(conn, ["hook"])["hook"].disabled_reason == "HTTP 410"
        endpoints.update(conn, WHOLE)
        assert endpoints.health(conn, ["hook"])["hook"] == Health()


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "x" * 101},
        {"url": "https://a.example/" + "x" * 2048},
        {"url": "https://a.example/\0"},
        {"secrets": ("a", "b", "c")},
        {"secrets": ("x" * 513,)},
        {"headers": {f"x-{n}": "" for n in range(17)}},
        {"headers": {"x-a": "x" * 1025}},
        {"matchers": (Matcher("x" * 65, "y"),)},
    ],
)
def test_what_is_too_long_or_too_much_is_refused_without_saying_it(store, wrong):
    with pytest.raises(InvalidRequest) as refused, store.write() as conn:
        endpoints.add(conn, endpoint(**wrong))
    assert "xxx" not in str(refused.value)


def test_a_project_has_so_many_endpoints_and_no_more(store, added):
    added(*(endpoint(f"{n}") for n in range(MAX_ENDPOINTS)))
    added(endpoint("another", project="other"))
    with pytest.raises(Conflict, match="the most it may have"):
        added(endpoint("one-more"))


def test_a_project_has_so_many_alertmanagers_to_push_to_and_no_more(store, added):
    push = [endpoint(f"{n}", format="alertmanager-push") for n in range(MAX_PUSHED_TO)]
    added(*push, endpoint("hook"))
    with pytest.raises(Conflict, match="alertmanager-push"):
        added(endpoint("one-more", format="alertmanager-push"))
    with pytest.raises(Conflict), store.write() as conn:
        endpoints.update(conn, endpoint("hook", format="alertmanager-push"))
    with store.write() as conn:
        endpoints.update(conn, replace(push[0], name="other"))


def test_who_changes_an_endpoint_waits_for_whoever_does_so_already(pg_url):
    """Else the one would put back the secret that the other has just rotated."""
    store = Store(pg_url)
    with store.write() as conn:
        endpoints.add(conn, endpoint("e"))
    with store.write() as first:
        own(first, ROOT, "e")
        with pytest.raises(StoreUnavailable), store.write() as second:
            _own_soon(second, "e")
    store.close()


def _own_soon(conn, endpoint_id):
    conn.execute(text("SET LOCAL lock_timeout = '20ms'"))
    return own(conn, ROOT, endpoint_id)


def test_every_field_of_an_endpoint_has_its_column(store, added):
    added(WHOLE)
    with store.read() as conn:
        row = conn.execute(text("SELECT * FROM endpoints")).mappings().one()
    assert {each.name for each in fields(WHOLE)} <= {*row, "headers"}
