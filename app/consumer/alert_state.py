"""In-memory alert state of one shard; may be ahead of the database.

After an error the state of a job is evicted and read again: it may hold uncommitted changes. The
alert rules of a project are read again when they have changed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.alerts.facts import MissingDataFacts, WindowFacts, window_position
from app.alerts.rule import Rule
from app.alerts.rules.evaluation import AlertChange, JobAlerts, WindowPosition
from app.consumer.context import ConsumerContext
from app.consumer.run_cache import RunKey
from app.store import jobs, runs, windows
from app.store.alerting import alert_rules, alerts
from app.store.database import Connection
from app.store.windows import WindowSummary
from app.trace.job import project_of, shard_of

# How many of the newest windows are searched for one that rules have evaluated.
_MAX_WINDOWS_SEARCHED = 100


class AffectedJobs(NamedTuple):
    """Jobs whose project's rules have changed: those with alerts, and those in memory.

    `stalled` are stalled runs of these projects, which may have been evicted.
    """

    jobs: list[str]
    stalled: list[RunKey]


@dataclass(slots=True)
class _JobState:
    """The alerts of one job, with the run whose labels they have.

    `newest_closed` is the epoch of its newest closed run (0: none); `heard` are the run and its
    facts at the last check of silence, None where they were not the last change.
    """

    alerts: JobAlerts
    epoch: int
    newest_closed: int
    heard: tuple[RunKey, MissingDataFacts] | None = None


class ShardAlerts:
    """In-memory alert state of one shard. Methods return the changes; the turn saves them."""

    def __init__(self, context: ConsumerContext, shard: int) -> None:
        self._context = context
        self._shard = shard
        self._jobs: dict[str, _JobState] = {}
        self._rules = ProjectRules(context.default_rules)

    def window(self, job_id: str, facts: WindowFacts) -> list[AlertChange]:
        """Evaluate a closed window. Windows of a run that has ended raise no alerts.

        Late batches may still complete windows of such a run; it is then closed again.
        """
        epoch, state = facts.place[0], self._jobs.get(job_id)
        changes: list[AlertChange] = []
        # Of a newer run the labels are not read yet.
        if state is None or epoch > state.epoch:
            state, changes = self._loaded(job_id, epoch)
        state.heard = None
        if epoch <= state.newest_closed:
            return changes
        return changes + state.alerts.add_window(facts, self._context.unix_time())

    def silence(self, run: RunKey, facts: MissingDataFacts) -> list[AlertChange]:
        """Evaluate the silent ranks of the job's newest run, every few seconds."""
        known = self._jobs.get(run[0])
        # The same as at the last check, and nothing waits for its time: nothing changes.
        if known and known.heard == (run, facts) and not known.alerts.has_pending_by_clock:
            return []
        state, changes = self._loaded(*run)
        changes += state.alerts.missing_data(facts, self._context.unix_time())
        state.heard = run, facts
        return changes

    def load(self, job_id: str) -> list[AlertChange]:
        """Load the job's alerts, before the commit, which may reopen a closed run."""
        return self._loaded(job_id)[1]

    def ended(self, job_id: str, epoch: int) -> list[AlertChange]:
        """Note that the job has ended, in this run."""
        state, changes = self._loaded(job_id)
        state.newest_closed = max(epoch, state.newest_closed)
        return changes + state.alerts.end(epoch, self._context.unix_time())

    def put_away(self, job_id: str) -> list[AlertChange]:
        """End all alerts of a job that was archived or deleted: a crash is reported until then."""
        state, changes = self._loaded(job_id)
        return changes + state.alerts.put_away(self._context.unix_time())

    def jobs_put_away(self) -> list[str]:
        """The shard's archived and deleted jobs that have alerts."""
        hidden = self._context.read_once("hidden jobs", alerts.of_hidden_jobs)
        return sorted(filter(self._is_own_shard, hidden))

    def apply_rules(self, job_id: str) -> list[AlertChange]:
        """Apply the current rules of the job's project."""
        state, changes = self._loaded(job_id)
        with self._context.store.read() as conn:
            rules = self._rules.of(conn, project_of(job_id))
        return changes + state.alerts.apply_rules(rules, self._context.unix_time())

    def jobs_with_changed_rules(self) -> AffectedJobs:
        """Jobs affected by rules that have changed since the last call."""
        versions = self._context.read_once("rules", alert_rules.versions)
        changed = set(self._rules.changed(versions))
        if not changed:
            return AffectedJobs([], [])
        with self._context.store.read() as conn:
            affected = {job_id for job_id in self._jobs if project_of(job_id) in changed}
            for project in changed:
                affected.update(filter(self._is_own_shard, jobs.with_alerts(conn, project)))
            stalled = runs.stalled(conn, now_s=self._context.unix_time())
        own = [
            run for run in stalled if project_of(run[0]) in changed and self._is_own_shard(run[0])
        ]
        return AffectedJobs(sorted(affected), own)

    def runs_pending_by_clock(self) -> list[tuple[str, int]]:
        """Current runs of the shard's jobs with an alert that is pending by the clock alone."""
        with self._context.store.read() as conn:
            pending = filter(self._is_own_shard, alerts.pending_by_clock(conn))
            return [(job_id, runs.current_epoch(conn, job_id)) for job_id in pending]

    def is_pending_by_clock(self, job_id: str) -> bool:
        """Whether the job has an alert that is pending by the clock alone."""
        state = self._jobs.get(job_id)
        return state is not None and state.alerts.has_pending_by_clock

    def evict(self, job_id: str) -> None:
        """Drop the state of a job from memory."""
        self._jobs.pop(job_id, None)

    def evict_all_but(self, job_ids: Collection[str]) -> None:
        """Evict all jobs but these."""
        for job_id in self._jobs.keys() - set(job_ids):
            self.evict(job_id)

    def _loaded(self, job_id: str, epoch: int = 0) -> tuple[_JobState, list[AlertChange]]:
        """The job's alerts; loading them may resolve alerts whose rules were removed meanwhile."""
        if known := self._jobs.get(job_id):
            known.heard, epoch = None, max(epoch, known.epoch)
            # Also in the same run: its labels may have been edited.
            with self._context.store.read() as conn:
                labels = jobs.labels_of_run(conn, job_id, epoch)
            if labels is not None:  # retention may have removed the run
                known.alerts.relabel(labels)
            known.epoch = epoch
            return known, []
        with self._context.store.read() as conn:
            job = jobs.get(conn, job_id)
            job_alerts = JobAlerts(
                job_id,
                alerts.of_job(conn, job_id),
                labels=job.labels,
                counted_through=newest_counted(conn, job_id),
            )
            rules = self._rules.of(conn, project_of(job_id))
            state = _JobState(job_alerts, job.epoch, runs.newest_closed(conn, job_id))
        self._jobs[job_id] = state
        return state, job_alerts.apply_rules(rules, self._context.unix_time())

    def _is_own_shard(self, job_id: str) -> bool:
        return shard_of(job_id, self._context.num_shards) == self._shard


