"""Converts the API's answers to flat rows with fixed columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

from .connection import NoAnswer
from .rows import ActiveAlertRow, AlertRow, FindingRow, FixRow, JobRow, WorkerRow

Fields = Mapping[str, Any]
Row = TypeVar("Row")


def row(row_type: type[Row], fields: Fields, **more: Any) -> Row:
    """A row of this type; other fields are ignored.

    Columns that an older server does not know are None.
    """
    if not isinstance(fields, dict):
        raise NoAnswer("an item of the answer is no object: it is not Paceline's address")
    found = {name: more.get(name, fields.get(name)) for name in row_type.__annotations__}
    return cast(Row, found)


def whole_number(fields: Fields, name: str) -> int:
    """A required whole number."""
    value = fields.get(name)
    if not isinstance(value, int):
        raise NoAnswer(f"an item of the answer has no {name}: it is not Paceline's address")
    return value


def job(fields: Fields) -> JobRow:
    """A job with its sizes and counts as columns."""
    ingest, latest = fields.get("ingest") or {}, fields.get("latest_window") or {}
    return row(
        JobRow,
        {**(fields.get("parallelism") or {}), **fields},
        labels=_as_json(fields.get("labels") or {}),
        latest_window=latest.get("window_id"),
        verdict=latest.get("verdict"),
        ops_accepted=ingest.get("accepted"),
        ops_late=ingest.get("late"),
    )


def findings(job_id: str, result: Fields) -> Iterator[FindingRow]:
    """The findings of a window's result, the most costly first."""
    window_id = (result.get("window") or {}).get("id")
    for found in result.get("findings") or ():
        culprits = found.get("culprits") or []
        first = culprits[0] if culprits else {}
        names = ("dp_rank", "stage", "host")
        yield row(
            FindingRow,
            {**found, **{name: first.get(name) for name in names}},
            job_id=job_id,
            window_id=window_id,
            num_culprits=len(culprits),
            culprits=_as_json(culprits),
        )


def workers(job_id: str, answer: Fields) -> Iterator[WorkerRow]:
    """Every worker of a window, by dp rank and stage."""
    exact, estimates = answer.get("worker_slowdown"), answer.get("worker_slowdown_estimate")
    for dp_rank, of_rank in enumerate(answer.get("hosts") or ()):
        for stage, host in enumerate(of_rank):
            yield {
                "job_id": job_id,
                "window_id": str(answer.get("window")),
                "dp_rank": dp_rank,
                "stage": stage,
                "host": host,
                "slowdown": exact[dp_rank][stage] if exact else None,
                "slowdown_estimate": estimates[dp_rank][stage] if estimates else None,
            }


def alert(fields: Fields) -> AlertRow:
    """A transition, with the job's most costly cause."""
    return row(AlertRow, fields, cause=(fields.get("blame") or {}).get("cause"))


def active_alert(fields: Fields) -> ActiveAlertRow:
    """An alert as it is now."""
    return row(
        ActiveAlertRow,
        fields,
        cause=(fields.get("blame") or {}).get("cause"),
        is_silenced=bool(fields.get("silenced_by")),
        is_inhibited=bool(fields.get("inhibited_by")),
    )


def fix(fields: Fields) -> FixRow:
    """A predicted fix."""
    return row(FixRow, fields, windows=_as_json(fields.get("windows") or []))


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
