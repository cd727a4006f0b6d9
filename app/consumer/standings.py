"""The alerts of one rule on one job as they stand in the store, and what was told of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from app.alerts.alert import AlertEvent, AlertState, Detail
from app.alerts.notice import Told
from app.alerts.plan import Last, Standing
from app.alerts.rule import SEVERITIES, Severity
from app.alerts.wording import sentence
from app.store import alert_events
from app.store.alert_told import ToldRow
from app.store.engine import Connection


def standings(
    conn: Connection, states: Sequence[AlertState], told: Mapping[str, ToldRow], now_s: float
) -> list[Standing]:
    """The alerts that fire, and those at rest of which somebody believes that they fire."""
    firing = {state.fingerprint: state for state in states if state.phase == "firing"}
    resting = [each for each, row in told.items() if each not in firing and row.kind != "resolved"]
    began = alert_events.newest(conn, sorted(firing), "firing")
    ended = alert_events.newest(conn, sorted(resting), "resolved")
    return [
        *(_firing(state, began.get(each), told.get(each)) for each, state in firing.items()),
        *(_resting(each, told[each], ended.get(each), now_s) for each in resting),
    ]


def last_of(told: Mapping[str, ToldRow]) -> dict[str, Last]:
    """What was told last, as far as planning looks at it."""
    return {fingerprint: Last(row.kind, row.at_s) for fingerprint, row in told.items()}


def told_rows(
    alerts: Iterable[Standing], after: Mapping[str, Last], told: Mapping[str, ToldRow]
) -> dict[str, ToldRow]:
    """The rows to save once this much was told: how an alert was is what was told as it fired."""
    by_fingerprint = {alert.fingerprint: alert.told for alert in alerts}
    rows: dict[str, ToldRow] = {}
    for fingerprint, last in after.items():
        row = told.get(fingerprint)
        if row is not None and last.kind != "firing":
            rows[fingerprint] = replace(row, kind=last.kind, at_s=last.at_s)
        else:
            rows[fingerprint] = _row(by_fingerprint[fingerprint], last, row)
    return rows


def _firing(state: AlertState, event: AlertEvent | None, row: ToldRow | None) -> Standing:
    """`event` is its beginning; retention may have taken it from one that fires for very long."""
    told = Told(
        fingerprint=state.fingerprint,
        event_id=0 if event is None or event.event_id is None else event.event_id,
        status="firing",
        severity=state.severity,
        labels=state.labels,
        sentence=sentence(state),
        starts_at_s=state.began_at_s if state.firing_at_s is None else state.firing_at_s,
        ends_at_s=None,
        detail=state.detail,
        threshold=state.threshold,
        runbook_url=state.runbook_url,
        known_as=_known_as(row),
    )
    return Standing(
        told,
        is_acked=state.acked_at_s is not None,
        is_no_data=state.is_no_data,
        is_waning=state.below_s > 0 or state.ceased_s is not None,
    )


def _resting(fingerprint: str, row: ToldRow, event: AlertEvent | None, now_s: float) -> Standing:
    """`event` is its end, if it is later than what was told."""
    told = Told(
        fingerprint=fingerprint,
        event_id=row.event_id,
        status="resolved",
        severity=_severity(row),
        labels=row.labels,
        sentence=f"This is over: {row.sentence}",
        starts_at_s=row.starts_at_s,
        ends_at_s=now_s,
        detail=Detail(on=row.detail.on, window_id=row.detail.window_id),
        threshold=row.threshold,
        runbook_url=row.runbook_url,
        was=row.detail,
        known_as=row.known_as,
    )
    if event is None or event.event_id is None or event.event_id <= row.event_id:
        return Standing(told)
    ended = replace(
        told,
        event_id=event.event_id,
        sentence=event.sentence,
        ends_at_s=event.at_s,
        detail=event.detail,
    )
    return Standing(ended)


def _known_as(row: ToldRow | None) -> Mapping[str, str]:
    """One that begins anew may be known by other labels than it was."""
    return {} if row is None or row.kind == "resolved" else row.known_as


def _severity(row: ToldRow) -> Severity:
    return next((each for each in SEVERITIES if each == row.labels.get("severity")), "warning")


def _row(told: Told, last: Last, row: ToldRow | None) -> ToldRow:
    is_new = row is None or row.kind in ("resolved", "lapsed")
    return ToldRow(
        kind=last.kind,
        at_s=last.at_s,
        first_at_s=last.at_s if is_new or row is None else row.first_at_s,
        event_id=told.event_id,
        starts_at_s=told.starts_at_s,
        sentence=told.sentence,
        detail=told.detail,
        labels=told.labels,
        threshold=told.threshold,
        runbook_url=told.runbook_url,
        known_as=told.known_as or told.labels,
    )
