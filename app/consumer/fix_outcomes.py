"""What the closed windows of a turn show of a job's predicted fixes, in the turn's transaction.

A job without predictions costs one query for each turn that closes a window. Windows that come
again, revised or after a crash, change nothing twice: each counts once, by its place. A revision
of a window older than those that were looked at already predicts nothing.
"""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from app.advice.outcome import Prediction, Tracked, advance_all, finish_run, prediction_of
from app.advice.signs import FollowedWindow, followed_window
from app.alerts.rule import outcome_rule
from app.consumer.context import ConsumerContext
from app.errors import Conflict
from app.monitor import Observation
from app.store import fixes
from app.store.alerting import alert_rules
from app.store.database import Connection
from app.store.fixes import FixRecord
from app.trace.job import job_of, project_of
from app.trace.window import Window

log = structlog.get_logger()

# Of a top fix; a smaller gain drowns in how windows differ anyway.
MIN_SPEED_UP = 1.02
# A bug in the comparison must stop neither the job's windows nor its alerts.
_BUGS = (ArithmeticError, LookupError, TypeError, ValueError)


def follow_fixes(
    conn: Connection,
    context: ConsumerContext,
    job_id: str,
    closed: Sequence[tuple[Window, Observation]],
    ended: Sequence[int],
) -> list[tuple[str, str]]:
    """Save what closed windows and `ended` runs (epochs) show of the job's predicted fixes.

    The top fix of a straggling window is followed from then on. Returns the alert group (job, rule)
    in which a new outcome is to be notified, if there is one.
    """
    if not closed and not ended:
        return []
    records = fixes.live(conn, job_id, now_s=context.unix_time())
    num_due = 0
    for window, observation in closed:
        live = [each for each in records if each.tracked.is_live]
        has_top = observation.result.advice is not None
        if live or has_top:
            # Before this window is one of those that were looked at.
            newest = fixes.newest_place(conn, job_id) if has_top else None
            tracked, top = _after_window([each.tracked for each in live], window, observation)
            records = _saved(conn, context, live, tracked)
            num_due += _num_due(records)
            if top is not None and _is_news(top.tracked, records, newest):
                records = _with_new(conn, context, job_id, records, top)
    for epoch in ended:
        live = [each for each in records if each.tracked.is_live]
        records = _saved(conn, context, live, [finish_run(each.tracked, epoch) for each in live])
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
        return advance_all(tracked, seen), _top_fix(observation, seen)
    except _BUGS:
        log.exception("fixes not followed", window=window.id)
        return list(tracked), None


def _top_fix(observation: Observation, seen: FollowedWindow) -> Prediction | None:
    advice = observation.result.advice
    found = None if advice is None else prediction_of(advice, seen)
    return None if found is None or found.speed_up < MIN_SPEED_UP else found


def _is_news(new: Tracked, records: Sequence[FixRecord], newest: tuple[int, int] | None) -> bool:
    """Whether its window is newer than all that predictions of the job were compared with.

    In an older one, a fix that was applied since would seem to be applied once more. A revision of
    the window of an open prediction predicts it again.
    """
    place = new.epoch, new.first_step
    if newest is None or place > newest:
        return True
    again = [each.tracked for each in records if each.tracked.fix == new.fix]
    return place == newest and any((each.epoch, each.first_step) == place for each in again)


def _saved(
    conn: Connection,
    context: ConsumerContext,
    records: Sequence[FixRecord],
    after: Sequence[Tracked],
) -> list[FixRecord]:
    """The records with what became of them; its notification is due if a rule says so."""
    found = []
    for record, tracked in zip(records, after, strict=True):
        if tracked == record.tracked:
            found.append(record)
            continue
        new = record.with_tracked(tracked)
        if tracked.state == "measured" and _rule_of(conn, context, record.job_id) is not None:
            new = replace(new, notice="due")
        found.append(fixes.save(conn, new, now_s=context.unix_time()))
    return found


def _num_due(records: Sequence[FixRecord]) -> int:
    return sum(each.notice == "due" for each in records)


def _with_new(
    conn: Connection,
    context: ConsumerContext,
    job_id: str,
    records: Sequence[FixRecord],
    new: Prediction,
) -> list[FixRecord]:
    """The records with a prediction of the window itself; none while that fix is being measured."""
    same = [each for each in records if each.tracked.fix == new.tracked.fix]
    if any(each.tracked.state == "applied" for each in same):
        return list(records)
    try:
        record = fixes.save_prediction(conn, job_id, new, now_s=context.unix_time())
    except Conflict as error:  # it is followed already
        log.info("fix not predicted again", job=job_id, reason=str(error))
        return list(records)
    return [*(each for each in records if each.fix_id != record.fix_id), record]


def _rule_of(conn: Connection, context: ConsumerContext, job_id: str) -> str | None:
    rules = alert_rules.load_or_default(conn, project_of(job_id), context.default_rules)
    rule = outcome_rule(rules, job_of(job_id))
    return None if rule is None else rule.name
