"""From clock times to windows: which windows hold the steps that started within some time."""

import re
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from app import formatting
from app.api.http.fields import EpochNumber, ResponseModel, parse_moment, timestamp
from app.api.routes.dependencies import JobKey, ServiceDep, refusals
from app.errors import InvalidRequest, NotFound
from app.store import jobs, windows
from app.trace.job import job_of

router = APIRouter(tags=["windows"])

_LAST = re.compile(r"last-([1-9][0-9]{0,4})(m|h|d)", re.ASCII)
_UNIT_S = {"m": 60.0, "h": 3_600.0, "d": 86_400.0}


class NoStepThen(NotFound):
    """No recorded step of the run started within the time."""

    code = "no_step_then"


class TimeRangeOut(ResponseModel):
    """The windows that hold the steps of some time; `from` and `to` are ids."""

    window: str = Field(description="Id of the window, or of the range, for all other requests.")
    from_: str = Field(serialization_alias="from")
    to: str
    epoch: int
    from_at: datetime = Field(description="The beginning of the time, resolved.")
    to_at: datetime = Field(description="The end of the time, resolved.")


@router.get(
    "/jobs/{job_id}/time-range",
    operation_id="get_time_range",
    summary="Get the windows of a range of clock times",
    responses=refusals(404),
)
def get_time_range(
    job_id: JobKey,
    service: ServiceDep,
    begin: Annotated[
        str | None,
        Query(
            alias="from",
            max_length=64,
            description="A time in RFC 3339, or `last-15m`, `last-6h`, `last-2d`: so long before "
            "the newest step; default: the beginning of the run.",
            examples=["2026-11-21T22:00:00Z"],
        ),
    ] = None,
    end: Annotated[
        str | None,
        Query(
            alias="to",
            max_length=64,
            description="A time in RFC 3339; default: the newest step.",
            examples=["2026-11-21T22:15:00Z"],
        ),
    ] = None,
    epoch: EpochNumber = None,
) -> TimeRangeOut:
    """Whole windows: they hold every step that started within the time, and their other steps.

    Refused with 404 `no_step_then` where no recorded step started then, with the times of those
    that did.
    """
    with service.store.read() as conn:
        run = jobs.get(conn, job_id).epoch if epoch is None else epoch
        known = windows.recorded_time(conn, job_id, run)
        if known is None:
            raise NoStepThen(
                f"the times of the steps of job {job_of(job_id)!r} are not known: "
                "choose windows by their steps"
            )
        from_s = _moment_s(begin, "from", known)
        to_s = _moment_s(end, "to", known)
        if from_s > to_s and begin is not None and end is not None:
            raise InvalidRequest("`from` is later than `to`: give the earlier time first")
        found = windows.windows_between(conn, job_id, run, from_s=from_s, to_s=to_s)
    if found is None:
        now_s = service.now_s()
        first, last, *ends = (formatting.utc_time(each, now_s) for each in (from_s, to_s, *known))
        # An end that was not given lies within the run, so all of it is on the other's far side.
        asked = f"between {first} and {last}"
        if from_s > to_s:
            asked = f"before {last}" if begin is None else f"after {first}"
        raise NoStepThen(
            f"no recorded step of job {job_of(job_id)!r} started {asked}: "
            f"choose a time between {' and '.join(ends)}"
        )
    first, last = (f"{run}-{step}" for step in found)
    return TimeRangeOut(
        window=first if first == last else f"{first}..{last}",
        from_=first,
        to=last,
        epoch=run,
        from_at=timestamp(from_s),
        to_at=timestamp(to_s),
    )


def _moment_s(given: str | None, name: str, known: tuple[float, float]) -> float:
    """Unix time of a query's time; one that is missing is that of the run's first or last step."""
    first_s, last_s = known
    if given is None:
        return first_s if name == "from" else last_s
    relative = _LAST.fullmatch(given)
    if relative is not None and name == "from":
        return last_s - int(relative[1]) * _UNIT_S[relative[2]]
    try:
        return parse_moment(given).timestamp()
    except ValueError as error:
        raise InvalidRequest(f"`{name}` is no time: {error}") from error
