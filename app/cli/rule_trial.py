"""Rules over stored history: what would have rung, and when it would have ceased."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from app.alerts.alert import AlertEvent
from app.alerts.evaluate import Book
from app.alerts.facts import WindowFacts
from app.alerts.rule import Rule
from app.cli.rule_hearing import Hearing
from app.diagnosis.history import History
from app.store import hosts, jobs, windows
from app.store.engine import Store
from app.store.jobs import JobRecord
from app.store.windows import WindowSummary
from app.trace.names import plain

_PAGE = 200


@dataclass(frozen=True, slots=True)
class Trial:
    """How many windows of how many jobs were looked at, and what rang and ceased, by time.

    `num_kept_back` are alerts, by rule, for which others have spoken.
    """

    num_jobs: int
    num_windows: int
    events: Sequence[AlertEvent]
    num_kept_back: Mapping[str, int]

    def of_rule(self, name: str) -> list[AlertEvent]:
        """What one rule would have done."""
        return [event for event in self.events if event.rule == name]


def wanted_jobs(store: Store, project: str, pattern: str) -> list[JobRecord]:
    """Jobs of a project whose ids match."""
    found: list[JobRecord] = []
    cursor: str | None = None
    while True:
        with store.read() as conn:
            page, cursor = jobs.page(conn, project=project, cursor=cursor, limit=_PAGE)
        found += [job for job in page if fnmatchcase(plain(job.job_id), pattern)]
        if cursor is None:
            return found


def trial(
    store: Store,
    of_jobs: Sequence[JobRecord],
    rules: Sequence[Rule],
    *,
    since_s: float,
    watched: Callable[[Iterable[JobRecord]], Iterable[JobRecord]] = iter,
) -> Trial:
    """What the rules make of all closed windows that were stored since (Unix seconds).

    `watched` sees each job go by, for a progress bar.
    """
    num_windows = 0
    events: list[AlertEvent] = []
    num_kept_back: Counter[str] = Counter()
    for job in watched(of_jobs):
        book, hearing = Book(job.job_id, rules=rules, labels=job.labels), Hearing(rules)
        for summary, facts in _facts(store, job, since_s):
            num_windows += 1
            changes = book.window(facts, summary.updated_s)
            hearing.hear(changes, book.states, summary.updated_s)
        if job.ended_s is not None:
            hearing.hear(book.ended(job.epoch, job.ended_s), [], job.ended_s)
        events += hearing.told
        num_kept_back += hearing.num_kept_back
    events.sort(key=lambda event: event.at_s)
    return Trial(len(of_jobs), num_windows, events, num_kept_back)


def _facts(
    store: Store, job: JobRecord, since_s: float
) -> Iterator[tuple[WindowSummary, WindowFacts]]:
    """Windows in their order, each with the step times of those before."""
    earlier: dict[int, History] = defaultdict(History)
    for summary in _summaries(store, job.job_id, since_s):
        with store.read() as conn:
            result = windows.get(conn, job.job_id, summary.window_id)
        before = earlier[summary.epoch]
        if summary.updated_s >= since_s:
            yield summary, _window_facts(store, job, summary, result, before)
        recorded_s = np.asarray(result["step_time_s"]["recorded"], np.float64)
        steps = np.asarray(result["steps"], np.int64)[: recorded_s.size]
        earlier[summary.epoch] = before.extended(History(steps, recorded_s))


def _window_facts(
    store: Store, job: JobRecord, of: WindowSummary, result: dict[str, Any], before: History
) -> WindowFacts:
    with store.read() as conn:
        num_gpus = jobs.run(conn, job.job_id, of.epoch).num_gpus
        known_hosts = hosts.load(conn, job.job_id, of.epoch)
    return WindowFacts(
        window_id=of.window_id,
        state=of.state,
        verdict=of.verdict,
        result=result,
        num_gpus=num_gpus,
        hosts=known_hosts,
        earlier_step_s=before.step_s,
    )


def _summaries(store: Store, job_id: str, since_s: float) -> list[WindowSummary]:
    """Closed windows, the oldest first, and those of the same runs that tell what was usual."""
    found: list[WindowSummary] = []
    cursor: str | None = None
    while True:
        with store.read() as conn:
            page, cursor = windows.page(conn, job_id, cursor=cursor, limit=_PAGE)
        found += [each for each in page if each.state != "open"]
        epochs = {each.epoch for each in found if each.updated_s >= since_s}
        if cursor is None or (page[-1].updated_s < since_s and page[-1].epoch not in epochs):
            return [each for each in found[::-1] if each.epoch in epochs]
