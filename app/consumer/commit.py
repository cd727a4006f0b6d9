"""Turns of a shard's jobs: the changes that one made in memory, committed in one transaction.

An error in one job stops no other job.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import structlog
from structlog.contextvars import bound_contextvars

from app.alerts.rules.evaluation import AlertChange
from app.consumer.alert_state import ShardAlerts
from app.consumer.context import ConsumerContext
from app.consumer.fix_outcomes import follow_fixes
from app.consumer.run_cache import JobStateUnreadable, LoadedRun, RunCache, RunKey
from app.diagnosis import job_history
from app.errors import LeaseLost, Unavailable
from app.ingest.assembly.assembler import SpooledBatch, pack_spool
from app.ingest.assembly.windows import WindowRevision
from app.ingest.queue import EventMessage
from app.monitor import Observation
from app.result.brief import brief_of
from app.result.stored import split_by_step
from app.store import dead_letters, exits, fleet, hosts, jobs, joint_windows, shards, windows
from app.store import runs as stored_runs
from app.store.alerting import alerts, notifications
from app.store.database import Connection, with_longer_limit
from app.store.dead_letters import DeadLetter
from app.store.joint_windows import JudgedResult
from app.store.runs import SilentRanks
from app.store.shards import SpoolRow
from app.store.windows import StepRow, WindowRecord

GroupKey = tuple[str, str]  # job_id, rule


@dataclass(frozen=True, slots=True)
class WindowOutcome:
    """One revision of one window, and its analysis.

    `judged` is the result that the job is judged by since it closed; None: the same as before.
    """

    job_id: str
    change: WindowRevision
    observation: Observation
    judged: JudgedResult | None = None


def save_window(conn: Connection, context: ConsumerContext, outcome: WindowOutcome) -> EventMessage:
    """Save one revision in the open transaction; returns what to announce once it is committed."""
    job_id, window = outcome.job_id, outcome.change.window
    record = _window_record(outcome, context.unix_time())
    is_new = windows.save(conn, job_id, record)
    windows.save_steps(conn, job_id, _step_rows(outcome))
    if is_new:
        _save_brief_and_losses(conn, outcome, record)
    return {
        "event": "window",
        "job_id": job_id,
        "window": window.id,
        "revision": window.revision,
        "state": window.state,
        "slowdown": outcome.observation.result.slowdown,
    }


def save_alerts(
    conn: Connection, job_id: str, changes: Sequence[AlertChange]
) -> list[EventMessage]:
    """Save a job's alerts and their transitions; `changes` are in order.

    Returns what to announce once the open transaction is committed.
    """
    # Resolved alerts first: one that has begun again since must lose its acknowledgement.
    alerts.remove(conn, sorted({change.fingerprint for change in changes if change.state is None}))
    last = {change.fingerprint: change.state for change in changes}
    alerts.save(conn, [state for state in last.values() if state is not None])
    events = [event for change in changes for event in change.events]
    for event in events:
        alerts.add_event(conn, event)
    return [{"event": "alert", "job_id": job_id, "kind": event.kind} for event in events]


def wake_alert_groups(
    conn: Connection,
    context: ConsumerContext,
    news: Iterable[tuple[str, AlertChange]],
    outcomes: Collection[GroupKey] = (),
) -> None:
    """Wake the dispatcher for the alert groups that changed, and those with `outcomes` of fixes.

    Call it last: the rows stay locked until the open transaction is committed. All callers lock
    them in the same order, so that there is no deadlock.
    """
    at_s = context.database_time(conn) + context.group_wait_s
    changed = {(job_id, change.rule) for job_id, change in news if change.is_news}
    for job_id, rule in sorted({*changed, *outcomes}):
        notifications.wake_group(conn, job_id, rule, at_s=at_s)


def _save_brief_and_losses(conn: Connection, outcome: WindowOutcome, record: WindowRecord) -> None:
    num_gpus = outcome.change.window.job.num_gpus
    judged = outcome.judged
    if judged is None or record.slowdown is None:
        brief = brief_of(record.result, num_gpus=num_gpus)
        fleet.save_brief(conn, outcome.job_id, record.epoch, record.first_step, brief)
    if judged is not None:
        brief = brief_of(judged.result, num_gpus=num_gpus)
        fleet.save_brief(conn, outcome.job_id, record.epoch, judged.first_step, brief)
    if record.state != "open":
        lost = fleet.losses_of(record.result, num_gpus=num_gpus)
        fleet.save_losses(conn, outcome.job_id, record, lost, num_gpus=num_gpus)


def _window_record(outcome: WindowOutcome, now_s: float) -> WindowRecord:
    window, report = outcome.change.window, outcome.observation.report
    result, per_step = split_by_step(outcome.observation.result)
    settled = [*window.steps, *(skipped.step for skipped in window.skipped)]
    packed = outcome.change.ops
    return WindowRecord(
        epoch=window.epoch,
        first_step=window.first_step,
        last_step=max(settled),
        revision=window.revision,
        state=window.state,
        num_steps=len(result.steps),
        num_ops=window.trace.num_ops,
        slowdown=None if report is None else report.slowdown,
        verdict=outcome.observation.verdict,
        per_step=per_step,
        result=result,
        trace=packed and packed.rounded,
        remainders=packed and packed.remainders,
        updated_s=now_s,
    )


def _step_rows(outcome: WindowOutcome) -> list[StepRow]:
    window, result = outcome.change.window, outcome.observation.result
    times = result.step_time_s
    figures = zip(
        result.steps, result.step_started_s,
        times.recorded, times.simulated, times.ideal, result.step_slowdown, strict=False,
    )  # fmt: skip
    epoch = window.epoch
    measured = {
        step: StepRow(epoch, step, recorded, simulated, ideal, slowdown, window.id, started_s=at_s)
        for step, at_s, recorded, simulated, ideal, slowdown in figures
    }
    skipped = {
        skip.step: StepRow(epoch, skip.step, None, None, None, None, window.id, skip.reason)
        for skip in result.skipped_steps
    }
    return list((measured | skipped).values())


@dataclass(slots=True)
class RunTurn:
    """Changes of one turn to one run."""

    run: LoadedRun
    taken: list[SpooledBatch] = field(default_factory=list)
    spooled_through: int = -1  # the last step in `taken`
    newest_step: int | None = None  # of the run
    received_s: float = 0.0  # of the newest batch in `taken`, by the clock of the queue
    came_s: float = 0.0  # Unix time at which it had come
    is_closed: bool = False
    has_state: bool = False  # whether the assembler's state is saved
    has_history: bool = False  # whether a window has closed


@dataclass(slots=True)
class Turn:
    """Changes of one turn to one job, committed together or not at all.

    `alerts` are changes in order, `silences` the silent ranks of each run whose ranks changed.
    """

    job_id: str
    runs: dict[RunKey, RunTurn] = field(default_factory=dict)
    outcomes: list[WindowOutcome] = field(default_factory=list)
    alerts: list[AlertChange] = field(default_factory=list)
    silences: dict[RunKey, SilentRanks] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    entry_ids: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing to commit."""
        return not (self.runs or self.entry_ids or self.alerts or self.silences)

    def of(self, run: LoadedRun) -> RunTurn:
        """The changes to this run."""
        if run.key not in self.runs:
            self.runs[run.key] = RunTurn(run)
        return self.runs[run.key]


