"""Scores of ranks measured by other tools, as the tool wrote them or as our JSON."""

from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Path, Query
from pydantic import ConfigDict, FailFast, Field, FiniteFloat, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest

from app.api.http.fields import (
    Cursor,
    Limit,
    Moment,
    RequestModel,
    ResponseModel,
    Text,
    timestamp,
    timestamp_or_none,
)
from app.api.http.json_bodies import JSON_TYPE, read_model
from app.api.routes.audit import write_audit
from app.api.routes.dependencies import BODY_REFUSALS, CallerDep, JobKey, ServiceDep, refusals
from app.errors import ReportNotFound, TooLarge, UnsupportedMedia
from app.store import scores
from app.store.database import Connection, Int64, from_cursor, to_cursor
from app.store.scores import MAX_SCORES, StoredScoreReport
from app.trace.job import job_of
from app.trace.readers.importing import MissingData
from app.trace.readers.input_file import BodyText
from app.trace.readers.registry import SCORE_READERS
from app.trace.readers.scores.score_report import (
    MAX_RANK,
    NO_WHAT_IF,
    Score,
    ScoreReport,
    slowdown_of,
    worst_first,
)

# 10,000 scores as JSON: a tenth of a second of parsing.
MAX_SCORE_BYTES = 2 << 20
SCORE_TYPES = ("text/plain", "application/x-ndjson", JSON_TYPE)
# Takes a thread a second or two, and some 40 MB meanwhile.
PARSER_LIMIT = CapacityLimiter(2)
# One line each: logs, tables and pages show them unchanged.
_LINE_PATTERN = r"^[^\x00-\x1f\x7f]+$"

FormatName = Literal["nvrx", "megatron-log", "nccl-inspector"]
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=_LINE_PATTERN)]
SourceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", examples=["own-probe"])]
Measure = Annotated[FiniteFloat, Field(ge=-1e15, le=1e15)]
Step = Annotated[int, Field(ge=0, le=2**53)]
FormatQuery = Annotated[
    FormatName | None,
    Query(
        alias="format",
        description="Tool whose output the body contains; default: Paceline's own JSON.",
    ),
]


class ScoreIn(RequestModel):
    """A measurement of one rank or of one node.

    For several readings, give the newest as `value`, their `mean`, and their number as `num`.
    """

    rank: int | None = Field(None, ge=0, le=MAX_RANK)
    node: Name | None = None
    section: Name = Field(description="Measured section or test.", examples=["all-reduce probe"])
    metric: Name = Field(
        description="Name of the metric in this section.", examples=["bus-bandwidth"]
    )
    unit: Annotated[str, Field(max_length=16, pattern=_LINE_PATTERN)] | None = None
    value: Measure | None = None
    mean: Measure | None = Field(None, description="Mean of all readings; default: `value`.")
    score: Annotated[FiniteFloat, Field(ge=0, le=1e6)] | None = Field(
        None,
        description="Speed relative to the tool's reference: 1 for equally fast, 0.5 for "
        "half as fast.",
    )
    num: int | None = Field(
        None, ge=0, le=2**53, description="Number of readings of this rank or node."
    )
    of: int | None = Field(
        None,
        ge=0,
        le=2**53,
        description="Total number of readings, missing ones included; default: `num`, at least 1.",
    )
    step: Step | None = None
    at: Moment | None = None

    @model_validator(mode="after")
    def _says_whose(self) -> "ScoreIn":
        if self.rank is None and self.node is None:
            raise ValueError("want a rank or a node")
        return self

    def of_report(self, step: int | None, at: datetime | None) -> Score:
        """The score for the store; its own time wins over the report's."""
        own = self.model_dump(include={"rank", "node", "section", "metric", "unit"})
        num = self.num if self.num is not None else int(self.value is not None)
        when = self.at or at
        return Score(
            **own,
            value=self.value,
            mean=self.value if self.mean is None else self.mean,
            score=self.score,
            slowdown=slowdown_of(self.score),
            num=num,
            of=max(1, num) if self.of is None else self.of,
            step=step if self.step is None else self.step,
            at_s=None if when is None else when.timestamp(),
        )


