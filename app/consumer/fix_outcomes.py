"""Follows a job's predicted fixes through the closed windows of a turn, in its transaction.

A job without predictions costs one query per turn that closes a window. Windows that come
again, revised or after a crash, change nothing twice: each counts once, by its place. A revision
of a window older than those that were looked at already predicts nothing.

Receivers are notified once of a fix's outcome: predicted against achieved, in one sentence.
An outcome is no alert: nothing fires or resolves. Its message passes the rule, silences and
receivers as an alert of the rule would. It is marked as notified in the transaction that writes it.
Where its rule is gone by then, the job's next rule on outcomes takes it over; without one, no
receiver is notified.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import structlog

from app import formatting
from app.advice.outcome import Prediction, Tracked, advance_all, finish_run, prediction_of
from app.advice.signs import followed_window
from app.alerts.addressing import is_for
from app.alerts.formats.registry import format_takes
from app.alerts.labels import labels_of
from app.alerts.notice import Notice, NoticeGroup
from app.alerts.planning import silenced_until
from app.alerts.receiver import Receiver
from app.alerts.rule import Rule, outcome_rule
from app.consumer.context import ConsumerContext, NotifyContext
from app.consumer.sender import write_message
from app.errors import Conflict
from app.monitor import Observation
from app.store import fixes, jobs
from app.store.alerting import alert_rules, notifications, silences
from app.store.alerting.notifications import AlertGroup
from app.store.database import Connection
from app.store.fixes import FixRecord
from app.trace.job import job_of, project_of
from app.trace.window import Window

log = structlog.get_logger()

# Of a top fix; a smaller gain drowns in how windows differ anyway.
MIN_SPEED_UP = 1.02
KIND: Literal["fix-outcome"] = "fix-outcome"
_ID_CHARS = 32
# A bug in the comparison must stop neither the job's windows nor its alerts.
_BUGS = (ArithmeticError, LookupError, TypeError, ValueError)


def follow_fixes(
    conn: Connection,
    context: ConsumerContext,
    job_id: str,
    closed: Sequence[tuple[Window, Observation]],
    ended: Sequence[int],
) -> list[tuple[str, str]]:
    """Follow the job's predicted fixes through closed windows and `ended` runs (epochs).

    The top fix of a straggling window is followed from then on. Returns the alert group (job, rule)
    in which a new outcome is to be notified, if there is one.
    """
    if not closed and not ended:
        return []
    records = fixes.live(conn, job_id, now_s=context.unix_time())
    num_due = 0
    for window, observation in closed:
        live = [record for record in records if record.tracked.is_live]
        has_top = observation.result.advice is not None
        if live or has_top:
            # Before this window is one of those that were looked at.
            newest = fixes.newest_place(conn, job_id) if has_top else None
            tracked, top = _after_window([record.tracked for record in live], window, observation)
            records = _saved(conn, context, live, tracked)
            num_due += _num_due(records)
            if top is not None and _is_news(top.tracked, records, newest):
                records = _with_new(conn, context, job_id, records, top)
    for epoch in ended:
        live = [record for record in records if record.tracked.is_live]
        after = [finish_run(record.tracked, epoch) for record in live]
        records = _saved(conn, context, live, after)
        num_due += _num_due(records)
    rule = _rule_of(conn, context, job_id) if num_due else None
    return [] if rule is None else [(job_id, rule)]


def _after_window(
    tracked: Sequence[Tracked], window: Window, observation: Observation
) -> tuple[list[Tracked], Prediction | None]:
    """The predictions after the window, and its own."""
    try:
        seen = followed_window(window, observation.result, is_trusted=observation.verdict == "ok")
        if seen is None:
            return list(tracked), None
        advice = observation.result.advice
        top = None if advice is None else prediction_of(advice, seen)
        is_large = top is not None and top.speed_up >= MIN_SPEED_UP
        return advance_all(tracked, seen), top if is_large else None
    except _BUGS:
        log.exception("fixes not followed", window=window.id)
        return list(tracked), None


def _is_news(new: Tracked, records: Sequence[FixRecord], newest: tuple[int, int] | None) -> bool:
    """Whether its window is newer than all that predictions of the job were compared with.

    In an older one, a fix that was applied since would seem to be applied once more. A revision of
    the window of an open prediction predicts it again.
    """
    place = new.epoch, new.first_step
    if newest is None or place > newest:
        return True
    again = [record.tracked for record in records if record.tracked.fix == new.fix]
    return place == newest and any((fix.epoch, fix.first_step) == place for fix in again)


def _saved(
    conn: Connection,
    context: ConsumerContext,
    records: Sequence[FixRecord],
    after: Sequence[Tracked],
) -> list[FixRecord]:
    """The records after a window or run; a notification is due if a rule says so."""
    saved = []
    for record, tracked in zip(records, after, strict=True):
        if tracked != record.tracked:
            record = record.with_tracked(tracked)
            if tracked.state == "measured" and _rule_of(conn, context, record.job_id) is not None:
                record = replace(record, notice="due")
            record = fixes.save(conn, record, now_s=context.unix_time())
        saved.append(record)
    return saved


def _num_due(records: Sequence[FixRecord]) -> int:
    return sum(record.notice == "due" for record in records)


def _with_new(
    conn: Connection,
    context: ConsumerContext,
    job_id: str,
    records: Sequence[FixRecord],
    new: Prediction,
) -> list[FixRecord]:
    """The records with a prediction of the window itself; none while that fix is being measured."""
    same = [record.tracked for record in records if record.tracked.fix == new.tracked.fix]
    if any(tracked.state == "applied" for tracked in same):
        return list(records)
    try:
        saved = fixes.save_prediction(conn, job_id, new, now_s=context.unix_time())
    except Conflict as error:  # it is followed already
        log.info("fix not predicted again", job=job_id, reason=str(error))
        return list(records)
    return [*(record for record in records if record.fix_id != saved.fix_id), saved]


def _rule_of(conn: Connection, context: ConsumerContext | NotifyContext, job_id: str) -> str | None:
    """The name of the rule that notifies of the job's outcomes now."""
    rules = alert_rules.load_or_default(conn, project_of(job_id), context.default_rules)
    rule = outcome_rule(rules, job_of(job_id))
    return None if rule is None else rule.name


