"""Scores in a request: as the tool wrote them, or as JSON of our own."""

from datetime import datetime
from typing import Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Query
from fastapi.exceptions import RequestValidationError
from pydantic import ConfigDict, FailFast, Field, FiniteFloat, ValidationError, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest

from app.api import json_body
from app.api.fields import Moment, Request, Text
from app.errors import TooLarge, UnsupportedMedia
from app.store.scores import MAX_SCORES
from app.trace.readers.foreign import Lack
from app.trace.readers.score_formats import READERS
from app.trace.readers.score_text import BodyText
from app.trace.scores import MAX_RANK, Score, ScoreReport, slowdown_of, worst_first

# 10,000 scores as JSON; a parser is busy with as much for a tenth of a second.
MAX_BYTES = 2 << 20
TEXT_TYPES = ("text/plain", "application/x-ndjson", json_body.JSON_TYPE)
# A text of this size keeps a thread busy for a second or two, and takes some 40 MB meanwhile.
AT_ONCE = CapacityLimiter(2)
# One line each: a log, a table and a page show them as they are.
_NAME = r"^[^\x00-\x1f\x7f]+$"

FormatName = Literal["nvrx", "megatron-log", "nccl-inspector"]
Name = Annotated[str, Field(min_length=1, max_length=128, pattern=_NAME)]
SourceName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", examples=["own-probe"])]
Measure = Annotated[FiniteFloat, Field(ge=-1e15, le=1e15)]
Step = Annotated[int, Field(ge=0, le=2**53)]
AskedFormat = Annotated[
    FormatName | None,
    Query(alias="format", description="The body is what this tool wrote; left out: our JSON."),
]


class ScoreIn(Request):
    """What was measured of one rank; who has no rank has a node.

    Several readings in one are the newest as `value`, and their `mean` and number.
    """

    rank: int | None = Field(None, ge=0, le=MAX_RANK)
    node: Name | None = None
    section: Name = Field(description="What was measured.", examples=["all-reduce probe"])
    metric: Name = Field(description="Which measure of it.", examples=["bus-bandwidth"])
    unit: Annotated[str, Field(max_length=16, pattern=_NAME)] | None = None
    value: Measure | None = None
    mean: Measure | None = Field(None, description="Over all readings; the value if left out.")
    score: Annotated[FiniteFloat, Field(ge=0, le=1e6)] | None = Field(
        None, description="1 for as fast as what it is compared with, 0.5 for half as fast."
    )
    num: int | None = Field(None, ge=0, le=2**53, description="Readings.")
    of: int | None = Field(None, ge=0, le=2**53, description="Of so many that there were.")
    step: Step | None = None
    at: Moment | None = None

    @model_validator(mode="after")
    def _says_whose(self) -> "ScoreIn":
        if self.rank is None and self.node is None:
            raise ValueError("want a rank or a node")
        return self

    def of_report(self, step: int | None, at: datetime | None) -> Score:
        """The score as the store keeps it; its own moment goes before the report's."""
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


class LackIn(Request):
    """What the tool does not say, and what that costs."""

    what: Text
    cost: Text


_EXAMPLE: dict[str, Any] = {
    "source": "own-probe",
    "step": 1200,
    "scores": [
        {"rank": 7, "node": "host-017", "section": "matmul", "metric": "speed", "score": 0.63},
        {"rank": 8, "section": "matmul", "metric": "speed", "score": 0.99},
    ],
}


class ScoresIn(Request):
    """What a tool of yours has measured, all at one moment."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    source: SourceName
    step: Step | None = None
    at: Moment | None = None
    scores: Annotated[list[ScoreIn], FailFast()] = Field(min_length=1, max_length=MAX_SCORES)
    num_reports: int = Field(1, ge=1, le=2**53, description="Reports that these are made of.")
    lacks: list[LackIn] = Field([], max_length=20)

    def report(self) -> ScoreReport:
        """The report as the store keeps it."""
        found = worst_first(each.of_report(self.step, self.at) for each in self.scores)
        lacks = tuple(Lack(each.what, each.cost) for each in self.lacks)
        return ScoreReport(self.source, (*found,), self.num_reports, lacks)


async def report_of(request: HttpRequest, asked: AskedFormat = None) -> ScoreReport:
    """The scores in a body.

    Raises:
        TooLarge, UnsupportedMedia, BadRequest, InvalidTrace, RequestValidationError
    """
    body = await request.body()
    if len(body) > MAX_BYTES:
        raise TooLarge(f"scores have at most {MAX_BYTES:,} bytes at once: send fewer reports")
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if asked is None:
        return await run_in_threadpool(_of_json, body, media)
    if media not in TEXT_TYPES:
        raise UnsupportedMedia(f"send {', '.join(TEXT_TYPES)}")
    return await to_thread.run_sync(READERS[asked], [BodyText("body", body)], limiter=AT_ONCE)


ReportDep = Annotated[ScoreReport, Depends(report_of)]


def _of_json(body: bytes, media: str) -> ScoreReport:
    if media in TEXT_TYPES[:2]:
        raise UnsupportedMedia("say whose text it is with ?format=, or send application/json")
    given = json_body.read(body, media)
    try:
        return ScoresIn.model_validate(given).report()
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise RequestValidationError(
            [{**each, "loc": ("body", *each["loc"])} for each in found]
        ) from error


SCORES_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "At most 2 MiB and 10,000 scores. With `format`, what that tool has "
        "written: docs/feeds/ has each.",
        "content": {
            json_body.JSON_TYPE: {"schema": {"$ref": "#/components/schemas/ScoresIn"}},
            "text/plain": {"schema": {"type": "string"}},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }
}