def save_turns(
    conn: Connection, context: ConsumerContext, turns: Collection[Turn]
) -> list[EventMessage]:
    """Save everything in the open transaction; returns what to announce once it is committed."""
    messages: list[EventMessage] = []
    outcomes: list[GroupKey] = []
    rows = []
    for turn in turns:
        context.note_progress()
        rows += [_spool_row(changes) for changes in turn.runs.values() if changes.taken]
    shards.add_spooled(conn, rows)
    for turn in turns:
        context.note_progress()
        messages += [save_window(conn, context, outcome) for outcome in turn.outcomes]
        for key, silence in turn.silences.items():
            stored_runs.save_silent_ranks(conn, *key, silence)
            messages.append({"event": "job", "job_id": turn.job_id})
        if turn.alerts:
            messages += save_alerts(conn, turn.job_id, turn.alerts)
        outcomes += _follow_fixes(conn, context, turn)
        for changes in turn.runs.values():
            _save_run(conn, changes)
        if turn.letters:
            for letter in dead_letters.add(conn, turn.letters):
                stored_runs.count_dead_letter(conn, letter)
    news = ((turn.job_id, change) for turn in turns for change in turn.alerts)
    wake_alert_groups(conn, context, news, outcomes)
    return messages


def _follow_fixes(conn: Connection, context: ConsumerContext, turn: Turn) -> list[GroupKey]:
    """Follow predicted fixes through the closed windows; the groups whose outcomes are due."""
    windows_after = [(outcome.change.window, outcome.observation) for outcome in turn.outcomes]
    closed = [pair for pair in windows_after if pair[0].state != "open"]
    ended = [changes.run.key[1] for changes in turn.runs.values() if changes.is_closed]
    return follow_fixes(conn, context, turn.job_id, closed, ended)


