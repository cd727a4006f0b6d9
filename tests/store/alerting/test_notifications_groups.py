from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from app.errors import LeaseLost
from app.store.alerting import alerts, notifications
from app.store.alerting.notifications import LastNotification
from tests.store.factories import alert, register

LEASE_S = 30.0
NOTIFIED = LastNotification("firing", 100.0, event_id=1, starts_at_s=90.0, sentence="It is slow.")


@pytest.fixture
def wake(store):
    def wake(job_id="job", rule="slowdown", *, at_s=100.0):
        register(store, job_id)
        with store.write() as conn:
            notifications.wake_group(conn, job_id, rule, at_s=at_s)

    return wake


@pytest.fixture
def claim(store):
    def claim(now_s, limit=10):
        with store.write() as conn:
            return notifications.claim_groups(conn, now_s=now_s, lease_s=LEASE_S, limit=limit)

    return claim


@pytest.fixture
def done(store):
    def done(group, next_at_s=None, last_at_s=None):
        with store.write() as conn:
            notifications.release(conn, group, next_at_s=next_at_s, last_at_s=last_at_s)

    return done


def is_due(store, now_s):
    with store.read() as conn:
        return notifications.has_due_group(conn, now_s=now_s)


def is_due_from(store, at_s):
    """Whether a group is due at this time and not before."""
    return is_due(store, at_s) and not is_due(store, at_s - 0.1)


def test_woken_group_is_due_at_the_earliest_time(store, wake, claim):
    assert not is_due(store, 1e9)
    wake(at_s=105.0)
    wake(at_s=103.0)
    wake(at_s=104.0)
    assert is_due_from(store, 103.0)
    assert claim(102.9) == []
    [group] = claim(103.0)
    assert (group.job_id, group.rule, group.last_at_s) == ("job", "slowdown", None)


@pytest.mark.sql_sensitive
def test_claimed_group_is_free_after_its_claim_lapses(store, wake, claim, done):
    wake()
    [late] = claim(100.0)
    assert claim(100.0 + LEASE_S - 0.1) == []
    assert is_due_from(store, 100.0 + LEASE_S)
    [group] = claim(100.0 + LEASE_S)
    with pytest.raises(LeaseLost, match="another dispatcher has the alerts of job 'job'"):
        done(late)
    done(group)
    assert claim(1e9) == []


@pytest.mark.sql_sensitive
def test_release_fails_after_the_claim_is_lost(store, wake, claim):
    wake()
    [late] = claim(100.0)
    [_] = claim(200.0)
    with pytest.raises(LeaseLost):
        _tell(store, late)
    with store.read() as conn:
        assert notifications.last_notifications(conn, "job", "slowdown") == {}


def test_released_group_is_due_at_the_given_time(store, wake, claim, done):
    wake()
    [group] = claim(100.0)
    done(group, next_at_s=160.0, last_at_s=101.0)
    assert is_due_from(store, 160.0)
    [group] = claim(160.0)
    assert group.last_at_s == 101.0
    done(group)
    assert not is_due(store, 1e9)
    wake(at_s=500.0)
    [group] = claim(500.0)
    assert group.last_at_s == 101.0


@pytest.mark.sql_sensitive
@pytest.mark.parametrize(("next_at_s", "then_s"), [(None, 103.0), (160.0, 103.0), (102.0, 102.0)])
def test_wake_up_during_a_claim_is_kept(store, wake, claim, done, next_at_s, then_s):
    wake()
    [group] = claim(100.0)
    wake(at_s=103.0)
    assert claim(110.0) == []
    done(group, next_at_s=next_at_s)
    assert is_due_from(store, then_s)
    [again] = claim(then_s)
    done(again)
    assert not is_due(store, 1e9)


def test_group_woken_by_a_clock_ahead_is_due(store, wake, claim, done):
    wake(at_s=1e9)
    [group] = claim(100.0)
    done(group, next_at_s=notifications.limit_wait(1e9, now_s=100.0))
    assert is_due_from(store, 100.0 + notifications.MAX_WAIT_S)


