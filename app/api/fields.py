"""Fields that several routes speak: ids, cursors, times and the models' common ground."""

import re
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints

from app.trace.names import JOB_PATTERN

_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)

# No control characters: a database refuses some of them, a log is split by others.
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"

JobId = Annotated[
    str,
    Path(
        pattern=JOB_PATTERN,
        description="The job's id, as registered.",
        examples=["llm-70b"],
    ),
]
_WINDOW = r"^(latest|[0-9]{1,9}-[0-9]{1,16})$"
_WINDOW_MEANS = "`latest`, or epoch and first step."
WindowId = Annotated[str, Path(pattern=_WINDOW, description=_WINDOW_MEANS, examples=["latest"])]
_RANGE = r"^(latest|[0-9]{1,9}-[0-9]{1,16}(\.\.[0-9]{1,9}-[0-9]{1,16})?)$"
_RANGE_MEANS = f"{_WINDOW_MEANS[:-1]}, or the first and the last of several, as 3-0..3-64."
WindowsId = Annotated[str, Path(pattern=_RANGE, description=_RANGE_MEANS, examples=["latest"])]
ShownWindow = Annotated[str, Query(pattern=_RANGE, description=_RANGE_MEANS)]
ChosenSteps = Annotated[
    str | None,
    Query(
        max_length=1000,
        description="Analyse these steps of a closed window alone, such as 101-110,115.",
        examples=["101-110"],
    ),
]
Cursor = Annotated[
    str | None,
    Query(
        max_length=256,
        pattern=r"^[A-Za-z0-9._~=-]*$",
        description="`next_cursor` of the page before.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=500, description="Most items on a page.")]
EpochNumber = Annotated[int | None, Query(ge=1, le=2**31 - 1)]
StepNumber = Annotated[int | None, Query(ge=0, le=2**53)]
ThemeName = Annotated[Literal["light", "dark"], Query(description="Colours of the page.")]

Label = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=PRINTABLE)]
Text = Annotated[str, StringConstraints(max_length=256, pattern=PRINTABLE)]
SomeText = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=PRINTABLE)]


_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799


def _moment(value: object) -> datetime:
    # Strict models take no text for a time, others take numbers, too.
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        raise ValueError("want a time with its zone, such as 2026-11-21T22:00:00Z")
    moment = datetime.fromisoformat(value)
    # Its zone may put it before the first year or after the last one, which no answer can hold.
    if not _FIRST_S <= moment.timestamp() <= _LAST_S:
        raise ValueError("want a time between the years 1 and 9999 in UTC")
    return moment


Moment = Annotated[datetime, BeforeValidator(_moment)]


class Request(BaseModel):
    """A request's body: unknown keys are refused, and text or true that stands for a number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answer(BaseModel):
    """An answer's body."""

    model_config = ConfigDict(extra="forbid")


def timestamp(unix_s: float) -> datetime:
    """Unix time as the API says it: RFC 3339 in UTC."""
    return datetime.fromtimestamp(unix_s, UTC)


def timestamp_or_none(unix_s: float | None) -> datetime | None:
    """The same for a time that may be unknown."""
    return None if unix_s is None else timestamp(unix_s)
