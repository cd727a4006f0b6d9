"""Scores that other tools have measured: reports as they came, of each job the newest ones."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import msgspec
from sqlalchemy import Connection, Subquery, delete, func, select, tuple_

from app.errors import InvalidRequest, JobNotFound, ReportNotFound
from app.store.paging import from_cursor, split, to_cursor
from app.store.score_tables import score_reports
from app.store.tables import jobs
from app.trace.readers.foreign import Lack
from app.trace.scores import Score, ScoreReport

# Of a report; 2 MB as JSON, and packed a few hundred kB.
MAX_SCORES = 10_000
# Of a job; when another one comes, the oldest goes.
MAX_REPORTS = 500
_ID_BYTES = 12
_Id = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]+\Z")]


@dataclass(frozen=True, slots=True)
class StoredReport:
    """One report, without its scores."""

    report_id: str
    epoch: int
    source: str
    received_s: float
    num_scores: int
    num_reports: int
    lacks: tuple[Lack, ...]


_TABLE = score_reports
_FIELDS = [each.name for each in fields(Score)]
_COLUMNS = tuple(_TABLE.c[each.name] for each in fields(StoredReport))


def add(conn: Connection, job_id: str, report: ScoreReport, *, now_s: float) -> StoredReport:
    """The report as it is kept from now on; the job's oldest ones go where it has too many.

    Raises:
        JobNotFound: the job never registered.
        InvalidRequest: it has too many scores, or none.
    """
    _check_size(report)
    stored = StoredReport(
        secrets.token_hex(_ID_BYTES),
        _epoch(conn, job_id),
        report.source,
        now_s,
        len(report.scores),
        report.num_reports,
        report.lacks,
    )
    values = asdict(stored) | {"lacks": [asdict(lack) for lack in report.lacks]}
    conn.execute(_TABLE.insert().values(job_id=job_id, scores=_packed(report.scores), **values))
    _remove_oldest(conn, job_id)
    return stored


def page(
    conn: Connection,
    job_id: str,
    *,
    source: str | None = None,
    newest_only: bool = False,
    cursor: str | None = None,
    limit: int = 100,
) -> tuple[list[StoredReport], str | None]:
    """A job's reports, the newest first, and the cursor of the next page.

    With `newest_only`, of each tool the newest alone.

    Raises:
        JobNotFound: the job never registered.
    """
    key = tuple_(_TABLE.c.received_s, _TABLE.c.report_id)
    query = select(*_COLUMNS).where(_TABLE.c.job_id == job_id)
    if source is not None:
        query = query.where(_TABLE.c.source == source)
    if newest_only:
        placed = _placed(job_id)
        first = select(placed.c.report_id).where(placed.c.place == 1)
        query = query.where(_TABLE.c.report_id.in_(first))
    if cursor is not None:
        query = query.where(key < from_cursor(cursor, tuple[float, _Id]))
    query = query.order_by(_TABLE.c.received_s.desc(), _TABLE.c.report_id.desc())
    found = [_stored(row) for row in conn.execute(query.limit(limit + 1))]
    rows, more = split(found, limit)
    if not rows:
        _epoch(conn, job_id)
    return rows, to_cursor(rows[-1].received_s, rows[-1].report_id) if more else None


def newest(conn: Connection, job_id: str) -> list[StoredReport]:
    """The newest report of each tool, by the tools' names.

    Raises:
        JobNotFound: the job never registered.
    """
    placed = _placed(job_id)
    query = select(*(placed.c[column.name] for column in _COLUMNS)).where(placed.c.place == 1)
    rows = conn.execute(query.order_by(placed.c.source)).all()
    found = [_stored(row) for row in rows]
    if not found:
        _epoch(conn, job_id)
    return found


def _placed(job_id: str) -> Subquery:
    """A job's reports with their place among those of the same tool, the newest first."""
    order = (_TABLE.c.received_s.desc(), _TABLE.c.report_id.desc())
    place = func.row_number().over(partition_by=_TABLE.c.source, order_by=order).label("place")
    return select(*_COLUMNS, place).where(_TABLE.c.job_id == job_id).subquery()


def scores_of(conn: Connection, job_id: str, report_id: str) -> tuple[StoredReport, list[Score]]:
    """One report and its scores, the worst first.

    Raises:
        JobNotFound: the job never registered.
        ReportNotFound: it has no such report.
    """
    mine = (_TABLE.c.job_id == job_id, _TABLE.c.report_id == report_id)
    row = conn.execute(select(*_COLUMNS, _TABLE.c.scores).where(*mine)).one_or_none()
    if row is None:
        _epoch(conn, job_id)
        raise ReportNotFound(job_id, report_id)
    return _stored(row), _unpacked(row._mapping["scores"])


def _packed(found: Sequence[Score]) -> dict[str, Any]:
    """The fields' names once, and the values of each score in their order."""
    return {
        "fields": _FIELDS,
        "rows": [[getattr(each, name) for name in _FIELDS] for each in found],
    }


def _unpacked(kept: Mapping[str, Any]) -> list[Score]:
    """Scores of any release: a field that it did not have is not known, and others are left out."""
    unknown: dict[str, Any] = dict.fromkeys(_FIELDS)
    places = [(name, at) for at, name in enumerate(kept["fields"]) if name in unknown]
    return [Score(**unknown | {name: row[at] for name, at in places}) for row in kept["rows"]]


def _check_size(report: ScoreReport) -> None:
    if not report.scores:
        raise InvalidRequest("there is no score in it")
    if len(report.scores) > MAX_SCORES:
        raise InvalidRequest(
            f"{len(report.scores):,} scores are too many for one report: at most {MAX_SCORES:,}; "
            "send fewer sections at once"
        )


def _remove_oldest(conn: Connection, job_id: str) -> None:
    order = (_TABLE.c.received_s.desc(), _TABLE.c.report_id.desc())
    mine = select(_TABLE.c.report_id).where(_TABLE.c.job_id == job_id).order_by(*order)
    old = [row.report_id for row in conn.execute(mine.offset(MAX_REPORTS).limit(MAX_REPORTS))]
    if old:
        conn.execute(delete(_TABLE).where(_TABLE.c.report_id.in_(old)))


def _epoch(conn: Connection, job_id: str) -> int:
    found = conn.execute(select(jobs.c.epoch).where(jobs.c.job_id == job_id)).scalar_one_or_none()
    if found is None:
        raise JobNotFound(job_id)
    return int(found)


def _stored(row: Any) -> StoredReport:
    values = {each.name: row._mapping[each.name] for each in fields(StoredReport)}
    return StoredReport(**values | {"lacks": tuple(Lack(**lack) for lack in row.lacks)})
