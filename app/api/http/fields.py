"""Field types and models that several routes share: ids, cursors, times, matchers, workers."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, Self

from fastapi import Path, Query
from msgspec import to_builtins
from pydantic import (
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)

from app.alerts.labels import Matcher
from app.result.finding import Finding
from app.store.alerting.alerts import MAX_MATCHERS
from app.store.as_of import BEHIND_AFTER_S
from app.trace.job import JOB_PATTERN, job_of

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)

# No control characters: some databases refuse them, and they split log lines.
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"

JobId = Annotated[
    str,
    Path(
        pattern=JOB_PATTERN,
        description="The job's id, as registered: up to 96 letters, digits, `.`, `_` and `-`.",
        examples=["llm-70b"],
    ),
]
WINDOW_PATTERN = r"^(latest|[0-9]{1,9}-[0-9]{1,16})$"
_WINDOW_TEXT = (
    "Window id: epoch and first step, such as `3-64`; or `latest`, the newest closed one."
)
WindowId = Annotated[
    str, Path(pattern=WINDOW_PATTERN, description=_WINDOW_TEXT, examples=["latest"])
]
RANGE_PATTERN = r"^(recent|latest|[0-9]{1,9}-[0-9]{1,16}(\.\.[0-9]{1,9}-[0-9]{1,16})?)$"
_RANGE_TEXT = (
    "Window id: epoch and first step, such as `3-64`; or a range of two ids, such as `3-0..3-64`; "
    "or `latest`, the newest closed window with figures; or `recent`, the steps that the job is "
    "judged by now: those of the last closed windows, since the last change of the job, and of a "
    "finished job its whole run."
)
WindowsId = Annotated[
    str, Path(pattern=RANGE_PATTERN, description=_RANGE_TEXT, examples=["latest"])
]
ShownWindow = Annotated[str, Query(pattern=RANGE_PATTERN, description=_RANGE_TEXT)]
ChosenSteps = Annotated[
    str | None,
    Query(
        max_length=1000,
        description="Analyse only these steps of a closed window, as numbers and ranges: "
        "`101-110,115`.",
        examples=["101-110"],
    ),
]
SinceStep = Annotated[
    int | None,
    Query(
        ge=0,
        le=2**53,
        description="Leave out the steps before this one: step times, slowdown, loss and costs of "
        "causes start at it. Figures by worker, stage and operation type are of whole windows.",
    ),
]


def hex_id(owner: str) -> Any:
    """The parameter in the path that is the id of a stored `owner`, such as "view"."""
    return Path(
        pattern=r"^[0-9a-f]{1,32}$",
        description=f"The {owner}'s id.",
        examples=["5f0c3a9be81d42670fa1c2d3"],
    )


Cursor = Annotated[
    str | None,
    Query(
        max_length=256,
        pattern=r"^[A-Za-z0-9._~=-]*$",
        description="`next_cursor` of the previous page; leave it out for the first page.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of items per page.")]
EpochNumber = Annotated[int | None, Query(ge=1, le=2**31 - 1)]
StepNumber = Annotated[int | None, Query(ge=0, le=2**53)]
ThemeName = Annotated[Literal["light", "dark"], Query(description="Colour theme of the chart.")]

Label = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=PRINTABLE)]
Text = Annotated[str, StringConstraints(max_length=256, pattern=PRINTABLE)]
NonEmptyText = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=PRINTABLE)]


_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799


def parse_moment(value: object) -> datetime:
    """A time in RFC 3339 with its zone; raises ValueError outside the years 1 to 9999, too."""
    # Strict models refuse text as a time, and lax ones accept numbers.
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        raise ValueError("want a time with its zone, such as 2026-11-21T22:00:00Z")
    moment = datetime.fromisoformat(value)
    # In UTC it may lie outside the years 1 to 9999.
    if not _FIRST_S <= moment.timestamp() <= _LAST_S:
        raise ValueError("want a time between the years 1 and 9999 in UTC")
    return moment


Moment = Annotated[datetime, BeforeValidator(parse_moment)]


class RequestModel(BaseModel):
    """A request's body: unknown keys are refused, and so are text and booleans as numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ResponseModel(BaseModel):
    """An answer's body; `model_validate` makes it of a record that has its fields.

    Where a record has another name, that is the field's `validation_alias`.
    """

    model_config = ConfigDict(extra="forbid", from_attributes=True, validate_by_name=True)

    @classmethod
    def of_record(cls, *records: object, **more: object) -> Self:
        """The answer made of records, of which the first that has a field gives it.

        `more` is what no record has, or has in another form.
        """
        given = dict(more)
        for name, read in _readers(cls).items():
            if name not in given:
                for record in records:
                    try:
                        given[name] = read.of(record)
                    except AttributeError:
                        if hasattr(type(record), read.first):  # it has it: its own error
                            raise
                        continue
                    break
        return cls.model_validate(given)