@pytest.mark.sql_sensitive
def test_claim_by_a_clock_ahead_lapses(wake, claim):
    wake()
    assert claim(1e9) != []
    assert claim(100.0) != []


@pytest.mark.sql_sensitive
def test_groups_that_waited_longest_are_claimed_first(wake, claim):
    for number in range(5):
        wake(f"job-{number}", at_s=100.0 - number)
    assert [group.job_id for group in claim(100.0, limit=2)] == ["job-4", "job-3"]
    assert [group.job_id for group in claim(100.0)] == ["job-2", "job-1", "job-0"]


@pytest.mark.sql_sensitive
def test_concurrent_dispatchers_claim_different_groups(wake, claim):
    for number in range(12):
        wake(f"job-{number}")
    with ThreadPoolExecutor(4) as pool:
        shares = list(pool.map(lambda _: claim(100.0, limit=5), range(4)))
    found = [group.job_id for share in shares for group in share]
    assert len(found) == len(set(found)) == 12


def test_postponed_group_comes_after_the_others(store, wake, claim):
    for job_id in ("a/x", "a/y"):
        wake(job_id, at_s=100.0)
    first, second = claim(100.0)
    lapsed_s = 100.0 + LEASE_S
    with store.write() as conn:
        notifications.postpone_group(conn, first, next_at_s=lapsed_s + 5)
    assert [group.job_id for group in claim(lapsed_s)] == ["a/y"], "whose claim has lapsed"
    assert [group.job_id for group in claim(lapsed_s + 5)] == ["a/x"]
    with store.write() as conn:
        notifications.postpone_group(conn, second, next_at_s=1000.0)
        notifications.postpone_group(conn, first, next_at_s=1000.0)
    assert len(claim(lapsed_s + 5 + LEASE_S)) == 2, "others had them by then"


def test_released_group_is_not_postponed(store, wake, claim, done):
    """The answer to a commit may be lost."""
    wake(at_s=100.0)
    [group] = claim(100.0)
    done(group, next_at_s=110.0)
    with store.write() as conn:
        notifications.postpone_group(conn, group, next_at_s=1000.0)
    assert is_due_from(store, 110.0)


@pytest.mark.sql_sensitive
def test_waking_a_project_wakes_groups_with_alerts(store, wake, claim, done):
    for job_id in ("a/fires", "a/was-notified", "a/quiet", "b/fires"):
        wake(job_id)
    for group in claim(100.0):
        done(group)
    with store.write() as conn:
        alerts.save(conn, [alert("a/fires"), alert("b/fires")])
        notifications.save_notifications(conn, "a/was-notified", "slowdown", {"aa": NOTIFIED})
        notifications.wake_project(conn, "a", 200.0)
    assert {group.job_id for group in claim(200.0)} == {"a/fires", "a/was-notified"}


def test_last_notifications_are_kept_by_group(store):
    register(store)
    other = replace(
        NOTIFIED, kind="resolved", labels={"a": "ä"}, threshold=1.1, runbook_url="https://x"
    )
    with store.write() as conn:
        notifications.save_notifications(conn, "job", "slowdown", {"aa": NOTIFIED, "bb": other})
        notifications.save_notifications(conn, "job", "worker", {"cc": NOTIFIED})
        assert notifications.last_notifications(conn, "job", "slowdown") == {
            "aa": NOTIFIED,
            "bb": other,
        }
        notifications.save_notifications(conn, "job", "slowdown", {"aa": other})
        assert notifications.last_notifications(conn, "job", "slowdown") == {
            "aa": other,
            "bb": other,
        }
        notifications.forget_notifications(conn, ["aa", "cc"])
        assert notifications.last_notifications(conn, "job", "slowdown") == {"bb": other}
        assert notifications.last_notifications(conn, "job", "worker") == {}


def _tell(store, group):
    with store.write() as conn:
        notifications.save_notifications(conn, group.job_id, group.rule, {"aa": NOTIFIED})
        notifications.release(conn, group, next_at_s=None, last_at_s=None)
