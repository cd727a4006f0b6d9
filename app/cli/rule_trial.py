"""Tests alert rules on stored windows: which alerts would have fired and resolved, and when.

Alerts that another alert mutes (inhibits) are counted, not listed.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from app.alerts.alert import AlertEvent, AlertState
from app.alerts.facts import WindowFacts
from app.alerts.labels import inhibited_fingerprints
from app.alerts.rule import Rule
from app.alerts.rules.evaluation import AlertChange, JobAlerts
from app.cli.store_access import rows_of_pages
from app.diagnosis.job_history import History
from app.store import hosts, jobs, windows
from app.store.database import Store
from app.store.jobs import JobRecord
from app.store.windows import WindowSummary
from app.trace.job import job_of


class InhibitionFilter:
    """Collects in `sent` the firing and resolved events that are not muted, in order."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._waiting: dict[str, AlertEvent] = {}
        self.sent: list[AlertEvent] = []
        self._num_missed: Counter[str] = Counter()

    @property
    def num_muted(self) -> Counter[str]:
        """By rule, alerts that resolved while muted, or are still muted."""
        return self._num_missed + Counter(event.rule for event in self._waiting.values())

    def add(
        self, changes: Iterable[AlertChange], states: Sequence[AlertState], now_s: float
    ) -> None:
        """Process the changes of one window; `states` are the alerts after it."""
        for event in (event for change in changes for event in change.events):
            if event.kind == "firing":
                self._waiting[event.fingerprint] = event
            elif event.kind == "resolved":
                self._end(event)
        quiet = inhibited_fingerprints(states, self._rules)
        quiet |= {state.fingerprint for state in states if state.below_s > 0}
        for fingerprint in [waiting for waiting in self._waiting if waiting not in quiet]:
            self.sent.append(replace(self._waiting.pop(fingerprint), at_s=now_s))

    def _end(self, event: AlertEvent) -> None:
        if self._waiting.pop(event.fingerprint, None) is None:
            self.sent.append(event)
        else:
            self._num_missed[event.rule] += 1


_PAGE_ROWS = 200


@dataclass(frozen=True, slots=True)
class RuleTrial:
    """Events by time, and numbers of jobs, windows and, by rule, muted alerts."""

    num_jobs: int
    num_windows: int
    events: Sequence[AlertEvent]
    num_muted: Mapping[str, int]

    def of_rule(self, name: str) -> list[AlertEvent]:
        """Events of one rule."""
        return [event for event in self.events if event.rule == name]


def matching_jobs(store: Store, project: str, pattern: str) -> list[JobRecord]:
    """Jobs of a project whose ids match."""
    rows = rows_of_pages(
        store,
        lambda conn, cursor: jobs.page(conn, project=project, cursor=cursor, limit=_PAGE_ROWS),
    )
    return [job for job in rows if fnmatchcase(job_of(job.job_id), pattern)]


def try_rules(
    store: Store,
    records: Sequence[JobRecord],
    rules: Sequence[Rule],
    *,
    since_s: float,
    progress: Callable[[Iterable[JobRecord]], Iterable[JobRecord]] = iter,
) -> RuleTrial:
    """Evaluate the rules on all closed windows stored since `since_s` (Unix seconds).

    `progress` wraps the iteration over jobs.
    """
    num_windows = 0
    events: list[AlertEvent] = []
    num_muted: Counter[str] = Counter()
    for job in progress(records):
        job_alerts = JobAlerts(job.job_id, rules=rules, labels=job.labels)
        filtered = InhibitionFilter(rules)
        for summary, facts in _facts(store, job, since_s):
            num_windows += 1
            changes = job_alerts.add_window(facts, summary.updated_s)
            filtered.add(changes, job_alerts.states, summary.updated_s)
        if job.ended_s is not None:
            filtered.add(job_alerts.end(job.epoch, job.ended_s), [], job.ended_s)
        events += filtered.sent
        num_muted += filtered.num_muted
    events.sort(key=lambda event: event.at_s)
    return RuleTrial(len(records), num_windows, events, num_muted)


def _facts(
    store: Store, job: JobRecord, since_s: float
) -> Iterator[tuple[WindowSummary, WindowFacts]]:
    """Windows in order, each with the step times of the earlier ones."""
    earlier: dict[int, History] = defaultdict(History)
    for summary in _summaries(store, job.job_id, since_s):
        with store.read() as conn:
            result = windows.get(conn, job.job_id, summary.window_id)
            num_gpus = jobs.registration(conn, job.job_id, summary.epoch).num_gpus
            known_hosts = hosts.load(conn, job.job_id, summary.epoch)
        before = earlier[summary.epoch]
        recorded_s = np.asarray(result.step_time_s.recorded, np.float64)
        if summary.updated_s >= since_s:
            facts = WindowFacts(
                window_id=summary.window_id,
                state=summary.state,
                verdict=summary.verdict,
                result=result,
                num_gpus=num_gpus,
                hosts=known_hosts,
                usual_step_s=before.usual_step_s(recorded_s),
            )
            yield summary, facts
        steps = np.asarray(result.steps, np.int64)[: recorded_s.size]
        earlier[summary.epoch] = before.extended(History(steps, recorded_s))


def _summaries(store: Store, job_id: str, since_s: float) -> list[WindowSummary]:
    """Closed windows, oldest first, including earlier ones of the same runs for their history."""
    closed: list[WindowSummary] = []
    cursor: str | None = None
    while True:
        with store.read() as conn:
            page, cursor = windows.page(conn, job_id, cursor=cursor, limit=_PAGE_ROWS)
        closed += [window for window in page if window.state != "open"]
        epochs = {window.epoch for window in closed if window.updated_s >= since_s}
        if cursor is None or (page[-1].updated_s < since_s and page[-1].epoch not in epochs):
            return [window for window in closed[::-1] if window.epoch in epochs]
