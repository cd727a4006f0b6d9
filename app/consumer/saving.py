"""Write down what a window told us, result, steps and raw operations, and where alerts stand."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.alerts.changes import Change as AlertChange
from app.consumer.workplace import Workplace
from app.engine.result_by_step import split
from app.ingest.assembler import Change
from app.ingest.queue import Message
from app.monitor import Observation
from app.store import alert_events, alert_groups, alerts, briefs, losses, steps, windows
from app.store.engine import Connection
from app.store.steps import StepRow
from app.store.windows import WindowRecord


@dataclass(frozen=True, slots=True)
class Outcome:
    """One revision of one window, and what it told us."""

    job_id: str
    change: Change
    observation: Observation


def save_window(conn: Connection, work: Workplace, outcome: Outcome) -> Message:
    """Save one revision in the open transaction; returns what to announce once it is committed."""
    job_id, window = outcome.job_id, outcome.change.window
    record = _window_record(outcome, work.unix_time())
    is_new = windows.save(conn, job_id, record)
    steps.save(conn, job_id, _step_rows(outcome))
    if is_new:
        _save_for_fleet(conn, outcome, record)
    return {
        "event": "window",
        "job_id": job_id,
        "window": window.id,
        "revision": window.revision,
        "state": window.state,
        "slowdown": outcome.observation.result["slowdown"],
    }


def save_alerts(conn: Connection, job_id: str, changes: Sequence[AlertChange]) -> list[Message]:
    """Save where a job's alerts stand and how they came there.

    `changes` are in order. Returns what to announce once the open transaction is committed.
    """
    # First what came to rest: one that has begun again since is another one to people, and nobody
    # has acknowledged that.
    alerts.remove(conn, sorted({each.fingerprint for each in changes if each.state is None}))
    last = {change.fingerprint: change.state for change in changes}
    alerts.save(conn, [state for state in last.values() if state is not None])
    for change in changes:
        for event in change.events:
            alert_events.add(conn, event)
    return [
        {"event": "alert", "job_id": job_id, "kind": event.kind}
        for change in changes
        for event in change.events
    ]


def wake_tellers(
    conn: Connection, work: Workplace, news: Iterable[tuple[str, AlertChange]]
) -> None:
    """Wake whoever tells people of what changed in these jobs.

    To be done last: others wait for these rows until the open transaction is committed; and all
    take them in the same order, so that no two wait for one another.
    """
    at_s = work.database_time(conn) + work.group_wait_s
    for job_id, rule in sorted({(job_id, each.rule) for job_id, each in news if each.is_news}):
        alert_groups.wake(conn, job_id, rule, at_s=at_s)


def _save_for_fleet(conn: Connection, outcome: Outcome, record: WindowRecord) -> None:
    num_gpus = outcome.change.window.job.num_gpus
    brief = briefs.brief_of(record.result, num_gpus=num_gpus)
    briefs.save(conn, outcome.job_id, record.epoch, record.first_step, brief)
    if record.state != "open":
        lost = losses.losses_of(record.result, num_gpus=num_gpus)
        losses.save(conn, outcome.job_id, record, lost, num_gpus=num_gpus)


def _window_record(outcome: Outcome, now_s: float) -> WindowRecord:
    window, report = outcome.change.window, outcome.observation.report
    result, per_step = split(outcome.observation.result)
    settled = [*window.steps, *(skipped.step for skipped in window.skipped)]
    return WindowRecord(
        epoch=window.epoch,
        first_step=window.first_step,
        last_step=max(settled),
        revision=window.revision,
        state=window.state,
        num_steps=len(result["steps"]),
        num_ops=window.trace.num_ops,
        slowdown=None if report is None else report.slowdown,
        verdict=outcome.observation.verdict,
        per_step=per_step,
        result=result,
        trace=outcome.change.ops,
        updated_s=now_s,
    )


def _step_rows(outcome: Outcome) -> list[StepRow]:
    window, result = outcome.change.window, outcome.observation.result
    times, slowdowns = result["step_time_s"], result["step_slowdown"]
    figures = zip(
        result["steps"], times["recorded"], times["simulated"], times["ideal"], slowdowns,
        strict=False,
    )  # fmt: skip
    measured = {
        step: StepRow(window.epoch, step, recorded, simulated, ideal, slowdown, window.id)
        for step, recorded, simulated, ideal, slowdown in figures
    }
    skipped = {
        skip["step"]: StepRow(
            window.epoch, skip["step"], None, None, None, None, window.id, skip["reason"]
        )
        for skip in result["skipped_steps"]
    }
    return list((measured | skipped).values())