def write_outcomes(
    conn: Connection,
    context: NotifyContext,
    group: AlertGroup,
    rule: Rule,
    receivers: Sequence[Receiver],
    now_s: float,
) -> int:
    """Write the messages of a claimed group on outcomes, and release it; returns their number.

    Silenced outcomes wait for the end of the silence. Those of a job that the rule does not watch
    any more are handed over.

    Raises:
        LeaseLost: another dispatcher has claimed the group since.
    """
    if not rule.is_for(job_of(group.job_id)):
        hand_over(conn, context, group, now_s)
        at_rest = {"next_at_s": None, "last_at_s": None, "refreshed_at_s": group.refreshed_at_s}
        notifications.release(conn, group, **at_rest)
        return 0
    due = fixes.due_notices(conn, group.job_id)
    name, of_job = jobs.name_and_labels(conn, group.job_id)
    labels = {
        record.fix_id: labels_of(rule, group.job_id, record.tracked.fix, culprit={}, of_job=of_job)
        for record in due
    }
    active = silences.active(conn, project_of(group.job_id), now_s=now_s)
    until_s = silenced_until(labels, active, now_s)
    notified = [record for record in due if record.fix_id not in until_s]
    addressee = NoticeGroup(group.job_id, name, group.rule, context.pages_url(conn))
    results = [
        write_message(conn, _notice(record, addressee, rule, now_s), receiver, group.job_id)
        for record in notified
        for receiver in receivers
        if is_for(receiver, rule.severity, labels[record.fix_id])
        and format_takes(receiver.format, KIND)
    ]
    fixes.mark_notified(conn, [record.fix_id for record in notified])
    next_at_s = min(until_s.values(), default=None)
    notifications.release(
        conn,
        group,
        next_at_s=notifications.limit_wait(next_at_s, now_s=now_s),
        last_at_s=now_s if "written" in results else None,
        refreshed_at_s=group.refreshed_at_s,
    )
    return results.count("written")


def hand_over(conn: Connection, context: NotifyContext, group: AlertGroup, now_s: float) -> None:
    """Wake the group of the rule that notifies of the job's outcomes now, which is not this one.

    Without such a rule the due notifications are dropped.
    """
    if not fixes.has_due(conn, group.job_id):
        return
    rule = _rule_of(conn, context, group.job_id)
    if rule is not None:
        notifications.wake_beside(conn, group, rule, at_s=now_s)
    elif number := fixes.drop_due(conn, group.job_id):
        log.info("outcomes not notified: no rule", job=group.job_id, number=number)


def _notice(record: FixRecord, group: NoticeGroup, rule: Rule, now_s: float) -> Notice:
    key = f"{group.key}:{KIND}:{record.fix_id}"
    tracked, job = record.tracked, job_of(group.job_id)
    title = formatting.bidi_isolated(record.prediction.title)
    note = "" if tracked.note is None else f" Note: {tracked.note}."
    over = formatting.plural(len(tracked.windows), "window")
    return Notice(
        notice_id=hashlib.sha256(key.encode()).hexdigest()[:_ID_CHARS],
        kind=KIND,
        group_key=group.key,
        project=group.project,
        job=job,
        job_name=group.job_name,
        rule=group.rule,
        severity=rule.severity,
        at_s=now_s,
        sentence=f"{job}: {record.prediction.sentence}.",
        sub=f"The fix: {title}. Both are ratios of simulated steps, measured over {over}.{note}",
        page_url=group.page_url(tracked.windows[0].window_id if tracked.windows else None),
        runbook_url=rule.runbook_url,
        base_url=group.base_url,
        group_labels=group.labels | {"subject": tracked.fix},
    )
