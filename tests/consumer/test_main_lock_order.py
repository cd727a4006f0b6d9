"""Concurrent work on alerts on a real PostgreSQL: no deadlock."""

import asyncio
import random
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from app.alerts.alert import fingerprint
from app.alerts.guard import SsrfGuard
from app.alerts.planning import NotificationTiming
from app.alerts.rule import default_rules
from app.alerts.rules.evaluation import AlertChange
from app.alerts.sending import AttemptResult, Transport
from app.consumer.commit import save_alerts, wake_alert_groups
from app.consumer.context import NotifyContext
from app.consumer.dispatcher import Dispatcher
from app.consumer.sender import OutboxSender
from app.store import runs
from app.store.alerting import receivers
from app.store.database import Store, now_s
from tests.alerts.notices import SECRET
from tests.api.server import running
from tests.secret_keys import KEYS
from tests.store import factories
from tests.store.conftest import migrated_pg, new_pg_url, pg_server  # noqa: F401 - fixtures

ROUNDS = 100
JOBS = [f"default/job-{number}" for number in range(6)]
RULES = ("slowdown", "cause", "stalled")
NO_DELAYS = NotificationTiming(interval_s=0.0, repeat_s=0.2, damping_s=0.0)
# Log events of loops that continue after an error.
ERROR_EVENTS = {
    "alert not sent",
    "alerts not planned",
    "attempt not saved",
    "no alert planned",
    "no alert sent",
}
WORK = cast(Any, SimpleNamespace(database_time=now_s, group_wait_s=0.0))


class ActionThreads:
    """Threads that each repeat their action; `failures` are the errors raised."""

    def __init__(self):
        self.failures: list[BaseException] = []
        self.done: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []

    def add(self, action, *, times=ROUNDS):
        self._threads.append(threading.Thread(target=self._repeat, args=(action, times)))

    def run(self):
        for each in self._threads:
            each.start()
        for each in self._threads:
            each.join()

    def _repeat(self, action, times):
        rng = random.Random(len(self._threads) + times)
        for _ in range(times):
            try:
                action(rng)
            except BaseException as error:
                self.failures.append(error)


@pytest.fixture
def store(new_pg_url):  # noqa: F811 - the fixture
    store = Store(new_pg_url, keys=KEYS)
    with store.write() as conn:
        for job_id in JOBS:
            run = factories.registration(name=job_id.partition("/")[2])
            runs.register(conn, job_id, run, now_s=now_s(conn))
        for number, format_ in enumerate(("standard", "pagerduty", "slack")):
            url = f"https://receiver.example/{number}"
            made = factories.webhook_receiver(
                f"ep_{number}", format=format_, url=url, secrets=(SECRET,)
            )
            receivers.add(conn, made)
    yield store
    store.close()


@pytest.mark.nightly  # in fewer rounds they hardly meet
def test_concurrent_work_on_alerts_has_no_deadlock(store, new_pg_url, monkeypatch):  # noqa: F811
    threads = ActionThreads()
    tried = threading.Lock()
    chance = random.Random(7)

    def answered(*_, **__):
        with tried:
            threads.done["attempts"] += 1
            return (
                AttemptResult(204, "") if chance.random() < 0.6 else AttemptResult(500, "HTTP 500")
            )

    monkeypatch.setattr("app.alerts.sending.send", answered)
    context = NotifyContext(
        store, Transport(SsrfGuard((), allows_http=False)), default_rules(), NO_DELAYS
    )
    senders = [OutboxSender(context), OutboxSender(context)]
    for mine in (JOBS[:3], JOBS[3:]):  # a job belongs to one consumer
        threads.add(lambda rng, mine=mine: change_alerts(store, mine, rng))
        threads.add(lambda _: Dispatcher(context).dispatch_due())
    for each in senders:
        threads.add(lambda _, sender=each: send(sender))
    threads.add(lambda _: asyncio.run(use_api(new_pg_url, threads)), times=1)
    with capture_logs() as logs:
        threads.run()
        for each in senders:
            each.close()
    store.close()
    assert [repr(each.__cause__ or each) for each in threads.failures] == []
    assert {each["event"] for each in logs} & ERROR_EVENTS == set()
    assert num_deadlocks(store) == 0
    assert threads.done["attempts"] > ROUNDS // 4
    assert {"attempts", 200, 204} <= set(threads.done)


def change_alerts(store, job_ids, rng):
    """Fire and resolve alerts of several jobs in one transaction, as a consumer's turn does."""
    with store.write() as conn:
        news = []
        for job_id in rng.sample(job_ids, len(job_ids)):
            changes = [changed(job_id, rng.choice(RULES), rng) for _ in range(2)]
            save_alerts(conn, job_id, changes)
            news += [(job_id, each) for each in changes]
        wake_alert_groups(conn, WORK, news)


def changed(job_id, rule, rng):
    subject = rng.choice("ab")
    mark = fingerprint(job_id, rule, subject)
    fires = rng.random() < 0.6
    event = factories.event(job_id, rule, subject, kind="firing" if fires else "resolved")
    labels = {"job": job_id.partition("/")[2], "rule": rule, "subject": subject}
    state = factories.alert(job_id, rule, subject, labels=labels) if fires else None
    return AlertChange(mark, rule, state, (event,))


def send(sender):
    sender.send_due()
    sender.settle()


async def use_api(url, threads):
    """Acknowledgements, silences and receiver changes through the API, several at once."""
    async with running(url, limit_requests_per_s=1e6) as api:
        api.clock.now_s = time.time()
        rng = random.Random(3)
        for _ in range(ROUNDS // 4):
            answers = await asyncio.gather(*(act(api.client, rng) for act in API_ACTIONS))
            for answer in answers:
                if answer.status_code not in (404, 409):
                    threads.done[answer.status_code] += 1
                if answer.status_code >= 500:
                    raise AssertionError(answer.text)


async def acknowledge(client, rng):
    mark = fingerprint(rng.choice(JOBS), rng.choice(RULES), rng.choice("ab"))
    return await client.post(f"/api/v1/alerts/{mark}/acknowledge")


async def unacknowledge(client, rng):
    mark = fingerprint(rng.choice(JOBS), rng.choice(RULES), rng.choice("ab"))
    return await client.delete(f"/api/v1/alerts/{mark}/acknowledge")


async def silence(client, rng):
    body = {
        "matchers": [{"label": "subject", "pattern": rng.choice("ab")}],
        "ends_at": datetime.fromtimestamp(time.time() + 600, UTC).isoformat(),
        "comment": "-",
    }
    made = await client.post("/api/v1/silences", json=body)
    if made.status_code != 201:
        return made
    return await client.delete(f"/api/v1/silences/{made.json()['silence_id']}")


async def enable(client, rng):
    return await client.post(f"/api/v1/receivers/ep_{rng.randrange(3)}/enable")


async def change(client, rng):
    path = f"/api/v1/receivers/ep_{rng.randrange(3)}"
    return await client.patch(path, json={"name": f"n{rng.random()}"})


API_ACTIONS = (acknowledge, unacknowledge, silence, enable, change)


def num_deadlocks(store):
    with store.read() as conn:
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return conn.execute(text(query)).scalar_one()