class MissingDataIn(RequestModel):
    """Data that the tool does not provide, and the metrics that suffer from it."""

    what: Text
    cost: Text


_SCORES_EXAMPLE: dict[str, Any] = {
    "source": "own-probe",
    "step": 1200,
    "scores": [
        {"rank": 7, "node": "host-017", "section": "matmul", "metric": "speed", "score": 0.63},
        {"rank": 8, "section": "matmul", "metric": "speed", "score": 0.99},
    ],
}


class ScoresIn(RequestModel):
    """Measurements by one tool, all taken at the same time."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SCORES_EXAMPLE]})

    source: SourceName
    step: Step | None = None
    at: Moment | None = None
    scores: Annotated[list[ScoreIn], FailFast()] = Field(min_length=1, max_length=MAX_SCORES)
    num_reports: int = Field(
        1, ge=1, le=2**53, description="Number of the tool's own reports combined in this one."
    )
    lacks: list[MissingDataIn] = Field([], max_length=20)

    def report(self) -> ScoreReport:
        """The report for the store."""
        found = worst_first(each.of_report(self.step, self.at) for each in self.scores)
        lacks = tuple(MissingData(each.what, each.cost) for each in self.lacks)
        return ScoreReport(self.source, (*found,), self.num_reports, lacks)


async def read_report(request: HttpRequest, asked: FormatQuery = None) -> ScoreReport:
    """Parse the scores in a body.

    Raises:
        TooLarge, UnsupportedMedia, BadRequest, InvalidTrace, RequestValidationError
    """
    body = await request.body()
    if len(body) > MAX_SCORE_BYTES:
        raise TooLarge(f"scores have at most {MAX_SCORE_BYTES:,} bytes at once: send fewer reports")
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if asked is None:
        return await run_in_threadpool(_report_of_json, body, media)
    if media not in SCORE_TYPES:
        raise UnsupportedMedia(f"send {', '.join(SCORE_TYPES)}")
    return await to_thread.run_sync(
        SCORE_READERS[asked], [BodyText("body", body)], limiter=PARSER_LIMIT
    )


ReportDep = Annotated[ScoreReport, Depends(read_report)]


def _report_of_json(body: bytes, media: str) -> ScoreReport:
    if media in SCORE_TYPES[:2]:
        raise UnsupportedMedia("name the tool with ?format=, or send application/json")
    return read_model(ScoresIn, body, media).report()


SCORES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "At most 2 MiB and 10,000 scores. With `format`: the tool's own output "
        "(docs/feeds/).",
        "content": {
            JSON_TYPE: {"schema": {"$ref": "#/components/schemas/ScoresIn"}},
            "text/plain": {"schema": {"type": "string"}},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}


router = APIRouter(tags=["scores"])

_ID = "^[0-9a-f]{1,32}$"
_SOURCE = "^[a-z0-9][a-z0-9-]{0,63}$"
_ID_EXAMPLE = "5f0c3a9be81d42670fa1c2d3"
SourceQuery = Annotated[
    str | None, Query(pattern=_SOURCE, description="Filter by tool (`source`).", examples=["nvrx"])
]
# In Python, "$" also matches before a final newline.
_Source = Annotated[str, msgspec.Meta(pattern=_SOURCE.replace("$", r"\Z"))]
_ReportId = Annotated[str, msgspec.Meta(pattern=_ID.replace("$", r"\Z"))]
_SHARED_FIELDS = ("rank", "node", "section", "metric", "unit", "value", "mean", "score", "slowdown")


class MissingDataOut(ResponseModel):
    """Data that the tool does not provide, and the metrics that suffer from it."""

    what: str
    cost: str


class ReportOut(ResponseModel):
    """One stored report."""

    report_id: str
    source: str
    epoch: int = Field(description="Epoch of the job's run when the report arrived.")
    received_at: datetime
    num_scores: int
    num_reports: int = Field(description="Number of the tool's own reports combined in this one.")
    lacks: list[MissingDataOut]

    @classmethod
    def of(cls, stored: StoredScoreReport) -> "ReportOut":
        """From the stored report."""
        same = ("report_id", "source", "epoch", "num_scores", "num_reports")
        return cls(
            **{name: getattr(stored, name) for name in same},
            received_at=timestamp(stored.received_s),
            lacks=[MissingDataOut(what=each.what, cost=each.cost) for each in stored.lacks],
        )


class ReportsOut(ResponseModel):
    """A page of reports, the newest first."""

    items: list[ReportOut]
    next_cursor: str | None


class ScoreOut(ResponseModel):
    """One score of one rank or node; unknown values are null."""

    report_id: str
    source: str
    received_at: datetime
    rank: int | None
    node: str | None
    section: str
    metric: str
    unit: str | None
    value: float | None = Field(description="The newest reading, in `unit`.")
    mean: float | None = Field(description="Mean of all readings in the report, in `unit`.")
    score: float | None = Field(
        description="The newest score: speed relative to the tool's reference, 1 for equally fast."
    )
    slowdown: float | None = Field(description="1 / `score`; null if unknown.")
    num: int = Field(description="Number of readings of this rank.")
    of: int = Field(description="Total number of readings / reports.")
    step: int | None
    at: datetime | None = Field(description="When the tool measured it.")

    @classmethod
    def of_report(cls, stored: StoredScoreReport, score: Score) -> "ScoreOut":
        """From the stored score."""
        return cls(
            report_id=stored.report_id,
            source=stored.source,
            received_at=timestamp(stored.received_s),
            num=score.num,
            of=score.of,
            step=score.step,
            at=timestamp_or_none(score.at_s),
            **{name: getattr(score, name) for name in _SHARED_FIELDS},
        )


class ScoresOut(ResponseModel):
    """A page of scores by tool, lowest score first."""

    what_if: None = Field(
        description="Always null: scores have no operations, so what-if questions do not apply."
    )
    note: Literal["scores, no what-if"]
    items: list[ScoreOut]
    next_cursor: str | None


@router.post(
    "/jobs/{job_id}/scores",
    operation_id="add_scores",
    summary="Add scores measured by another tool",
    status_code=201,
    responses=refusals(404, *BODY_REFUSALS),
    openapi_extra=SCORES_BODY,
)
def add_scores(
    job_id: JobKey, report: ReportDep, service: ServiceDep, caller: CallerDep
) -> ReportOut:
    """The job must be registered.

    The newest 500 reports per job are stored, as long as results are.
    """
    with service.store.write() as conn:
        stored = scores.add(conn, job_id, report, now_s=service.now_s())
        said = {"source": stored.source, "report_id": stored.report_id, "scores": stored.num_scores}
        write_audit(conn, caller, "scores.add", job_of(job_id), now_s=stored.received_s, **said)
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
    source: SourceQuery = None,
    rank: Annotated[int | None, Query(ge=0, le=MAX_RANK, description="Filter by rank.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ScoresOut:
    """Scores of each tool's newest report, by tool, lowest score first.

    What-if questions do not apply to scores.
    """
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
    source: SourceQuery = None,
    newest: Annotated[bool, Query(description="Only the newest report of each tool.")] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ReportsOut:
    """Reports of all tools, newest first, with the data that each of them lacks."""
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
    report_id: Annotated[
        str, Path(pattern=_ID, description="The report's id.", examples=[_ID_EXAMPLE])
    ],
    service: ServiceDep,
    rank: Annotated[int | None, Query(ge=0, le=MAX_RANK, description="Filter by rank.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ScoresOut:
    """Lowest score first. What-if questions do not apply to scores."""
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
    """Rows of the newest reports, from the cursor on.

    The cursor names its report, so that a newer report does not shift the rows.
    """
    reports = [each for each in scores.newest(conn, job_id) if source in (None, each.source)]
    left = [(each.source, each.report_id) for each in reports]
    start = 0
    if cursor is not None:
        at_source, at_id, start = from_cursor(cursor, tuple[_Source, _ReportId, Int64])
        left = [(at_source, at_id), *(each for each in left if each[0] > at_source)]
    items: list[ScoreOut] = []
    for name, report_id in left:
        # It may have been deleted since the last page.
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
) -> tuple[StoredScoreReport, list[Score]]:
    # Each page reads the whole report: it is stored compressed, with at most 10,000 scores.
    stored, found = scores.scores_of(conn, job_id, report_id)
    return stored, [each for each in found if rank in (None, each.rank)]