def newest_counted(conn: Connection, job_id: str) -> WindowPosition | None:
    """Position of the newest evaluated window: earlier ones must not be evaluated again."""
    newest, _ = windows.page(conn, job_id, limit=_MAX_WINDOWS_SEARCHED)
    counted = (window for window in newest if _is_counted(conn, job_id, window))
    return next((window_position(window.window_id) for window in counted), None)


def _is_counted(conn: Connection, job_id: str, window: WindowSummary) -> bool:
    """As `WindowFacts.is_counted`: complete, or its missing operations were imputed."""
    if window.verdict is None or window.state not in ("complete", "incomplete"):
        return False
    is_complete = window.state == "complete"
    return is_complete or windows.get(conn, job_id, window.window_id).imputed is not None


class ProjectRules:
    """Cached rules by project; a project without rules of its own has the `default` ones."""

    def __init__(self, default: Sequence[Rule]) -> None:
        self._default = default
        self._known: dict[str, Sequence[Rule]] = {}
        self._versions: dict[str, int] = {}

    def of(self, conn: Connection, project: str) -> Sequence[Rule]:
        """A project's rules, as of the last call of `changed`."""
        if project not in self._known:
            self._known[project] = alert_rules.load_or_default(conn, project, self._default)
        return self._known[project]

    def changed(self, versions: Mapping[str, int]) -> list[str]:
        """Projects whose rules have changed since the last call; at first, all with their own."""
        changed = {project for project, _ in versions.items() - self._versions.items()}
        for project in changed:
            self._known.pop(project, None)
        self._versions = dict(versions)
        return sorted(changed)
