"""Rows 51 to 53 of the fault matrix: rules, planning and formats together, over made figures."""

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs

from app.alerts.facts import WindowFacts
from app.alerts.rule import Rule, default_rules
from app.alerts.rules.evaluation import JobAlerts
from app.consumer.commit import save_alerts, wake_alert_groups
from app.result.window_result import StepTimes, WindowResult
from app.store.alerting import alerts
from tests.alerts.alert_factories import finding, result
from tests.consumer.notifier import JOB, NotifierTwin

WINDOW_S = 10.0
MAX_BYTES = 20_000


@pytest.fixture
def make_watch(make_notifier, hook):
    """A function that makes a watch of a job by these rules, with a receiver."""

    def make(rules, **receiver):
        notifier = make_notifier(rules=rules, group_wait_s=1.0)
        notifier.add_receiver("hook", hook.url, **receiver)
        return Watch(notifier, rules)

    return make


class Watch:
    """One job with a window every ten seconds; its notifier runs once a second."""

    def __init__(self, notifier: NotifierTwin, rules: list[Rule]) -> None:
        self.notifier, self.rules = notifier, rules
        notifier.register()
        self.job_alerts = JobAlerts(JOB, rules=rules)
        self.number = 0

    def restart(self) -> None:
        """Replace the consumer: alert states are read from the database."""
        with self.notifier.store.read() as conn:
            states = alerts.of_job(conn, JOB)
        self.job_alerts = JobAlerts(JOB, states, self.rules)

    def window(self, slowdown: float, **given: Any) -> None:
        """Close a window and advance ten seconds."""
        found = result(slowdown, **given)
        took_s = (WINDOW_S / 8,) * 8
        times = StepTimes(recorded=took_s, simulated=took_s, ideal=took_s)
        found = structs.replace(found, step_time_s=times)
        facts = WindowFacts(
            f"1-{8 * self.number}", "complete", "ok", found, 10_000, self.hosts(found)
        )
        self.number += 1
        self._save(self.job_alerts.add_window(facts, self.notifier.clock()))
        for _ in range(int(WINDOW_S)):
            if self.notifier.dispatcher.dispatch_due():
                self.notifier.send()
            self.notifier.pass_time(1.0)

    @staticmethod
    def hosts(found: WindowResult) -> dict[tuple[int, int], str]:
        """Eight workers a host."""
        return {(dp, 0): f"host-{dp // 8}" for dp in range(len(found.worker_slowdown or ()))}

    def _save(self, changes: Any) -> None:
        work = SimpleNamespace(database_time=lambda _conn: self.notifier.clock(), group_wait_s=1.0)
        with self.notifier.store.write() as conn:
            save_alerts(conn, JOB, changes)
            wake_alert_groups(conn, cast(Any, work), [(JOB, change) for change in changes])


def kinds(hook):
    return [json.loads(body)["type"] for _, _, body in hook.requests]


@pytest.mark.parametrize(
    "swing",
    [
        (1.0, 1.3),
        pytest.param((1.04, 1.11), marks=pytest.mark.nightly),
        pytest.param((1.06, 1.2), marks=pytest.mark.nightly),
    ],
)
def test_row_51_flapping_value_notifies_at_most_every_five_minutes(make_watch, hook, swing):
    hasty = [Rule("slow", "slowdown", 1.1, 1.05, for_windows=1, for_s=0.0, keep_firing_s=0.0)]
    watch = make_watch(hasty)
    low, high = swing
    at_s = []
    for _ in range(90):  # half an hour
        before = len(hook.requests)
        for value in (high, low):
            watch.window(value)
        at_s += [watch.notifier.clock()] * (len(hook.requests) - before)
    assert at_s, "it rings"
    assert len(at_s) <= 1800 / 300 + 1
    # Its first end is told at once; only then it flaps.
    assert all(later - sooner >= 300 - 2 * WINDOW_S for sooner, later in pairwise(at_s[1:]))


def test_row_51_flapping_value_never_notifies_with_the_default_rules(make_watch, hook):
    watch = make_watch(default_rules())
    for _ in range(40):
        watch.window(1.3)
        watch.window(1.0)
    assert hook.requests == []


def test_row_51_noise_around_both_thresholds_notifies_rarely(make_watch, hook):
    watch = make_watch(default_rules())
    for value in np.random.default_rng(1).normal(1.1, 0.06, 180):
        watch.window(max(1.0, float(value)))
    assert len(hook.requests) <= 1800 / 300


@pytest.mark.parametrize(
    "format_", ["standard", pytest.param("alertmanager", marks=pytest.mark.nightly)]
)
def test_row_52_ten_thousand_slow_workers_give_few_small_messages(make_watch, hook, format_):
    rules = [
        *default_rules(),
        Rule("host", "host", 1.1),
        Rule("worker", "worker", 1.1, severity="critical"),
    ]
    watch = make_watch(rules, format=format_)
    slow = {
        "worker_slowdown": [[1.4 + worker / 1e6] for worker in range(10_000)],
        "findings": [finding(culprits=[{"host": f"host-{n}"} for n in range(20)])],
    }
    for _ in range(5):
        watch.window(1.4, **slow)
    assert 1 <= len(hook.requests) <= 3
    assert max(len(body) for _, _, body in hook.requests) <= MAX_BYTES


def test_row_52_host_alerts_mute_their_workers_and_are_counted(make_watch, hook):
    watch = make_watch([Rule("host", "host", 1.1), Rule("worker", "worker", 1.1)])
    for _ in range(3):
        watch.window(1.4, worker_slowdown=[[1.4]] * 10_000)
    (message,) = [json.loads(body)["data"] for _, _, body in hook.requests]
    assert message["rule"] == "host"
    assert message["sentence"].endswith("With it: 1,249 other alerts of the same rule.")
    assert len(message["alerts"]) + message["num_more"] == 1250


def test_row_52_ten_thousand_slow_workers_notify_once_by_default(make_watch, hook):
    watch = make_watch(default_rules())
    for _ in range(7):
        watch.window(1.4, worker_slowdown=[[1.4]] * 10_000, findings=[finding()])
    assert kinds(hook) == ["alert.firing"]


@pytest.mark.parametrize(
    "restart_after",
    [
        pytest.param(number, marks=() if number in (3, 5, 9) else pytest.mark.nightly)
        for number in range(1, 12)  # it is pending, fires, and is about to resolve
    ],
)
def test_row_53_consumer_restart_changes_no_notification(make_watch, hook, restart_after):
    watch = make_watch(default_rules())
    values = [1.0, 1.3, 1.3, 1.3, 1.3, 1.3] + 7 * [1.0]
    for number, value in enumerate(values):
        if number == restart_after:
            watch.restart()
            watch.number -= 1  # the last window is repeated
            watch.window(values[number - 1])
        watch.window(value)
    for _ in range(30):
        watch.window(1.0)
    assert kinds(hook) == ["alert.firing", "alert.resolved"]