def _spool_row(changes: RunTurn) -> SpoolRow:
    run = changes.run
    run.turn += 1
    return SpoolRow(*run.key, run.turn, changes.spooled_through, pack_spool(changes.taken))


def _save_run(conn: Connection, changes: RunTurn) -> None:
    run = changes.run
    job_id, epoch = run.key
    changes.has_state = changes.has_state or run.assembler.is_dirty or changes.is_closed
    if changes.has_state:
        _save_assembler(conn, run)
    if changes.has_history:
        through_step, packed = int(run.history.steps[-1]), job_history.pack(run.history)
        shards.save_history(conn, job_id, epoch, through_step=through_step, blob=packed)
    stored_runs.save(conn, job_id, epoch, run.counts)
    if (step := changes.newest_step) is not None:
        at_s = changes.came_s
        stored_runs.note_data(conn, job_id, epoch=epoch, last_data_s=at_s, last_step=step)
    if changes.is_closed:
        stored_runs.mark_closed(conn, job_id, epoch)
        _judge_whole_run(conn, run)
    elif changes.taken and stored_runs.reopen(conn, job_id, epoch):
        exits.goes_on(conn, job_id, epoch, received_s=changes.received_s)


def _judge_whole_run(conn: Connection, run: LoadedRun) -> None:
    """Save that a finished job is judged by its whole run."""
    job_id, epoch = run.key
    job = jobs.get(conn, job_id)
    if job.epoch != epoch or job.ended_s is None or job.latest is None:
        return
    result = joint_windows.read_judged(conn, job_id, joint_windows.judged_windows(conn, job_id))
    brief = brief_of(result, num_gpus=job.num_gpus)
    fleet.save_brief(conn, job_id, epoch, job.latest.first_step, brief)


def _save_assembler(conn: Connection, run: LoadedRun) -> None:
    tracker = run.assembler.tracker
    run.counts = replace(run.counts, lost_batches=tracker.num_lost)
    shards.save_assembler(conn, *run.key, run.assembler.dump(run.turn))
    shards.forget_spooled(conn, *run.key, through_step=run.assembler.closed_through)
    windows.forget_remainders(conn, *run.key, before_step=run.assembler.first_revisable)
    if tracker.has_new_drops:
        stored_runs.save_drops(conn, *run.key, tracker.drops())
    if tracker.has_new_hosts:
        known = tracker.hosts()
        hosts.save(conn, *run.key, known, tracker.placements())
        hosts.add_to_run(conn, *run.key, known.values())


log = structlog.get_logger()


