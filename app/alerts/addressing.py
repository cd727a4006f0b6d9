"""A draft as one receiver gets it: the alerts that it wants, the worst of which speak for all."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.alerts.addressee import Addressee
from app.alerts.endpoint import KEEP_ONE_INCIDENT, Endpoint
from app.alerts.formats.registry import MAX_PUSHED, knows_each_alert
from app.alerts.matchers import all_match
from app.alerts.notice import MAX_TOLD, Notice, NoticeKind, Told
from app.alerts.plan import Draft
from app.alerts.rule import SEVERITIES, Severity
from app.alerts.second_sentence import sub, sub_of_end
from app.trace.names import plain

_KEY_BYTES = 16


def addressed(
    draft: Draft, group: Addressee, endpoint: Endpoint, *, now_s: float
) -> Iterator[Notice]:
    """What the endpoint is told; nothing where it wants nothing of it, or none of that is news.

    One that knows each alert is told of all that are news, in several notices if they are many.
    """
    wanted = [told for told in draft.listed if _is_wanted(told, endpoint)]
    news = _news(draft, wanted)
    if knows_each_alert(endpoint.format):
        said = sorted(wanted if draft.kind == "refresh" else news, key=_Order(draft))
        parts = [said[at : at + MAX_PUSHED] for at in range(0, len(said), MAX_PUSHED)]
    else:
        parts = [sorted(wanted, key=_Order(draft))] if news else []
    for number, part in enumerate(parts):
        if _is_told(draft, endpoint, part):
            yield _notice(draft, group, endpoint, part, number, now_s)


def worst_of(alerts: Sequence[Told]) -> Severity:
    """The highest severity among them."""
    return max((told.severity for told in alerts), key=SEVERITIES.index)


def notice_id(draft: Draft, group: Addressee, number: int, now_s: float) -> str:
    """Names what is told at this moment; the same thing may well be told again at another.

    `number` is which part of it, from 0.
    """
    parts = [group.key, draft.kind, f"{now_s:.3f}", *([str(number)] if number else [])]
    for told in sorted(draft.listed, key=lambda told: told.fingerprint):
        if told.fingerprint in draft.news:
            parts += [told.fingerprint, str(told.event_id), told.status]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[: 2 * _KEY_BYTES]


def _is_wanted(told: Told, endpoint: Endpoint) -> bool:
    if _is_for(endpoint, told.severity, told.labels):
        return True
    if told.status == "firing" or not told.known_as:
        return False
    # Its labels are others than they were: who was told that it fires is told that it is over.
    known = told.known_as.get("severity")
    severity = next((each for each in SEVERITIES if each == known), told.severity)
    return _is_for(endpoint, severity, told.known_as)


def _is_for(endpoint: Endpoint, severity: Severity, labels: Mapping[str, str]) -> bool:
    is_severe = SEVERITIES.index(severity) >= SEVERITIES.index(endpoint.min_severity)
    return is_severe and all_match(endpoint.matchers, labels)


def _is_told(draft: Draft, endpoint: Endpoint, alerts: Sequence[Told]) -> bool:
    if draft.kind == "acknowledged":
        return True
    if draft.kind == "refresh":
        return endpoint.wants_resolved or _is_any_firing(alerts)
    if _is_any_firing(_news(draft, alerts)):
        return True
    # An incident that is open for the others stays as it is: opened again, it would ring.
    has_incident = endpoint.format in KEEP_ONE_INCIDENT
    return endpoint.wants_resolved and not (has_incident and _is_any_firing(alerts))


def _news(draft: Draft, alerts: Sequence[Told]) -> list[Told]:
    return [told for told in alerts if told.fingerprint in draft.news]


def _is_any_firing(alerts: Sequence[Told]) -> bool:
    return any(told.status == "firing" for told in alerts)


def _is_partly_resolved(draft: Draft, alerts: Sequence[Told]) -> bool:
    is_notice = draft.kind not in ("acknowledged", "refresh")
    return is_notice and _is_any_firing(alerts) and not _is_any_firing(_news(draft, alerts))


def _kind(draft: Draft, alerts: Sequence[Told]) -> NoticeKind:
    if draft.kind in ("acknowledged", "refresh"):
        return draft.kind
    return "firing" if _is_any_firing(alerts) else "resolved"


@dataclass(frozen=True, slots=True)
class _Order:
    """News first, then what fires, then what is worst."""

    draft: Draft

    def __call__(self, told: Told) -> tuple[bool, bool, int, float, str]:
        value = told.detail.value
        return (
            told.fingerprint not in self.draft.news,
            told.status != "firing",
            -SEVERITIES.index(told.severity),
            float("inf") if value is None else -value,
            told.fingerprint,
        )


def _num_untold(alerts: Sequence[Told]) -> int:
    """How many more fire of which no alert is kept, since the rule has as many as it may."""
    counted = (
        told.detail.num_named
        for told in alerts
        if told.status == "firing" and told.detail.on != "silent-worker"  # there it is of workers
    )
    return max(counted, default=0)


def _sentence(draft: Draft, alerts: Sequence[Told], num_others: int) -> str:
    lead = alerts[0]
    if not num_others:
        return lead.sentence
    if _is_partly_resolved(draft, alerts):
        number = sum(told.status == "firing" for told in alerts) + _num_untold(alerts)
        still = (
            "1 other alert still fires" if number == 1 else f"{number:,} other alerts still fire"
        )
        return f"{lead.sentence} {still}."
    others = "1 other alert" if num_others == 1 else f"{num_others:,} other alerts"
    return f"{lead.sentence} With it: {others} of the same rule."


def _notice(
    draft: Draft,
    group: Addressee,
    endpoint: Endpoint,
    alerts: Sequence[Told],
    number: int,
    now_s: float,
) -> Notice:
    kind, lead = _kind(draft, alerts), alerts[0]
    listed = alerts if knows_each_alert(endpoint.format) else alerts[:MAX_TOLD]
    num_others = len(alerts) - 1 + _num_untold(alerts)
    # Of what is over there is nothing to see.
    shown = lead.detail.window_id if kind == "firing" else None
    return Notice(
        notice_id=notice_id(draft, group, number, now_s),
        kind=kind,
        group_key=group.key,
        project=group.project,
        job=plain(group.job_id),
        job_name=group.job_name,
        rule=group.rule,
        severity=worst_of(alerts),
        at_s=now_s,
        sentence=_sentence(draft, alerts, num_others),
        sub=_sub(lead),
        alerts=listed,
        num_more=num_others + 1 - len(listed),
        is_repeat=draft.is_repeat,
        is_partly_resolved=_is_partly_resolved(draft, alerts),
        page_url=group.page_url(lead.detail.window_id),
        image_url=group.image_url(shown, now_s),
        runbook_url=lead.runbook_url,
        base_url=group.base_url,
        group_labels=group.labels,
        about=_about(draft, alerts),
    )


def _about(draft: Draft, alerts: Sequence[Told]) -> list[str]:
    marks = [told.fingerprint for told in alerts]
    return marks if draft.kind == "refresh" else [told.fingerprint for told in _news(draft, alerts)]


def _sub(lead: Told) -> str:
    if lead.status == "firing":
        return sub(lead.detail)
    return sub_of_end(lead.was or lead.detail)
