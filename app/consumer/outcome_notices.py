"""Notify receivers once of what a fix has achieved: predicted against achieved, in one sentence.

An outcome is no alert: nothing fires or resolves. Its message passes the rule, silences and
receivers as an alert of the rule would. It is marked as notified in the transaction that writes it.
Where its rule is gone by then, the job's next rule on outcomes takes it over; without one, nobody
is notified.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal

import structlog

from app import formatting
from app.alerts.formats.registry import format_takes, render_notice
from app.alerts.labels import labels_of
from app.alerts.notice import Notice, NoticeGroup
from app.alerts.planning.addressing import is_for
from app.alerts.planning.plan import silenced_until
from app.alerts.receiver import Receiver
from app.alerts.rule import Rule, outcome_rule
from app.consumer.context import NotifyContext
from app.store import fixes, jobs
from app.store.alerting import alert_rules, notifications, outbox, silences
from app.store.alerting.notifications import AlertGroup
from app.store.database import Connection
from app.store.fixes import FixRecord
from app.trace.job import job_key, job_of, project_of

log = structlog.get_logger()

KIND: Literal["fix-outcome"] = "fix-outcome"
_ID_CHARS = 32


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
        refreshed_at_s = group.refreshed_at_s
        notifications.release(
            conn, group, next_at_s=None, last_at_s=None, refreshed_at_s=refreshed_at_s
        )
        return 0
    due = fixes.due_notices(conn, group.job_id)
    name, of_job = jobs.name_and_labels(conn, group.job_id)
    labels = {
        each.fix_id: labels_of(rule, group.job_id, each.tracked.fix, culprit={}, of_job=of_job)
        for each in due
    }
    active = silences.active(conn, project_of(group.job_id), now_s=now_s)
    until_s = silenced_until(labels, active, now_s)
    notified = [each for each in due if each.fix_id not in until_s]
    addressee = NoticeGroup(group.job_id, name, group.rule, context.pages_url(conn))
    num_messages = sum(
        _notify(conn, _notice(each, addressee, rule, now_s), receiver)
        for each in notified
        for receiver in receivers
        if is_for(receiver, rule.severity, labels[each.fix_id])
        and format_takes(receiver.format, KIND)
    )
    fixes.mark_notified(conn, [each.fix_id for each in notified])
    next_at_s = min(until_s.values(), default=None)
    notifications.release(
        conn,
        group,
        next_at_s=notifications.limit_wait(next_at_s, now_s=now_s),
        last_at_s=now_s if num_messages else None,
        refreshed_at_s=group.refreshed_at_s,
    )
    return num_messages


def hand_over(conn: Connection, context: NotifyContext, group: AlertGroup, now_s: float) -> None:
    """Wake the group of the rule that notifies of the job's outcomes now, which is not this one.

    Without such a rule the due notifications are dropped.
    """
    if not fixes.has_due(conn, group.job_id):
        return
    rules = alert_rules.load_or_default(conn, project_of(group.job_id), context.default_rules)
    rule = outcome_rule(rules, job_of(group.job_id))
    if rule is not None:
        notifications.wake_beside(conn, group, rule.name, at_s=now_s)
    elif number := fixes.drop_due(conn, group.job_id):
        log.info("outcomes not notified: no rule", job=group.job_id, number=number)


def _notify(conn: Connection, notice: Notice, receiver: Receiver) -> bool:
    try:
        message = render_notice(notice, receiver)
    except Exception:
        # The other receivers may have formats that work.
        log.exception("message not written", receiver=receiver.endpoint_id)
        return False
    added = outbox.add(
        conn,
        endpoint_id=receiver.endpoint_id,
        notice_id=notice.notice_id,
        job_id=job_key(notice.project, notice.job or ""),
        rule=notice.rule,
        kind=KIND,
        message=message,
        fingerprints=[],
        now_s=notice.at_s,
    )
    return added is not None


def _notice(record: FixRecord, group: NoticeGroup, rule: Rule, now_s: float) -> Notice:
    key = f"{group.key}:{KIND}:{record.fix_id}"
    tracked, job = record.tracked, job_of(group.job_id)
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
        sub=_measured_sentence(record),
        page_url=group.page_url(tracked.windows[0].window_id if tracked.windows else None),
        runbook_url=rule.runbook_url,
        base_url=group.base_url,
        group_labels=group.labels | {"subject": tracked.fix},
    )


def _measured_sentence(record: FixRecord) -> str:
    tracked = record.tracked
    title = formatting.bidi_isolated(record.prediction.title)
    note = "" if tracked.note is None else f" Note: {tracked.note}."
    over = formatting.plural(len(tracked.windows), "window")
    return f"The fix: {title}. Both are ratios of simulated steps, measured over {over}.{note}"
