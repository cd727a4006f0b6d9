"""Scores of ranks that other tools have measured: kept and shown beside our own figures.

There are no operations behind a score, so no what-if can be asked of it: each answer says so.
"""

from contextlib import suppress
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import Field

from app.api.audited import note
from app.api.deps import OF_BODIES, CallerDep, JobKey, ServiceDep, refusals
from app.api.fields import Answer, Cursor, Limit, timestamp, timestamp_or_none
from app.api.score_body import SCORES_BODY, ReportDep
from app.errors import ReportNotFound
from app.store import scores
from app.store.engine import Connection
from app.store.paging import Int64, from_cursor, to_cursor
from app.store.scores import StoredReport
from app.trace.names import plain
from app.trace.scores import MAX_RANK, NO_WHAT_IF, Score

router = APIRouter(tags=["scores"])

_ID = "^[0-9a-f]{1,32}$"
_SOURCE = "^[a-z0-9][a-z0-9-]{0,63}$"
_ID_EXAMPLE = "5f0c3a9be81d42670fa1c2d3"
AskedSource = Annotated[
    str | None, Query(pattern=_SOURCE, description="Of this tool only.", examples=["nvrx"])
]
# In Python's patterns "$" takes a line's end, too.
_Source = Annotated[str, msgspec.Meta(pattern=_SOURCE.replace("$", r"\Z"))]
_ReportId = Annotated[str, msgspec.Meta(pattern=_ID.replace("$", r"\Z"))]
_SAME = ("rank", "node", "section", "metric", "unit", "value", "mean", "score", "slowdown")


class LackOut(Answer):
    """What the tool does not say, and what that costs."""

    what: str
    cost: str


class ReportOut(Answer):
    """One report as it was taken."""

    report_id: str
    source: str
    epoch: int = Field(description="Of the run that was the job's when it came.")
    received_at: datetime
    num_scores: int
    num_reports: int = Field(description="Of the tool's own reports that it is made of.")
    lacks: list[LackOut]

    @classmethod
    def of(cls, stored: StoredReport) -> "ReportOut":
        """The report as the API says it."""
        same = ("report_id", "source", "epoch", "num_scores", "num_reports")
        return cls(
            **{name: getattr(stored, name) for name in same},
            received_at=timestamp(stored.received_s),
            lacks=[LackOut(what=each.what, cost=each.cost) for each in stored.lacks],
        )


class ReportsOut(Answer):
    """A page of reports, the newest first."""

    items: list[ReportOut]
    next_cursor: str | None


class ScoreOut(Answer):
    """What a tool says of one rank in one thing; unknown is null."""

    report_id: str
    source: str
    received_at: datetime
    rank: int | None
    node: str | None
    section: str
    metric: str
    unit: str | None
    value: float | None = Field(description="The newest reading, in `unit`.")
    mean: float | None = Field(description="Over all readings in the report.")
    score: float | None = Field(description="The newest; 1 is as fast as what it is compared with.")
    slowdown: float | None = Field(description="1 / score.")
    num: int = Field(description="Readings of this rank.")
    of: int = Field(description="Of so many in which any rank was named.")
    step: int | None
    at: datetime | None = Field(description="When the tool measured it.")

    @classmethod
    def of_report(cls, stored: StoredReport, score: Score) -> "ScoreOut":
        """The score as the API says it."""
        return cls(
            report_id=stored.report_id,
            source=stored.source,
            received_at=timestamp(stored.received_s),
            num=score.num,
            of=score.of,
            step=score.step,
            at=timestamp_or_none(score.at_s),
            **{name: getattr(score, name) for name in _SAME},
        )


class ScoresOut(Answer):
    """A page of scores: tool by tool, of each the worst first."""

    what_if: None = Field(description="There is none, ever: no operations are behind a score.")
    note: Literal["scores, no what-if"]
    items: list[ScoreOut]
    next_cursor: str | None