class _Reader(NamedTuple):
    """How a field is read from a record; `first` is the attribute that its path begins with."""

    first: str
    of: Callable[[object], object]


@cache
def _readers(model: type[ResponseModel]) -> dict[str, _Reader]:
    """How each field is read from a record: by its name there, or by the path to it."""
    paths = {}
    for name, field in model.model_fields.items():
        alias = field.validation_alias or name
        parts = alias.path if isinstance(alias, AliasPath) else [alias]
        paths[name] = [str(part) for part in parts]
    return {name: _Reader(path[0], attrgetter(".".join(path))) for name, path in paths.items()}


def timestamp(unix_s: float) -> datetime:
    """Unix time as a datetime in UTC (RFC 3339 in JSON)."""
    return datetime.fromtimestamp(unix_s, UTC)


def timestamp_or_none(unix_s: float | None) -> datetime | None:
    """Unix time as a datetime in UTC; None if unknown."""
    return None if unix_s is None else timestamp(unix_s)


def _from_unix_s(value: object) -> object:
    return timestamp(value) if isinstance(value, float | int) else value


# A time of an answer, of the Unix seconds that records have.
UnixTime = Annotated[datetime, BeforeValidator(_from_unix_s)]


# A job's id in its own project, of the key that records have.
JobName = Annotated[str, BeforeValidator(job_of)]

# As in the window's result, whose schema describes it.
FindingOut = Annotated[
    InstanceOf[Finding],
    PlainSerializer(to_builtins, when_used="json"),
    WithJsonSchema({"type": "object", "additionalProperties": True}),
]


class CulpritOut(ResponseModel):
    """A culprit; fields that do not apply are null."""

    dp_rank: int | None = None
    stage: int | None = None
    host: str | None = None
    rank: int | None = Field(None, description="Global rank.")
    local_rank: int | None = Field(None, description="Index of the GPU on its host.")
    ranks: Annotated[list[int] | None, BeforeValidator(lambda ranks: ranks or None)] = Field(
        None, description="Global ranks, of a host or of a worker with several."
    )
    num_workers: int | None = Field(
        None, description="Workers of a host of which all are affected."
    )


AsOfField = Annotated[
    UnixTime | None,
    Field(
        validation_alias="at_s",
        description="What its workers sent up to then is processed, later data is not; null before "
        "a consumer has worked.",
    ),
]
BehindField = Annotated[
    float,
    Field(
        description=f"Seconds since `as_of`. From {BEHIND_AFTER_S:g} on, or while pushes are "
        "refused, the state is `unknown`."
    ),
]


class MatcherOut(RequestModel):
    """A label of an alert and a pattern for its value."""

    label: Label = Field(
        description="Name of a label: alertname, job, rule, subject, severity, cause, worker "
        "or host, or a label of the rule or of the job.",
        examples=["job"],
    )
    pattern: Text = Field(
        description="Pattern with the wildcards * and ?. A label that the alert lacks counts "
        "as empty.",
        examples=["llm-*"],
    )
    is_negative: bool = Field(
        False, description="Whether to match values that do not fit the pattern."
    )


Matchers = Annotated[list[MatcherOut], Field(max_length=MAX_MATCHERS)]


def matchers_of(given: Iterable[MatcherOut]) -> list[Matcher]:
    """Matchers from a request."""
    return [Matcher(**matcher.model_dump()) for matcher in given]


def matchers_out(known: Sequence[Matcher]) -> list[MatcherOut]:
    """Matchers for an answer."""
    return [MatcherOut.model_validate(matcher, from_attributes=True) for matcher in known]


class WorkerOut(ResponseModel):
    """A worker's dp rank and stage."""

    dp_rank: int
    stage: int

    @classmethod
    def of(cls, worker: tuple[int, int]) -> "WorkerOut":
        """From (dp rank, stage)."""
        dp_rank, stage = worker
        return cls(dp_rank=dp_rank, stage=stage)


StepQuery = Annotated[
    StepNumber, Query(description="Step number; default: the slowest step of the window.")
]
DpRankQuery = Annotated[
    int | None,
    Query(
        ge=0,
        le=2**31,
        description="dp rank (data-parallel replica); default: the replica "
        "with the largest share of the step's critical path.",
    ),
]
