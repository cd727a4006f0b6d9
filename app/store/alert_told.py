"""The last thing that receivers were told of each alert, kept after the alert is at rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from sqlalchemy import Connection, delete, select

from app.alerts.alert import Detail
from app.store.alert_json import MAX_SENTENCE, detail_json, detail_of, labels_json
from app.store.alert_tables import alert_told
from app.store.alerts import MAX_URL
from app.store.texts import clipped, clipped_or_none
from app.store.upsert import replace

ToldKind = Literal["firing", "resolved", "acknowledged", "lapsed", "ended"]


@dataclass(frozen=True, slots=True)
class ToldRow:
    """What was told last, and what the alert was then; moments are Unix seconds.

    `known_as` are the labels with which receivers were first told that it fires, at `first_at_s`.
    """

    kind: ToldKind
    at_s: float
    event_id: int
    starts_at_s: float
    sentence: str
    detail: Detail = field(default_factory=Detail)
    labels: Mapping[str, str] = field(default_factory=dict)
    threshold: float | None = None
    runbook_url: str | None = None
    known_as: Mapping[str, str] = field(default_factory=dict)
    first_at_s: float = 0.0


_TABLE = alert_told
_COLUMNS = tuple(_TABLE.c[each.name] for each in fields(ToldRow))


def of_group(conn: Connection, job_id: str, rule: str) -> dict[str, ToldRow]:
    """What was told last of one rule's alerts on a job, by fingerprint."""
    query = select(_TABLE.c.fingerprint, *_COLUMNS)
    query = query.where(_TABLE.c.job_id == job_id, _TABLE.c.rule == rule)
    return {row.fingerprint: _told(row) for row in conn.execute(query)}


def save(conn: Connection, job_id: str, rule: str, rows: Mapping[str, ToldRow]) -> None:
    """Remember what these alerts' receivers were told now, by fingerprint."""
    same = {"job_id": job_id, "rule": rule}
    values = [same | {"fingerprint": each} | _row(rows[each]) for each in sorted(rows)]
    replace(conn, _TABLE, values)


def forget(conn: Connection, fingerprints: Sequence[str]) -> None:
    """As if nobody had ever been told of these alerts."""
    if fingerprints:
        conn.execute(delete(_TABLE).where(_TABLE.c.fingerprint.in_(sorted(fingerprints))))


def _row(told: ToldRow) -> dict[str, Any]:
    values = {column.name: getattr(told, column.name) for column in _COLUMNS}
    return values | {
        "sentence": clipped(told.sentence, MAX_SENTENCE),
        "detail": detail_json(told.detail),
        "labels": labels_json(told.labels),
        "known_as": labels_json(told.known_as),
        "runbook_url": clipped_or_none(told.runbook_url, MAX_URL),
    }


def _told(row: Any) -> ToldRow:
    values = {column.name: row._mapping[column.name] for column in _COLUMNS}
    return ToldRow(**values | {"detail": detail_of(values["detail"])})