@router.post(
    "/jobs/{job_id}/scores",
    operation_id="add_scores",
    summary="Add scores of another tool",
    status_code=201,
    responses=refusals(404, *OF_BODIES),
    openapi_extra=SCORES_BODY,
)
def add_scores(
    job_id: JobKey, report: ReportDep, service: ServiceDep, caller: CallerDep
) -> ReportOut:
    """Of a job that is registered. It keeps the newest 500 reports, for as long as results are."""
    with service.store.write() as conn:
        stored = scores.add(conn, job_id, report, now_s=service.now_s())
        said = {"source": stored.source, "report_id": stored.report_id, "scores": stored.num_scores}
        note(conn, caller, "scores.add", plain(job_id), now_s=stored.received_s, **said)
    service.announcer.announce({"event": "job", "job_id": job_id})
    return ReportOut.of(stored)


@router.get(
    "/jobs/{job_id}/scores",
    operation_id="list_scores",
    summary="List the newest scores",
    responses=refusals(404),
)
def list_scores(
    job_id: JobKey,
    service: ServiceDep,
    source: AskedSource = None,
    rank: Annotated[int | None, Query(ge=0, le=MAX_RANK, description="Of this rank only.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ScoresOut:
    """Of each tool's newest report, a page at a time. No what-if can be asked of them."""
    with service.store.read() as conn:
        items, more = _page(conn, job_id, source, rank, cursor, limit)
    return ScoresOut(what_if=None, note=NO_WHAT_IF, items=items, next_cursor=more)


@router.get(
    "/jobs/{job_id}/scores/reports",
    operation_id="list_score_reports",
    summary="List reports of scores",
    responses=refusals(404),
)
def list_score_reports(
    job_id: JobKey,
    service: ServiceDep,
    source: AskedSource = None,
    newest: Annotated[bool, Query(description="Of each tool the newest report alone.")] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ReportsOut:
    """The newest first, with what each could not tell."""
    with service.store.read() as conn:
        found, more = scores.page(
            conn, job_id, source=source, newest_only=newest, cursor=cursor, limit=limit
        )
    return ReportsOut(items=[ReportOut.of(each) for each in found], next_cursor=more)


@router.get(
    "/jobs/{job_id}/scores/reports/{report_id}",
    operation_id="list_scores_of_report",
    summary="List the scores of one report",
    responses=refusals(404),
)
def list_scores_of_report(
    job_id: JobKey,
    report_id: Annotated[str, Path(pattern=_ID, description="Its id.", examples=[_ID_EXAMPLE])],
    service: ServiceDep,
    rank: Annotated[int | None, Query(ge=0, le=MAX_RANK, description="Of this rank only.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ScoresOut:
    """The worst first, a page at a time. No what-if can be asked of them."""
    start = 0 if cursor is None else max(0, from_cursor(cursor, tuple[Int64])[0])
    with service.store.read() as conn:
        stored, found = _of_rank(conn, job_id, report_id, rank)
    end = start + limit
    items = [ScoreOut.of_report(stored, each) for each in found[start:end]]
    more = to_cursor(end) if len(found) > end else None
    return ScoresOut(what_if=None, note=NO_WHAT_IF, items=items, next_cursor=more)


def _page(
    conn: Connection,
    job_id: str,
    source: str | None,
    rank: int | None,
    cursor: str | None,
    limit: int,
) -> tuple[list[ScoreOut], str | None]:
    """Rows of the newest reports, from where the cursor says.

    The cursor names the report that it is in, so that a newer one does not shift the rows.
    """
    reports = [each for each in scores.newest(conn, job_id) if source in (None, each.source)]
    left = [(each.source, each.report_id) for each in reports]
    start = 0
    if cursor is not None:
        at_source, at_id, start = from_cursor(cursor, tuple[_Source, _ReportId, Int64])
        left = [(at_source, at_id), *(each for each in left if each[0] > at_source)]
    items: list[ScoreOut] = []
    for name, report_id in left:
        # Since the last page it may have become too old.
        with suppress(ReportNotFound):
            stored, found = _of_rank(conn, job_id, report_id, rank)
            end = max(0, start) + limit - len(items)
            items += [ScoreOut.of_report(stored, each) for each in found[max(0, start) : end]]
            if len(found) > end:
                return items, to_cursor(name, report_id, end)
        start = 0
    return items, None


def _of_rank(
    conn: Connection, job_id: str, report_id: str, rank: int | None
) -> tuple[StoredReport, list[Score]]:
    # All of a report's, for each page anew: they lie packed in one piece, of 10,000 at the most.
    stored, found = scores.scores_of(conn, job_id, report_id)
    return stored, [each for each in found if rank in (None, each.rank)]
