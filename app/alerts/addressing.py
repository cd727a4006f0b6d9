"""A draft addressed to one receiver: the alerts that it wants, the most severe first."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from app.alerts.formats.registry import MAX_PUSHED, knows_each_alert
from app.alerts.labels import all_match
from app.alerts.notice import MAX_LISTED_ALERTS, Notice, NoticeAlert, NoticeGroup, NoticeKind
from app.alerts.planning import Draft
from app.alerts.receiver import FORMATS_WITH_ONE_INCIDENT, Receiver
from app.alerts.rule import SEVERITIES, Severity
from app.alerts.wording import cost_sentence, late_sentence, resolution_sentence, response_sentence
from app.trace.job import job_of

_KEY_BYTES = 16


def notices_for(
    draft: Draft, group: NoticeGroup, receiver: Receiver, *, now_s: float
) -> Iterator[Notice]:
    """The notices for the receiver; none if it wants none of the alerts, or none of those is news.

    A receiver that knows each alert gets all news, in several notices if they are many.
    """
    wanted = [alert for alert in draft.listed if _is_wanted(alert, receiver)]
    news = _news(draft, wanted)
    if knows_each_alert(receiver.format):
        alerts = _sorted(draft, wanted if draft.kind == "refresh" else news)
        parts = [alerts[at : at + MAX_PUSHED] for at in range(0, len(alerts), MAX_PUSHED)]
    else:
        parts = [_sorted(draft, wanted)] if news else []
    for number, part in enumerate(parts):
        if _is_notified(draft, receiver, part):
            yield _notice(draft, group, receiver, part, number, now_s)


def notice_id(draft: Draft, group: NoticeGroup, number: int, now_s: float) -> str:
    """Identity of a notice; the same content at another moment has another.

    `number` counts the parts of a draft from 0.
    """
    parts = [group.key, draft.kind, f"{now_s:.3f}", *([str(number)] if number else [])]
    for alert in sorted(draft.listed, key=lambda alert: alert.fingerprint):
        if alert.fingerprint in draft.news:
            parts += [alert.fingerprint, str(alert.event_id), alert.status]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[: 2 * _KEY_BYTES]


def _is_wanted(alert: NoticeAlert, receiver: Receiver) -> bool:
    if is_for(receiver, alert.severity, alert.labels):
        return True
    if alert.status == "firing" or not alert.known_as:
        return False
    # Its labels have changed: receivers that were notified by the first ones get the resolution.
    known = alert.known_as.get("severity")
    severity = next((severity for severity in SEVERITIES if severity == known), alert.severity)
    return is_for(receiver, severity, alert.known_as)


def is_for(receiver: Receiver, severity: Severity, labels: Mapping[str, str]) -> bool:
    """Whether the receiver gets alerts of this severity with these labels."""
    is_severe = SEVERITIES.index(severity) >= SEVERITIES.index(receiver.min_severity)
    return is_severe and all_match(receiver.matchers, labels)


def _is_notified(draft: Draft, receiver: Receiver, alerts: Sequence[NoticeAlert]) -> bool:
    if draft.kind == "acknowledged":
        return True
    if draft.kind == "refresh":
        return receiver.wants_resolved or _is_any_firing(alerts)
    if _is_any_firing(_news(draft, alerts)):
        return True
    # An incident that is open for other alerts is left alone: reopening it would ring.
    has_incident = receiver.format in FORMATS_WITH_ONE_INCIDENT
    return receiver.wants_resolved and not (has_incident and _is_any_firing(alerts))


def _news(draft: Draft, alerts: Sequence[NoticeAlert]) -> list[NoticeAlert]:
    return [alert for alert in alerts if alert.fingerprint in draft.news]


def _is_any_firing(alerts: Sequence[NoticeAlert]) -> bool:
    return any(alert.status == "firing" for alert in alerts)


def _kind(draft: Draft, alerts: Sequence[NoticeAlert]) -> NoticeKind:
    if draft.kind in ("acknowledged", "refresh"):
        return draft.kind
    return "firing" if _is_any_firing(alerts) else "resolved"


def _is_partly_resolved(draft: Draft, alerts: Sequence[NoticeAlert]) -> bool:
    return _kind(draft, alerts) == "firing" and not _is_any_firing(_news(draft, alerts))


def _sorted(draft: Draft, alerts: Iterable[NoticeAlert]) -> list[NoticeAlert]:
    """News first, then firing alerts, then by severity and value."""

    def order(alert: NoticeAlert) -> tuple[bool, bool, int, float, str]:
        value = alert.detail.value
        return (
            alert.fingerprint not in draft.news,
            alert.status != "firing",
            -SEVERITIES.index(alert.severity),
            float("inf") if value is None else -value,
            alert.fingerprint,
        )

    return sorted(alerts, key=order)


def _num_without_alert(alerts: Sequence[NoticeAlert]) -> int:
    """How many more subjects are over the threshold, without an alert: the rule has its maximum."""
    counted = (
        alert.detail.num_named
        for alert in alerts
        if alert.status == "firing" and alert.detail.on != "silent-worker"  # there it is of workers
    )
    return max(counted, default=0)


def _sentence(draft: Draft, alerts: Sequence[NoticeAlert], num_others: int) -> str:
    lead = alerts[0]
    if not num_others:
        return lead.sentence
    if _is_partly_resolved(draft, alerts):
        number = sum(alert.status == "firing" for alert in alerts) + _num_without_alert(alerts)
        still = (
            "1 other alert still fires" if number == 1 else f"{number:,} other alerts still fire"
        )
        return f"{lead.sentence} {still}."
    others = "1 other alert" if num_others == 1 else f"{num_others:,} other alerts"
    return f"{lead.sentence} With it: {others} of the same rule."


def _notice(
    draft: Draft,
    group: NoticeGroup,
    receiver: Receiver,
    alerts: Sequence[NoticeAlert],
    number: int,
    now_s: float,
) -> Notice:
    kind, lead = _kind(draft, alerts), alerts[0]
    listed = alerts if knows_each_alert(receiver.format) else alerts[:MAX_LISTED_ALERTS]
    num_others = len(alerts) - 1 + _num_without_alert(alerts)
    about = alerts if draft.kind == "refresh" else _news(draft, alerts)
    # A resolved alert has no chart.
    shown = lead.detail.window_id if kind == "firing" else None
    second = resolution_sentence(lead)
    if lead.status == "firing":
        response = response_sentence(lead.assigned_to, lead.note)
        second = f"{cost_sentence(lead.detail)} {response}".strip()
    return Notice(
        notice_id=notice_id(draft, group, number, now_s),
        kind=kind,
        group_key=group.key,
        project=group.project,
        job=job_of(group.job_id),
        job_name=group.job_name,
        rule=group.rule,
        severity=max((alert.severity for alert in alerts), key=SEVERITIES.index),
        at_s=now_s,
        sentence=_sentence(draft, alerts, num_others),
        sub=f"{second} {late_sentence(group.held_since_s, now_s)}".strip(),
        alerts=listed,
        num_more=num_others + 1 - len(listed),
        is_repeat=draft.is_repeat,
        is_partly_resolved=_is_partly_resolved(draft, alerts),
        page_url=group.page_url(lead.detail.window_id),
        image_url=group.image_url(shown, now_s),
        runbook_url=lead.runbook_url or group.runbook_url(lead.was or lead.detail),
        base_url=group.base_url,
        group_labels=group.labels,
        about=[alert.fingerprint for alert in about],
        as_of_s=group.as_of_s,
        held_since_s=group.held_since_s,
    )
