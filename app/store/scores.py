"""Reports of scores that other tools have measured: the newest ones of each job."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import msgspec
from sqlalchemy import Connection, Subquery, delete, func, select, tuple_

from app.errors import InvalidRequest, ReportNotFound
from app.store.database import from_cursor, split_page, to_cursor
from app.store.runs import current_epoch
from app.store.tables import score_reports
from app.trace.readers.importing import MissingData
from app.trace.readers.scores.score_report import Score, ScoreReport

# Of a report; 2 MB as JSON, and packed a few hundred kB.
MAX_SCORES = 10_000
# Of a job; when another one comes, the oldest goes.
MAX_REPORTS = 500
_ID_BYTES = 12
_Id = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]+\Z")]


@dataclass(frozen=True, slots=True)
class StoredScoreReport:
    """One report, without its scores."""

    report_id: str
    epoch: int
    source: str
    received_s: float
    num_scores: int
    num_reports: int
    lacks: tuple[MissingData, ...]


_TABLE = score_reports
_FIELDS = [each.name for each in fields(Score)]
_COLUMNS = tuple(_TABLE.c[each.name] for each in fields(StoredScoreReport))


def add(conn: Connection, job_id: str, report: ScoreReport, *, now_s: float) -> StoredScoreReport:
    """Save a report; removes the job's oldest ones above MAX_REPORTS.

    Raises:
        JobNotFound: the job never registered.
        InvalidRequest: it has too many scores, or none.
    """
    _check_size(report)
    stored = StoredScoreReport(
        secrets.token_hex(_ID_BYTES),
        current_epoch(conn, job_id),
        report.source,
        now_s,
        len(report.scores),
        report.num_reports,
        report.missing,
    )
    values = asdict(stored) | {"lacks": [asdict(lack) for lack in report.missing]}
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
) -> tuple[list[StoredScoreReport], str | None]:
    """A job's reports, the newest first, and the cursor of the next page.

    With `newest_only`, only the newest of each tool.

    Raises:
        JobNotFound: the job never registered.
    """
    key = tuple_(_TABLE.c.received_s, _TABLE.c.report_id)
    query = select(*_COLUMNS).where(_TABLE.c.job_id == job_id)
    if source is not None:
        query = query.where(_TABLE.c.source == source)
    if newest_only:
        ranked = _ranked_by_age(job_id)
        first = select(ranked.c.report_id).where(ranked.c.age_rank == 1)
        query = query.where(_TABLE.c.report_id.in_(first))
    if cursor is not None:
        query = query.where(key < from_cursor(cursor, tuple[float, _Id]))
    query = query.order_by(_TABLE.c.received_s.desc(), _TABLE.c.report_id.desc())
    found = [_stored(row) for row in conn.execute(query.limit(limit + 1))]
    rows, more = split_page(found, limit)
    if not rows:
        current_epoch(conn, job_id)
    return rows, to_cursor(rows[-1].received_s, rows[-1].report_id) if more else None


def newest(conn: Connection, job_id: str) -> list[StoredScoreReport]:
    """The newest report of each tool, by the tools' names.

    Raises:
        JobNotFound: the job never registered.
    """
    ranked = _ranked_by_age(job_id)
    query = select(*(ranked.c[column.name] for column in _COLUMNS)).where(ranked.c.age_rank == 1)
    rows = conn.execute(query.order_by(ranked.c.source)).all()
    found = [_stored(row) for row in rows]
    if not found:
        current_epoch(conn, job_id)
    return found


def _ranked_by_age(job_id: str) -> Subquery:
    """A job's reports, numbered within each tool from the newest."""
    order = (_TABLE.c.received_s.desc(), _TABLE.c.report_id.desc())
    age_rank = (
        func.row_number().over(partition_by=_TABLE.c.source, order_by=order).label("age_rank")
    )
    return select(*_COLUMNS, age_rank).where(_TABLE.c.job_id == job_id).subquery()


def scores_of(
    conn: Connection, job_id: str, report_id: str
) -> tuple[StoredScoreReport, list[Score]]:
    """One report and its scores, the worst first.

    Raises:
        JobNotFound: the job never registered.
        ReportNotFound: it has no such report.
    """
    mine = (_TABLE.c.job_id == job_id, _TABLE.c.report_id == report_id)
    row = conn.execute(select(*_COLUMNS, _TABLE.c.scores).where(*mine)).one_or_none()
    if row is None:
        current_epoch(conn, job_id)
        raise ReportNotFound(job_id, report_id)
    return _stored(row), _unpacked(row._mapping["scores"])


def _packed(found: Sequence[Score]) -> dict[str, Any]:
    """The fields' names once, and the values of each score in their order."""
    return {
        "fields": _FIELDS,
        "rows": [[getattr(each, name) for name in _FIELDS] for each in found],
    }


def _unpacked(kept: Mapping[str, Any]) -> list[Score]:
    """Scores saved by any release: missing fields are None, unknown ones are left out."""
    unknown: dict[str, Any] = dict.fromkeys(_FIELDS)
    places = [(name, at) for at, name in enumerate(kept["fields"]) if name in unknown]
    return [Score(**unknown | {name: row[at] for name, at in places}) for row in kept["rows"]]


def _check_size(report: ScoreReport) -> None:
    if not report.scores:
        raise InvalidRequest("the report has no score")
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


def _stored(row: Any) -> StoredScoreReport:
    values = {each.name: row._mapping[each.name] for each in fields(StoredScoreReport)}
    return StoredScoreReport(**values | {"lacks": tuple(MissingData(**lack) for lack in row.lacks)})