class ShardLease(NamedTuple):
    """A shard, the consumer that holds it, and the fence number of its lease."""

    shard: int
    owner: str
    fence: int


class TurnCommitter:
    """Commits the turns of a shard's jobs, and evicts the jobs whose turn failed."""

    def __init__(
        self, context: ConsumerContext, lease: ShardLease, runs: RunCache, alert_state: ShardAlerts
    ) -> None:
        self._context = context
        self._lease = lease
        self._runs = runs
        self._alerts = alert_state

    def run_turns(self, actions: Mapping[str, Callable[[Turn], None]]) -> list[str]:
        """Run and commit the action of each job; returns the jobs whose action failed.

        Nothing of a failed job is committed. Entries that failed because of the job's stored state
        stay in the queue.
        """
        turns: dict[str, Turn] = {}
        failed = []
        for job_id, action in actions.items():
            turns[job_id] = Turn(job_id)
            try:
                done = self.run_isolated(job_id, partial(action, turns[job_id]))
            except JobStateUnreadable:
                self._mark_stuck(turns.pop(job_id), job_id)
                continue
            if not done:
                failed.append(job_id)
                del turns[job_id]
        self._commit_all(turns)
        return failed

    def _commit_all(self, turns: Mapping[str, Turn]) -> None:
        self._context.note_progress()
        try:
            self.commit(turns.values())
        except (LeaseLost, Unavailable):
            raise
        except Exception as error:
            log.warning("turn committed job by job", shard=self._lease.shard, reason=repr(error))
            for job_id, turn in turns.items():
                if not self.run_isolated(job_id, partial(self.commit, [turn])):
                    self._mark_stuck(turn, job_id)

    def _mark_stuck(self, turn: Turn, job_id: str) -> None:
        """Leave the entries in the queue: no other job waits for them."""
        self._runs.stuck_entries |= dict.fromkeys(turn.entry_ids, job_id)

    def run_isolated(self, job_id: str, action: Callable[[], object]) -> bool:
        """Run action; on failure evict the job and return False."""
        self._context.note_progress()
        try:
            with bound_contextvars(shard=self._lease.shard, job=job_id):
                action()
        except (LeaseLost, Unavailable):
            raise
        except Exception as error:
            if not isinstance(error, JobStateUnreadable):
                log.exception("job failed", shard=self._lease.shard, job=job_id)
            self._alerts.evict(job_id)
            self._runs.evict(job_id)
            if isinstance(error, JobStateUnreadable):
                raise
            return False
        return True

    def commit(self, turns: Collection[Turn]) -> None:
        """Save these turns in one transaction; then acknowledge to the queue, then announce.

        Raises:
            LeaseLost: another consumer owns the shard now; nothing was committed.
        """
        context = self._context
        turns = [turn for turn in turns if not turn.is_empty]
        if not turns:
            return
        entry_ids = [entry_id for turn in turns for entry_id in turn.entry_ids]
        with context.store.write() as conn:
            with_longer_limit(conn)
            shards.check(conn, *self._lease)
            messages = save_turns(conn, context, turns)
            if entry_ids:
                shards.note_committed(conn, self._lease.shard, entry_ids)
        if any(turn.alerts or turn.outcomes for turn in turns):
            context.wake_dispatcher()
        if entry_ids:
            context.queue.done(self._lease.shard, entry_ids)
            for entry_id in entry_ids:
                self._runs.stuck_entries.pop(entry_id, None)
        for message in messages:
            context.announcer.announce(message)
        for turn in turns:
            self._runs.note_saved(turn.silences)
            for changes in turn.runs.values():
                tracker = changes.run.assembler.tracker
                tracker.has_new_hosts &= not changes.has_state
                tracker.has_new_drops &= not changes.has_state
                if changes.is_closed:
                    self._runs.close(changes.run.key)
            for letter in turn.letters:  # the run's counts have changed in the store
                self._runs.evict(letter.job_id)
